"""The routes of the HTTP API, resource by resource."""

from typing import Final

from phpmq_lite.admin.api import (
    audit,
    bulk,
    clients,
    config,
    dead,
    dead_groups,
    definitions,
    exports,
    history,
    imports,
    live,
    message_actions,
    message_list,
    payload_schemas,
    queues,
    selections,
    sessions,
    stats,
    tokens,
    traces,
    users,
    wait,
)
from phpmq_lite.admin.route import Route

ROUTES: Final[tuple[Route, ...]] = (
    *queues.ROUTES,
    *stats.ROUTES,
    *message_list.ROUTES,
    *message_actions.ROUTES,
    *dead_groups.ROUTES,
    *dead.ROUTES,
    *history.ROUTES,
    *traces.ROUTES,
    *payload_schemas.ROUTES,
    *exports.ROUTES,
    *imports.ROUTES,
    *selections.ROUTES,
    *bulk.ROUTES,
    *definitions.ROUTES,
    *audit.ROUTES,
    *config.ROUTES,
    *clients.ROUTES,
    *live.ROUTES,
    *wait.ROUTES,
    *users.ROUTES,
    *tokens.ROUTES,
    *sessions.ROUTES,
)
