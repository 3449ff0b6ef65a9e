"""Messages by trace: entered behind the writer, alive and settled, while traces are searched."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.admin.base.search_query import parse_search
from phpmq_lite.storage.read import search as search_module
from phpmq_lite.storage.read.read_connections import Readers
from phpmq_lite.storage.read.search import Search
from phpmq_lite.storage.statements import load, many
from phpmq_lite.storage.write.history_index import MAX_ROWS, HistoryIndexer
from phpmq_lite.storage.write.retention import RetentionBounds, remove_expired
from tests.support.core_and_store import empty_database, open_store
from tests.support.reference_search import ReferenceRow, all_rows, is_match, pages

TRACES: Final = (None, "7b3f-1", "7b3f-2", "a", "\U0010ffff")
TEXTS: Final = (
    "trace:7b3f-1", "trace:7b3f*", "trace:a trace:7b3f-2", "trace:a state:ready",
    "trace:7b3f-1 -state:ready", "trace:\U0010ffff", "trace:7b3f-1 queue:orders", "-trace:a",
)  # fmt: skip
COLUMNS: Final = "seq, token, queue_id, position, state, published_at, size, crc, trace_id"


class House:
    """A database whose messages are published, settle, get their places and leave."""

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
        """Begin anew with what is in the file."""
        self.connection.close()
        self._open()

    def publish(self, trace: str | None, leap: int = 1) -> None:
        """Store a message, ``leap`` numbers behind the last one."""
        seq = self.next = self.next + leap
        values = (seq, seq, 1 + seq % 2, seq, 0, 0, 0, 0, trace)
        self.execute(f"INSERT INTO message ({COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?)", values)
        self.execute(load("batch")["set_counter"], ("next_number", seq + 1))

    def settle(self, nth: int, outcome: int) -> None:
        """Settle one of those alive, as the writer does."""
        alive = [seq for (seq,) in self.execute("SELECT seq FROM message ORDER BY seq")]
        if alive:
            seqs = [alive[nth % len(alive)]]
            many("batch", "settle_messages").run(self.execute, seqs, (outcome, None, 0))
            many("batch", "delete_messages").run(self.execute, seqs)

    def place(self, rows: int) -> int:
        """Take a step of the places, of so many rows."""
        self.places._rows = {"placed": rows, "traced": rows}
        return self.places.run(self.connection, 0, is_idle=True)

    def retain(self, rows: int) -> None:
        """Let all but so many rows leave the history."""
        remove_expired(
            self.connection, RetentionBounds(age_ms=1 << 60, rows=rows, deleted_share=0.3), 0
        )

    def counter(self, name: str) -> int:
        found = self.execute("SELECT value FROM counter WHERE name = ?", (name,)).fetchone()
        return int(found[0]) if found else 0

    def check(self) -> None:
        """Compare what is entered with the messages."""
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
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path / "phpmq.db")
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
        house = House(Path(folder) / "phpmq.db")
        readers = Readers(house.path, count=1)
        try:
            for at, (name, *given) in enumerate(turns):
                getattr(house, name)(*given)
                house.check()
                if at % 5 == 4:
                    await search_agrees(readers, house, texts[at % 3])
            for text in texts[3:7]:  # other examples choose the others
                await search_agrees(readers, house, text)
        finally:
            await readers.close()
            house.connection.close()


async def search_agrees(readers: Readers, house: House, text: str) -> None:
    """Search along few numbers, along the traces, and along neither."""
    query = parse_search(text)
    rows: list[ReferenceRow] = all_rows(house.path)
    expected = sorted((row.seq for row in rows if is_match(query, row)), reverse=True)
    for few, tail in ((2_000, 50_000), (0, 50_000), (0, -1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(search_module, "_MAX_TRACED", few)
            patch.setattr(search_module, "_LONG_TAIL", tail)
            patch.setattr(search_module, "_FIRST_WIDTH", 7)
            found = await pages(Search(readers, now_ms=lambda: 0), query, 3)
        assert [row.seq for page in found for row in page.rows] == expected


def fill(house: House, alive: int, settled: int) -> None:
    """Store many messages, each with a trace of its own: the first settle."""
    house.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
        f"INSERT INTO message ({COLUMNS}) SELECT i, i, i % 7, i, 0, 0, 0, 0, 't' || i FROM n",
        (alive + settled,),
    )
    house.execute(
        "INSERT INTO history (seq, token, queue_id, position, outcome, settled_at, published_at, "
        "deliveries, charged, size, crc, trace_id) SELECT seq, token, queue_id, position, 2, 0, 0, "
        "1, 0, 0, 0, trace_id FROM message WHERE seq <= ?",
        (settled,),
    )
    house.execute("DELETE FROM message WHERE seq <= ?", (settled,))


def test_few_messages_alive_are_not_entered(house: House) -> None:
    fill(house, MAX_ROWS - 1, 0)
    assert house.places.run(house.connection, 0, is_idle=True) == 0
    house.next = MAX_ROWS
    house.publish("a")
    house.execute("DELETE FROM message WHERE seq BETWEEN 10 AND 20")
    assert house.places.run(house.connection, 0, is_idle=False) == MAX_ROWS - 11
    assert house.counter("traced_upto") == MAX_ROWS + 1
    assert house.places.wal_bytes > 0
    house.check()
    assert house.places.run(house.connection, 0, is_idle=True) == 0
    assert house.places.wal_bytes == 0


def test_settled_and_alive_messages_take_turns(house: House) -> None:
    fill(house, MAX_ROWS * 2 + 5, MAX_ROWS * 2 + 5)
    taken = []
    while rows := house.places.run(house.connection, 0, is_idle=True):
        moved = [house.counter(name) // MAX_ROWS for name in ("placed_upto", "traced_upto")]
        taken.append((rows, *moved, house.places.has_more))
        house.check()
    assert taken == [
        (MAX_ROWS, 1, 0, True), (MAX_ROWS, 1, 3, True), (MAX_ROWS, 2, 3, True), (MAX_ROWS, 2, 4,
        False), (5, 2, 4, False),
    ]  # fmt: skip


@pytest.mark.parametrize("is_idle", [True, False])
def test_busy_broker_enters_one_slice_of_those_alive_at_a_time(house: House, is_idle: bool) -> None:
    fill(house, MAX_ROWS * 3, 0)
    assert house.places.run(house.connection, 0, is_idle=is_idle) == MAX_ROWS
    assert house.places.has_more is is_idle
    assert house.places.run(house.connection, 0, is_idle=is_idle) == MAX_ROWS


def test_full_disk_leaves_the_traces_in_the_tail(house: House) -> None:
    fill(house, MAX_ROWS, 0)
    (count,) = house.execute("PRAGMA page_count").fetchone()
    house.execute(f"PRAGMA max_page_count={count + 3}").fetchall()
    assert house.places.run(house.connection, 0, is_idle=True) == 0
    assert not house.places.has_more
    assert (house.counter("traced_upto"), house.places.wal_bytes) == (0, 0)
    house.check()


def test_entered_rows_leave_with_the_history(house: House) -> None:
    for trace in TRACES * 4:
        house.publish(trace)
    assert house.place(9) == 9
    for _ in range(12):
        house.settle(0, 2)
    assert house.place(20) == 12
    house.retain(3)
    house.check()
    assert house.execute("SELECT count(*) FROM history").fetchone() == (3,)
    traced = "SELECT trace_id FROM {} WHERE trace_id IS NOT NULL ORDER BY seq"
    left = house.execute(traced.format("trace_place")).fetchall()
    assert left == house.execute(traced.format("history")).fetchall()


async def test_trace_of_many_blocks_is_read_in_one_look(house: House) -> None:
    """Blocks between which there are no messages cost nothing."""
    for leap in (1, 16_384, 40_000, 1 << 30, 1):
        house.publish("a", leap)
    house.place(1)
    for _ in range(5):
        house.place(1)
    house.check()
    readers = Readers(house.path, count=1)
    given = {"start": "a", "end": "b", "low": -1, "high": 1 << 62, "limit": 9}
    rows = await readers.read("search", "few_traced", **given)
    assert len(rows) == 5
    for high, count in ((16_386, 1), (16_387, 2), (56_387, 3)):
        assert await readers.read("search", "few_traced", **given | {"high": high}) == rows[:count]
    await readers.close()


async def test_traces_are_not_asked_for_while_many_messages_have_no_place(house: House) -> None:
    """As after an upgrade: they would all be read at once, without a result on the way."""
    readers = Readers(house.path, count=1)
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
            house.publish("a")
        assert not await is_asked()
        house.place(5)
        assert await is_asked()
        for _ in range(5):
            house.settle(0, 2)
        assert not await is_asked()
        house.place(5)
        assert await is_asked()
    await readers.close()
