"""The endpoints of queues."""

from typing import Final

from phpmq_lite.admin.queues import actions, list, queue

ROUTES: Final = tuple(route for part in (list, queue, actions) for route in part.endpoints.routes)
