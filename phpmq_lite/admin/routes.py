"""The one table of routes: who may, under which name it is audited, and what answers.

Routing, security and URLs are made from it; a route without a role cannot be written down.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from aiohttp import web

from phpmq_lite.admin import api, forms, health, pages

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Role(StrEnum):
    """Who may use a route; each may what those before it may (``admin.md`` 3)."""

    PUBLIC = "public"  # health: needs no login ever
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


@dataclass(slots=True, frozen=True)
class Route:
    """One method of one path; ``name`` is unique, ``audit`` names a change."""

    method: str  # GET answers HEAD too
    path: str  # {q}: a queue, {id}: a message
    role: Role
    name: str
    handler: Handler
    audit: str | None = None

    @property
    def is_api(self) -> bool:
        """Tell whether it speaks JSON only."""
        return self.path.startswith("/api/")

    @property
    def is_writing(self) -> bool:
        """Tell whether it changes anything; then it has an audit name."""
        return self.method not in ("GET", "HEAD")

    @property
    def is_early(self) -> bool:
        """Tell whether it answers before the broker is ready."""
        return self.role is Role.PUBLIC


PUBLIC, VIEWER, OPERATOR = Role.PUBLIC, Role.VIEWER, Role.OPERATOR

ROUTES: Final = (
    Route("GET", "/livez", PUBLIC, "livez", health.live),
    Route("GET", "/readyz", PUBLIC, "readyz", health.ready),
    Route("GET", "/startupz", PUBLIC, "startupz", health.started),
    Route("GET", "/metrics", VIEWER, "metrics", health.metrics),
    Route("GET", "/", VIEWER, "overview", pages.overview),
    Route("GET", "/search", VIEWER, "search", pages.search),
    Route("GET", "/queues", VIEWER, "queues", pages.queues),
    Route("GET", "/queues/{q}", VIEWER, "queue", pages.queue),
    Route("POST", "/queues/{q}/pause", OPERATOR, "queue-pause", forms.pause, "queue.pause"),
    Route("POST", "/queues/{q}/resume", OPERATOR, "queue-resume", forms.resume, "queue.resume"),
    Route("POST", "/queues/{q}/purge", OPERATOR, "queue-purge", forms.purge, "queue.purge"),
    Route("POST", "/queues/{q}/redrive", OPERATOR, "queue-redrive", forms.redrive, "dead.redrive"),
    Route("POST", "/test-message", OPERATOR, "test-message", forms.send_test, "message.publish"),
    Route("GET", "/messages/{id}", VIEWER, "message", pages.message),
    Route("GET", "/messages/{id}/body", VIEWER, "body", api.download),
    Route("GET", "/dead", VIEWER, "dead", pages.dead),
    Route("GET", "/clients", VIEWER, "clients", pages.clients),
    Route("GET", "/history", VIEWER, "history", pages.history),
    Route("GET", "/api/v1/queues", VIEWER, "api-queues", api.queues),
    Route("GET", "/api/v1/queues/{q}", VIEWER, "api-queue", api.queue),
    Route("POST", "/api/v1/queues/{q}/purge", OPERATOR, "api-purge", api.purge, "queue.purge"),
    Route("POST", "/api/v1/queues/{q}/pause", OPERATOR, "api-pause", api.pause, "queue.pause"),
    Route("POST", "/api/v1/queues/{q}/resume", OPERATOR, "api-resume", api.resume, "queue.resume"),
    Route("GET", "/api/v1/queues/{q}/messages", VIEWER, "api-messages", api.messages),
    Route(
        "POST", "/api/v1/queues/{q}/messages", OPERATOR, "api-publish", api.publish,
        "message.publish",
    ),
    Route("GET", "/api/v1/messages/{id}", VIEWER, "api-message", api.message),
    Route("GET", "/api/v1/messages/{id}/body", VIEWER, "api-body", api.body),
    Route("GET", "/api/v1/messages/{id}/events", VIEWER, "api-events", api.events),
    Route("GET", "/api/v1/dead", VIEWER, "api-dead", api.dead),
    Route(
        "POST", "/api/v1/dead/{q}/redrive", OPERATOR, "api-redrive", api.redrive, "dead.redrive"
    ),
)  # fmt: skip


def paths() -> dict[str, str]:
    """Give the path of each route by its name, for building URLs."""
    return {route.name: route.path for route in ROUTES}


def register(app: web.Application, base_path: str, wrap: Callable[[Route], Handler]) -> None:
    """Add all routes below the base path, and at the root too, for a proxy that strips it."""
    for prefix in dict.fromkeys((base_path, "")):
        for route in ROUTES:
            app.router.add_route(route.method, prefix + route.path, wrap(route))
            if route.method == "GET":
                app.router.add_route("HEAD", prefix + route.path, wrap(route))
