"""Messages dispatched and settled in one batch have the same history as in two batches."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.broker import batches as broker_batches
from phpmq_lite.broker import commands
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.queue import Connection
from phpmq_lite.model import ClockReading, Limits, LoadedRows
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.storage.batch_sql import batch_statements
from phpmq_lite.testing import FakeClock
from tests.support.core_rig import FakePeer
from tests.support.stores import new_database

HISTORY = """SELECT "offset", seq, outcome, reason, position, ttl_s, deadline_ms, published_at,
  first_dispatched_at, last_dispatched_at, settled_at, deliveries, charged, size, crc, publisher,
  consumer, urn FROM history ORDER BY "offset" """


class Batches:
    """A core with its store, whose batches are ended by the test."""

    def __init__(self, store: Any, is_split: bool) -> None:
        self.store = store
        self.is_split = is_split  # ends the batch instead of continuing it
        self.core = Broker(store.recover(ClockReading(0, 0), 0, 10), Limits(), QueueSettings())
        self.clock = FakeClock()
        self.loaded: LoadedRows | None = None
        broker_batches.begin(self.core, self.clock.now())
        self.publisher = self.connect()
        self.worker = self.connect()

    def connect(self) -> Connection:
        return self.core.connect(FakePeer(), "tcp", "127.0.0.1:1")

    def end(self) -> None:
        """Commit the batch; the next one starts 7 ms later."""
        batch = broker_batches.finish(self.core)
        self.store.begin(batch_statements(batch) if batch.stores else [])
        self.loaded = self.store.end(batch)
        self.clock.advance(0.007)
        broker_batches.begin(self.core, self.clock.now(), self.loaded)

    def advance(self) -> None:
        """Advance the clock by 7 ms, in the same batch unless batches are split."""
        if self.is_split:
            self.end()
            return
        broker_batches.dispatch(self.core)
        self.clock.advance(0.007)
        self.core.update_clock(self.clock.now())

    def consume(self, credit: int) -> None:
        commands.consume(self.core, self.worker, "orders", credit)

    def acknowledge(self, *seqs: int) -> None:
        for seq in seqs:
            message = self.core.messages[seq]
            commands.acknowledge_late(self.core, self.worker, "orders", message.message_id)


def once(batches: Batches) -> None:
    for ttl_s in (0, 60, 0):
        commands.publish(batches.core, batches.publisher, "orders", b"body", ttl_s, None)
    batches.end()
    batches.consume(10)
    batches.end()  # the page is loaded
    batches.advance()
    batches.acknowledge(3, 1)
    batches.end()


def again(batches: Batches) -> None:
    """Dispatch one message again, together with a new one."""
    once(batches)
    commands.publish(batches.core, batches.publisher, "orders", b"other", 0, None)
    batches.end()
    batches.consume(0)
    batches.end()
    batches.consume(10)
    batches.end()
    batches.end()
    batches.advance()
    batches.acknowledge(2, 4)
    batches.end()


def run(folder: Path, story: Callable[[Batches], None], *, is_split: bool) -> list[Any]:
    folder.mkdir()
    database = new_database(folder / "messages.db")
    store: Any = database.open_store()
    with closing(database), closing(store.connection):
        batches = Batches(store, is_split)
        story(batches)
        batches.end()
        assert store.execute("SELECT count(*) FROM message WHERE state = 1").fetchone() == (
            batches.core.held,
        )
        rows: list[Any] = store.execute(HISTORY).fetchall()
        return rows


def in_two_steps(batches: Batches) -> None:
    """Settle two messages held since an earlier batch, then two dispatched in this one."""
    for _ in range(4):
        commands.publish(batches.core, batches.publisher, "orders", b"body", 0, None)
    batches.end()
    batches.consume(2)
    batches.end()  # the page is loaded
    batches.end()
    batches.acknowledge(1, 2)
    broker_batches.dispatch(batches.core)
    batches.acknowledge(3, 4)
    batches.end()


def test_history_is_ordered_by_acknowledgement(tmp_path: Path) -> None:
    rows = run(tmp_path / "one", in_two_steps, is_split=False)
    assert [row[1] for row in rows] == [1, 2, 3, 4]


@pytest.mark.parametrize("story", [once, again])
def test_history_of_one_batch_equals_that_of_two(
    tmp_path: Path, story: Callable[[Batches], None]
) -> None:
    together = run(tmp_path / "one", story, is_split=False)
    apart = run(tmp_path / "two", story, is_split=True)
    assert len(together) == (2 if story is once else 4)
    for rows in (together, apart):
        assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
    assert sorted(row[1:] for row in together) == sorted(row[1:] for row in apart)
