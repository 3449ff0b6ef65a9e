"""The route table for pages and the API."""

from collections.abc import Callable
from typing import Final

from aiohttp import web

from phpmq_lite.admin.accounts import audit, sessions, tokens, users
from phpmq_lite.admin.http import openapi
from phpmq_lite.admin.http.route import Handler, Route
from phpmq_lite.admin.messages import actions as message_actions
from phpmq_lite.admin.messages import (
    arrow_export,
    bulk,
    exports,
    history,
    imports,
    listing,
    message,
    publish,
    schemas,
    search,
    selections,
    tail,
    traces,
    wait,
)
from phpmq_lite.admin.pipeline import claims, erase, history_readers, insights, staging
from phpmq_lite.admin.queues import actions as queue_actions
from phpmq_lite.admin.queues import dead_letters, definitions, queue, schedules
from phpmq_lite.admin.queues import list as queue_list
from phpmq_lite.admin.system import (
    backups,
    clients,
    docs,
    frames,
    health,
    labels,
    live,
    metrics,
    overview,
    system,
)

# If several routes match a path, the first of them handles the request.
_MODULES: Final = (
    health,
    metrics,
    overview,
    queue_list,
    queue,
    queue_actions,
    dead_letters,
    definitions,
    schedules,
    search,
    listing,
    message,
    message_actions,
    selections,
    bulk,
    publish,
    history,
    traces,
    schemas,
    arrow_export,
    history_readers,
    exports,
    imports,
    wait,
    tail,
    clients,
    labels,
    frames,
    insights,
    claims,
    erase,
    staging,
    live,
    audit,
    backups,
    system,
    users,
    tokens,
    sessions,
    openapi,
    docs,
)
ROUTES: Final[tuple[Route, ...]] = tuple(
    route for module in _MODULES for route in module.endpoints.routes
)


def route_paths() -> dict[str, str]:
    """Return the routes' paths, keyed by route name, for building URLs."""
    return {route.name: route.path for route in ROUTES}


def register_routes(
    app: web.Application, base_path: str, wrap: Callable[[Route], Handler], static: Handler
) -> None:
    """Add all routes below the base path, and also at the root for proxies that strip that path."""
    for prefix in dict.fromkeys((base_path, "")):
        for route in ROUTES:
            path = prefix + route.path.replace("}", ":[^/]+}")  # by default, without braces
            for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
                app.router.add_route(method, path, wrap(route), expect_handler=_defer_continue)
        app.router.add_get(prefix + "/static/{version}/{name}", static)


async def _defer_continue(_request: web.Request) -> None:
    """Do not send 100 Continue yet; the code that reads the body does so after all checks."""
