"""The trace index: live and settled messages are added in the background during searches."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.storage.retention import RetentionBounds, remove_expired
from phpmq_lite.storage.search import reader as search_module
from phpmq_lite.storage.search.language import parse_search
from phpmq_lite.storage.search.reader import Search
from phpmq_lite.storage.sqlite.history_index import MAX_ROWS, HistoryIndexer
from phpmq_lite.storage.sqlite.read_connections import SqliteReaders
from phpmq_lite.storage.sqlite.store import SqliteStore
from phpmq_lite.storage.statements import load, many
from tests.support.reference_search import ReferenceRow, all_rows, is_match, pages
from tests.support.stores import empty_database, open_store

TRACES: Final = (None, "7b3f-1", "7b3f-2", "a", "\U0010ffff")
TEXTS: Final = (
    "trace:7b3f-1", "trace:7b3f*", "trace:a trace:7b3f-2", "trace:a state:ready",
    "trace:7b3f-1 -state:ready", "trace:\U0010ffff", "trace:7b3f-1 queue:orders", "-trace:a",
)  # fmt: skip
COLUMNS: Final = "seq, token, queue_id, position, state, published_at, size, crc, trace_id"


class TraceDatabase:
    def __init__(self, path: Path) -> None:
        path.write_bytes(empty_database())
        self.path = path
        self._open()
        self.execute("INSERT INTO queue (queue_id, name, created_at) VALUES (1, 'orders', 0)")
        self.execute("INSERT INTO queue (queue_id, name, created_at) VALUES (2, 'mail', 0)")
        self.next = 1

    def _open(self) -> None:
        self.store = open_store(self.path)
        self.connection = self.store.connection
        self.execute = self.connection.execute
        self.execute("PRAGMA synchronous = OFF")
        self.places = HistoryIndexer(timer=lambda: 0.0)

    def restart(self) -> None:
        """Reopen the file."""
        self.connection.close()
        self._open()

    def publish(self, trace: str | None, leap: int = 1) -> None:
        """Store a message, ``leap`` numbers after the last one."""
        seq = self.next = self.next + leap
        values = (seq, seq, 1 + seq % 2, seq, 0, 0, 0, 0, trace)
        self.execute(f"INSERT INTO message ({COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?)", values)
        self.execute(load("batch", "sqlite")["set_counter"], ("next_number", seq + 1))

    def settle(self, nth: int, outcome: int) -> None:
        alive = [seq for (seq,) in self.execute("SELECT seq FROM message ORDER BY seq")]
        if alive:
            seqs = [alive[nth % len(alive)]]
            many("batch", "settle_messages").run(self.execute, seqs, (outcome, None, 0))
            many("batch", "delete_messages").run(self.execute, seqs)

    def place(self, rows: int) -> int:
        self.places._rows = {"placed": rows, "traced": rows}
        return self.places.run(self.connection, 0, is_idle=True)

    def retain(self, rows: int) -> None:
        remove_expired(
            SqliteStore(self.connection),
            RetentionBounds(age_ms=1 << 60, rows=rows, deleted_share=0.3),
            0,
        )

    def counter(self, name: str) -> int:
        found = self.execute("SELECT value FROM counter WHERE name = ?", (name,)).fetchone()
        return int(found[0]) if found else 0

    def check(self) -> None:
        """Compare the index with the messages."""
        alive = self.execute(
            "SELECT seq, trace_id FROM message WHERE seq <= ? AND trace_id IS NOT NULL",
            (self.counter("traced_upto"),),
        )
        settled = 'SELECT seq, trace_id FROM history WHERE trace_id IS NOT NULL AND "offset" '
        placed = (self.counter("placed_upto"),)
        least = {*alive, *self.execute(settled + "<= ?", placed)}
        entered = self.execute("SELECT seq, trace_id, block FROM trace_place").fetchall()
        found = {row[:2] for row in entered}
        assert least <= found <= least | {*self.execute(settled + "> ?", placed)}
        assert all(block == seq >> 14 for seq, _, block in entered)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[TraceDatabase]:
    made = TraceDatabase(tmp_path / "phpmq.db")
    yield made
    made.connection.close()


TURN = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from(TRACES), st.sampled_from((1, 1, 2, 40_000))),
    st.tuples(st.just("publish"), st.sampled_from(TRACES[1:]), st.just(1)),
    st.tuples(st.just("settle"), st.integers(0, 20), st.integers(2, 5)),
    st.tuples(st.just("place"), st.integers(1, 9)),
    st.tuples(st.just("place"), st.integers(1, 3)),
    st.tuples(st.just("retain"), st.integers(2, 20)),
    st.tuples(st.just("restart")),
)


@given(turns=st.lists(TURN, min_size=10, max_size=60), texts=st.permutations(TEXTS))
async def test_search_by_trace_finds_what_a_plain_filter_finds_at_any_moment(
    turns: list[tuple[Any, ...]], texts: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = TraceDatabase(Path(folder) / "phpmq.db")
        readers = SqliteReaders(database.path, count=1)
        try:
            for at, (name, *given) in enumerate(turns):
                getattr(database, name)(*given)
                database.check()
                if at % 5 == 4:
                    await search_agrees(readers, database, texts[at % 3])
            for text in texts[3:7]:  # other examples choose the others
                await search_agrees(readers, database, text)
        finally:
            await readers.close()
            database.connection.close()


async def search_agrees(readers: SqliteReaders, database: TraceDatabase, text: str) -> None:
    """Compare the search with a plain filter, by few numbers, by traces, and by neither."""
    query = parse_search(text)
    rows: list[ReferenceRow] = all_rows(database.path)
    expected = sorted((row.seq for row in rows if is_match(query, row)), reverse=True)
    for few, tail in ((2_000, 50_000), (0, 50_000), (0, -1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(search_module, "_MAX_TRACED", few)
            patch.setattr(search_module, "_LONG_TAIL", tail)
            patch.setattr(search_module, "_FIRST_WIDTH", 7)
            found = await pages(Search(readers, now_ms=lambda: 0), query, 3)
        assert [row.seq for page in found for row in page.rows] == expected


def fill(database: TraceDatabase, alive: int, settled: int) -> None:
    """SqliteStore many messages, each with its own trace; settle the first ones."""
    database.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
        f"INSERT INTO message ({COLUMNS}) SELECT i, i, i % 7, i, 0, 0, 0, 0, 't' || i FROM n",
        (alive + settled,),
    )
    database.execute(
        "INSERT INTO history (seq, token, queue_id, position, outcome, settled_at, published_at, "
        "deliveries, charged, size, crc, trace_id) SELECT seq, token, queue_id, position, 2, 0, 0, "
        "1, 0, 0, 0, trace_id FROM message WHERE seq <= ?",
        (settled,),
    )
    database.execute("DELETE FROM message WHERE seq <= ?", (settled,))


def test_few_live_messages_are_not_indexed(database: TraceDatabase) -> None:
    fill(database, MAX_ROWS - 1, 0)
    assert database.places.run(database.connection, 0, is_idle=True) == 0
    database.next = MAX_ROWS
    database.publish("a")
    database.execute("DELETE FROM message WHERE seq BETWEEN 10 AND 20")
    assert database.places.run(database.connection, 0, is_idle=False) == MAX_ROWS - 11
    assert database.counter("traced_upto") == MAX_ROWS + 1
    assert database.places.wal_bytes > 0
    database.check()
    assert database.places.run(database.connection, 0, is_idle=True) == 0
    assert database.places.wal_bytes == 0


def test_settled_and_live_messages_are_indexed_in_turn(database: TraceDatabase) -> None:
    fill(database, MAX_ROWS * 2 + 5, MAX_ROWS * 2 + 5)
    taken = []
    while rows := database.places.run(database.connection, 0, is_idle=True):
        moved = [database.counter(name) // MAX_ROWS for name in ("placed_upto", "traced_upto")]
        taken.append((rows, *moved, database.places.has_more))
        database.check()
    assert taken == [
        (MAX_ROWS, 1, 0, True), (MAX_ROWS, 1, 3, True), (MAX_ROWS, 2, 3, True), (MAX_ROWS, 2, 4,
        False), (5, 2, 4, False),
    ]  # fmt: skip


@pytest.mark.parametrize("is_idle", [True, False])
def test_busy_broker_indexes_one_slice_at_a_time(database: TraceDatabase, is_idle: bool) -> None:
    fill(database, MAX_ROWS * 3, 0)
    assert database.places.run(database.connection, 0, is_idle=is_idle) == MAX_ROWS
    assert database.places.has_more is is_idle
    assert database.places.run(database.connection, 0, is_idle=is_idle) == MAX_ROWS


def test_full_disk_stops_the_indexing_of_traces(database: TraceDatabase) -> None:
    fill(database, MAX_ROWS, 0)
    (count,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count={count + 3}").fetchall()
    assert database.places.run(database.connection, 0, is_idle=True) == 0
    assert not database.places.has_more
    assert (database.counter("traced_upto"), database.places.wal_bytes) == (0, 0)
    database.check()


def test_indexed_rows_are_removed_with_the_history(database: TraceDatabase) -> None:
    for trace in TRACES * 4:
        database.publish(trace)
    assert database.place(9) == 9
    for _ in range(12):
        database.settle(0, 2)
    assert database.place(20) == 12
    database.retain(3)
    database.check()
    assert database.execute("SELECT count(*) FROM history").fetchone() == (3,)
    traced = "SELECT trace_id FROM {} WHERE trace_id IS NOT NULL ORDER BY seq"
    left = database.execute(traced.format("trace_place")).fetchall()
    assert left == database.execute(traced.format("history")).fetchall()


async def test_trace_of_many_blocks_is_read_at_once(database: TraceDatabase) -> None:
    """Gaps between blocks cost nothing."""
    for leap in (1, 16_384, 40_000, 1 << 30, 1):
        database.publish("a", leap)
    database.place(1)
    for _ in range(5):
        database.place(1)
    database.check()
    readers = SqliteReaders(database.path, count=1)
    given = {"start": "a", "end": "b", "low": -1, "high": 1 << 62, "limit": 9}
    rows = await readers.read("search", "few_traced", **given)
    assert len(rows) == 5
    for high, count in ((16_386, 1), (16_387, 2), (56_387, 3)):
        assert await readers.read("search", "few_traced", **given | {"high": high}) == rows[:count]
    await readers.close()


async def test_incomplete_trace_index_is_not_used(database: TraceDatabase) -> None:
    """After an upgrade they would all be read at once, without intermediate results."""
    readers = SqliteReaders(database.path, count=1)
    read, names = readers.read, []

    async def noted(file: str, name: str, /, **parameters: Any) -> Any:
        names.append(name)
        return await read(file, name, **parameters)

    async def is_asked() -> bool:
        names.clear()
        found = await Search(readers).page(parse_search("trace:a"))
        assert len(found.rows) == 5
        return "few_traced" in names

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "read", noted)
        patch.setattr(search_module, "_LONG_TAIL", 3)
        for _ in range(5):
            database.publish("a")
        assert not await is_asked()
        database.place(5)
        assert await is_asked()
        for _ in range(5):
            database.settle(0, 2)
        assert not await is_asked()
        database.place(5)
        assert await is_asked()
    await readers.close()
