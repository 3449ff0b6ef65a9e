"""The endpoints of queues."""

from typing import Final

from phpmq_lite.admin.queues import actions, dead_letters, definitions, list, queue, stats

ROUTES: Final = tuple(
    route
    for part in (list, queue, actions, dead_letters, definitions, stats)
    for route in part.endpoints.routes
)
