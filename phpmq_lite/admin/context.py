"""The objects that every handler needs, created once per application."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol

import jinja2
from aiohttp import web

from phpmq_lite.admin.accounts.services import AuthServices
from phpmq_lite.admin.http.browser_sessions import BrowserSessions
from phpmq_lite.admin.http.live_feeds import LiveFeeds
from phpmq_lite.admin.http.memory import HttpMemory
from phpmq_lite.admin.http.route import Route
from phpmq_lite.admin.messages.jobs import BulkJobs
from phpmq_lite.admin.messages.selection_store import SelectionStore
from phpmq_lite.admin.messages.undo import UndoStore
from phpmq_lite.admin.pipeline.summary import SummaryFile
from phpmq_lite.admin.slow_clients import ConnectionLimits
from phpmq_lite.admin.system.series import HttpCounters, MetricLabels
from phpmq_lite.admin.urls import Urls
from phpmq_lite.documentation import Documentation
from phpmq_lite.envelopes.schema_registry import ActiveSchemas
from phpmq_lite.export.exports import ExportProcesses
from phpmq_lite.installation import docs_folder
from phpmq_lite.model import AuditEntry, Batch
from phpmq_lite.server.counters import ConnectionCounters
from phpmq_lite.server.maintenance import Maintenance
from phpmq_lite.server.rollups import Rollups
from phpmq_lite.server.status import BrokerStatus, QueueStatus, RunOperation
from phpmq_lite.settings import Settings
from phpmq_lite.storage.data_folder import DATABASE
from phpmq_lite.storage.read.messages import MessageReader
from phpmq_lite.storage.read.read_pool import FairReadSlots, Readers
from phpmq_lite.storage.search.reader import Search


class ActionState:
    """Selections, bulk jobs and undo records, none of which survive a restart."""

    __slots__ = ("jobs", "selections", "undos")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.selections = SelectionStore()
        self.jobs = BulkJobs(now_ms)
        self.undos = UndoStore()


def is_match(name: str, globs: Iterable[str]) -> bool:
    """Return whether a glob matches the whole name; the comparison is case-sensitive."""
    return _is_match(name, tuple(globs))


@lru_cache(maxsize=1 << 16)  # saves 1.8 µs for each queue, and every request checks all queues
def _is_match(name: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


UPLOADS: Final = 2  # maximum number of concurrent uploads of Spark rows, up to 64 MiB each

Reply = Callable[[Any], None]


class EngineProtocol(Protocol):
    """The part of the engine that the admin interface uses to read statistics and make changes."""

    def status(self, is_wanted: Callable[[str], bool] | None = None) -> BrokerStatus:
        """Return the live statistics, including only queues whose names satisfy ``is_wanted``."""

    def summary(self) -> BrokerStatus:
        """Return the status without queues; the time needed does not depend on their number."""

    def queue_slices(self) -> Iterator[list[QueueStatus]]:
        """Yield the statistics of all queues in lists of a few hundred queues."""

    @property
    def run(self) -> RunOperation:
        """Return a function that runs operations; raise RefusedError if no changes are accepted."""

    async def decide_clock(self, entry: AuditEntry, *, is_right: bool) -> None:
        """Confirm or reject a clock that was far ahead when the broker started."""

    async def pause(self) -> None:
        """Yield to the event loop, and return when no batch is being processed."""

    def tap(self, look: Callable[[Batch], None]) -> Callable[[], None]:
        """Call ``look`` with each batch that is stored; return a function that ends these calls."""

    @property
    def counters(self) -> ConnectionCounters:
        """Return the connection counters and the protocol inspector."""


class TemplateSource(Protocol):
    """A source of compiled page templates."""

    async def get(self, name: str) -> jinja2.Template:
        """Return the compiled template with this name."""


@dataclass(slots=True)
class Context:
    """The components that all handlers of an admin application share."""

    engine: EngineProtocol
    readers: Readers  # read-only database connections
    reader: MessageReader
    search: Search  # uses its own database connection
    settings: Settings
    sources: Mapping[str, str]  # where each setting's value came from
    urls: Urls
    routes: tuple[Route, ...]
    templates: TemplateSource
    version: str
    is_ready: Callable[[], bool]
    now_ms: Callable[[], int]  # returns the time in Unix ms
    auth: AuthServices  # accounts, passwords, login limits and the setup token
    sessions: BrowserSessions = field(default_factory=BrowserSessions)
    rollups: Rollups = field(default_factory=Rollups)  # statistics for the last hour
    maintenance: Maintenance | None = None  # backups and scrubs; None until the broker is ready
    schemas: ActiveSchemas = field(default_factory=lambda: ActiveSchemas(None))  # payload schemas
    connection_limits: ConnectionLimits = field(init=False)  # limits for the admin interface
    live: LiveFeeds = field(default_factory=LiveFeeds)  # open streams and waiting requests
    http: HttpCounters = field(default_factory=HttpCounters)
    labels: MetricLabels = field(default_factory=MetricLabels)  # label of each queue in the metrics
    uploads: FairReadSlots = field(default_factory=lambda: FairReadSlots(UPLOADS))
    summaries: SummaryFile = field(init=False)  # results of pipeline jobs
    exports: ExportProcesses = field(init=False)  # Arrow exports, which run in separate processes
    memory: HttpMemory = field(init=False)  # memory budget for large requests and responses
    docs: Documentation = field(init=False)  # the pages under /docs/
    actions: ActionState = field(init=False)  # selections, bulk jobs and undo records

    def __post_init__(self) -> None:
        """Create the components that require the clock or the data folder."""
        self.connection_limits = ConnectionLimits.of(self.settings)
        self.memory = HttpMemory(int(self.settings.limits.http_memory))
        self.actions = ActionState(self.now_ms)
        self.docs = Documentation(docs_folder(), self.urls.docs)
        self.summaries = SummaryFile(self.settings.data)
        self.exports = ExportProcesses(
            *self.readers.export_databases, passed=lambda: self.engine.counters.bytes_in
        )

    @property
    def database(self) -> Path:
        """Path of the database file of a broker that stores in SQLite."""
        return self.settings.data / DATABASE


CONTEXT: Final = web.AppKey("context", Context)
QUEUES: Final = web.RequestKey[tuple[str, ...]]("queues", tuple)  # queue globs; empty means all
_STATUS: Final = web.RequestKey("status", BrokerStatus)


def context_of(request: web.Request) -> Context:
    """Return the context of the application that received the request."""
    return request.app[CONTEXT]


def status_of(request: web.Request) -> BrokerStatus:
    """Return the live statistics, cached per request because reading them takes O(queues) time.

    A caller limited to some queues sees only these queues, even in each client's subscriptions.
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
    """Clear the cache of ``status_of``, so that a long-lived stream reads current statistics."""
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
