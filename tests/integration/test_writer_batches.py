"""Batches of the engine in the writer's thread, and their shortcuts in the loop's thread."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import pytest

from phpmq_lite.errors import BatchRefusedError, OutcomeUnknownError, StorageError
from phpmq_lite.model import Batch, Message, OrderedSet, QueueRow, State
from phpmq_lite.storage.sqlite.store import SqliteStore
from phpmq_lite.storage.sqlite.writer import FEW_COMMANDS, Writer
from phpmq_lite.writes import EraseMessage
from tests.support.batch_builders import batch_of_new
from tests.support.stores import make_database

# -- a batch of the engine


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Writer]:
    one = Writer(make_database(tmp_path))
    await one.open(1 << 20)
    yield one
    await one.close()


def rows(one: Writer, sql: str) -> list[tuple[object, ...]]:
    """Read what is committed."""
    with closing(sqlite3.connect(one.path)) as reader:
        return reader.execute(sql).fetchall()


def watch(one: Writer) -> list[tuple[str, bool]]:
    """Return the list of what will be executed: its first word, and whether in the loop's thread.

    Pragmas are left out.
    """
    seen: list[tuple[str, bool]] = []
    here = threading.get_ident()

    def look(sql: str) -> None:
        word = sql.split()[0]
        if word != "PRAGMA":
            seen.append((word, threading.get_ident() == here))

    assert one._store is not None
    one._store.connection.set_trace_callback(look)
    return seen


async def test_short_batch_leaves_only_its_commit_to_the_thread(opened: Writer) -> None:
    seen = watch(opened)
    batch = batch_of_new(1, 2)
    batch.commands = FEW_COMMANDS + 1
    await opened.commit(batch)
    assert seen[0] == ("BEGIN", True)
    assert seen[-1] == ("COMMIT", False)
    assert len(seen) > 4
    assert all(is_here for _, is_here in seen[:-1])
    assert rows(opened, "SELECT seq FROM message") == [(1,), (2,)]


def assume_fast_disk(one: Writer) -> None:
    assert one._store is not None
    one._store.commit_s = 0.0


async def test_few_commands_are_committed_in_the_loop_on_a_fast_disk(opened: Writer) -> None:
    assume_fast_disk(opened)
    seen = watch(opened)
    batch = batch_of_new(1, 2)
    batch.commands = FEW_COMMANDS
    done = opened.commit(batch)
    assert done.done()
    assert (seen[0], seen[-1]) == (("BEGIN", True), ("COMMIT", True))
    assert rows(opened, "SELECT seq FROM message") == [(1,), (2,)]


@pytest.mark.parametrize(
    "lengthen",
    [
        pytest.param(lambda b: setattr(b, "commands", FEW_COMMANDS + 1), id="commands"),
        pytest.param(lambda b: b.body_seqs.add(1), id="loads"),
        pytest.param(lambda b: setattr(b, "is_partly_sent", True), id="consumers at work"),
        pytest.param(lambda b: setattr(b, "created_bytes", (64 << 10) + 1), id="bytes"),
        pytest.param(lambda b: b.events.extend([1, 0, "x", None] * 201), id="rows"),
    ],
)
async def test_larger_batch_is_committed_in_the_thread(
    opened: Writer, lengthen: Callable[[Batch], None]
) -> None:
    assume_fast_disk(opened)
    seen = watch(opened)
    batch = batch_of_new(1)
    lengthen(batch)
    done = opened.commit(batch)
    assert not done.done()
    await done
    assert ("COMMIT", False) in seen


async def test_batch_is_committed_in_the_thread_on_a_slow_disk(opened: Writer) -> None:
    assert opened._store is not None
    opened._store.commit_s = 0.01
    seen = watch(opened)
    await opened.commit(batch_of_new(1))
    assert seen[-1] == ("COMMIT", False)


async def test_failure_of_a_commit_in_the_loop_is_an_unknown_outcome(opened: Writer) -> None:
    assume_fast_disk(opened)
    assert opened._store is not None
    connection = opened._store.connection

    def refuse_commit(action: int, what: str | None, *_: object) -> int:
        refused = action == sqlite3.SQLITE_TRANSACTION and what == "COMMIT"
        return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK

    connection.set_authorizer(refuse_commit)
    with pytest.raises(OutcomeUnknownError):
        await opened.commit(batch_of_new(1))
    connection.set_authorizer(None)
    assert connection.in_transaction
    connection.rollback()


async def test_cancelled_work_is_not_overtaken(opened: Writer) -> None:
    assume_fast_disk(opened)
    may_end, ended = threading.Event(), threading.Event()

    def work(_: SqliteStore) -> None:
        may_end.wait(10)
        ended.set()

    given_up = opened.start(work)
    given_up.cancel()
    done = opened.commit(batch_of_new(1))
    assert not done.done()
    may_end.set()
    await done
    assert ended.is_set()


async def test_work_in_the_thread_is_not_overtaken(opened: Writer) -> None:
    """While the thread is busy, the statements of a batch wait in its queue."""
    assume_fast_disk(opened)
    seen = watch(opened)
    first = opened.start(lambda store: store.execute("SELECT 1").fetchall())
    await opened.commit(batch_of_new(1))
    assert first.done()
    assert seen[0] == ("SELECT", False)
    assert not any(is_here for _, is_here in seen)
    assume_fast_disk(opened)  # however long the first commit took
    await opened.commit(batch_of_new(2))
    assert seen[-1] == ("COMMIT", True)


@pytest.mark.parametrize(
    "lengthen",
    [
        pytest.param(lambda b: setattr(b, "commands", 5_001), id="commands"),
        pytest.param(lambda b: setattr(b, "created_bytes", (1 << 20) + 1), id="bytes"),
        pytest.param(lambda b: b.writes.append(EraseMessage(1, 1)), id="rare"),
        pytest.param(lambda b: b.claims_removed.append(1), id="several"),
    ],
)
async def test_long_batch_runs_in_thread(opened: Writer, lengthen: Callable[[Batch], None]) -> None:
    seen = watch(opened)
    batch = batch_of_new(1)
    lengthen(batch)
    await opened.commit(batch)
    assert (seen[0], seen[-1]) == (("BEGIN", False), ("COMMIT", False))
    assert not any(is_here for _, is_here in seen)
    assert rows(opened, "SELECT seq FROM message") == [(1,)]


async def test_counts_of_many_queues_take_few_statements(opened: Writer) -> None:
    first = Batch(0)
    first.new_queues = [QueueRow(number, f"queue {number}", 0) for number in range(1, 1_001)]
    await opened.commit(first)
    batch = Batch(0)
    for row in reversed(first.new_queues[1:]):  # of all but the first, in any order
        row.live_count, row.live_bytes = row.queue_id % 7, row.queue_id * 10
        batch.queue_rows[row.queue_id] = row
    seen = watch(opened)
    await opened.commit(batch)
    expected = [(1, 0, 0), *((n, n % 7, n * 10) for n in range(2, 1_001))]
    assert rows(opened, "SELECT queue_id, live_count, live_bytes FROM queue") == expected
    assert len(seen) < 20  # several hundred queues in each


async def test_batch_that_only_loads_opens_no_transaction(opened: Writer) -> None:
    await opened.commit(batch_of_new(1))
    seen = watch(opened)
    batch = Batch(0, first_number=2)
    batch.body_seqs = OrderedSet(dict.fromkeys((1, 2)))
    loaded = await opened.commit(batch)
    assert loaded is not None
    assert loaded.bodies == {1: b"b", 2: None}
    assert {word for word, _ in seen} == {"SELECT"}


async def test_batch_waits_for_the_work_of_the_thread(opened: Writer) -> None:
    """It neither interrupts the work nor overtakes it, and the loop is not blocked."""
    gate, order = threading.Event(), list[str]()

    def work(store: SqliteStore) -> None:
        gate.wait(30)
        assert not store.connection.in_transaction
        order.append("work")

    working = opened.start(work)
    seen = watch(opened)
    stored = opened.commit(batch_of_new(1))
    stored.add_done_callback(lambda _: order.append("batch"))
    assert seen == []
    gate.set()
    await asyncio.gather(working, stored)
    assert order == ["work", "batch"]
    assert not any(is_here for _, is_here in seen)


@pytest.mark.parametrize("is_delayed", [False, True])
async def test_batch_is_stored_as_it_was_at_the_commit(opened: Writer, is_delayed: bool) -> None:
    """The next batch changes the same messages and queues meanwhile."""
    await opened.commit(batch_of_new(1, 2))
    gate = threading.Event()
    if is_delayed:
        opened.start(lambda _: gate.wait(30))
    batch = batch_of_new(3)
    [born] = batch.created
    [row] = batch.new_queues
    batch.configured = [row]
    row.own = {"max_deliveries": 3}
    old = [Message(seq, 1, 1, seq, 1, None, None, 0, 5, 5, 1, 0, 1, 0, None, 7) for seq in (1, 2)]
    batch.dispatched, batch.changed = [old[0]], {2: old[1]}
    stored = opened.commit(batch)
    row.live_count = row.own["max_deliveries"] = 99
    for message in (born, *old):
        message.state, message.deliveries, message.consumer = State.DISPATCHED, 99, 99
        message.position, message.last_dispatched_at = 99, 99
    gate.set()
    await stored
    assert rows(
        opened, "SELECT seq, state, position, deliveries, consumer, last_dispatched_at FROM message"
    ) == [(1, 1, 1, 1, 7, 5), (2, 1, 2, 1, 7, 5), (3, 0, 3, 0, None, None)]
    assert rows(opened, "SELECT live_count, max_deliveries FROM queue WHERE queue_id = 3") == [
        (1, 3)
    ]


async def test_consecutive_batches_set_the_timeout_once(opened: Writer) -> None:
    await opened.commit(batch_of_new(1))
    seen = watch(opened)
    await opened.commit(batch_of_new(2))
    assert [word for word, _ in seen if word in ("PRAGMA", "BEGIN", "COMMIT")] == [
        "BEGIN", "COMMIT",
    ]  # fmt: skip


async def test_loads_and_other_work_wait_for_other_programs(opened: Writer) -> None:
    """A batch alone does not: it would block the loop."""
    timeouts: list[int] = []

    def note(_: object = None) -> None:
        found = opened._store
        assert found is not None
        timeouts.extend(found.execute("PRAGMA busy_timeout").fetchone())

    await opened.commit(batch_of_new(1))
    note()
    batch = batch_of_new(2)
    batch.body_seqs = OrderedSet(dict.fromkeys((1,)))
    await opened.commit(batch)
    note()
    await opened.commit(batch_of_new(3))
    await opened.run(note)
    assert timeouts == [0, 5_000, 5_000]


async def test_loop_is_not_blocked_while_another_program_writes(opened: Writer) -> None:
    with closing(sqlite3.connect(opened.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        stored = opened.commit(batch_of_new(1))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not stored.done()
        assert rows(opened, "SELECT seq FROM message") == []
        other.execute("ROLLBACK")
    await stored
    assert rows(opened, "SELECT seq FROM message") == [(1,)]
    timeout = await opened.run(lambda store: store.execute("PRAGMA busy_timeout").fetchone())
    assert timeout == (5_000,)
    seen = watch(opened)
    await opened.commit(batch_of_new(2))
    assert seen[0] == ("BEGIN", True)  # as before


@pytest.mark.parametrize("commands", [1, 1_001])
async def test_batch_that_fails_is_not_stored(opened: Writer, commands: int) -> None:
    await opened.commit(batch_of_new(1))
    batch = batch_of_new(2)
    batch.commands = commands
    batch.new_queues[0].name = "queue 1"
    with pytest.raises(BatchRefusedError, match="CONSTRAINT"):
        await opened.commit(batch)
    assert rows(opened, "SELECT seq FROM message") == [(1,)]


async def test_writer_that_is_not_open_refuses_a_batch(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="not open"):
        Writer(tmp_path / "messages.db").commit(batch_of_new(1))
