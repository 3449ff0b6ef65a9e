"""The HTTP API ``/api/v1``, one module per resource: JSON in, JSON out, problem+json."""

from typing import Final

from phpmq_lite.admin.api import dead, messages, queues
from phpmq_lite.admin.route import Route

ROUTES: Final[tuple[Route, ...]] = (
    *queues.ROUTES,
    *messages.ROUTES,
    *dead.ROUTES,
)
