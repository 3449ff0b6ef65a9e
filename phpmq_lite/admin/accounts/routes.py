"""The endpoints of users, tokens and sessions."""

from typing import Final

from phpmq_lite.admin.accounts import sessions, tokens, users

ROUTES: Final = tuple(
    route for part in (users, tokens, sessions) for route in part.endpoints.routes
)
