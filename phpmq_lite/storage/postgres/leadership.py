"""Which of several brokers is active: watches the row of the epoch, and takes over.

The row is polled.  Waiting for a lock would keep a snapshot, which stops VACUUM, and locks vanish
with the server that held them.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from phpmq_lite.errors import NotWritableError, StartRefusedError
from phpmq_lite.storage.copy_state import CopyState
from phpmq_lite.storage.postgres.migrate import create_schema, pending
from phpmq_lite.storage.postgres.quorum import ConnectionBrokenError
from phpmq_lite.storage.postgres.store import SHARD, Check, PostgresStore, connect

POLL_S: Final = 0.25
SILENCE_S: Final = 1.2  # an active broker that has not written for this long has failed


class EpochRow(NamedTuple):
    """The row of the epoch."""

    epoch: int
    batch: int
    seen_at: str
    age_s: float  # since the active broker last wrote
    is_released: bool
    broker: str  # JSON


class StandbyState(NamedTuple):
    """What a standby knows."""

    row: EpochRow | None  # None if no server that accepts writes can be reached
    problem: str | None  # why this broker cannot take over


class Standby:
    """A broker that waits until it is active.  ``description`` is the JSON that others read."""

    def __init__(
        self,
        conninfo: str,
        migrations: Path,
        description: str,
        check: Check,
        tell: Callable[[StandbyState], None],
    ) -> None:
        self._conninfo = conninfo
        self._migrations = migrations
        self._description = description
        self._check = check
        self._tell = tell
        self._store: PostgresStore | None = None
        self.row: EpochRow | None = None  # as last read
        self._polled_at = 0.0
        self._silent_s = 0.0  # only time in which the database answered

    async def wait_until_active(self) -> PostgresStore:
        """Return the connection of the new active broker; loads may begin.

        Raises:
            StartRefusedError: the database belongs to another program.
        """
        try:
            while True:
                taken = await asyncio.to_thread(self._step)
                if taken is not None:
                    return taken
                await asyncio.sleep(POLL_S)
        finally:
            if self._store is not None:
                self._store.connection.close()

    def _step(self) -> PostgresStore | None:
        """Poll once; take over if the active broker has stopped or failed."""
        try:
            store = self._connected()
            self._poll(store)
            row = self.row
            if row is None or not (row.is_released or self._silent_s >= SILENCE_S):
                self._tell(StandbyState(row, None))
                return None
            pending(store, self._migrations)
            refuse_copied(store)
            if take_over(store, row, self._description):
                self._store = None
                return store
        except (ConnectionBrokenError, NotWritableError) as error:
            self._disconnect()
            self._tell(StandbyState(None, str(error)))
        except StartRefusedError as error:
            if self.row is None:
                raise
            self._tell(StandbyState(self.row, str(error)))
        return None

    def _connected(self) -> PostgresStore:
        if self._store is None:
            self._store = PostgresStore(connect(self._conninfo), self._check)
            create_schema(self._store, self._migrations)
            if not pending(self._store, self._migrations):
                refuse_copied(self._store)
        return self._store

    def _disconnect(self) -> None:
        """Begin to count anew: a failover of the database is no failure of the active broker."""
        store, self._store = self._store, None
        self.row, self._silent_s = None, 0.0
        if store is not None:
            store.connection.close()

    def _poll(self, store: PostgresStore) -> None:
        before, now = self.row, time.monotonic()
        self.row = row = read_row(store)
        is_same = before is not None and before[:3] == row[:3]
        self._silent_s = self._silent_s + min(now - self._polled_at, 2 * POLL_S) if is_same else 0.0
        self._polled_at = now


def take_over(store: PostgresStore, row: EpochRow, description: str) -> bool:
    """Raise the epoch, replicated; return False if another broker was faster."""
    with store.translating():
        store.execute("BEGIN")
        given = (description, SHARD, row.epoch, row.batch)
        taken = store.execute(store.sql("epoch")["take"], given).fetchone()
        if taken is None:
            store.execute("ROLLBACK")
            return False
        store.epoch, store.place = taken
        store.commit()
    return True


def read_row(store: PostgresStore) -> EpochRow:
    """Read the row of the epoch."""
    with store.translating():
        return EpochRow(*store.execute(store.sql("epoch")["read"], (SHARD,)).fetchone())


def refuse_copied(store: PostgresStore) -> None:
    """Raise StartRefusedError if the data is elsewhere, or an incomplete copy."""
    with store.translating():
        found = store.execute(store.sql("copy")["states"]).fetchall()
    for role, text in found:
        raise StartRefusedError(CopyState.from_json(text).refusal("URL" * (role == "source")))
