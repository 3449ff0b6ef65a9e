"""The route table for pages and the API."""

from collections.abc import Callable
from typing import Final

from aiohttp import web

from phpmq_lite.admin.accounts import audit
from phpmq_lite.admin.accounts import routes as accounts
from phpmq_lite.admin.http import openapi
from phpmq_lite.admin.http.route import Handler, Route
from phpmq_lite.admin.messages import routes as messages
from phpmq_lite.admin.pipeline import claims, insights, staging
from phpmq_lite.admin.queues import routes as queues
from phpmq_lite.admin.system import (
    backups,
    clients,
    docs,
    frames,
    health,
    live,
    overview,
    system,
)

# If several routes match a path, the first of them handles the request.
ROUTES: Final[tuple[Route, ...]] = (
    *health.endpoints.routes,
    *overview.endpoints.routes,
    *queues.ROUTES,
    *messages.ROUTES,
    *clients.endpoints.routes,
    *frames.endpoints.routes,
    *insights.endpoints.routes,
    *claims.endpoints.routes,
    *staging.endpoints.routes,
    *live.endpoints.routes,
    *audit.ROUTES,
    *backups.endpoints.routes,
    *system.endpoints.routes,
    *accounts.ROUTES,
    *openapi.ROUTES,
    *docs.endpoints.routes,
)


def route_paths() -> dict[str, str]:
    """Return the routes' paths, keyed by route name, for building URLs."""
    return {route.name: route.path for route in ROUTES}


def form_page(route: Route) -> Route | None:
    """Return the page on which an action is confirmed; an edited message shows itself again."""
    path, names = route.path.removesuffix("/apply"), (f"{route.name}-form", "selection")
    found = (one for one in ROUTES if (one.method, one.path) == ("GET", path))
    return next((one for one in found if one.name in names and route.name != "message-edit"), None)


def register_routes(app: web.Application, base_path: str, wrap: Callable[[Route], Handler]) -> None:
    """Add all routes below the base path, and also at the root for proxies that strip that path."""
    for prefix in dict.fromkeys((base_path, "")):
        for route in ROUTES:
            for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
                app.router.add_route(
                    method, prefix + route.path, wrap(route), expect_handler=_defer_continue
                )


async def _defer_continue(_request: web.Request) -> None:
    """Do not send 100 Continue yet; the code that reads the body does so after all checks."""
