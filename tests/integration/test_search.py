"""The search, compared with a plain filter in Python over a database of hostile rows."""

import json
import random
import re
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.errors import ReadTooLongError
from phpmq_lite.model import ALIVE
from phpmq_lite.storage.read.messages import wire_id
from phpmq_lite.storage.search import reader as search_module
from phpmq_lite.storage.search.language import (
    LIVE_STATES,
    SearchQuery,
    ids_search,
    parse_search,
    queue_search,
)
from phpmq_lite.storage.search.plan import make_plan
from phpmq_lite.storage.search.reader import Search
from phpmq_lite.storage.statements import load
from tests.support.copied_readers import readers_of
from tests.support.reference_search import (
    FIRST,
    QUEUES,
    ReferenceRow,
    all_rows,
    content_of,
    fill,
    index_upto,
    is_match,
    pages,
)
from tests.unit.admin.cases import NOW_MS, Database, add_reader_functions


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Database(tmp_path_factory.mktemp("search") / "phpmq.db")
    fill(made)
    made.connection.close()
    return made.path


@pytest.fixture(scope="module")
def rows(path: Path) -> list[ReferenceRow]:
    return all_rows(path)


@pytest.fixture(params=["along numbers", "walked over"])
async def search(
    path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Search]:
    """Search in slices much smaller than the database, with most rows indexed or few."""
    monkeypatch.setattr(search_module, "_FIRST_WIDTH", 7)
    monkeypatch.setattr(
        search_module, "_MAX_TRACED", 2_000 if request.param == "along numbers" else 0
    )
    if request.param == "walked over":
        monkeypatch.setattr(search_module, "_LONG_TAIL", -1)
    readers = readers_of(path, count=1)
    yield Search(readers, now_ms=lambda: NOW_MS)
    await readers.close()


SEARCHES = r"""
queue:orders | queue:orders* | queue:*r* | queue:nothing | -queue:mail | queue:orders queue:mail
state:scheduled | queue:mail state:scheduled | state:blocked state:dead | queue:mail -state:ready
queue:orders* state:blocked state:scheduled | queue:orders* state:ready state:blocked size:>10 |
queue:mail state:scheduled state:acked
queue:orders* -queue:*.dlq | queue:"od[d] \"q\" \*" | state:ready | state:dispatched
state:ready state:dispatched | state:acked | state:dead state:deleted | -state:acked
-state:ready | state:ready state:dead | state:ready -state:ready | queue:mail state:ready
queue:mail state:dispatched | queue:mail state:dead | queue:mail state:ready state:acked
queue:orders* state:expired | urn:* | -urn:* | urn:orders:* | urn:urn:test:[y] | -urn:test:*
urn:orders:x urn:test:* | trace:7b3f* | trace:7b3f-1 | -trace:7b3f-1 | trace:*-1
trace:7b3f-1 trace:7b3f-2 state:dead | queue:mail trace:7b* state:ready
trace:7b3f-1 trace:*-2 state:acked | queue:mail trace:7b3f-2 state:dispatched | reason:crc
-reason:crc | reason:c* | reason:missing_urn | -reason:missing_* | reason:missing_urn state:ready
queue:mail reason:missing_urn state:dead | reason:poison | origin:orders | -origin:*
client:10.0.0.7 | client:10.0.* | -client:8 | client:0 | client:admin | deliveries:>3
deliveries:0 | -deliveries:<=2 | size:0 | size:>100 | size:>1k | age:>1h | age:<=30m | ttl:<60s
ttl:never | -ttl:never | -ttl:<60s | id:#12 | id:000000000000000* | id:#12 id:#13 | -id:#12
id:0000000000000014* | 1042 | -1042 | "data" | café | a/b | -café | [[[ | DROP | "\u0065"
data.n:1042 | -data.n:1042 | data.n:104? | data.n:>1000 | data.n:<0 | data.n:10.5 | data.n:>=10
data.s:eu | data.s:*-1 | data.t:true | data.z:null | data.z:*
data.big:123456789012345678901234567890 | data.a.0.k:v | data.n:* | $.n:1042 | meta.lang:php
dead_letter.error:"Key * of *" | data.s:"" | queue:orders state:ready data.n:1042 -urn:*
state:acked queue:orders* 1042 age:>10m
"""
TEXTS = ["", *re.split(r" \| |\n", SEARCHES.strip())]


@pytest.mark.parametrize("text", TEXTS)
async def test_search_finds_what_a_plain_filter_finds(
    search: Search, rows: list[ReferenceRow], text: str
) -> None:
    query = parse_search(text)
    expected = {row.seq for row in rows if is_match(query, row)}
    found = [row for page in await pages(search, query, 17) for row in page.rows]
    assert {row.seq for row in found} == expected
    assert len(found) == len(expected)  # none twice
    assert is_in_order(query, found)
    frozen = await search.freeze(query)
    assert (sorted(frozen.seqs), frozen.is_complete) == (sorted(expected), True)
    assert sum(frozen.by_state.values()) == sum(frozen.by_queue.values()) == len(expected)


def is_in_order(query: SearchQuery, found: list[Any]) -> bool:
    """Return whether rows are ordered by offset if settled, by position if live, or by seq."""
    states = {row.state for row in found}
    keys = [[row.seq for row in found]]
    if not states & ALIVE:
        keys.append([row.offset for row in found])
    if states <= ALIVE:
        keys.append([row.position for row in found])
    return any(key == sorted(key, reverse=True) for key in keys)


KINDS = [text for text in TEXTS if text and " " not in text]


@pytest.mark.parametrize("seed", range(60))
async def test_search_with_mixed_terms_finds_what_a_plain_filter_finds(
    search: Search, rows: list[ReferenceRow], seed: int
) -> None:
    made = random.Random(seed)
    query = parse_search(" ".join(made.sample(KINDS, made.randrange(2, 5))))
    expected = {row.seq for row in rows if is_match(query, row)}
    found = [row.seq for page in await pages(search, query, 5) for row in page.rows]
    assert set(found) == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize("text", ["", "state:ready", "state:dead", "-queue:mail", "1042"])
async def test_search_is_limited_to_the_allowed_queues(
    search: Search, rows: list[ReferenceRow], text: str
) -> None:
    query, allowed = parse_search(text), frozenset({2, 3})
    expected = {row.seq for row in rows if row.queue_id in allowed and is_match(query, row)}
    found = await pages(search, query, 50, queues=allowed)
    assert {row.seq for page in found for row in page.rows} == expected
    assert set((await search.freeze(query, queues=allowed)).seqs) == expected
    assert (await search.page(query, queues=frozenset())).rows == []


async def test_neighbours_are_those_of_the_list(search: Search) -> None:
    for text in ("", "queue:orders", "state:dead", "queue:mail state:ready"):
        query = parse_search(text)
        [page] = await pages(search, query, 200) if text else [await search.page(query, limit=200)]
        for before, row, after in zip(page.rows, page.rows[1:], page.rows[2:], strict=False):
            assert await search.neighbour(query, row, is_newest_first=False) == before
            assert await search.neighbour(query, row, is_newest_first=True) == after
        assert await search.neighbour(query, page.rows[0], is_newest_first=False) is None


async def test_messages_are_matched_by_number(search: Search, rows: list[ReferenceRow]) -> None:
    asked = [row.seq for row in rows][::3]
    for text in ("", "state:ready", "queue:mail -1042", "state:dead"):
        query = parse_search(text)
        expected = sorted(row.seq for row in rows if row.seq in asked and is_match(query, row))
        assert [row.seq for row in await search.matches(query, asked, None)] == expected
    assert await search.matches(parse_search(""), [], None) == []


async def test_whole_ids_are_found_in_any_state(search: Search, rows: list[ReferenceRow]) -> None:
    ids = [wire_id(row.seq, row.token) for row in rows][:7]
    found = await search.page(ids_search([*ids, wire_id(rows[8].seq, 1)]))
    assert sorted(row.message_id for row in found.rows) == sorted(ids)


async def test_search_continues_if_a_leap_takes_too_long(
    path: Path, search: Search, rows: list[ReferenceRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = search._readers.run

    async def slow(name: str, text: str, parameters: dict[str, Any]) -> Any:
        if name == "next_seq":
            raise ReadTooLongError("too long")
        return await run(name, text, parameters)

    monkeypatch.setattr(search._readers, "run", slow)
    query = parse_search("queue:mail size:>100")
    found = [row.seq for page in await pages(search, query, 9) for row in page.rows]
    assert set(found) == {row.seq for row in rows if is_match(query, row)}


# -- frozen selections


async def test_frozen_selection_has_its_figures(search: Search, rows: list[ReferenceRow]) -> None:
    query = queue_search("orders", LIVE_STATES)
    mine = [row for row in rows if row.queue_id == 1 and row.is_alive]
    frozen = await search.freeze(query)
    assert list(frozen.seqs) == [row.seq for row in sorted(mine, key=lambda row: row.position)]
    assert frozen.upto == 9_999
    assert frozen.by_queue == {"orders": len(mine)}
    assert (frozen.oldest_at, frozen.newest_at) == (
        min(row.published_at for row in mine), max(row.published_at for row in mine),
    )  # fmt: skip
    assert frozen.size == sum(row.size for row in mine)
    assert frozen.held == sum(row.state == 1 for row in mine)
    assert sum(frozen.by_urn.values()) == len(mine)
    seqs = frozen.seqs
    assert [row.seq for row in frozen.samples] == [seqs[0], seqs[len(seqs) // 2], seqs[-1]]


async def test_frozen_selection_stops_at_its_limit(search: Search) -> None:
    frozen = await search.freeze(parse_search("state:ready"), limit=5)
    assert (len(frozen.seqs), frozen.is_complete, sum(frozen.by_queue.values())) == (5, False, 5)


# -- time


async def test_search_returns_partial_results_at_its_time_limit(search: Search) -> None:
    first = await search.page(parse_search(""), limit=200, limit_s=-1.0)
    assert first.next is not None
    assert first.is_cut
    assert 0 <= first.searched < first.total
    whole = [row.seq for page in await pages(search, parse_search(""), 200) for row in page.rows]
    seen = [row.seq for row in first.rows]
    place: tuple[int, int] | None = first.next
    while place is not None:
        page = await search.page(parse_search(""), limit=200, limit_s=-1.0, place=place)
        seen += [row.seq for row in page.rows]
        assert page.searched >= first.searched
        place = page.next
    assert seen == whole


async def test_new_messages_do_not_move_the_pages(
    path: Path, search: Search, tmp_path: Path
) -> None:
    copy = tmp_path / "phpmq.db"
    copy.write_bytes(content_of(path))
    readers = readers_of(copy, count=1)
    mine = Search(readers, now_ms=lambda: NOW_MS)
    first = await mine.page(parse_search(""), limit=20)
    with sqlite3.connect(copy) as connection:
        connection.execute(
            "INSERT INTO message (seq, token, queue_id, position, state, published_at, size, crc) "
            "VALUES (10000, 1, 1, 10000, 0, 0, 0, 0)"
        )
        connection.execute("UPDATE counter SET value = 10001 WHERE name = 'next_number'")
    connection.close()
    later = await pages(mine, parse_search(""), 20, place=first.next)
    seen = [row.seq for page in [first, *later] for row in page.rows]
    assert seen == [
        row.seq for page in await pages(search, parse_search(""), 200) for row in page.rows
    ]
    await readers.close()


async def test_slice_that_takes_too_long_is_made_smaller(
    search: Search, rows: list[ReferenceRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body that alone takes too long is skipped; the search continues after it."""
    run = search._readers.run
    bad = max(row.seq for row in rows) - 3

    async def slow(name: str, text: str, parameters: dict[str, Any]) -> Any:
        if "low" in parameters and parameters["low"] < bad < parameters["high"]:
            raise ReadTooLongError("too long")
        return await run(name, text, parameters)

    monkeypatch.setattr(search._readers, "run", slow)
    query = parse_search("-nothing")
    found = [row.seq for page in await pages(search, query, 200) for row in page.rows]
    assert set(found) == {row.seq for row in rows} - {bad}


# -- searching changes nothing and uses the indexes


async def test_searching_changes_nothing(path: Path, search: Search) -> None:
    before = content_of(path)
    for text in TEXTS:
        await search.page(parse_search(text))
    assert content_of(path) == before


COMPOSED = [  # a search, the queues given to the plan, and what it must read along
    ("state:dispatched", "", "message_held"),
    ("state:ready", "1", "message_place"),
    ("state:dead", "", "history_unusual"),
    ("state:dead", "1", "history_run USING PRIMARY KEY"),
    ("state:acked", "1", "history_run USING PRIMARY KEY"),
    ("state:acked", "1", "m USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
    ("", "1", "m USING INDEX message_place (queue_id=? AND position>? AND position<?)"),
    ("", "1", "m USING INDEX message_moved (queue_id=? AND rowid>? AND rowid<?)"),
    ("", "1", "history_run_seq (seq_block=? AND queue_id=? AND first_seq>? AND first_seq<?)"),
    ("-state:dead", "1", "m USING INTEGER PRIMARY KEY (rowid>?)"),
    ("trace:a", "", "trace_place USING PRIMARY KEY (block=? AND trace_id=? AND seq>? AND seq<?)"),
    ("trace:a", "", "m USING INDEX history_seq (seq=? AND rowid<?)"),
    ("trace:a", "", "m USING INTEGER PRIMARY KEY (rowid>?)"),
    (
        "trace:a trace:b state:ready",
        "1",
        "trace_place USING PRIMARY KEY (block=? AND trace_id=? AND seq>? AND seq<?)",
    ),
    ("trace:a state:ready", "", "m USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
    ("", "", "history_seq"),
    ("1042 -data.n:5", "", "history_seq"),
    ("", "", "INTEGER PRIMARY KEY"),
    ("state:acked", "", "INTEGER PRIMARY KEY"),
    ("1042", "", "b USING INTEGER PRIMARY KEY"),
]


@pytest.mark.parametrize(("text", "queues", "index"), COMPOSED)
@pytest.mark.parametrize("is_newest_first", [True, False])
def test_source_uses_its_index(
    path: Path, text: str, queues: str, index: str, is_newest_first: bool
) -> None:
    plan = make_plan(parse_search(text), [int(queues)] if queues else None, [], NOW_MS)
    assert plan is not None
    connection = sqlite3.connect(path)
    add_reader_functions(connection)
    steps = [
        row[3]
        for row in connection.execute(
            f"EXPLAIN QUERY PLAN {plan.text(is_newest_first=is_newest_first)}",
            plan.parameters | {"low": 0, "high": 9, "limit": 5},
        )
    ]
    connection.close()
    assert any(index in step for step in steps), steps
    scans = [step for step in steps if re.match(r"SCAN (m|b|history_\w+)\b", step)]
    assert [step for step in scans if "message_held" not in step] == []  # few messages are held


@pytest.mark.parametrize(
    "name", ["queue", "urn", "trace", "reason", "origin", "client", "data.x", "$.y", ""]
)
def test_values_are_parameters_only(name: str) -> None:
    """No user input becomes part of the statement."""
    marked = "'); DROP TABLE zzyzx; --"
    query = parse_search(f'{name}:"{marked}"' if name else f'"{marked}"')
    plan = make_plan(query, None, [], NOW_MS)
    assert plan is not None
    assert "zzyzx" not in plan.text(is_newest_first=True)


# -- leaps over messages of other queues

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
    """Store messages in the order of their numbers; settle them in the order of their ends."""
    numbered = list(enumerate(messages, start=first))
    for seq, (queue_id, state, shift, _) in sorted(numbered, key=lambda one: one[0] + one[1][3]):
        if state < 2:
            database.message(queue_id, seq=seq, state=state, position=seq + shift)
        else:
            database.settled(queue_id, seq=seq, outcome=state, position=seq + shift)
    database.set_counter("next_number", first + len(messages))


def settle_all(database: Database) -> None:
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
    """Rows, figures and cursors equal those of a scan without leaps, and of a plain filter."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        database = open_queues(Path(folder) / "phpmq.db")
        store(database, messages)
        index_upto(database, placed)
        readers = readers_of(database.path, count=1)
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
def test_leap_passes_over_no_message(messages: Story, placed: int, data: st.DataObject) -> None:
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
            [(seq,)] = connection.execute(load("search", "sqlite")["next_seq"], given)
            [(offset,)] = connection.execute(load("search", "sqlite")["next_offset"], given)
    seqs = [row.seq for row in rows]
    newest = max((one for one in seqs if one < place), default=None)
    assert (seq is None) == (newest is None)
    assert newest is None or newest <= seq <= min(newest | 4095, place - 1)
    offsets = [row.offset for row in rows if not row.is_alive and row.offset < place]
    assert offset == max(offsets, default=None)


async def test_one_leap_skips_all_newer_messages(tmp_path: Path) -> None:
    """The number of reads does not grow with the newer messages of other queues."""
    database = open_queues(tmp_path / "phpmq.db")
    store(database, [(1, 2, 0, 0), (1, 0, 0, 0)] + [(3, 2, 0, 0)] * 400)
    index_upto(database, 300)
    readers = readers_of(database.path, count=1)
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
