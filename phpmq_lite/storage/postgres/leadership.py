"""Which of several brokers is active: watches the row of the epoch, and takes over.

The row is polled.  Waiting for a lock would keep a snapshot, which stops VACUUM, and locks vanish
with the server that held them.
"""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from phpmq_lite.errors import NotWritableError, StartRefusedError
from phpmq_lite.storage.copy_state import CopyState
from phpmq_lite.storage.postgres.migrate import create_schema, pending
from phpmq_lite.storage.postgres.store import (
    SHARD,
    STUCK_S,
    Check,
    ConnectionBrokenError,
    PostgresStore,
    connect,
    disconnect_if_lost,
)

POLL_S: Final = 0.2
SILENCE_S: Final = 1.2  # an active broker that has not written for this long has failed
GONE_S: Final = 0.8  # the same without a session: it may be connecting again
# After a failover of the database, the active broker may have to try other servers first.
GRACE_S: Final = 4.0


class EpochRow(NamedTuple):
    """The row of the epoch."""

    epoch: int
    batch: int
    seen_at: str
    age_s: float  # since the active broker last wrote
    is_released: bool
    broker: str  # JSON

    @property
    def host(self) -> str:
        return str(json.loads(self.broker).get("host", ""))


class StandbyState(NamedTuple):
    """What a standby knows."""

    row: EpochRow | None  # None if no server that accepts writes can be reached
    problem: str | None  # why this broker cannot take over


class Standby:
    """A broker that waits until it is active."""

    def __init__(self, conninfo: str, check: Check, tell: Callable[[StandbyState], None]) -> None:
        self._conninfo = conninfo
        self.description = "{}"  # JSON that others read once this broker is active
        self._check = check
        self._tell = tell
        self._store: PostgresStore | None = None
        self.row: EpochRow | None = None  # as last read
        self._polled_at = 0.0
        self._silent_s = 0.0  # only time in which the database answered
        self._limit_s = SILENCE_S

    async def read_secret(self, make: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """Return the secret that the brokers share, created by the first of them."""

        def read() -> tuple[Any, ...] | None:
            try:
                store = self._connected()
                sql = store.sql("epoch")
                secret: tuple[Any, ...] | None = store.execute(sql["relay_secret"]).fetchone()
                if secret is None:
                    store.execute(sql["add_relay_secret"], make())
                    secret = store.execute(sql["relay_secret"]).fetchone()
            except (ConnectionBrokenError, NotWritableError) as error:
                self._disconnect(error)
                return None
            except StartRefusedError:
                self._close()
                raise
            return secret

        while (secret := await asyncio.to_thread(read)) is None:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        return secret

    async def wait_until_active(self) -> PostgresStore:
        """Return the connection of the new active broker; loads may begin."""
        try:
            while True:
                step = asyncio.create_task(asyncio.to_thread(self._step))
                while not (await asyncio.wait([step], timeout=STUCK_S))[0]:
                    if (store := self._store) is not None:
                        await asyncio.to_thread(disconnect_if_lost, store, self._conninfo)
                taken = step.result()
                if taken is not None:
                    return taken
                await asyncio.sleep(POLL_S)
        finally:
            step.add_done_callback(lambda _: self._close())

    def _step(self) -> PostgresStore | None:
        """Poll once; take over if the active broker has stopped or failed."""
        try:
            store = self._connected()
            row = self._poll(store)
            pending(store)
            if not (row.is_released or self._silent_s >= self._limit_s):
                self._tell(StandbyState(row, None))
                return None
            refuse_copied(store)
            quorum = store.quorum()
            if problem := self._check(quorum, quorum, []):  # now, a new epoch would not replicate
                self._tell(StandbyState(row, problem))
            elif take_over(store, row, self.description):
                self._store = None
                return store
        except (ConnectionBrokenError, NotWritableError) as error:
            self._disconnect(error)
        except StartRefusedError as error:
            if self.row is None:
                raise
            self._tell(StandbyState(self.row, str(error)))
        return None

    def _connected(self) -> PostgresStore:
        if self._store is None:
            self._store = PostgresStore(connect(self._conninfo), self._check)
            self._store.execute(self._store.sql("epoch")["call_standby"])
            create_schema(self._store)
            refuse_copied(self._store)
        return self._store

    def _disconnect(self, error: Exception) -> None:
        """Forget what was seen: a failover of the database does not mean that the broker failed."""
        self.row, self._silent_s = None, -GRACE_S
        self._close()
        self._tell(StandbyState(None, str(error)))

    def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.connection.close()

    def _poll(self, store: PostgresStore) -> EpochRow:
        before, now, row = self.row, time.monotonic(), read_row(store)
        [(idle_s,)] = store.execute(store.sql("epoch")["idle_s"])
        if before is not None:
            waited_s = self._silent_s + min(now - self._polled_at, 2 * POLL_S)
            self._silent_s = waited_s if before[:3] == row[:3] else 0.0
        self._limit_s = GONE_S
        if idle_s is not None:  # it may execute a long statement or wait for replicas
            self._silent_s, self._limit_s = min(self._silent_s, idle_s), SILENCE_S
        self.row, self._polled_at = row, now
        return row


def take_over(store: PostgresStore, row: EpochRow, description: str) -> bool:
    """Raise the epoch, replicated; return False if another broker was faster."""
    sql = store.sql("epoch")
    store.execute(sql["end_stalled"])
    store.execute(sql["call_writer"])
    store.execute("BEGIN")
    taken = store.execute(sql["take"], (description, SHARD, row.epoch, row.batch)).fetchone()
    if taken is None:
        store.execute("ROLLBACK")
        store.execute(sql["call_standby"])
        return False
    store.epoch, store.place = taken
    store.commit()
    return True


def read_row(store: PostgresStore) -> EpochRow:
    return EpochRow(*store.execute(store.sql("epoch")["read"], (SHARD,)).fetchone())


def refuse_copied(store: PostgresStore) -> None:
    """Raise StartRefusedError if the data is elsewhere, or an incomplete copy."""
    for role, text in store.execute(store.sql("copy")["states"]):
        raise StartRefusedError(CopyState.from_json(text).refusal("URL" * (role == "source")))
