"""The objects that every handler needs, created once per application."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final, Protocol

import jinja2
from aiohttp import web

from phpmq_lite.admin.actions.bulk_jobs import BulkJobs
from phpmq_lite.admin.actions.selections import SelectionStore
from phpmq_lite.admin.actions.undo import UndoStore
from phpmq_lite.admin.auth.services import AuthServices
from phpmq_lite.admin.auth.sessions import BrowserSessions
from phpmq_lite.admin.base.http_memory import HttpMemory
from phpmq_lite.admin.base.route import Route
from phpmq_lite.admin.base.urls import Urls
from phpmq_lite.admin.connection_limits import ConnectionLimits
from phpmq_lite.admin.insights.summary import SummaryFile
from phpmq_lite.admin.monitoring.live_feeds import LiveFeeds
from phpmq_lite.admin.monitoring.metric_series import HttpCounters, MetricLabels
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
from phpmq_lite.storage.read.read_connections import FairReadSlots, Readers
from phpmq_lite.storage.read.search import Search


class ActionState:
    """Selections, bulk jobs and undo records, none of which survive a restart."""

    __slots__ = ("jobs", "selections", "undos")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.selections = SelectionStore()
        self.jobs = BulkJobs(now_ms)
        self.undos = UndoStore()


def is_match(name: str, globs: Iterable[str]) -> bool:
    """Return whether any glob matches the whole name; case matters."""
    return _is_match(name, tuple(globs))


@lru_cache(maxsize=1 << 16)  # every request checks all queues: 0.2 µs each instead of 2 µs
def _is_match(name: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


UPLOADS: Final = 2  # uploads of Spark rows, up to 64 MiB each, that are handled concurrently

Reply = Callable[[Any], None]


class EngineProtocol(Protocol):
    """The part of the engine that the admin uses: live figures and committed changes."""

    def status(self, is_wanted: Callable[[str], bool] | None = None) -> BrokerStatus:
        """Return the live figures of the queues whose names satisfy ``is_wanted``."""

    def summary(self) -> BrokerStatus:
        """Return the status without the queues, at a cost that does not depend on their number."""

    def queue_slices(self) -> Iterator[list[QueueStatus]]:
        """Yield the figures of the queues, a few hundred at a time."""

    @property
    def run(self) -> RunOperation:
        """Return a function that runs broker operations, provided that changes are accepted now."""

    async def decide_clock(self, entry: AuditEntry, *, is_right: bool) -> None:
        """Confirm or reject a clock that was far ahead when the broker started."""

    async def pause(self) -> None:
        """Yield to the event loop; return between two batches."""

    def tap(self, look: Callable[[Batch], None]) -> Callable[[], None]:
        """Call ``look`` with each stored batch; return a function that cancels this."""

    @property
    def figures(self) -> ConnectionCounters:
        """Return the connection counters and the protocol inspector."""


class TemplateSource(Protocol):
    """A source of compiled page templates."""

    async def get(self, name: str) -> jinja2.Template:
        """Return the compiled template with this name."""


@dataclass(slots=True)
class Context:
    """The parts of one admin application."""

    engine: EngineProtocol
    readers: Readers  # connections for reading the database
    reader: MessageReader
    search: Search  # uses a separate connection
    settings: Settings
    sources: Mapping[str, str]  # source of each setting's value
    urls: Urls
    routes: tuple[Route, ...]
    templates: TemplateSource
    version: str
    is_ready: Callable[[], bool]
    now_ms: Callable[[], int]  # Unix ms
    auth: AuthServices  # accounts, passwords, login limits and the setup token
    sessions: BrowserSessions = field(default_factory=BrowserSessions)
    rollups: Rollups = field(default_factory=Rollups)  # the last hour of all queues
    maintenance: Maintenance | None = None  # backups and scrubs; None until the broker serves
    schemas: ActiveSchemas = field(default_factory=lambda: ActiveSchemas(None))  # keyed by URN
    connection_limits: ConnectionLimits = field(init=False)  # connections to the admin
    live: LiveFeeds = field(default_factory=LiveFeeds)  # streams and waiting requests
    http: HttpCounters = field(default_factory=HttpCounters)
    labels: MetricLabels = field(default_factory=MetricLabels)  # label values of the metrics
    uploads: FairReadSlots = field(default_factory=lambda: FairReadSlots(UPLOADS))
    summaries: SummaryFile = field(init=False)  # results of the pipeline's jobs
    exports: ExportProcesses = field(init=False)  # Arrow exports, in separate processes
    memory: HttpMemory = field(init=False)  # memory budget for large requests and responses
    docs: Documentation = field(init=False)  # pages at /docs/
    actions: ActionState = field(init=False)  # selections, bulk jobs and undo records

    def __post_init__(self) -> None:
        """Create the parts that need the clock or the data folder."""
        self.connection_limits = ConnectionLimits.of(self.settings)
        self.memory = HttpMemory(int(self.settings.limits.http_memory))
        self.actions = ActionState(self.now_ms)
        self.docs = Documentation(docs_folder(), self.urls.docs)
        self.summaries = SummaryFile(self.settings.data)
        self.exports = ExportProcesses(
            self.readers.path, passed=lambda: self.engine.figures.bytes_in
        )


CONTEXT: Final = web.AppKey("context", Context)
QUEUES: Final = web.RequestKey[tuple[str, ...]]("queues", tuple)  # the caller's globs; empty: all
_STATUS: Final = web.RequestKey("status", BrokerStatus)


def context_of(request: web.Request) -> Context:
    """Return the context of the application that received the request."""
    return request.app[CONTEXT]


def status_of(request: web.Request) -> BrokerStatus:
    """Return the live figures, read once per request because it costs O(queues).

    A caller limited to some queues sees only those, including in each client's subscriptions.
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
    """Drop the figures cached by ``status_of``; needed by streams, which are one long request."""
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
