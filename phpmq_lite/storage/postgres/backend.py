"""The PostgreSQL backend: a database that several brokers share, one of which is active."""

import json
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from phpmq_lite.errors import OutcomeUnknownError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.model import ClockReading
from phpmq_lite.storage.disk_space import DiskSpace
from phpmq_lite.storage.postgres.leadership import Standby, StandbyState
from phpmq_lite.storage.postgres.maintenance import PostgresMaintenance
from phpmq_lite.storage.postgres.migrate import migrate
from phpmq_lite.storage.postgres.monitor import ServerMonitor
from phpmq_lite.storage.postgres.quorum import ConnectionBrokenError
from phpmq_lite.storage.postgres.read_connections import PostgresReaders
from phpmq_lite.storage.postgres.store import PostgresStore, connect
from phpmq_lite.storage.postgres.url import connection_info, reading, shown
from phpmq_lite.storage.postgres.writer import PostgresWriter
from phpmq_lite.storage.read.read_pool import Readers
from phpmq_lite.storage.retention import RetentionBounds
from phpmq_lite.storage.start_report import StartRecorder
from phpmq_lite.storage.store_status import StoreStatus


class PostgresBackend:
    """One of the brokers that use a database; ``description`` is the JSON that others read."""

    is_structure_due = False

    def __init__(
        self,
        url: str,
        space: DiskSpace,
        on_fatal: Callable[[BaseException], None],
        *,
        description: str,
        allow_asynchronous: bool,
    ) -> None:
        self.conninfo = connection_info(url)
        self.writer = PostgresWriter(
            self.conninfo, space, on_fatal, allow_asynchronous=allow_asynchronous
        )
        self.read_clocks = self.writer.read_clocks
        self.state = StandbyState(None, None)  # as last seen by the standby
        self._description = description
        self._allow_asynchronous = allow_asynchronous
        self._monitor = ServerMonitor(self.readers(count=1), self.writer)

    def status(self) -> StoreStatus:
        """Return the known state of the database, without reading it."""
        writer, row, monitor = self.writer, self.state.row, self._monitor
        epoch, is_standby = writer.epoch, writer.epoch is None
        return StoreStatus(
            engine="PostgreSQL",
            place=shown(self.conninfo),
            is_active=not is_standby,
            active_broker=json.loads(row.broker).get("host", "") if row and is_standby else "",
            epoch=epoch or (row.epoch if row else 0),
            quorum=writer.quorum.names if writer.quorum else "",
            replicas_required=writer.quorum.replicas if writer.quorum else 0,
            allows_asynchronous=self._allow_asynchronous,
            asynchronous=writer.asynchronous,
            asynchronous_commits=writer.asynchronous_commits,
            reconnects=writer.reconnects,
            unknown_batches=writer.unknown_batches,
            server=monitor.server,
            problem=monitor.problem,
        )

    async def watch(self) -> None:
        """Watch the server that accepts writes."""
        await self._monitor.run()

    def readers(self, count: int = 2) -> Readers:
        """Return connections for pages."""
        return PostgresReaders(reading(self.conninfo), count=count)

    async def open(self, starting: StartRecorder, tell: Callable[[str], None]) -> None:
        """Wait until this broker is active, and migrate the database."""

        def note(state: StandbyState) -> None:
            self.state = state
            waiting = state.problem or "another broker is active"
            tell(f"standby of {shown(self.conninfo)}: {waiting}")

        standby = Standby(self.conninfo, _migrations(), self._description, self.writer.check, note)
        store = await standby.wait_until_active()
        row = standby.row
        starting.was_clean = row is None or row.is_released
        self.writer.open(store)
        tell("migrating")
        starting.note_migrations(await self.writer.run(lambda store: migrate(store, _migrations())))

    def close_with(self, stack: AsyncExitStack) -> None:
        """Add to ``stack`` what releases the epoch."""
        stack.push_async_callback(self.writer.close)

    def record_use(self, stack: AsyncExitStack) -> None:
        """Do nothing: the row of the epoch shows that the database is in use."""

    async def start_maintenance(
        self, bounds: RetentionBounds, counters: Callable[[ClockReading], Mapping[str, int]]
    ) -> PostgresMaintenance:
        """Begin counting and retention."""
        upkeep = self.writer.maintenance = PostgresMaintenance(bounds, counters)
        return upkeep


def has_admin(url: str) -> bool:
    """Return whether a user has the admin role; True if that cannot be read at the moment."""
    try:
        store = PostgresStore(connect(connection_info(url)), lambda *_: None)
        with store.loading(), store.connection:
            sql = store.sql("accounts")
            return all(
                store.execute(sql[name]).fetchone()[0] for name in ("has_users", "has_admin")
            )
    except (ConnectionBrokenError, OutcomeUnknownError):
        return True


def _migrations() -> Path:
    return migrations_folder() / "postgres"
