"""The writer on a real file: pragmas, atomic batches of any size, and their durability."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from phpmq_lite.errors import (
    BatchRefusedError,
    OutcomeUnknownError,
    StartRefusedError,
    StorageError,
)
from phpmq_lite.model import Batch, Limits, Message, Outbox, QueueRow, State
from phpmq_lite.storage.sqlite import store as stores
from phpmq_lite.storage.sqlite.store import LONG_WAL_BYTES, SqliteStore
from phpmq_lite.storage.sqlite.writer import Writer
from tests.support.core_and_store import MakeDriver
from tests.support.core_rig import message
from tests.support.stores import commit, make_database, open_store

SIZES = [1, 5, 20, 100, 500, 626, 1_251, 2_499]

# -- pragmas


PRAGMAS = {
    "journal_mode": "wal",
    "synchronous": 2,
    "locking_mode": "normal",
    "wal_autocheckpoint": 0,
    "busy_timeout": 5_000,
    "foreign_keys": 1,
    "trusted_schema": 0,
    "mmap_size": 0,
    "cell_size_check": 1,
    "temp_store": 2,
}


def test_store_sets_its_pragmas(tmp_path: Path) -> None:
    store = open_store(make_database(tmp_path))
    assert {name: store.execute(f"PRAGMA {name}").fetchone()[0] for name in PRAGMAS} == PRAGMAS
    store.connection.close()


def test_store_refuses_a_start_where_sqlite_keeps_another_value() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    with pytest.raises(StartRefusedError, match="journal_mode is 'memory', not 'wal'"):
        SqliteStore(connection).configure(1 << 20)
    connection.close()


def test_store_refuses_a_start_where_a_setting_does_not_stick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(stores._PRAGMAS, "synchronous", 7)
    with pytest.raises(StartRefusedError, match="synchronous"):
        open_store(make_database(tmp_path))


# -- one batch, one transaction


def test_batch_is_atomic(make: MakeDriver) -> None:
    driver = make()
    driver.publish(b"a")
    batch = Batch(0, first_number=2)
    batch.new_queues.append(QueueRow(2, "mails", 0))
    batch.created = [message(seq, body=b"b", queue_id=2) for seq in (2, 3, 1)]
    batch.bodies = [b"b"] * 3
    batch.counters = {"next_number": 4}
    with pytest.raises(OutcomeUnknownError, match="CONSTRAINT"):
        commit(driver.store, batch)
    driver.kill_and_restart()
    assert driver.states() == [(1, 0, 0)]
    assert driver.rows("SELECT name FROM queue") == [("orders",)]
    assert driver.rows("SELECT seq FROM body") == [(1,)]
    assert driver.core.next_number == 2


def test_rollback_leaves_no_gap_in_the_history(make: MakeDriver) -> None:
    driver = make()
    driver.publish(b"a", b"b")
    failing = Batch(0)
    failing.settled = {(int(State.ACKED), None): [1]}
    failing.opened_clients = [1, "tcp", "twice", 0]
    with pytest.raises(BatchRefusedError):
        commit(driver.store, failing)
    driver.kill_and_restart()
    driver.ask("purge", "orders")
    driver.step()
    assert driver.outcomes() == [(1, 1, 5, "purge"), (2, 2, 5, "purge")]


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda b: b.counters.update({"next_number": 1 << 70}), id="number"),
        pytest.param(lambda b: b.opened_clients.extend([9, "tcp", "a\ud800", 0]), id="text"),
    ],
)
def test_batch_with_invalid_values_is_refused(
    make: MakeDriver, spoil: Callable[[Batch], None]
) -> None:
    """An invalid value must not leave a transaction open and memory ahead of the disk."""
    driver = make()
    batch = Batch(0)
    spoil(batch)
    with pytest.raises(BatchRefusedError):
        commit(driver.store, batch)
    assert not driver.store.connection.in_transaction


def test_empty_batch_writes_nothing(make: MakeDriver) -> None:
    driver = make()
    before = driver.path.stat().st_size, driver.store.wal_bytes
    assert commit(driver.store, Batch(0)) is None
    assert (driver.path.stat().st_size, driver.store.wal_bytes) == before


@pytest.mark.parametrize("count", SIZES)
def test_batch_of_any_size_is_stored_and_settled_row_by_row(make: MakeDriver, count: int) -> None:
    driver = make(Limits(credit=5_000, window=5_000))
    driver.publish(*(b"%d" % n for n in range(count)))
    assert driver.live()[0] == count
    worker = driver.consume(5_000)
    got = worker.take()
    assert [d.body for d in got] == [b"%d" % n for n in range(count)]
    assert {row[1:] for row in driver.states()} == {(1, 1)}
    for delivery in got:
        worker.acknowledge("orders", delivery.message_id)
    driver.step()
    assert driver.outcomes() == [(n, n, 2, None) for n in range(1, count + 1)]
    assert (driver.live(), driver.states()) == ((0, 0), [])
    assert driver.rows("SELECT count(*) FROM body") == [(count,)]


@pytest.mark.parametrize("count", [1, 5, 20, 100, 626])
def test_return_of_any_size_is_stored_row_by_row(make: MakeDriver, count: int) -> None:
    driver = make()
    worker = driver.consume(1_000)
    driver.publish(*[b"x"] * count)
    worker.requeue("orders", worker.got[-1].message_id, 60)
    worker.disconnect()
    driver.step()
    assert {row[1:] for row in driver.states()} == {(0, 1)}
    charged = driver.rows("SELECT seq, charged FROM message WHERE charged > 0 ORDER BY seq")
    assert charged == ([(1, 1), (count, 1)] if count > 1 else [(1, 1)])


# -- stored before it is sent


def test_dispatch_is_on_disk_before_it_is_sent(make: MakeDriver) -> None:
    """README, Promises 1: a consumer never sees a message that is not stored."""
    driver = make()
    reader = sqlite3.connect(f"file:{driver.path}?mode=ro", uri=True)
    worker = driver.connect()
    send = worker.send
    seen: list[object] = []

    def read_first(outbox: Outbox, now_ms: int) -> list[Message]:
        seen.extend(
            reader.execute(
                "SELECT state, deliveries, consumer, content FROM message JOIN body USING (seq)"
            )
        )
        seen.extend(reader.execute("SELECT keys FROM receipt"))
        return send(outbox, now_ms)

    worker.send = read_first  # type: ignore[method-assign]
    worker.consume("orders", 5)
    driver.step()
    worker.publish("orders", b"a", None, b"key")
    driver.step()
    assert seen == [(1, 1, 1, b"a"), (b"key",)]
    assert [(d.body, r.key) for d, r in zip(worker.got, worker.receipts, strict=True)] == [
        (b"a", b"key")
    ]
    reader.close()


def test_uncommitted_message_is_lost_with_the_process(make: MakeDriver) -> None:
    driver = make()
    driver.publish(b"a")
    driver.connect().publish("orders", b"b")
    driver.decide()
    driver.kill_and_restart()
    assert driver.states() == [(1, 0, 0)]
    driver.publish(b"c")
    assert [d.body for d in driver.consume().take()] == [b"a", b"c"]


# -- the asyncio side


async def test_writer_runs_work_in_its_thread_and_checkpoints_at_the_end(tmp_path: Path) -> None:
    path = make_database(tmp_path)
    one = Writer(path)
    await one.open(1 << 20)
    batch = Batch(0)
    batch.counters = {"next_number": 5}
    assert await one.run(lambda store: commit(store, batch)) is None
    assert await one.run(lambda store: store.wal_bytes) > 0
    wal = path.with_name(path.name + "-wal")
    assert wal.stat().st_size > 0
    await one.close()
    assert not wal.exists()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT * FROM counter").fetchall() == [("next_number", 5)]
    connection.close()


async def test_writer_that_is_not_open_refuses_work(tmp_path: Path) -> None:
    one = Writer(tmp_path / "messages.db")
    assert not one.needs_maintenance
    with pytest.raises(StorageError, match="not open"):
        await one.run(lambda store: store.wal_bytes)
    await one.close()


async def test_writer_raises_what_its_work_raises(tmp_path: Path) -> None:
    one = Writer(make_database(tmp_path))
    await one.open(1 << 20)
    batch = Batch(0)
    batch.opened_clients = [1, None, "address", 0]
    with pytest.raises(BatchRefusedError, match="CONSTRAINT"):
        await one.run(lambda store: commit(store, batch))
    await one.close()


# -- checkpoints


def test_checkpoint_empties_the_wal(make: MakeDriver) -> None:
    driver = make()
    driver.publish(b"a")
    assert driver.store.wal_bytes > 0
    assert driver.store.checkpoint("RESTART")
    assert driver.store.wal_bytes == 0
    driver.store.checkpoint("TRUNCATE")
    assert driver.path.with_name(driver.path.name + "-wal").stat().st_size == 0


async def test_start_waits_for_a_reader_and_begins_with_an_empty_log(tmp_path: Path) -> None:
    """A killed broker may leave such a reader, which ends with its statement."""
    path = make_database(tmp_path)
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as reader:
        reader.execute("PRAGMA journal_mode=wal").fetchone()
        reader.execute("CREATE TABLE other (n)")
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM other").fetchone()
        asyncio.get_running_loop().call_later(0.2, reader.execute, "ROLLBACK")
        one = Writer(path)
        await one.open(1 << 20)
        assert path.with_name(path.name + "-wal").stat().st_size == 0
        await one.close()


def test_a_reader_delays_the_checkpoint_and_no_batch(make: MakeDriver) -> None:
    driver = make()
    driver.publish(b"a")
    with closing(sqlite3.connect(driver.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM message").fetchone()
        driver.publish(b"b")
        assert not driver.store.checkpoint("RESTART", waits=False)
        # Asked again a mebibyte later, not after another whole WAL.
        assert LONG_WAL_BYTES - (1 << 20) <= driver.store.wal_bytes < LONG_WAL_BYTES
        assert driver.store.execute("PRAGMA busy_timeout").fetchone() == (5_000,)
        reader.execute("ROLLBACK")
        assert driver.store.checkpoint("RESTART")
    assert driver.store.wal_bytes == 0
