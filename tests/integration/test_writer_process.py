"""Batches in the writer process, and their order with all other work of the writer."""

import asyncio
import os
import signal
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.errors import BatchRefusedError, OutcomeUnknownError
from phpmq_lite.model import Batch, ClockReading, Message, OrderedSet, State
from phpmq_lite.storage.batch_sql import batch_statements
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.retention import RetentionBounds
from phpmq_lite.storage.sqlite import writer, writer_process
from phpmq_lite.storage.sqlite.history_index import BATCH_ROWS
from phpmq_lite.storage.sqlite.store import SqliteStore
from phpmq_lite.storage.sqlite.writer import FEW_COMMANDS, START_BATCHES, Fatal, Writer
from phpmq_lite.storage.sqlite.writer_process import WriterProcess, encode
from phpmq_lite.storage.store import note_clock
from phpmq_lite.writes import EraseMessage
from tests.support.batch_builders import batch_of_new
from tests.support.stores import make_database

_MINUTE_MS = 60_000


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DataFolder]:
    one = DataFolder.open(tmp_path / "data")
    yield one
    one.close()


@pytest.fixture
def failures() -> list[Fatal]:
    return []


@pytest.fixture
async def opened(folder: DataFolder, failures: list[Fatal]) -> AsyncIterator[Writer]:
    """A writer without its process."""
    one = Writer(make_database(folder.path), on_fatal=failures.append, folder=folder)
    one._may_start_process = True  # even on one processor
    await one.open(1 << 20)
    yield one
    await one.close()


@pytest.fixture
async def served(opened: Writer) -> Writer:
    """A writer whose process is ready."""
    await start(opened)
    return opened


async def start(one: Writer) -> None:
    """Store empty messages until the process is ready."""
    for seq in range(1, START_BATCHES + 1):
        await one.commit(large(batch_of_new(seq)))
    await until(lambda: process_of(one).is_ready)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.01)


def process_of(one: Writer) -> WriterProcess:
    assert one._process is not None
    return one._process


def large(batch: Batch) -> Batch:
    """Set the number of commands above the limit for batches committed in the loop."""
    batch.commands = FEW_COMMANDS + 1
    return batch


def rows(one: Writer, sql: str) -> list[tuple[Any, ...]]:
    """Read what is committed."""
    with closing(sqlite3.connect(one.path)) as reader:
        return reader.execute(sql).fetchall()


def newest(one: Writer) -> int:
    [(seq,)] = rows(one, "SELECT max(seq) FROM message")
    return int(seq)


def wal_size(one: Writer) -> int | None:
    wal = Path(f"{one.path}-wal")
    return wal.stat().st_size if wal.exists() else None


def watch(one: Writer) -> list[str]:
    """Return the list of the statements that this process will execute, by their first words."""
    seen: list[str] = []
    assert one._store is not None
    one._store.connection.set_trace_callback(lambda sql: seen.append(sql.split()[0]))
    return seen


# -- its start


async def test_process_starts_after_large_batches_without_a_pause(opened: Writer) -> None:
    for seq in range(1, START_BATCHES):
        await opened.commit(large(batch_of_new(seq)))
    for seq in range(100, 100 + START_BATCHES):
        await opened.commit(batch_of_new(seq))  # not large
    assert opened._process is None
    await opened.maintain(ClockReading(0, 0), is_idle=True)
    await opened.commit(large(batch_of_new(200)))
    assert opened._process is None
    for seq in range(300, 300 + START_BATCHES):
        await opened.commit(large(batch_of_new(seq)))
    assert opened._process is not None


async def test_process_is_not_used_before_it_is_ready(opened: Writer) -> None:
    for seq in range(1, START_BATCHES + 1):
        await opened.commit(large(batch_of_new(seq)))
    os.kill(process_of(opened).pid, signal.SIGSTOP)
    seen = watch(opened)
    await opened.commit(large(batch_of_new(START_BATCHES + 1)))
    assert seen[-1] == "COMMIT"
    os.kill(process_of(opened).pid, signal.SIGCONT)


async def test_process_is_not_started_on_one_processor(
    folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0}, raising=False)
    one = Writer(make_database(folder.path), folder=folder)
    await one.open(1 << 20)
    for seq in range(1, 2 * START_BATCHES):
        await one.commit(large(batch_of_new(seq)))
    assert one._process is None
    await one.close()


@pytest.mark.parametrize("code", ["exit(3)", "import os; os.kill(os.getpid(), 9)"])
async def test_process_that_does_not_start_is_done_without(
    opened: Writer, monkeypatch: pytest.MonkeyPatch, code: str, failures: list[Fatal]
) -> None:
    monkeypatch.setattr(writer_process, "PROGRAM", ("-c", code))
    for seq in range(1, START_BATCHES + 1):
        await opened.commit(large(batch_of_new(seq)))
    await until(lambda: opened._process is None)
    for seq in range(100, 100 + 2 * START_BATCHES):
        await opened.commit(large(batch_of_new(seq)))
    assert opened._process is None  # it is not tried again
    assert failures == []
    assert newest(opened) == 99 + 2 * START_BATCHES


async def test_broker_without_memory_for_a_process_stores_without_it(
    opened: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: object, **_more: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    for seq in range(1, 2 * START_BATCHES):
        await opened.commit(large(batch_of_new(seq)))
    assert opened._process is None
    assert newest(opened) == 2 * START_BATCHES - 1


# -- its batches


async def test_large_batch_is_stored_by_the_process(served: Writer) -> None:
    seen = watch(served)
    await served.commit(large(batch_of_new(100, 101)))
    assert seen == []
    assert rows(served, "SELECT seq FROM message WHERE seq >= 100") == [(100,), (101,)]


async def test_small_batch_is_stored_in_the_loop(served: Writer) -> None:
    assert served._store is not None
    served._store.commit_s = 0.0
    done = served.commit(batch_of_new(100))
    assert done.done()
    assert newest(served) == 100


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda b: b.writes.append(EraseMessage(1, 1)), id="operator's rows"),
        pytest.param(lambda b: b.bodies.__setitem__(0, bytes(33 << 20)), id="too large"),
        pytest.param(lambda b: setattr(b, "created_bytes", 2_049 * b.commands), id="large bodies"),
    ],
)
async def test_batch_that_the_process_does_not_take_is_stored_in_the_thread(
    served: Writer, change: Callable[[Batch], None]
) -> None:
    batch = large(batch_of_new(100))
    change(batch)
    seen = watch(served)
    await served.commit(batch)
    assert seen[-1] == "COMMIT"
    assert newest(served) == 100


async def test_rows_of_a_batch_in_the_process_are_loaded_after_it(served: Writer) -> None:
    batch = large(batch_of_new(100))
    batch.body_seqs = OrderedSet(dict.fromkeys((1, 100, 101)))
    loaded = await served.commit(batch)
    assert loaded is not None
    assert loaded.bodies == {1: b"b", 100: b"b", 101: None}


async def test_batch_in_the_process_is_stored_as_it_was_at_the_commit(served: Writer) -> None:
    batch = large(batch_of_new(100))
    old = Message(1, 1, 1, 1, 1, None, None, 0, 5, 5, 1, 0, 1, 0, None, 7)
    batch.changed = {1: old}
    stored = served.commit(batch)
    for message in (*batch.created, old):
        message.state, message.deliveries, message.consumer = State.DISPATCHED, 99, 99
    await stored
    found = rows(
        served, "SELECT seq, state, deliveries, consumer FROM message WHERE seq IN (1, 100)"
    )
    assert found == [(1, 1, 1, 7), (100, 0, 0, None)]


async def test_process_indexes_the_history_as_the_thread_does(served: Writer) -> None:
    seqs = range(1_000, 1_000 + 600)
    for seq in range(1_000, 1_600, 100):
        await served.commit(large(batch_of_new(*range(seq, seq + 100))))
    batch = large(Batch(0, first_number=1_600))
    batch.settled[int(State.ACKED), None] = [*seqs]
    assert served._store is not None
    before = served._store.wal_bytes
    await served.commit(batch)
    assert rows(served, "SELECT count(*) FROM history") == [(600,)]
    assert rows(served, "SELECT value FROM counter WHERE name = 'placed_upto'") == [(600,)]
    assert served._store.wal_bytes > before + (16 << 10)  # more than the batch without its index


SETTLED = 2 * BATCH_ROWS  # messages per batch
FULL = {
    "rows": (RetentionBounds(rows=SETTLED, deleted_share=0), 0),
    "bytes": (RetentionBounds(bytes=SETTLED, deleted_share=0), 0),
    "age": (RetentionBounds(age_ms=3), 0),
}


@pytest.mark.parametrize("bound", FULL)
@pytest.mark.parametrize("is_in_turn", [False, True], ids=["in order", "two queues in turn"])
async def test_batch_removes_what_it_settles_when_the_history_is_full(
    served: Writer, bound: str, is_in_turn: bool
) -> None:
    """After its reply, in the process: maintenance would keep the writer from batches."""
    store = served._store
    assert store is not None
    bounds, _ = FULL[bound]
    seen, kept = watch(served), 0
    for number in range(1, 8):
        store.retention = bounds, 10 * number
        seqs = [*range(SETTLED * number, SETTLED * (number + 1))]
        both = large(batch_of_new(*seqs))
        both.wall_ms = 10 * number
        both.settled[int(State.ACKED), None] = seqs[::2] if is_in_turn else seqs
        if is_in_turn:
            both.settled[int(State.EXPIRED), None] = seqs[1::2]
        await served.commit(both)
        await until(lambda: served._turn.removal is None)
        [(kept, first, last, counted)] = rows(
            served,
            'SELECT count(*), min("offset"), max("offset"),'
            " (SELECT value FROM counter WHERE name = 'history_rows') FROM history",
        )
        assert (kept, last - first + 1) == (counted, counted)
        assert rows(served, "SELECT count(*) FROM body WHERE seq NOT IN (SELECT seq FROM history)"
                    f" AND seq >= {SETTLED}") == [(0,)]  # fmt: skip
    assert kept == SETTLED
    assert seen == []


async def settle(one: Writer, number: int) -> None:
    """Store and settle as many messages as fill the history, in one batch."""
    seqs = [*range(SETTLED * number, SETTLED * (number + 1))]
    both = large(batch_of_new(*seqs))
    both.settled[int(State.ACKED), None] = seqs
    await one.commit(both)


async def fill(one: Writer) -> None:
    """Settle twice as many messages as the history may have."""
    assert one._store is not None
    one._store.retention = FULL["rows"]
    await settle(one, 1)
    await settle(one, 2)


async def test_work_and_batches_wait_for_a_removal_in_their_order(served: Writer) -> None:
    await fill(served)
    assert served._turn.removal is not None
    order: list[str] = []
    works: list[asyncio.Future[Any]] = [
        served.start(lambda _store: order.append("before")),
        served.commit(large(batch_of_new(10_000))),
        served.start(lambda _store: order.append(f"after {newest(served)}")),
    ]
    assert order == []
    await asyncio.gather(*works)
    assert order == ["before", "after 10000"]
    assert rows(served, "SELECT count(*) FROM history") == [(SETTLED,)]


async def test_batch_does_not_wait_for_a_removal(served: Writer) -> None:
    store = served._store
    assert store is not None
    store.retention = FULL["rows"]
    for number in range(1, 5):
        await settle(served, number)
        assert served._turn.removal is not None
    await until(lambda: served._turn.removal is None)
    assert rows(served, "SELECT count(*) FROM history") == [(SETTLED,)]
    assert served._last is not None
    assert served._last.done()


async def test_rows_are_not_removed_before_their_bounds_are_known(served: Writer) -> None:
    """The first bounds come with maintenance; the defaults may be lower than the settings."""
    store = served._store
    assert store is not None
    assert store.retention is None
    await settle(served, 1)
    assert served._turn.removal is None


async def test_writer_that_closes_does_not_wait_for_a_removal(served: Writer) -> None:
    await fill(served)
    assert served._turn.removal is not None
    await served.close()
    assert rows(served, "SELECT count(*) FROM message WHERE seq >= 1000") == [(0,)]


async def test_process_that_is_killed_while_it_removes_is_a_failure(
    served: Writer, failures: list[Fatal]
) -> None:
    await fill(served)
    os.kill(process_of(served).pid, signal.SIGKILL)
    await until(lambda: failures)
    assert rows(served, 'SELECT max("offset") FROM history') == [(2 * SETTLED,)]


async def test_process_waits_for_other_programs_in_the_thread(served: Writer) -> None:
    with closing(sqlite3.connect(served.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        stored = served.commit(large(batch_of_new(100)))
        await asyncio.sleep(0.2)
        assert not stored.done()
        assert newest(served) < 100
        other.execute("ROLLBACK")
    await stored
    assert newest(served) == 100
    seen = watch(served)
    await served.commit(large(batch_of_new(101)))
    assert seen == []  # by the process again


async def test_steps_with_unexpected_values_are_not_encoded() -> None:
    assert encode([("set_counter", ("name", object()), None)]) is None
    assert encode(batch_statements(batch_of_new(1))) is not None


# -- the order of work


async def test_work_waits_for_the_batch_in_the_process(served: Writer) -> None:
    order: list[str] = []
    os.kill(process_of(served).pid, signal.SIGSTOP)
    stored = served.commit(large(batch_of_new(100)))
    stored.add_done_callback(lambda _: order.append("batch"))
    works = [
        served.start(lambda _store, name=name: order.append(name))  # type: ignore[misc]
        for name in ("first", "second")
    ]
    await asyncio.sleep(0.1)
    assert order == []
    os.kill(process_of(served).pid, signal.SIGCONT)
    await asyncio.gather(stored, *works)
    assert sorted(order) == ["batch", "first", "second"]
    assert order.index("first") < order.index("second")


async def test_batches_after_a_jump_of_the_clock_wait_until_it_is_stored(served: Writer) -> None:
    """The jump is noted while the process is busy; both later batches come after it."""
    seen: list[int] = []

    def note(store: SqliteStore) -> None:
        seen.append(store.execute("SELECT max(seq) FROM message").fetchone()[0])
        note_clock(store, {"clock_step_ms": 5, "last_seen_ms": 7}, has_jumped=True)

    first = served.commit(large(batch_of_new(100)))
    noted = served.start(note)
    await first
    second = served.commit(large(batch_of_new(101)))
    third = served.start(lambda store: seen.append(
        store.execute("SELECT max(seq) FROM message").fetchone()[0]))  # fmt: skip
    await asyncio.gather(noted, second, third)
    assert seen == [100, 101]


async def test_batch_in_the_process_waits_for_the_thread(served: Writer) -> None:
    is_open: list[bool] = []
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    def work(store: SqliteStore) -> None:
        store.execute("BEGIN IMMEDIATE")
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(20)
        store.execute("ROLLBACK")
        is_open.append(newest(served) >= 100)

    working = served.start(work)
    stored = served.commit(large(batch_of_new(100)))
    await asyncio.sleep(0.1)
    gate.set()
    await asyncio.gather(working, stored)
    assert is_open == [False]
    assert newest(served) == 100


async def test_checkpoint_empties_the_log_that_the_process_writes(served: Writer) -> None:
    await served.commit(large(batch_of_new(100)))
    assert await served.run(lambda store: store.checkpoint("TRUNCATE"))
    assert wal_size(served) == 0
    await served.commit(large(batch_of_new(101)))
    assert newest(served) == 101


# -- its end


async def test_process_ends_after_an_idle_minute(served: Writer) -> None:
    pid = process_of(served).pid
    await served.maintain(ClockReading(0, 5), is_idle=True)
    await served.maintain(ClockReading(0, 5 + _MINUTE_MS), is_idle=True)
    os.kill(pid, 0)  # it exists
    await served.maintain(ClockReading(0, 6 + _MINUTE_MS), is_idle=True)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    for seq in range(100, 100 + START_BATCHES):
        await served.commit(large(batch_of_new(seq)))
    assert served._process is not None


async def test_end_of_the_process_between_batches_is_fatal(
    served: Writer, failures: list[Fatal]
) -> None:
    os.kill(process_of(served).pid, signal.SIGKILL)
    await until(lambda: failures)
    assert str(failures[0]).endswith("ended with signal 9")
    with pytest.raises(OutcomeUnknownError):
        await served.commit(large(batch_of_new(100)))
    with pytest.raises(OutcomeUnknownError):
        await served.run(lambda _store: None)


async def test_end_of_the_process_during_a_batch_is_an_unknown_outcome(
    served: Writer, failures: list[Fatal]
) -> None:
    os.kill(process_of(served).pid, signal.SIGSTOP)
    stored = served.commit(large(batch_of_new(100)))
    later = served.start(lambda _store: None)
    os.kill(process_of(served).pid, signal.SIGKILL)
    with pytest.raises(OutcomeUnknownError, match="ended with signal 9"):
        await stored
    with pytest.raises(OutcomeUnknownError):
        await later
    assert len(failures) == 1


async def test_batch_that_the_process_cannot_store_is_refused(
    served: Writer, failures: list[Fatal]
) -> None:
    batch = large(batch_of_new(100))
    batch.new_queues[0].name = "queue 1"
    with pytest.raises(BatchRefusedError, match="CONSTRAINT"):
        await served.commit(batch)
    assert not failures
    assert newest(served) < 100


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
async def test_batch_in_replaced_files_is_not_confirmed(
    served: Writer, failures: list[Fatal], suffix: str
) -> None:
    path, moved = f"{served.path}{suffix}", f"{served.path}.moved"
    os.rename(path, moved)
    with pytest.raises(OutcomeUnknownError, match="removed while the broker was running"):
        await served.commit(large(batch_of_new(100)))
    assert failures
    os.rename(moved, path)
    served._failed = None  # so that the fixture can close it


async def test_close_ends_the_process_before_the_last_checkpoint(
    folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Writer(make_database(folder.path), folder=folder)
    one._may_start_process = True
    await one.open(1 << 20)
    await start(one)
    pid = process_of(one).pid
    ended: list[bool] = []

    def truncate(store: SqliteStore) -> None:
        ended.append(not Path("/proc", str(pid)).exists())
        real(store)

    real = writer._truncate_wal
    monkeypatch.setattr(writer, "_truncate_wal", truncate)
    await one.close()
    assert ended == [True]
    assert wal_size(one) is None
    assert rows(one, "SELECT count(*) FROM message") == [(START_BATCHES,)]
