"""Brokers with one defect each, which the fault tests must find.  Run as a program.

``python -m tests.faults.mutants NAME serve …`` is ``phpmq-lite serve …`` with that defect.
``hasty``, alone or as in ``hasty,NAME``, shortens the intervals and time limits of the broker.
With ``second``, its writer process stores all batches of clients, from the first one on.
"""

import asyncio
import marshal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import aiosqlite
import pytest

from phpmq_lite import schedules
from phpmq_lite.broker import broker, transitions, unique_keys
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.publish_keys import PublishKeys
from phpmq_lite.broker.queue import AckTimeouts, Connection, Queue
from phpmq_lite.broker.unique_keys import KeyState
from phpmq_lite.cli.main import main
from phpmq_lite.clock import Clock
from phpmq_lite.installation import build_kind
from phpmq_lite.model import Batch, ClockReading, LoadedRows, Message, Outbox, RecoveredState
from phpmq_lite.server import engine
from phpmq_lite.server.engine import Engine
from phpmq_lite.service import active, lifecycle, starting
from phpmq_lite.storage import disk_space
from phpmq_lite.storage.batch_sql import Step
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.sqlite import backend, writer
from phpmq_lite.storage.sqlite.backend import SqliteBackend
from phpmq_lite.storage.sqlite.integrity import seal, startup
from phpmq_lite.storage.sqlite.integrity.wal_check import WalScan
from phpmq_lite.storage.sqlite.read_connections import SqliteReaders
from phpmq_lite.storage.sqlite.store import SqliteStore
from phpmq_lite.storage.sqlite.writer import Writer
from phpmq_lite.storage.sqlite.writer_process import encode
from phpmq_lite.storage.statements import many
from tests.faults.writer_mutants import PROCESS_MUTANTS, SLOW_DISK_S, STORE_MUTANTS, pass_on
from tests.support.fork_server import BrokerProcess

MAX_TROUBLE_S: Final = 1.0  # of a hasty broker
_GAP_MS: Final = 2_000
_SOON_MS: Final = 10


class Defective(Engine):
    """An engine whose ``commit`` can change a batch before the writer gets it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._store = self._writer.commit
        setattr(self._writer, "commit", self.commit)  # noqa: B010 - a method is not assigned to

    def commit(self, batch: Batch) -> asyncio.Future[LoadedRows | None]:
        return self._store(batch)


class ConfirmsBeforeCommit(Defective):
    """Replies before it stores: a crash in between loses confirmed messages."""

    def commit(self, batch: Batch) -> asyncio.Future[LoadedRows | None]:
        """Reply first."""
        super()._send_receipts(batch)
        super()._send_results(batch)
        if batch.stores:
            time.sleep(SLOW_DISK_S)
        return super().commit(batch)

    def _send_receipts(self, batch: Batch) -> None:
        """Do nothing: the replies are sent."""

    def _send_results(self, batch: Batch | None) -> None:
        """Do nothing, either."""


class ForgetsAcknowledgements(Defective):
    """Settles in memory only: after a crash acknowledged messages are redelivered."""

    def commit(self, batch: Batch) -> asyncio.Future[LoadedRows | None]:
        """Store everything else."""
        batch.settled.clear()
        return super().commit(batch)


class ForgetsKeys(Defective):
    """Keeps keys in memory only: a publish repeated after a crash is stored twice."""

    def commit(self, batch: Batch) -> asyncio.Future[LoadedRows | None]:
        """Store everything else, and reply late."""
        batch.keys.clear()
        stored = super().commit(batch)

        async def reply() -> LoadedRows | None:
            loaded = await stored
            await asyncio.sleep(SLOW_DISK_S)
            return loaded

        return asyncio.ensure_future(reply())


class CountsFromTheFirstDispatch(AckTimeouts):
    """Counts the acknowledgement timeout from the first dispatch of a message."""

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[int, int] = {}  # seq -> when it was dispatched first

    def watch(self, by_id: dict[int, Queue], dispatched: Iterable[Message], now_ms: int) -> None:
        """Use the time of the first dispatch."""
        super().watch(by_id, dispatched, now_ms)
        for message in dispatched:
            message.held_since_ms = self._first.setdefault(message.seq, message.held_since_ms)

    def postpone(self, connections: Iterable[Connection], gap_ms: int) -> None:
        """Count the time of a suspension, too."""

    def take_overdue(self, connections: Iterable[Connection], now_ms: int) -> list[Message]:
        """Repeat soon."""
        overdue = super().take_overdue(connections, now_ms)
        soon_ms = now_ms + _SOON_MS
        self.next_ms = min(self.next_ms or soon_ms, soon_ms)
        return overdue


class CountsGapsTwice(Clock):
    """Counts time twice in which it was not read."""

    _ahead_ms = 0
    _last_ms = 1 << 62

    def now(self) -> ClockReading:
        now = super().now()
        gap_ms = now.wall_ms - self._last_ms
        self._last_ms = now.wall_ms
        if gap_ms > _GAP_MS:
            self._ahead_ms += gap_ms
        return ClockReading(now.wall_ms, now.steady_ms + self._ahead_ms)


class KeepsItsTransactions(SqliteReaders):
    """Begins a transaction at the first read, and never ends it."""

    async def _connect(self) -> aiosqlite.Connection:
        connection = await super()._connect()
        await connection.execute_fetchall("BEGIN")
        return connection


class IgnoresKeys(PublishKeys):
    """Never recognizes a key."""

    def find(self, queue_id: int, key: bytes, now_ms: int) -> int | None:
        """Find nothing."""
        return None


def _stay_half_alive() -> None:
    """Keep listening without an engine, or without a writer."""

    async def run_engine(engine: Engine, _folder: object) -> None:
        with suppress(Exception):
            await engine.run()

    setattr(active, "run_engine", run_engine)  # noqa: B010 - a function is not assigned to
    setattr(lifecycle, "fail_stop", lambda _folder, _error: None)  # noqa: B010


def _charge_all() -> None:
    """Charge all messages that a lost connection held."""
    return_message = transitions.return_message

    def charge(core: Broker, message: Message, cause: str | None, *, is_charged: bool) -> None:
        return_message(core, message, cause, is_charged=True)

    setattr(transitions, "return_message", charge)  # noqa: B010 - a function is not assigned to


def _make_dates_delays() -> None:
    """Convert a date to a delay when it is given, and forget it."""
    set_due = Broker.set_due

    def delay(
        core: Broker, message: Message, queue: Queue, due_ms: int, _deliver_at: int | None
    ) -> None:
        set_due(core, message, queue, due_ms, None)

    setattr(Broker, "set_due", delay)  # noqa: B010 - a method is not assigned to


def _forget_ticks() -> None:
    """Run a tick again when the clock has been set back."""
    due_ticks = schedules.due_ticks
    setattr(schedules, "due_ticks", lambda one, now_ms, _ran: due_ticks(one, now_ms))  # noqa: B010


# -- defects that only disk faults reveal


class DispatchesBeforeCommit(Defective):
    """Dispatches messages before they are stored."""

    def commit(self, batch: Batch) -> asyncio.Future[LoadedRows | None]:
        """Dispatch first."""
        now_ms = self.clock.now().steady_ms
        for connection, outbox in batch.sends.items():
            if outbox.dispatches:
                self._send(connection, Outbox(outbox.dispatches[:]), now_ms)
                outbox.dispatches.clear()
        return super().commit(batch)


class SettlesLate(Defective):
    """Stores acknowledgements some batches after the receipts that prove them stored."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._late: deque[dict[tuple[int, str | None], list[int]]] = deque([{}, {}, {}])

    def commit(self, batch: Batch) -> asyncio.Future[LoadedRows | None]:
        """Store the settlements of an earlier batch instead."""
        self._late.append(batch.settled)
        batch.settled = self._late.popleft()
        return super().commit(batch)


class StoresNoKeys(Defective):
    """Keeps the keys of confirmed publishes in memory only."""

    def commit(self, batch: Batch) -> asyncio.Future[LoadedRows | None]:
        """Store everything else."""
        batch.keys.clear()
        return super().commit(batch)


class NumbersAnewStore(SqliteStore):
    """Derives the next number from the alive messages, so that numbers are reused."""

    def recover(
        self, now: ClockReading, receipt_window_ms: int, receipt_limit: int
    ) -> RecoveredState:
        """Replace the stored next number."""
        stored = super().recover(now, receipt_window_ms, receipt_limit)
        (highest,) = self.execute("SELECT coalesce(max(seq), 0) FROM message").fetchone()
        stored.counters["next_number"] = highest + 1
        return stored


def _keep_seals() -> None:
    """Write to the database without removing its old seal."""
    setattr(seal, "_MIN_INTERVAL_S", float("inf"))  # noqa: B010
    setattr(seal.LiveSeal, "erase", lambda _self: None)  # noqa: B010


T = TypeVar("T")


def _write_at_once() -> None:
    """Write in the writer's thread while the writer process does."""
    run_in_thread = Writer._run_in_thread

    def hasty(self: Writer, work: Callable[[SqliteStore], T]) -> asyncio.Future[T]:
        one, self._turn.request = self._turn.request, None
        try:
            return run_in_thread(self, work)
        finally:
            self._turn.request = one

    setattr(Writer, "_run_in_thread", hasty)  # noqa: B010 - a method is not assigned to


# -- defects of the clock


class LiveWallClock(Clock):
    """Expires by the wall clock, with its jumps."""

    def now(self) -> ClockReading:
        wall_ms = super().now().wall_ms
        return ClockReading(wall_ms, wall_ms)


class BelievesAtTheStart(Clock):
    """Trusts the wall clock at a start."""

    def _resume(self, stored: Mapping[str, int], wall_ms: int, running_ms: int) -> int:
        return wall_ms - stored.get("clock_step_ms", 0)


# -- defects that only damaged files reveal


def _check_no_bodies() -> None:
    """Deliver bodies without checking; nor check the seal, which would detect the damage."""
    _check_no_seal()

    def bodies(self: SqliteStore, checksums: dict[int, int]) -> dict[int, bytes | None]:
        bodies: dict[int, bytes | None] = dict.fromkeys(checksums)
        return bodies | dict(many("batch", "bodies").run(self.execute, list(checksums)))

    setattr(SqliteStore, "_bodies", bodies)  # noqa: B010


def _check_no_seal() -> None:
    """Accept any database as the one that was closed."""
    setattr(startup, "break_seal", lambda *_given, **_more: True)  # noqa: B010


def _make_database() -> None:
    """Create a missing database; nor check the seal, which would detect the loss."""
    _check_no_seal()
    setattr(DataFolder, "check_database", lambda _self: None)  # noqa: B010


def _set(module: Any, name: str, defect: Any) -> Callable[[], None]:
    assert hasattr(module, name)
    return lambda: setattr(module, name, defect)


# Compiled code cannot be replaced.
_OF_SOURCES: Final[dict[str, Callable[[], None]]] = {
    "ConfirmsBeforeCommit": _set(active, "Engine", ConfirmsBeforeCommit),
    "ForgetsAcknowledgements": _set(active, "Engine", ForgetsAcknowledgements),
    "ForgetsKeys": _set(active, "Engine", ForgetsKeys),
    "CountsFromTheFirstDispatch": _set(broker, "AckTimeouts", CountsFromTheFirstDispatch),
    "IgnoresKeys": _set(broker, "PublishKeys", IgnoresKeys),
    "ChargesAllThatWasHeld": _charge_all,
    "DispatchesBeforeCommit": _set(active, "Engine", DispatchesBeforeCommit),
    "SettlesLate": _set(active, "Engine", SettlesLate),
    "StoresNoKeys": _set(active, "Engine", StoresNoKeys),
    # over clock changes, see test_sites.py
    "MakesDatesDelays": _make_dates_delays,
    "ForgetsTicks": _forget_ticks,
    "LooksUpNoUniqueKeys": _set(unique_keys, "look_up", lambda *_given: KeyState.FREE),
}
_IN_BROKER: Final[dict[str, Callable[[], None]]] = {
    "CountsGapsTwice": _set(starting, "Clock", CountsGapsTwice),
    "LeavesAtOnce": _set(active, "DRAIN_S", 0.0),  # acknowledgements on their way are not read
    "WaitsForTheDiskInTheLoop": _set(writer, "_FAST_S", inf),
    "KeepsItsTransactions": _set(backend, "SqliteReaders", KeepsItsTransactions),
    "ReturnsToTheEnd": _set(Broker, "make_ready", Broker.make_ready_at_end),
    "StaysHalfAlive": _stay_half_alive,
    # on a disk, see test_power.py and test_writer_process.py
    "KeepsItsSeals": _keep_seals,
    "WritesAtOnce": _write_at_once,
    # with another clock, see test_sites.py
    "LiveWallClock": _set(starting, "Clock", LiveWallClock),
    "BelievesAtTheStart": _set(starting, "Clock", BelievesAtTheStart),
    # with damaged files, see test_damage.py
    "ChecksNoWal": _set(startup, "check_wal", lambda *_given, **_more: WalScan()),
    "ChecksNoBodies": _check_no_bodies,
    "ChecksNoSeal": _check_no_seal,
    "MakesDatabase": _make_database,
}
MUTANTS: Final = _OF_SOURCES | _IN_BROKER | STORE_MUTANTS | PROCESS_MUTANTS


def _hurry() -> None:
    """Run the work of each second every 0.05 s, and shorten drains and waits for a bad disk."""
    setattr(engine, "_MAINTENANCE_S", 0.05)  # noqa: B010 - a constant is not assigned to
    setattr(disk_space, "RETRY_S", 0.05)  # noqa: B010
    setattr(disk_space, "MAX_TROUBLE_S", MAX_TROUBLE_S)  # noqa: B010
    setattr(active, "DRAIN_S", 0.3)  # noqa: B010


def _use_second() -> None:
    """Start the writer process before the listeners open, and pass all batches to it."""
    serve = active.Active.serve

    async def serving(self: active.Active, *arguments: Any) -> None:
        own = cast(SqliteBackend, self._backend).writer
        own._large_batches = writer.START_BATCHES  # which would have started it; else it soon ends
        own._start_process()
        while own._process is not None and not own._process.is_ready:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await serve(self, *arguments)

    setattr(active.Active, "serve", serving)  # noqa: B010 - a method is not assigned to
    for name, value in (("START_BATCHES", 1), ("FEW_COMMANDS", 0), ("_PROCESS_BYTES", 1 << 30)):
        setattr(writer, name, value)
    setattr(writer, "_has_processors", lambda: True)  # noqa: B010

    def encoded(steps: Sequence[Step]) -> bytes | None:
        with suppress(MemoryError):
            marshal.dumps(cast(Any, steps))  # a ValueError ends the broker: the tests must not pass
        return encode(steps)

    setattr(writer, "encode", encoded)  # noqa: B010 - a function is not assigned to


def program_of(
    mutant: str = "", *, is_hasty: bool = False, is_second: bool = False
) -> tuple[str, ...]:
    """Return the arguments to Python: the broker, or the one with this defect.

    With ``is_second``, the writer process stores the batches.  The test is skipped if the broker is
    compiled and the defect would have no effect.
    """
    if mutant in _OF_SOURCES and build_kind() == "compiled":
        pytest.skip(f"{mutant} replaces code that is compiled")
    changes = ["hasty"] * is_hasty + ["second"] * is_second + [mutant] * bool(mutant)
    return ("-m", __name__, ",".join(changes)) if changes else ("-m", "phpmq_lite")


def mutant_process(data: Path, mutant: str, *flags: str, is_second: bool = False) -> BrokerProcess:
    """Return a broker with this defect, or one without if it is empty."""
    return BrokerProcess(data, list(flags), program=program_of(mutant, is_second=is_second))


if __name__ == "__main__":
    names = sys.argv.pop(1).split(",")
    for name in names:
        if name not in PROCESS_MUTANTS:
            (MUTANTS | {"hasty": _hurry, "second": _use_second})[name]()
    pass_on(names)
    main()
