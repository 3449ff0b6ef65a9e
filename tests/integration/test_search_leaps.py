"""Searches that leap over what is of other queues find what a walk over everything finds."""

import json
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.admin.base.search_query import parse_search
from phpmq_lite.storage.read import search as search_module
from phpmq_lite.storage.read.read_connections import Readers
from phpmq_lite.storage.read.search import Search
from phpmq_lite.storage.read.search_plan import SearchQuery
from phpmq_lite.storage.statements import load
from tests.support.reference_search import FIRST, QUEUES, all_rows, index_upto, is_match, pages
from tests.unit.admin.cases import NOW_MS, Database

# -- leaps over what is of other queues

MESSAGES = st.lists(
    st.tuples(
        st.sampled_from((1, 1, 2, 3, 3, 3)),  # the queue
        st.sampled_from((0, 1, 2, 2, 2, 2, 3, 4, 5)),  # its state
        st.integers(-9, 60),  # position less number: restored, requeued
        st.sampled_from((0, 0, 0, 2, 7, 60)),  # how long it lived
    ),
    min_size=5,
    max_size=60,
)
LEAPS = (
    "queue:orders", "queue:mail -state:dead", "queue:orders queue:mail", "queue:m* urn:*",
    "queue:orders -state:ready", "queue:mail state:acked", "queue:orders state:dead state:deleted",
    "queue:mail size:>9", "queue:orders state:ready state:expired", "queue:orders id:00*",
)  # fmt: skip


Story = list[tuple[int, int, int, int]]


def open_queues(path: Path) -> Database:
    database = Database(path)
    database.connection.execute("PRAGMA synchronous = OFF")
    for queue_id, name in QUEUES.items():
        database.queue(name, queue_id)
    database.first_offset = FIRST
    return database


def store(database: Database, messages: Story, first: int = FIRST) -> None:
    """Store messages by their numbers and settle them by their lives."""
    numbered = list(enumerate(messages, start=first))
    for seq, (queue_id, state, shift, _) in sorted(numbered, key=lambda one: one[0] + one[1][3]):
        if state < 2:
            database.message(queue_id, seq=seq, state=state, position=seq + shift)
        else:
            database.settled(queue_id, seq=seq, outcome=state, position=seq + shift)
    database.set_counter("next_number", first + len(messages))


def settle_all(database: Database) -> None:
    """Settle what is alive, the newest first."""
    names = "seq, token, queue_id, position, published_at, deliveries, charged, size, crc"
    database.connection.execute(
        f'INSERT INTO history ("offset", outcome, settled_at, {names}) '
        "SELECT row_number() OVER (ORDER BY seq DESC) "
        f'+ coalesce((SELECT max("offset") FROM history), ?), 2, 0, {names} FROM message',
        (FIRST - 1,),
    )
    database.connection.execute("DELETE FROM message")


@pytest.mark.slow
@given(
    messages=MESSAGES,
    later=MESSAGES,
    placed=st.sampled_from((0, 5, 15, 60)),
    text=st.sampled_from(LEAPS),
    limit=st.integers(1, 5),
)
async def test_numbers_and_leaps_change_no_page(
    messages: Story, later: Story, placed: int, text: str, limit: int
) -> None:
    """Rows, figures and cursors are those of a walk over every number; a filter has the rows."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        database = open_queues(Path(folder) / "phpmq.db")
        store(database, messages)
        index_upto(database, placed)
        readers = Readers(database.path, count=1)
        for name, value in (("_FIRST_WIDTH", 1), ("_FAST_S", 0), ("_MAX_TRACED", 0)):
            patch.setattr(search_module, name, value)
        search = Search(readers, now_ms=lambda: NOW_MS)
        await leaps_agree(search, database, parse_search(text), limit)
        settle_all(database)
        store(database, later, first=FIRST + len(messages))
        await leaps_agree(search, database, parse_search(text), limit)
        await readers.close()
        database.connection.close()


async def leaps_agree(search: Search, database: Database, query: SearchQuery, limit: int) -> None:
    found = await pages(search, query, limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Search, "_skip_ahead", AsyncMock())
        assert found == await pages(search, query, limit)
        patch.setattr(search_module, "_LONG_TAIL", -1)
        assert found == await pages(search, query, limit)
    assert list((await search.freeze(query)).seqs) == [
        row.seq for page in reversed(found) for row in reversed(page.rows)
    ]
    expected = {row.seq for row in all_rows(database.path) if is_match(query, row)}
    seqs = [row.seq for page in found for row in page.rows]
    assert (set(seqs), len(seqs)) == (expected, len(expected))


@given(messages=MESSAGES, placed=st.sampled_from((0, 5, 15, 60)), data=st.data())
def test_leap_goes_as_far_as_it_can(messages: Story, placed: int, data: st.DataObject) -> None:
    place = data.draw(st.integers(FIRST, FIRST + len(messages)))
    wanted = data.draw(st.lists(st.integers(1, 3), min_size=1, unique=True))
    with tempfile.TemporaryDirectory() as folder:
        database = open_queues(Path(folder) / "phpmq.db")
        store(database, messages)
        index_upto(database, placed)
        rows = [row for row in all_rows(database.path) if row.queue_id in wanted]
        given = {
            "queues": json.dumps(wanted), "outcomes": "[2, 3, 4, 5]", "low": 0, "high": place,
        }  # fmt: skip
        with closing(database.connection) as connection:
            [(seq,)] = connection.execute(load("search")["next_seq"], given)
            [(offset,)] = connection.execute(load("search")["next_offset"], given)
    assert seq == max((row.seq for row in rows if row.seq < place), default=None)
    offsets = [row.offset for row in rows if not row.is_alive and row.offset < place]
    assert offset == max(offsets, default=None)


async def test_one_leap_passes_over_all_that_is_newer(tmp_path: Path) -> None:
    """However many messages of another queue are in front, the reads stay as few."""
    database = open_queues(tmp_path / "phpmq.db")
    store(database, [(1, 2, 0, 0), (1, 0, 0, 0)] + [(3, 2, 0, 0)] * 400)
    index_upto(database, 300)
    readers = Readers(database.path, count=1)
    run, texts = readers.run, []

    async def noted(name: str, text: str, parameters: Any) -> Any:
        texts.append(text)
        return await run(name, text, parameters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "_FIRST_WIDTH", 1)
        patch.setattr(readers, "run", noted)
        for text in ("queue:orders", "queue:orders -state:ready"):
            texts.clear()
            [page] = await pages(Search(readers), parse_search(text), 9)
            assert page.rows
            assert len(texts) < 9
    await readers.close()
    database.connection.close()
