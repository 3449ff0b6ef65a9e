"""Brokers with a defect each, to see that the ledger finds it.  Run as a program.

``python -m tests.faults.mutants NAME serve …`` is ``phpmq-lite serve …`` with that defect.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf
from typing import Any, Final

import aiosqlite

from phpmq_lite import service
from phpmq_lite.broker import broker, transitions
from phpmq_lite.broker.ack_timeouts import AckTimeouts
from phpmq_lite.broker.publish_keys import PublishKeys
from phpmq_lite.broker.queue import Connection, Queue
from phpmq_lite.broker.state import BrokerState
from phpmq_lite.cli.main import main
from phpmq_lite.clock import Clock
from phpmq_lite.errors import StorageFullError
from phpmq_lite.model import Batch, ClockReading, LoadedRows, Message
from phpmq_lite.server.engine import Engine
from phpmq_lite.storage.read.read_connections import Readers
from phpmq_lite.storage.write import writer
from phpmq_lite.storage.write.store import Store

SLOW_DISK_S: Final = 0.02
_GAP_MS: Final = 2_000
_SOON_MS: Final = 10


class Defective(Engine):
    """An engine whose writer gets the batches by way of ``commit``."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._store = self._writer.commit
        setattr(self._writer, "commit", self.commit)  # noqa: B010 - a method is not assigned to

    def commit(self, batch: Batch) -> asyncio.Future[LoadedRows | None]:
        """Have a batch stored."""
        return self._store(batch)


class ConfirmsBeforeCommit(Defective):
    """Tells everybody, then stores: a crash in between loses what was confirmed."""

    def commit(self, batch: Batch) -> asyncio.Future[LoadedRows | None]:
        """Tell first."""
        super()._send_results(batch)
        if batch.stores:
            time.sleep(SLOW_DISK_S)
        return super().commit(batch)

    def _send_results(self, batch: Batch | None) -> None:
        """Everything has been said."""


class ForgetsAcknowledgements(Defective):
    """Settles in memory only: after a crash what was done comes again."""

    def commit(self, batch: Batch) -> asyncio.Future[LoadedRows | None]:
        """Store the rest."""
        batch.settled.clear()
        return super().commit(batch)


class ForgetsKeys(Defective):
    """Keeps keys in memory only: a publish that is repeated after a crash is stored twice."""

    def commit(self, batch: Batch) -> asyncio.Future[LoadedRows | None]:
        """Store the rest, and let nobody know for a while."""
        batch.keys.clear()
        return asyncio.ensure_future(_slowly(super().commit(batch)))


async def _slowly(stored: asyncio.Future[LoadedRows | None]) -> LoadedRows | None:
    loaded = await stored
    await asyncio.sleep(SLOW_DISK_S)
    return loaded


class CountsFromTheFirstDispatch(AckTimeouts):
    """Takes what was held long ago for overdue at once, again and again."""

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[int, int] = {}  # seq -> when it was dispatched first

    def watch(self, by_id: dict[int, Queue], dispatched: Iterable[Message], now_ms: int) -> None:
        """Keep the first time."""
        super().watch(by_id, dispatched, now_ms)
        for message in dispatched:
            message.held_since_ms = self._first.setdefault(message.seq, message.held_since_ms)

    def postpone(self, connections: Iterable[Connection], gap_ms: int) -> None:
        """Let the time count in which nobody could have been heard."""

    def take_overdue(self, connections: Iterable[Connection], now_ms: int) -> list[Message]:
        """Look again soon."""
        overdue = super().take_overdue(connections, now_ms)
        soon_ms = now_ms + _SOON_MS
        self.next_ms = min(self.next_ms or soon_ms, soon_ms)
        return overdue


class CountsGapsTwice(Clock):
    """Runs ahead by the time in which nobody looked at it."""

    _ahead_ms = 0
    _last_ms = 1 << 62

    def now(self) -> ClockReading:
        """Read it."""
        now = super().now()
        gap_ms = now.wall_ms - self._last_ms
        self._last_ms = now.wall_ms
        if gap_ms > _GAP_MS:
            self._ahead_ms += gap_ms
        return ClockReading(now.wall_ms, now.steady_ms + self._ahead_ms)


def _answer_full_as_stored() -> None:
    """Take a batch for stored that found no room."""
    end = Store.end

    def careless(self: Store, batch: Batch) -> LoadedRows | None:
        try:
            return end(self, batch)
        except StorageFullError:
            return None

    setattr(Store, "end", careless)  # noqa: B010 - a method is not assigned to


class KeepsItsTransactions(Readers):
    """Begins one at the first read, and never ends it."""

    async def _connect(self) -> aiosqlite.Connection:
        connection = await super()._connect()
        await connection.execute_fetchall("BEGIN")
        return connection


class IgnoresKeys(PublishKeys):
    """Knows no key again."""

    def find(self, queue_id: int, key: bytes, now_ms: int) -> int | None:
        """Have never seen it."""
        return None


def _stay_half_alive() -> None:
    """Keep listening without an engine, or without a writer."""

    async def run_engine(engine: Engine, _folder: object) -> None:
        with suppress(Exception):
            await engine.run()

    setattr(service, "run_engine", run_engine)  # noqa: B010 - a function is not assigned to
    setattr(service, "fail_stop", lambda _folder, _error: None)  # noqa: B010


def _charge_all() -> None:
    """Have a lost connection count against all that it held."""
    return_message = transitions.return_message

    def charge(state: BrokerState, message: Message, detail: str, *, is_charged: bool) -> None:
        return_message(state, message, detail, is_charged=True)

    setattr(transitions, "return_message", charge)  # noqa: B010 - a function is not assigned to


def _set(module: Any, name: str, defect: Any) -> Callable[[], None]:
    assert hasattr(module, name)
    return lambda: setattr(module, name, defect)


MUTANTS: Final[dict[str, Callable[[], None]]] = {
    "ConfirmsBeforeCommit": _set(service, "Engine", ConfirmsBeforeCommit),
    "ForgetsAcknowledgements": _set(service, "Engine", ForgetsAcknowledgements),
    "ForgetsKeys": _set(service, "Engine", ForgetsKeys),
    "CountsGapsTwice": _set(service, "Clock", CountsGapsTwice),
    "CountsFromTheFirstDispatch": _set(broker, "AckTimeouts", CountsFromTheFirstDispatch),
    "LeavesAtOnce": _set(service, "DRAIN_S", 0.0),  # acknowledgements on their way are not read
    "WaitsForTheDiskInTheLoop": _set(writer, "_FAST_S", inf),
    "KeepsItsTransactions": _set(service, "Readers", KeepsItsTransactions),
    "IgnoresKeys": _set(broker, "PublishKeys", IgnoresKeys),
    "ReturnsToTheEnd": _set(BrokerState, "make_ready", BrokerState.make_ready_at_end),
    "ChargesAllThatWasHeld": _charge_all,
    "StaysHalfAlive": _stay_half_alive,
    "AnswersFullAsStored": _answer_full_as_stored,
}

if __name__ == "__main__":
    MUTANTS[sys.argv.pop(1)]()
    main()
