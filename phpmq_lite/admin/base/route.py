"""One route: method, path, role, audit name, models and handler."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel

BODY_BYTES: Final = 1 << 20  # of a request
LOGIN_BYTES: Final = 16 << 10  # of one that needs no login
VALUES: Final = 10_000  # JSON values in the body of a request
JSON_LINES: Final = "application/x-ndjson"  # no form of another site's page can send it

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Role(StrEnum):
    """Who may use a route; each may what those before it may (``docs/guides/admin.md``)."""

    PUBLIC = "public"  # health and login: needs no login ever
    METRICS = "metrics"  # of tokens only: /metrics and nothing else
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def may(self, needed: "Role") -> bool:
        """Tell whether this role may use a route that needs another."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


@dataclass(slots=True, frozen=True)
class Route:
    """One method of one path; ``name`` is unique, ``audit`` names a change.

    Routing, roles, audit, OpenAPI and the tests of all of them are made from it.  ``summary`` of
    the documents is the first line of the handler's docstring.
    """

    method: str  # GET answers HEAD too
    path: str  # {q}: a queue, {id}: a message; other names: as they are
    role: Role
    name: str
    handler: Handler
    audit: str | None = None  # of a change, or of a look that is noted: "queue.purge"
    query: type[BaseModel] | None = None  # API: the model of its query string
    takes: Any = None  # API: the model of its JSON body; a list of it where it is list[Model]
    gives: Any = None  # API: the model of its answer
    media: str = "application/json"  # API: content type of the body; else takes is bytes
    takes_lines: bool = False  # API: JSON lines instead of that are taken too
    gives_media: str = "application/json"  # API: of the answer; else gives is bytes
    status: int = 200  # API: of its answer
    cli: str | None = None  # the command that uses it: "queue purge"
    is_early: bool = False  # answers before the broker is ready
    body: int = BODY_BYTES  # bytes that its body may have; if public, LOGIN_BYTES
    has_content: bool = False  # of messages: that many bytes more, as base64
    values: int = VALUES  # JSON values that its body may have

    @property
    def is_api(self) -> bool:
        """Tell whether it speaks JSON only."""
        return self.path.startswith("/api/")

    @property
    def all_media(self) -> tuple[str, ...]:
        """Give the content types that its body may have."""
        return (self.media, JSON_LINES) if self.takes_lines else (self.media,)

    def body_limit(self, max_content: int) -> int:
        """Return how many bytes its body may have; ``max_content`` is the setting."""
        if self.role is Role.PUBLIC:
            return LOGIN_BYTES
        return self.body + (max_content * 4 // 3 if self.has_content else 0)

    @property
    def is_writing(self) -> bool:
        """Tell whether it may change anything; then it has an audit name."""
        return self.method not in ("GET", "HEAD")


ROUTE: Final = web.RequestKey("route", Route)


REQUEST_ID: Final = web.RequestKey("request_id", str)
ROUTE_NAME: Final = web.RequestKey("route_name", str)
