"""The history index is filled in slices while history pages are read."""

import itertools
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.errors import OutcomeUnknownError, StorageFullError
from phpmq_lite.model import Batch, ClockReading, State
from phpmq_lite.storage.batch_sql import REMOVED_SETTINGS, batch_statements
from phpmq_lite.storage.read.messages import MessageReader
from phpmq_lite.storage.retention import RetentionBounds, remove_expired
from phpmq_lite.storage.search.language import parse_search
from phpmq_lite.storage.search.reader import Search
from phpmq_lite.storage.sqlite import history_index as module
from phpmq_lite.storage.sqlite.backend import WriterMaintenance
from phpmq_lite.storage.sqlite.history_index import (
    BATCH_ROWS,
    MAX_ROWS,
    MIN_ROWS,
    WAIT_MS,
    HistoryIndexer,
)
from phpmq_lite.storage.sqlite.read_connections import SqliteReaders
from phpmq_lite.storage.sqlite.store import SqliteStore
from phpmq_lite.storage.statements import load
from phpmq_lite.testing import FakeClock
from tests.support.batch_builders import batch_of_new
from tests.support.retention_database import INDEXED
from tests.support.stores import commit, empty_database

INSERT = (
    "INSERT INTO history (seq, token, queue_id, position, outcome, settled_at, published_at, "
    "deliveries, charged, size, crc) "
)


class Ledger:
    """A migrated database with a history of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            path.write_bytes(empty_database())
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.execute = self.connection.execute
        self.execute("PRAGMA journal_mode=WAL").fetchall()

    def add(self, *rows: tuple[int, int, int, int]) -> None:
        """SqliteStore settled messages, each with its offset, seq, queue and outcome."""
        insert = INSERT.replace("(seq", '("offset", seq')
        for offset, seq, queue_id, outcome in rows:
            given = (offset, seq, seq, queue_id, seq, outcome)
            self.execute(f"{insert} VALUES (?, ?, ?, ?, ?, ?, 0, 0, 1, 0, 0, 0)", given)

    def settle(self, queue_id: int, outcome: int) -> int:
        found = self.execute(
            f"{INSERT} SELECT n, n, ?, n, ?, n, 0, 1, 0, 0, 0 FROM (SELECT 1 + coalesce("
            '(SELECT max("offset") FROM history), 0) AS n)',
            (queue_id, outcome),
        )
        return int(found.lastrowid or 0)

    def fill(self, rows: int, queues: int = 7) -> None:
        """Store acked messages, distributed evenly over the queues."""
        self.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
            f"{INSERT} SELECT i, i, i % ?, i, 2, 0, 0, 1, 0, 0, 0 FROM n",
            (rows, queues),
        )

    def indexed_upto(self) -> int:
        """Return the last indexed offset, after comparing the index with the rows."""
        found = self.execute("SELECT value FROM counter WHERE name = 'placed_upto'").fetchone()
        upto = int(found[0]) if found else 0
        rows = 'SELECT queue_id, outcome, "offset" FROM history WHERE "offset" <= ? ORDER BY 1,2,3'
        expected = self.execute(rows, (upto,)).fetchall()
        assert self.execute(f"{INDEXED} ORDER BY 1,2,3").fetchall() == expected
        return upto

    def runs(self) -> list[tuple[int, ...]]:
        """Return queue, outcome, first and last offset, and first seq of each run."""
        columns = "queue_id, outcome, first_offset, first_offset + length - 1, first_seq"
        return self.execute(f"SELECT {columns} FROM history_run ORDER BY 3").fetchall()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "phpmq.db")
    yield made
    made.connection.close()


# -- schedule and slices


def test_few_rows_wait_for_more_or_for_a_timeout(ledger: Ledger) -> None:
    places = HistoryIndexer(timer=lambda: 0.0)
    assert places.run(ledger.connection, 1_000, is_idle=False) == 0  # none there
    ledger.fill(MAX_ROWS - 1)
    assert places.run(ledger.connection, 1_000 + WAIT_MS - 1, is_idle=False) == 0
    ledger.settle(1, 2)
    assert places.run(ledger.connection, 1_001, is_idle=False) == MAX_ROWS
    ledger.settle(1, 3)
    assert places.run(ledger.connection, 1_000 + WAIT_MS, is_idle=False) == 0
    assert places.run(ledger.connection, 1_001 + WAIT_MS, is_idle=False) == 1
    ledger.settle(1, 4)
    assert places.run(ledger.connection, 1_002 + WAIT_MS, is_idle=True) == 1
    assert ledger.indexed_upto() == MAX_ROWS + 2


def test_run_ends_with_its_queue_outcome_order_or_block(ledger: Ledger) -> None:
    block = 1 << 16
    at = block - 7
    ledger.add(
        (at, 3, 1, 2), (at + 1, 4, 1, 2), (at + 2, 9, 1, 2),  # numbers may have gaps
        (at + 3, 10, 2, 2),  # another queue
        (at + 4, 11, 2, 3),  # another outcome
        (at + 5, 8, 2, 3), (at + 6, 4095, 2, 3),  # a lower number
        (at + 7, 4097, 2, 3),  # the next block of offsets
        (at + 8, 4098, 2, 3),
        (at + 9, 9000, 2, 3),  # much higher
        (at + 11, 9001, 2, 3),  # an offset is missing
    )  # fmt: skip
    ledger.execute("INSERT INTO counter VALUES ('placed_upto', ?)", (at - 1,))
    assert HistoryIndexer().run(ledger.connection, 0, is_idle=True)
    assert ledger.runs() == [
        (1, 2, at, at + 2, 3),
        (2, 2, at + 3, at + 3, 10),
        (2, 3, at + 4, at + 4, 11),
        (2, 3, at + 5, at + 6, 8),
        (2, 3, at + 7, at + 8, 4097),
        (2, 3, at + 9, at + 10, 9000),
        (2, 3, at + 11, at + 11, 9001),
    ]


def test_short_runs_are_not_searched_for(ledger: Ledger) -> None:
    ledger.add(*((at, at, at % 3, 2) for at in range(1, 65)))
    ledger.add(*((at, at, 1, 2) for at in range(65, 129)))
    places = HistoryIndexer()
    assert places.run(ledger.connection, 0, is_idle=True) == 128
    assert len(ledger.runs()) == 128
    ledger.add(*((at, at, at // 2 % 3, 2) for at in range(129, 259)))
    assert places.run(ledger.connection, 0, is_idle=True) == 130
    assert len(ledger.runs()) == 128 + 66
    assert ledger.indexed_upto() == 258


def test_long_tail_is_indexed_in_slices(ledger: Ledger) -> None:
    ledger.fill(MAX_ROWS * 2 + 5)
    places = HistoryIndexer(timer=lambda: 0.0)
    taken = [(places.run(ledger.connection, 0, is_idle=True), places.has_more) for _ in range(4)]
    assert taken == [(MAX_ROWS, True), (MAX_ROWS, False), (5, False), (0, False)]
    assert ledger.indexed_upto() == MAX_ROWS * 2 + 5


def test_slice_size_adapts_to_the_time_a_slice_takes(ledger: Ledger) -> None:
    ledger.fill(MAX_ROWS * 4)
    took_s = iter([1.0, 1.0, 1.0, 1.0, 0.0, 0.02, 0.0])
    clock = itertools.chain.from_iterable((0.0, seconds) for seconds in took_s)
    places = HistoryIndexer(timer=lambda: next(clock))
    taken = [places.run(ledger.connection, 0, is_idle=True) for _ in range(7)]
    halves = [MAX_ROWS >> halvings for halvings in range(4)]
    assert taken == [*halves, MIN_ROWS, MIN_ROWS * 2, MIN_ROWS * 2]
    ledger.indexed_upto()


def test_rows_removed_before_they_are_indexed_are_skipped(ledger: Ledger) -> None:
    ledger.fill(3)
    ledger.execute('UPDATE history SET "offset" = "offset" + 1000000 WHERE "offset" = 3')
    ledger.execute('DELETE FROM history WHERE "offset" < 3')
    assert ledger.settle(1, 2) == 1_000_004
    assert HistoryIndexer().run(ledger.connection, 0, is_idle=True) == 2
    assert ledger.indexed_upto() == 1_000_004


def test_batch_indexes_once_many_rows_wait(ledger: Ledger) -> None:
    ledger.fill(BATCH_ROWS)
    places = HistoryIndexer()
    ledger.execute("BEGIN")
    assert not places.is_due(BATCH_ROWS - 1, 10)
    assert places.is_due(1, 10)
    places.index_in_batch(ledger.connection)
    assert places.wal_bytes > 0
    assert ledger.indexed_upto() == BATCH_ROWS
    ledger.execute("ROLLBACK")
    assert ledger.indexed_upto() == 0
    assert places.run(ledger.connection, 0, is_idle=True) == BATCH_ROWS


@pytest.mark.parametrize(("queues", "rows"), [(100, 5_000), (1_000, MAX_ROWS)])
def test_batch_with_many_queues_indexes_more_rows_at_once(
    ledger: Ledger, queues: int, rows: int
) -> None:
    """With 1,000 queues, a slice of 500 rows writes as many pages as one of 10,000."""
    ledger.fill(MAX_ROWS, queues)
    places = HistoryIndexer()
    assert not places.is_due(rows - 1, queues)
    assert places.is_due(1, queues)
    places.index_in_batch(ledger.connection)
    assert ledger.indexed_upto() == MAX_ROWS


def test_batch_indexes_a_long_tail_in_slices(ledger: Ledger) -> None:
    ledger.fill(MAX_ROWS + BATCH_ROWS)
    places = HistoryIndexer()
    places.index_in_batch(ledger.connection)
    assert ledger.indexed_upto() == MAX_ROWS
    places.index_in_batch(ledger.connection)
    assert ledger.indexed_upto() == MAX_ROWS + BATCH_ROWS


def test_index_that_does_not_fit_does_not_keep_a_batch_from_the_disk(ledger: Ledger) -> None:
    class FullDisk(HistoryIndexer):
        def is_due(self, settled: int, queues: int) -> bool:
            return super().is_due(settled + BATCH_ROWS, queues)

        def index_in_batch(self, connection: sqlite3.Connection) -> None:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count={pages}").fetchall()
            super().index_in_batch(connection)

    ledger.fill(BATCH_ROWS)
    store, acked = SqliteStore(ledger.connection), Batch(0, first_number=BATCH_ROWS + 2)
    commit(store, batch_of_new(BATCH_ROWS + 1))
    acked.settled[int(State.ACKED), None] = [BATCH_ROWS + 1]
    store.indexer = FullDisk()
    store.begin(batch_statements(acked))
    with pytest.raises(StorageFullError):
        store.end(acked, with_index=True)
    assert ledger.execute("SELECT count(*) FROM history").fetchone() == (BATCH_ROWS,)
    ledger.execute("PRAGMA max_page_count=1000000").fetchall()
    store.begin(batch_statements(acked))
    store.end(acked)
    assert store.indexer.run(ledger.connection, 0, is_idle=True) == BATCH_ROWS + 1
    assert ledger.indexed_upto() == BATCH_ROWS + 1


def test_maintenance_indexes_while_retention_is_idle(ledger: Ledger) -> None:
    store = SqliteStore(ledger.connection)
    maintenance = WriterMaintenance(
        ledger.path, RetentionBounds(age_ms=1 << 60), 64 << 20, FakeClock().counters
    )
    store.indexer = HistoryIndexer(timer=lambda: 0.0)  # independent of the speed of the machine
    ledger.fill(MAX_ROWS * 2 + 5)
    assert maintenance(store, ClockReading(1, 1), False)
    assert not maintenance(store, ClockReading(1, 1), False)
    assert ledger.indexed_upto() == MAX_ROWS * 2
    ledger.settle(1, 2)
    assert not maintenance(store, ClockReading(1, 2), False)
    assert ledger.indexed_upto() == MAX_ROWS * 2
    assert not maintenance(store, ClockReading(1, 3), True)
    assert ledger.indexed_upto() == MAX_ROWS * 2 + 6
    assert store.wal_bytes > 0


def test_removed_queue_is_kept_while_the_history_refers_to_it(ledger: Ledger) -> None:
    for queue_id in (1, 2, 3):
        ledger.execute(
            "INSERT INTO queue (queue_id, name, created_at, settings) VALUES (?, ?, 0, ?)",
            (queue_id, f"q{queue_id}", REMOVED_SETTINGS),
        )
    ledger.settle(1, 5)
    HistoryIndexer().run(ledger.connection, 0, is_idle=True)
    ledger.settle(2, 5)
    ledger.execute(load("batch", "sqlite")["delete_forgotten_queues"], (REMOVED_SETTINGS,))
    assert ledger.execute("SELECT queue_id FROM queue").fetchall() == [(1,), (2,)]


# -- failures


def test_full_disk_leaves_the_rows_unindexed(ledger: Ledger) -> None:
    ledger.fill(MAX_ROWS)
    (pages,) = ledger.execute("PRAGMA page_count").fetchone()
    ledger.execute(f"PRAGMA max_page_count={pages + 3}").fetchall()
    assert HistoryIndexer().run(ledger.connection, 0, is_idle=True) == 0
    assert not ledger.connection.in_transaction
    assert ledger.indexed_upto() == 0
    ledger.execute("PRAGMA max_page_count=1000000").fetchall()
    assert HistoryIndexer().run(ledger.connection, 0, is_idle=True) == MAX_ROWS


@pytest.mark.parametrize("queues", [10, 5_000])
def test_slice_of_many_queues_writes_few_pages(ledger: Ledger, queues: int) -> None:
    """A page takes many of the rows that a slice indexes, whatever the number of queues."""
    ledger.fill(1 << 17, queues)
    places = HistoryIndexer(timer=lambda: 0.0)
    written = []
    ledger.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    while places.run(ledger.connection, 0, is_idle=True):
        _, pages, _ = ledger.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        ledger.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        written.append(pages)
    assert len(written) > 10
    assert 50 < max(written) < 900, written


def test_other_error_means_an_unknown_outcome(ledger: Ledger) -> None:
    ledger.settle(1, 2)
    ledger.execute("INSERT INTO history_run VALUES (0, 1, 2, 1, 1, 0, 1)")
    with pytest.raises(OutcomeUnknownError, match="SQLITE_CONSTRAINT"):
        HistoryIndexer().run(ledger.connection, 0, is_idle=True)


KILLED = """
import os, signal, sqlite3, sys
from phpmq_lite.storage.sqlite.history_index import HistoryIndexer
class Dies(sqlite3.Connection):
    def execute(self, sql, *given):
        found = super().execute(sql, *given)
        if sql.startswith(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return found
connection = sqlite3.connect(sys.argv[1], isolation_level=None, factory=Dies)
connection.execute("PRAGMA cache_size = 5")  # pages go to the WAL before the commit
HistoryIndexer().run(connection, 0, is_idle=True)
"""


@pytest.mark.parametrize(
    ("statement", "indexed"),
    [
        ("INSERT INTO history_run", 0),
        ("INSERT OR IGNORE INTO trace_place", 0),
        ("INSERT INTO counter", 0),
        ("COMMIT", MAX_ROWS),
    ],
)
def test_kill_leaves_a_whole_slice_or_none(tmp_path: Path, statement: str, indexed: int) -> None:
    ledger = Ledger(tmp_path / "phpmq.db")
    ledger.fill(MAX_ROWS + 50)
    ledger.connection.close()
    done = subprocess.run([sys.executable, "-c", KILLED, str(ledger.path), statement], check=False)
    assert done.returncode == -signal.SIGKILL
    ledger = Ledger(tmp_path / "phpmq.db")
    assert ledger.indexed_upto() == indexed
    places = HistoryIndexer()
    while places.run(ledger.connection, 0, is_idle=True):
        pass
    assert ledger.indexed_upto() == MAX_ROWS + 50
    ledger.connection.close()


# -- pages compared with a plain list

SETTLE = st.tuples(st.just("settle"), st.integers(1, 3), st.integers(2, 5))
TURN = st.one_of(
    SETTLE,
    st.tuples(st.just("place"), st.integers(1, 9), st.just(0)),
    st.tuples(st.just("retain"), st.integers(5, 40), st.just(0)),
)


@given(
    before=st.lists(SETTLE, min_size=12, max_size=60),
    placed=st.integers(1, 60),
    between=st.lists(st.lists(TURN, max_size=6), max_size=8),
    queue_id=st.integers(1, 3),
    outcome=st.sampled_from([None, 2, 3, 4, 5]),
    is_newer=st.booleans(),
    limit=st.integers(1, 7),
    bounds=st.tuples(st.none() | st.integers(1, 50), st.none() | st.integers(1, 70)),
)
async def test_history_pages_equal_a_plain_filter(
    before: list[tuple[str, int, int]],
    placed: int,
    between: list[list[tuple[str, int, int]]],
    queue_id: int,
    outcome: int | None,
    is_newer: bool,
    limit: int,
    bounds: tuple[int | None, int | None],
) -> None:
    """Between two pages, rows settle, are indexed and removed in any order."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "phpmq.db")
        ledger.execute("PRAGMA synchronous=OFF")
        readers = SqliteReaders(ledger.path, count=1)
        turns = iter(between)
        asked: dict[str, Any] = {
            "queue_id": queue_id, "since": bounds[0], "until": bounds[1], "limit": limit,
            "outcome": None if outcome is None else State(outcome),
        }  # fmt: skip
        try:
            for turn in [*before, ("place", placed, 0)]:
                act(ledger, turn)
            place = 0 if is_newer else 1 << 40
            while True:
                expected = plain_filter(ledger, asked, place, is_newer=is_newer)
                asked["after" if is_newer else "before"] = place
                found = await MessageReader(readers).history(**asked)
                offsets = [row.offset or 0 for row in found.rows]
                assert (offsets[::-1] if is_newer else offsets) == expected[:limit]
                assert found.has_more == (len(expected) > limit)
                await search_agrees(readers, ledger, queue_id)
                if not offsets:
                    break
                place = max(offsets) if is_newer else min(offsets)
                for turn in next(turns, []):
                    act(ledger, turn)
                ledger.indexed_upto()
        finally:
            await readers.close()
            ledger.connection.close()


def act(ledger: Ledger, turn: tuple[str, int, int]) -> None:
    kind, number, outcome = turn
    if kind == "settle":
        ledger.settle(number, outcome)
    elif kind == "place":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "MAX_ROWS", number)
            HistoryIndexer().run(ledger.connection, 0, is_idle=True)
    else:
        remove_expired(
            SqliteStore(ledger.connection),
            RetentionBounds(age_ms=1 << 60, rows=number, deleted_share=0.3),
            0,
        )


def plain_filter(ledger: Ledger, asked: dict[str, Any], place: int, *, is_newer: bool) -> list[int]:
    rows = ledger.execute('SELECT "offset", queue_id, outcome, settled_at FROM history').fetchall()
    found = [
        offset
        for offset, queue_id, outcome, at_ms in rows
        if queue_id == asked["queue_id"]
        and asked["outcome"] in (None, outcome)
        and (asked["since"] is None or at_ms >= asked["since"])
        and (asked["until"] is None or at_ms < asked["until"])
        and (offset > place if is_newer else offset < place)
    ]
    return sorted(found, reverse=not is_newer)


async def search_agrees(readers: SqliteReaders, ledger: Ledger, queue_id: int) -> None:
    """Compare searches of the queue, ordered by offset and by number, with the rows."""
    ledger.execute("INSERT OR IGNORE INTO queue (queue_id, name, created_at) VALUES (1, 'a', 0), "
                   "(2, 'b', 0), (3, 'c', 0)")  # fmt: skip
    ledger.execute(load("batch", "sqlite")["set_counter"], ("next_number", 1_000))
    rows = ledger.execute(
        'SELECT "offset" FROM history WHERE queue_id = ? AND outcome IN (2, 4) ORDER BY 1 DESC',
        (queue_id,),
    )
    query = parse_search(f"queue:{'abc'[queue_id - 1]} state:acked state:dead")
    found = await Search(readers).page(query, limit=200)
    assert [row.offset for row in found.rows] == [offset for (offset,) in rows]
    rows = ledger.execute(
        "SELECT seq FROM history WHERE queue_id = ? AND outcome <> 4 ORDER BY 1 DESC", (queue_id,)
    )
    found = await Search(readers).page(
        parse_search(f"queue:{'abc'[queue_id - 1]} -state:dead"), limit=200
    )
    assert [row.seq for row in found.rows] == [seq for (seq,) in rows]
