"""The PostgreSQL backend: a database that several brokers share, one of which is active."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from itertools import count
from typing import Any, Final

from phpmq_lite.errors import StorageError
from phpmq_lite.logs import get_logger
from phpmq_lite.model import ClockReading, RecoveredState
from phpmq_lite.storage.backend import (
    RETENTION_EVERY_MS,
    Backend,
    Replica,
    ServerStatus,
    StoreMaintenance,
    StoreStatus,
)
from phpmq_lite.storage.disk_space import DiskSpace
from phpmq_lite.storage.migrations import table_names
from phpmq_lite.storage.postgres.leadership import Standby, StandbyState, read_row
from phpmq_lite.storage.postgres.migrate import migrate
from phpmq_lite.storage.postgres.read_connections import PostgresReaders
from phpmq_lite.storage.postgres.store import (
    ConnectionBrokenError,
    PostgresStore,
    connect,
    connection_info,
    place_of,
    reading,
)
from phpmq_lite.storage.postgres.writer import PostgresWriter
from phpmq_lite.storage.read.read_pool import Readers
from phpmq_lite.storage.retention import RetentionBounds
from phpmq_lite.storage.start_report import StartRecorder

_log = get_logger(__name__)
_OFFSETS_AT_ONCE: Final = 10_000


class PostgresBackend(Backend):
    """One of the brokers that use a database.

    ``start_standby`` is called with the secret that the brokers share (key, certificate, private
    key), which ``make_secret`` creates once; it returns the JSON that describes this broker.
    ``relay_to`` is called with the epoch, the JSON of its broker, and whether it has stopped.
    """

    def __init__(
        self,
        url: str,
        space: DiskSpace,
        on_fatal: Callable[[BaseException], None],
        *,
        start_standby: Callable[..., Awaitable[str]],
        make_secret: Callable[[], tuple[Any, ...]],
        relay_to: Callable[..., None],
        allow_asynchronous: bool,
    ) -> None:
        self.conninfo = connection_info(url)
        self.writer: PostgresWriter = PostgresWriter(
            self.conninfo, space, on_fatal, allow_asynchronous=allow_asynchronous
        )
        self.read_clocks = self.writer.read_clocks
        self.state = StandbyState(None, None)  # as last seen by the standby
        self._servers = "primary"  # which servers pages read
        self._replica_age_s: float | None = None
        self._start_standby = start_standby
        self._make_secret = make_secret
        self._relay_to = relay_to
        self._allow_asynchronous = allow_asynchronous
        self._monitor = ServerMonitor(self.readers(count=1), self.writer)

    def status(self) -> StoreStatus:
        writer, row, monitor = self.writer, self.state.row, self._monitor
        epoch, is_standby = writer.epoch, writer.epoch is None
        return StoreStatus(
            engine="PostgreSQL",
            is_reached=not is_standby or row is not None,
            place=place_of(self.conninfo),
            is_active=not is_standby,
            active_broker=row.host if row and is_standby and not row.is_released else "",
            standby_problem=(self.state.problem or "") if row and is_standby else "",
            epoch=epoch or (row.epoch if row else 0),
            quorum=writer.quorum.names if writer.quorum else "",
            replicas_required=writer.quorum.replicas if writer.quorum else 0,
            allows_asynchronous=self._allow_asynchronous,
            asynchronous=writer.asynchronous,
            asynchronous_commits=writer.asynchronous_commits,
            reconnects=writer.reconnects,
            unknown_batches=writer.unknown_batches,
            server=monitor.server,
            problem=monitor.problem or (None if row else self.state.problem),
            oldest_work_s=0.0 if is_standby else writer.delay()[1],
            replica_age_s=self._replica_age_s if is_standby else None,
        )

    def readers(self, count: int = 2) -> Readers:
        return PostgresReaders(lambda: reading(self.conninfo, self._servers), count=count)

    def read_replica(self) -> RecoveredState | None:
        """Return the state of a server without active broker; pages then read a replica, too."""
        row = self.state.row
        self._servers, self._replica_age_s = "primary", None
        if self.writer.epoch is not None or (row is not None and not row.is_released):
            return None
        with suppress(ConnectionBrokenError, StorageError):
            with connect(reading(self.conninfo, "prefer-standby")) as replica:
                store = PostgresStore(replica)
                age_s, stored = read_row(store).age_s, store.state()
            self._servers, self._replica_age_s = "prefer-standby", age_s
            return stored
        return None

    async def open(self, starting: StartRecorder, tell: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()

        def note(state: StandbyState) -> None:
            if state.row and state.problem not in (None, self.state.problem):
                _log.warning("standby_cannot_take_over", reason=state.problem)
            self.state = state
            if (row := state.row) is not None:
                loop.call_soon_threadsafe(
                    lambda: self._relay_to(row.epoch, row.broker, is_released=row.is_released)
                )
            is_standby = row is not None and not row.is_released
            waiting = state.problem or ("another broker is active" if is_standby else "starting")
            role = "standby of" if is_standby else "waiting for"
            tell(f"{role} {place_of(self.conninfo)}: {waiting}")

        standby = Standby(self.conninfo, self.writer.check, note)
        secret = await standby.read_secret(self._make_secret)
        standby.description = await self._start_standby(*secret)
        store = await standby.wait_until_active()
        row = standby.row
        self._relay_to(store.epoch, "{}", is_released=True)
        starting.was_clean = row is None or row.is_released
        self._servers = "primary"
        self.writer.open(store)
        tell("migrating")
        applied: list[str] = []

        def apply(store: PostgresStore) -> None:
            if names := migrate(store):
                applied.extend(names)
                # After ALTER or DROP, psycopg deallocates the statements of the pipeline, too.
                raise ConnectionBrokenError("connecting again after a migration")

        await self.writer.run(apply)
        starting.note_migrations(applied)

    def close_with(self, stack: AsyncExitStack) -> None:
        stack.push_async_callback(self.writer.close)

    def record_use(self, stack: AsyncExitStack) -> None:
        """Do nothing: the row of the epoch says which broker uses the database."""

    async def start_maintenance(
        self, bounds: RetentionBounds, counters: Callable[[ClockReading], Mapping[str, int]]
    ) -> StoreMaintenance:
        maintenance = self.writer.maintenance = PostgresMaintenance(bounds, counters)
        return maintenance

    async def watch_server(self) -> None:
        await self._monitor.run()


class PostgresMaintenance(StoreMaintenance):
    """Maintenance that the engine runs in the writer's thread."""

    _most_pause_ms = RETENTION_EVERY_MS  # settled messages are counted as often

    def __call__(self, store: PostgresStore, now: ClockReading, _is_idle: bool) -> bool:
        self._store_clocks(store, now)
        if now.steady_ms < self._retention_due_ms:
            return False
        return count_settled(store) or self._retain(store, now)


def count_settled(store: PostgresStore) -> bool:
    """Add settled messages to the totals; return whether many are left."""
    sql = store.sql("history_index")
    [(waiting,)] = store.execute(sql["waiting"])
    if waiting > 0:
        with store.transaction():
            store.execute(sql["count_indexed"], {"count": _OFFSETS_AT_ONCE})
    return bool(waiting > _OFFSETS_AT_ONCE)


def has_admin(url: str) -> bool:
    """Return whether a user has the admin role; True if that cannot be read at the moment."""
    with suppress(ConnectionBrokenError, StorageError), connect(connection_info(url)) as connection:
        store = PostgresStore(connection)
        has_users = "user" in table_names(store.execute, store.sql("migrate"))
        return has_users and bool(store.execute(store.sql("accounts")["has_admin"]).fetchone()[0])
    return True


_TICK_S: Final = 1.0
_READ_EVERY: Final = 5  # ticks between two reads of the server's state
_SLOW_S: Final = 1.5  # a batch that takes longer has a problem, which is shown
_NO_QUORUM: Final = "there is no quorum; the database waits for replicas to confirm the last batch"


class ServerMonitor:
    """Reads the server's state every 5 s; ``run`` continues until it is cancelled."""

    def __init__(self, readers: Readers, writer: PostgresWriter) -> None:
        self.server: ServerStatus | None = None  # as last read
        self.problem: str | None = None  # why the last read failed
        self._readers = readers
        self._writer = writer

    async def run(self) -> None:
        """Read the state at intervals, and explain why a batch takes long."""
        try:
            for number in count():
                await self.explain_delay()
                if number % _READ_EVERY == 0:
                    await self.read()
                await asyncio.sleep(_TICK_S)
        finally:
            await self._readers.close()

    async def read(self) -> None:
        try:
            status = (await self._readers.read("server", "status"))[0]
            replicas = await self._readers.read("server", "replicas")
            oldest = await self._readers.read("server", "oldest_transaction")
        except StorageError as error:
            self.problem = str(error)
            return
        server = replace(ServerStatus(*status), replicas=tuple(Replica(*row) for row in replicas))
        for name, age_s in oldest:
            server = replace(server, oldest_transaction=name, oldest_transaction_s=age_s)
        if server.folder is not None:
            with suppress(OSError):
                disk = shutil.disk_usage(server.folder)
                server = replace(server, disk_free=disk.free, disk_bytes=disk.total)
        self.server, self.problem = server, None

    async def explain_delay(self) -> None:
        """Show what a batch waits for: without a quorum, PostgreSQL does not answer at all."""
        writer = self._writer
        began_at, age_s, pid = writer.delay()
        if age_s < _SLOW_S or writer.space.write_problem is not None:
            return
        try:
            waits = await self._readers.read("server", "waits", pid=pid)
            problem = _NO_QUORUM if ("SyncRep",) in waits else ""
        except StorageError as error:
            problem = str(error)
        if problem and began_at == writer.delay()[0]:
            writer.space.note_trouble(problem)
