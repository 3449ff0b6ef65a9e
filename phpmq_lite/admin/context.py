"""What every handler needs, made once per application."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import jinja2
from aiohttp import web

from phpmq_lite.admin.access.sessions import Sessions
from phpmq_lite.admin.trends import Trends
from phpmq_lite.admin.urls import Urls
from phpmq_lite.broker.core import Broker
from phpmq_lite.server.status import Status
from phpmq_lite.settings import Settings
from phpmq_lite.storage.browse import Browser
from phpmq_lite.storage.readers import Readers

Answer = Callable[[Any], None]


class Engine(Protocol):
    """What the admin asks of the engine: figures at once, changes after their commit."""

    def status(self) -> Status:
        """Give the live figures."""

    def call(self, command: Callable[[Broker, Answer], None]) -> Awaitable[Any]:
        """Run a command in the next batch; its answer comes after the commit."""


@dataclass(slots=True)
class Context:
    """The parts of one admin application."""

    engine: Engine
    readers: Readers  # for the modules of storage that read
    reader: Browser
    settings: Settings
    sources: Mapping[str, str]  # where each setting comes from
    urls: Urls
    templates: jinja2.Environment
    version: str
    is_ready: Callable[[], bool]
    now_ms: Callable[[], int]  # Unix ms
    sessions: Sessions = field(default_factory=Sessions)
    trends: Trends = field(default_factory=Trends)
    requests: Counter[tuple[str, str, int]] = field(
        default_factory=Counter
    )  # route, method, status


CONTEXT: Final = web.AppKey("context", Context)
_STATUS: Final = web.RequestKey("status", Status)


def context_of(request: web.Request) -> Context:
    """Give the context of the application that a request came to."""
    return request.app[CONTEXT]


def status_of(request: web.Request) -> Status:
    """Give the live figures: one reading per request, for it costs O(queues)."""
    if _STATUS not in request:
        request[_STATUS] = context_of(request).engine.status()
    return request[_STATUS]
