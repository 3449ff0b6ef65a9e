"""The endpoints of messages."""

from typing import Final

from phpmq_lite.admin.messages import actions, bulk, listing, message, selections

ROUTES: Final = tuple(
    route
    for part in (listing, message, actions, selections, bulk)
    for route in part.endpoints.routes
)
