"""One route: method, path, role, audit name, models and handler."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel

BODY_BYTES: Final = 1 << 20  # of a request
LOGIN_BYTES: Final = 16 << 10  # of a request without a login
VALUES: Final = 10_000  # JSON values in the body of a request
JSON_LINES: Final = "application/x-ndjson"  # a form of another site cannot send it

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Role(StrEnum):
    """Who may use a route; each role includes those before it (``docs/guides/admin.md``)."""

    PUBLIC = "public"  # health and login: never needs a login
    METRICS = "metrics"  # of tokens only: /metrics and nothing else
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def may(self, needed: "Role") -> bool:
        """Return whether this role may use a route that requires another."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


@dataclass(slots=True, frozen=True)
class Route:
    """A method and a path; ``name`` is unique, ``audit`` names the change.

    Routing, roles, audit, OpenAPI and their tests are derived from it.  The ``summary`` in
    OpenAPI is the first line of the handler's docstring.
    """

    method: str  # GET answers HEAD too
    path: str  # {q}: a queue, {id}: a message; other names: as they are
    role: Role
    name: str
    handler: Handler
    audit: str | None = None  # of a change, or of a read that is audited: "queue.purge"
    query: type[BaseModel] | None = None  # API: the model of its query string
    takes: Any = None  # API: the model of its JSON body, or list[Model]
    gives: Any = None  # API: the model of its response
    media: str = "application/json"  # API: content type of the body; else takes is bytes
    takes_lines: bool = False  # API: also accepts JSON lines
    gives_media: str = "application/json"  # API: of the response; else gives is bytes
    status: int = 200  # API: of its response
    cli: str | None = None  # the command that uses it: "queue purge"
    is_early: bool = False  # answers before the broker is ready
    body: int = BODY_BYTES  # maximum size of its body; if public, LOGIN_BYTES
    has_content: bool = False  # allows a message of limits.max_content as base64 on top
    values: int = VALUES  # maximum number of JSON values in its body

    @property
    def is_api(self) -> bool:
        """Return whether it only uses JSON."""
        return self.path.startswith("/api/")

    @property
    def all_media(self) -> tuple[str, ...]:
        """Return the accepted content types of its body."""
        return (self.media, JSON_LINES) if self.takes_lines else (self.media,)

    def body_limit(self, max_content: int) -> int:
        """Return the maximum size of its body; ``max_content`` is the setting."""
        if self.role is Role.PUBLIC:
            return LOGIN_BYTES
        return self.body + (max_content * 4 // 3 if self.has_content else 0)

    @property
    def is_writing(self) -> bool:
        """Return whether it may change something; then it has an audit name."""
        return self.method not in ("GET", "HEAD")


ROUTE: Final = web.RequestKey("route", Route)


REQUEST_ID: Final = web.RequestKey("request_id", str)
ROUTE_NAME: Final = web.RequestKey("route_name", str)
