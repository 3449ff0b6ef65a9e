"""One route: method, path, role, audit name, models and handler."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel

BODY_BYTES: Final = 1 << 20  # default maximum size of a request body
LOGIN_BYTES: Final = 16 << 10  # maximum size of a request body before login
VALUES: Final = 10_000  # default maximum number of JSON values in a request body
JSON_LINES: Final = "application/x-ndjson"  # forms on other sites cannot send this content type

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Role(StrEnum):
    """The role that a route requires; each role includes all roles before it."""

    PUBLIC = "public"  # for health checks and the login page, which never require a login
    METRICS = "metrics"  # for tokens only; may read /metrics and nothing else
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def may(self, needed: "Role") -> bool:
        """Return whether this role may use a route that requires the role ``needed``."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


@dataclass(slots=True, frozen=True)
class Route:
    """A method and a path; ``name`` is unique, ``audit`` is the action in the audit log.

    Routing, roles, audit, OpenAPI and their tests are derived from routes.  The ``summary`` in
    OpenAPI is the first line of the handler's docstring.
    """

    method: str  # a GET route also answers HEAD
    path: str  # {q} is a queue, {id} a message; other placeholders are self-explanatory
    role: Role
    name: str
    handler: Handler
    audit: str | None = None  # action in the audit log, such as "queue.purge"; some reads have one
    query: type[BaseModel] | None = None  # API: model of the query string
    takes: Any = None  # API: model of the JSON request body, or list[Model]
    gives: Any = None  # API: model of the response
    media: str = "application/json"  # API: request content type; if not JSON, takes is bytes
    takes_lines: bool = False  # API: also accepts JSON lines
    gives_media: str = "application/json"  # API: response content type; if not JSON, gives is bytes
    status: int = 200  # API: status of the response
    cli: str | None = None  # CLI command that uses this route, such as "queue purge"
    is_early: bool = False  # True if the route answers before the broker is ready
    body: int = BODY_BYTES  # maximum size of the body; public routes use LOGIN_BYTES
    has_content: bool = False  # allows an additional message of limits.max_content as base64
    values: int = VALUES  # maximum number of JSON values in the body

    @property
    def is_api(self) -> bool:
        """Return whether this is a route of the JSON API."""
        return self.path.startswith("/api/")

    @property
    def all_media(self) -> tuple[str, ...]:
        """Return the content types accepted for the body."""
        return (self.media, JSON_LINES) if self.takes_lines else (self.media,)

    def body_limit(self, max_content: int) -> int:
        """Return the maximum body size; ``max_content`` is the setting of that name."""
        if self.role is Role.PUBLIC:
            return LOGIN_BYTES
        return self.body + (max_content * 4 // 3 if self.has_content else 0)

    @property
    def is_writing(self) -> bool:
        """Return whether the route may change something; such routes have an audit name."""
        return self.method not in ("GET", "HEAD")


ROUTE: Final = web.RequestKey("route", Route)


REQUEST_ID: Final = web.RequestKey("request_id", str)
ROUTE_NAME: Final = web.RequestKey("route_name", str)
