"""The roles, from the fewest rights to the most, and which of them users and tokens can have."""

from enum import StrEnum
from typing import Final, Literal, get_args


class Role(StrEnum):
    """A role that a route can require; each role includes the permissions of the roles above it."""

    PUBLIC = "public"  # no login required, as for health checks and the login page
    METRICS = "metrics"  # only for tokens; permits nothing but reading /metrics
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def may(self, needed: "Role") -> bool:
        """Return whether a caller with this role can use a route that requires ``needed``."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


RoleName = Literal["viewer", "operator", "admin"]
TokenRoleName = Literal["metrics", "viewer", "operator", "admin"]
ROLES: Final[tuple[str, ...]] = get_args(RoleName)
TOKEN_ROLES: Final[tuple[str, ...]] = get_args(TokenRoleName)
