"""The table of all routes of pages and API."""

from collections.abc import Callable
from typing import Final

from aiohttp import web

from phpmq_lite.admin.base.route import Handler, Route
from phpmq_lite.admin.monitoring import health
from phpmq_lite.admin.resources import (
    api_reference,
    arrow_export,
    audit,
    backups,
    bulk_jobs,
    claims,
    clients,
    dead_letters,
    definitions,
    docs,
    events,
    exports,
    history,
    imports,
    insights,
    message,
    message_actions,
    overview,
    payload_schemas,
    publish,
    queue,
    queue_actions,
    queues,
    search,
    selections,
    sessions,
    staging,
    stats,
    system,
    tail,
    tokens,
    traces,
    users,
    wait,
)

# Of two routes that fit a path the first answers.
PAGE_ROUTES: Final[tuple[Route, ...]] = (
    *overview.ROUTES,
    *search.SEARCH_FIELD_ROUTES,
    *queues.ROUTES,
    *queues.ACTION_ROUTES,
    *queue.ROUTES,
    *queue_actions.PAGE_ROUTES,
    *selections.PAGE_ROUTES,
    *bulk_jobs.PAGE_ROUTES,
    *publish.ROUTES,
    *payload_schemas.PAGE_ROUTES,
    *message_actions.ROUTES,
    *queue.SETTINGS_ROUTES,
    *message.PAGE_ROUTES,
    *search.ROUTES,
    *dead_letters.PAGE_ROUTES,
    *history.TRASH_ROUTES,
    *traces.PAGE_ROUTES,
    *clients.PAGE_ROUTES,
    *history.PAGE_ROUTES,
    *insights.PAGE_ROUTES,
    *api_reference.ROUTES,
    *audit.PAGE_ROUTES,
    *system.PAGE_ROUTES,
    *backups.PAGE_ROUTES,
    *system.CLOCK_PAGE_ROUTES,
    *clients.CLIENT_PAGE_ROUTES,
    *tail.ROUTES,
    *sessions.LOGIN_ROUTES,
    *sessions.SETUP_ROUTES,
    *users.PAGE_ROUTES,
    *tokens.PAGE_ROUTES,
    *sessions.PAGE_ROUTES,
    *docs.ROUTES,
)


API_ROUTES: Final[tuple[Route, ...]] = (
    *queue_actions.API_ROUTES,
    *stats.ROUTES,
    *message.API_ROUTES,
    *dead_letters.GROUP_ROUTES,
    *dead_letters.API_ROUTES,
    *history.API_ROUTES,
    *traces.API_ROUTES,
    *payload_schemas.API_ROUTES,
    *exports.ROUTES,
    *arrow_export.ROUTES,
    *imports.ROUTES,
    *selections.API_ROUTES,
    *bulk_jobs.API_ROUTES,
    *definitions.ROUTES,
    *audit.API_ROUTES,
    *system.CLOCK_ROUTES,
    *system.SETTINGS_ROUTES,
    *backups.API_ROUTES,
    *clients.API_ROUTES,
    *system.LISTENER_ROUTES,
    *events.ROUTES,
    *wait.ROUTES,
    *users.API_ROUTES,
    *tokens.API_ROUTES,
    *sessions.API_ROUTES,
    *claims.ROUTES,
    *staging.ROUTES,
    *insights.API_ROUTES,
)


ROUTES: Final[tuple[Route, ...]] = (*health.ROUTES, *PAGE_ROUTES, *API_ROUTES)


def route_paths() -> dict[str, str]:
    """Give the path of each route by its name, for building URLs."""
    return {route.name: route.path for route in ROUTES}


def register_routes(app: web.Application, base_path: str, wrap: Callable[[Route], Handler]) -> None:
    """Add all routes below the base path, and at the root too, for a proxy that strips it."""
    for prefix in dict.fromkeys((base_path, "")):
        for route in ROUTES:
            for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
                app.router.add_route(
                    method, prefix + route.path, wrap(route), expect_handler=_invite_later
                )


async def _invite_later(_request: web.Request) -> None:
    """Send no 100 Continue yet: the reader of the body does, once all checks are passed."""
