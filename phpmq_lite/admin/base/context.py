"""What every handler needs, created once per application."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final, Protocol

import jinja2
from aiohttp import web

from phpmq_lite.admin.actions.state import ActionState
from phpmq_lite.admin.auth.services import AuthServices
from phpmq_lite.admin.auth.sessions import BrowserSessions
from phpmq_lite.admin.base.http_memory import HttpMemory
from phpmq_lite.admin.base.route import Route
from phpmq_lite.admin.base.urls import Urls
from phpmq_lite.admin.connection_limits import ConnectionLimits
from phpmq_lite.admin.insights.summary import SummaryFile
from phpmq_lite.admin.monitoring.http_counters import HttpCounters
from phpmq_lite.admin.monitoring.live_feeds import LiveFeeds
from phpmq_lite.admin.monitoring.metric_labels import MetricLabels
from phpmq_lite.admin.views.documentation import Documentation
from phpmq_lite.envelopes.schema_registry import ActiveSchemas
from phpmq_lite.export.exports import ExportProcesses
from phpmq_lite.installation import docs_folder
from phpmq_lite.model import AuditEntry, Batch
from phpmq_lite.server.counters import ConnectionCounters
from phpmq_lite.server.maintenance import Maintenance
from phpmq_lite.server.rollups import Rollups
from phpmq_lite.server.status import BrokerStatus, QueueStatus, RunOperation
from phpmq_lite.settings import Settings
from phpmq_lite.storage.read.messages import MessageReader
from phpmq_lite.storage.read.readers import FairSlots, Readers
from phpmq_lite.storage.read.search import Search


def is_match(name: str, globs: Iterable[str]) -> bool:
    """Tell whether one of the globs fits the whole name; case counts."""
    return _is_match(name, tuple(globs))


@lru_cache(maxsize=1 << 16)  # a request looks at all queues: 0.2 instead of 2 µs for each
def _is_match(name: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


UPLOADS: Final = 2  # of rows of Spark, up to 64 MiB each, checked and stored at once

Reply = Callable[[Any], None]


class EngineProtocol(Protocol):
    """What the admin asks of the engine: figures at once, changes after their commit."""

    def status(self, is_wanted: Callable[[str], bool] | None = None) -> BrokerStatus:
        """Return the live figures of the queues whose names are wanted."""

    def summary(self) -> BrokerStatus:
        """Give the same without the queues: cheap however many there are."""

    def queue_slices(self) -> Iterator[list[QueueStatus]]:
        """Give the figures of the queues, some hundred at a time."""

    @property
    def run(self) -> RunOperation:
        """Return what runs an operation of the broker, if it accepts changes now."""

    async def decide_clock(self, entry: AuditEntry, *, is_right: bool) -> None:
        """Settle whether a clock that was far ahead at a start is right."""

    async def pause(self) -> None:
        """Leave the loop to others; comes back between two batches."""

    def tap(self, look: Callable[[Batch], None]) -> Callable[[], None]:
        """Have ``look`` called with each batch that was stored; returns what ends it."""

    @property
    def figures(self) -> ConnectionCounters:
        """Give the counts of what happens around the core, and the protocol inspector."""


class TemplateSource(Protocol):
    """What pages are made of."""

    async def get(self, name: str) -> jinja2.Template:
        """Give a template, ready to use."""


@dataclass(slots=True)
class Context:
    """The parts of one admin application."""

    engine: EngineProtocol
    readers: Readers  # for the modules of storage that read
    reader: MessageReader
    search: Search  # on a connection of its own
    settings: Settings
    sources: Mapping[str, str]  # where each setting comes from
    urls: Urls
    routes: tuple[Route, ...]
    templates: TemplateSource
    version: str
    is_ready: Callable[[], bool]
    now_ms: Callable[[], int]  # Unix ms
    entrance: AuthServices  # accounts, passwords, tries, the set-up token
    sessions: BrowserSessions = field(default_factory=BrowserSessions)
    rollups: Rollups = field(default_factory=Rollups)  # the last hour of all queues
    care: Maintenance | None = None  # backups and scrub, once it serves
    schemas: ActiveSchemas = field(
        default_factory=lambda: ActiveSchemas(None)
    )  # of payloads, by URN
    doors: ConnectionLimits = field(init=False)  # connections to the admin
    live: LiveFeeds = field(default_factory=LiveFeeds)  # streams, and who waits
    http: HttpCounters = field(default_factory=HttpCounters)
    labels: MetricLabels = field(default_factory=MetricLabels)  # of the metrics
    requests: Counter[tuple[str, str, int]] = field(
        default_factory=Counter
    )  # route, method, status
    uploads: FairSlots = field(default_factory=lambda: FairSlots(UPLOADS))
    summaries: SummaryFile = field(init=False)  # what the pipeline's jobs found out
    exports: ExportProcesses = field(init=False)  # to Arrow, in processes of their own
    memory: HttpMemory = field(init=False)  # of large requests and answers
    docs: Documentation = field(init=False)  # pages at /docs/
    acting: ActionState = field(init=False)  # selections, bulk work, what can be taken back

    def __post_init__(self) -> None:
        """Make what needs the clock or the data folder."""
        self.doors = ConnectionLimits.of(self.settings)
        self.memory = HttpMemory(int(self.settings.limits.http_memory))
        self.acting = ActionState(self.now_ms)
        self.docs = Documentation(docs_folder(), self.urls.docs)
        self.summaries = SummaryFile(self.settings.data)
        self.exports = ExportProcesses(
            self.readers.path, passed=lambda: self.engine.figures.bytes_in
        )


CONTEXT: Final = web.AppKey("context", Context)
QUEUES: Final = web.RequestKey[tuple[str, ...]]("queues", tuple)  # globs of whom asks; empty: all
_STATUS: Final = web.RequestKey("status", BrokerStatus)


def context_of(request: web.Request) -> Context:
    """Give the context of the application that a request came to."""
    return request.app[CONTEXT]


def status_of(request: web.Request) -> BrokerStatus:
    """Give the live figures: one reading per request, for it costs O(queues).

    Whoever is limited to some queues sees those only, also in what clients consume.
    """
    if _STATUS not in request:
        engine, globs = context_of(request).engine, request.get(QUEUES, ())
        if globs:
            status = engine.status(lambda name: is_match(name, globs))
            request[_STATUS] = _only(status, globs)
        else:
            request[_STATUS] = engine.status()
    return request[_STATUS]


def forget_status(request: web.Request) -> None:
    """Have ``status_of`` read anew; for streams, which are one long request."""
    if _STATUS in request:
        del request[_STATUS]


def _only(status: BrokerStatus, globs: tuple[str, ...]) -> BrokerStatus:
    clients = (
        replace(
            client,
            queues={name: of for name, of in client.queues.items() if is_match(name, globs)},
        )
        for client in status.clients
    )
    return replace(status, clients=tuple(clients))
