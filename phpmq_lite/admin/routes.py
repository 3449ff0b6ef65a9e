"""The one table of routes, put together from the modules that answer them.

Routing, security, audit, OpenAPI and URLs are made from it; a route without a role cannot be
written down.
"""

from collections.abc import Callable
from typing import Final

from aiohttp import web

from phpmq_lite.admin import health
from phpmq_lite.admin.api.routes import ROUTES as API
from phpmq_lite.admin.pages.routes import ROUTES as PAGES
from phpmq_lite.admin.route import Handler, Route

ROUTES: Final[tuple[Route, ...]] = (*health.ROUTES, *PAGES, *API)


def paths() -> dict[str, str]:
    """Give the path of each route by its name, for building URLs."""
    return {route.name: route.path for route in ROUTES}


def register(app: web.Application, base_path: str, wrap: Callable[[Route], Handler]) -> None:
    """Add all routes below the base path, and at the root too, for a proxy that strips it."""
    for prefix in dict.fromkeys((base_path, "")):
        for route in ROUTES:
            for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
                app.router.add_route(
                    method, prefix + route.path, wrap(route), expect_handler=_invite_later
                )


async def _invite_later(_request: web.Request) -> None:
    """Send no 100 Continue yet: the reader of the body does, once all checks are passed."""
