"""A route, with its method, path, role, audit name, models and handler."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel

from phpmq_lite.roles import Role

BODY_BYTES: Final = 1 << 20  # default maximum size of a request body
LOGIN_BYTES: Final = 16 << 10  # maximum size of a request body if no login is required
VALUES: Final = 10_000  # default maximum number of JSON values in a request body
JSON_LINES: Final = "application/x-ndjson"  # HTML forms cannot send this content type

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True, frozen=True)
class Route:
    """A method and a path; ``name`` is unique, ``audit`` is the action in the audit log.

    Routing, roles, audit, OpenAPI and their tests are derived from routes.  The ``summary`` in
    OpenAPI is the first line of the handler's docstring.
    """

    method: str  # "GET" also permits HEAD
    path: str  # {q} stands for a queue name, {id} for a message id
    role: Role
    name: str
    handler: Handler
    audit: str | None = None  # action in the audit log, such as "queue.purge"
    query: type[BaseModel] | None = None  # API: model of the query string
    takes: Any = None  # API: model of the JSON request body, or list[Model]
    gives: Any = None  # API: model of the response
    media: str = "application/json"  # API: request content type; if not JSON, takes is bytes
    takes_lines: bool = False  # API: whether JSON lines are accepted as well
    takes_key: bool = False  # API: whether it has the header Idempotency-Key
    gives_media: str = "application/json"  # API: response content type; if not JSON, gives is bytes
    status: int = 200  # API: HTTP status of a successful response
    others: Mapping[int, str] = field(default_factory=dict)  # API: other such statuses, and when
    cli: str | None = None  # CLI command that uses this route, such as "queue purge"
    is_early: bool = False  # whether the route works before the broker is ready
    body: int = BODY_BYTES  # maximum size of the request body; LOGIN_BYTES for public routes
    has_content: bool = False  # whether the body can also contain a message in base64
    values: int = VALUES  # maximum number of JSON values in the request body
    form_page: str = ""  # name of the page that shows a refused form with what was typed

    @property
    def is_api(self) -> bool:
        return self.path.startswith("/api/")

    @property
    def all_media(self) -> tuple[str, ...]:
        return (self.media, JSON_LINES) if self.takes_lines else (self.media,)

    def body_limit(self, max_content: int) -> int:
        """Return the maximum body size; ``max_content`` is the setting of that name."""
        if self.role is Role.PUBLIC:
            return LOGIN_BYTES
        return self.body + (max_content * 4 // 3 if self.has_content else 0)

    @property
    def is_writing(self) -> bool:
        """Return whether the route can change anything; if so, it has an audit name."""
        return self.method not in ("GET", "HEAD")


ROUTE: Final = web.RequestKey("route", Route)


REQUEST_ID: Final = web.RequestKey("request_id", str)
ROUTE_NAME: Final = web.RequestKey("route_name", str)
