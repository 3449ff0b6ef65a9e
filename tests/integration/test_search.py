"""The search against a plain filter in Python, over a database with everything hostile in it."""

import json
import random
import re
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from typing import Any, Final
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.admin.query import of_ids, of_queue, parse
from phpmq_lite.errors import ReadTooLongError
from phpmq_lite.model import State
from phpmq_lite.storage import plans
from phpmq_lite.storage import search as search_module
from phpmq_lite.storage.browse import wire_id
from phpmq_lite.storage.readers import Readers
from phpmq_lite.storage.search import Found, Search
from phpmq_lite.storage.statements import load
from phpmq_lite.storage.terms import Query, Term
from tests.unit.admin.cases import NOW_MS, Database

QUEUES = {1: "orders", 2: "mail", 3: "orders.dlq", 4: 'od[d] "q" *'}
CLOCK_STEP_MS = 5_000
BODIES = (
    b'{"data":{"n":1042,"s":"eu","t":true,"z":null,"a":[{"k":"v"}]},"meta":{"lang":"php"}}',
    b'{"data":{"n":"1042","s":"us-1"},"text":"caf\\u00e9 a\\/b"}',
    '{"data":{"n":-7,"big":123456789012345678901234567890},"text":"café a/b"}'.encode(),
    b'{"data":{"n":10.5},"n":1042,"data2":{}}',
    b'{"data":{"s":"\\u0065u"}}',
    b'{"data":{"n":1042}',  # no end
    b'{"data":{"n":NaN}}',
    b'{"data":{"n":1042}}\0more',
    b"[" * 5_000 + b"1042" + b"]" * 5_000,
    b'{"data":[{"n":1042}]}',
    b'"1042"',
    b"\xff\xfe1042\x00",
    b'{"data":{"n":1042},"x":"\xff"}',
    b"",
    b'{"dead_letter":{"error":"Key 17 of 3"}}',
    b"'; DROP TABLE message; --",
)


def fill(database: Database, count: int = 240) -> None:
    """Store messages alive and settled, of all kinds, in a random but constant mixture."""
    made = random.Random(7)
    for queue_id, name in QUEUES.items():
        database.queue(name, queue_id)
    for number in (7, 8):
        database.client(number, f"10.0.0.{number}:500{number}")
    database.set_counter("clock_step_ms", CLOCK_STEP_MS)
    for at in range(count):
        body = made.choice(BODIES)
        columns: dict[str, Any] = {
            "published_at": NOW_MS - made.randrange(7_200_000),
            "deadline_ms": made.choice((None, NOW_MS - CLOCK_STEP_MS + made.randrange(120_000))),
            "urn": made.choice((None, "urn:babel:orders:created", "urn:orders:x", "urn:test:[y]")),
            "trace_id": made.choice((None, "7b3f-1", "7b3f-2")),
            "publisher": made.choice((None, 0, 7, 8)),
            "consumer": made.choice((None, 7)),
            "deliveries": made.randrange(6),
            "charged": 0,
        }
        if made.random() < 0.2:
            columns |= {"source_seq": 1, "source_queue_id": 1, "source_reason": "client"}
        queue_id = made.choice(list(QUEUES))
        if made.random() < 0.5:
            columns["position"] = made.choice((at + 1, at + 5_001))  # requeued
            database.message(queue_id, body, state=made.randrange(2), **columns)
        else:
            columns |= {
                "outcome": made.randrange(2, 6),
                "settled_at": NOW_MS - made.randrange(60_000),
                "reason": made.choice((None, "crc", "purge")),
            }
            content = None if made.random() < 0.1 else body
            database.settled(queue_id, content, **columns)
    database.set_counter("next_number", 10_000)
    (half,) = database.connection.execute('SELECT max("offset") / 2 FROM history').fetchone()
    place_upto(database, half)


# -- the plain filter


@dataclass
class Plain:
    """A row of either table, its columns by name, and its body."""

    columns: dict[str, Any]
    body: bytes | None

    def __getattr__(self, name: str) -> Any:
        return self.columns[name]

    @property
    def is_alive(self) -> bool:
        return bool(self.state < 2)


def content_of(path: Path) -> bytes:
    return path.read_bytes()


def everything(path: Path) -> list[Plain]:
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    bodies = dict(map(tuple, connection.execute("SELECT seq, content FROM body")))
    rows = [dict(row) for row in connection.execute("SELECT * FROM message")]
    rows += [
        dict(row) | {"state": row["outcome"]} for row in connection.execute("SELECT * FROM history")
    ]
    connection.close()
    return [Plain({"reason": None, "offset": None} | row, bodies.get(row["seq"])) for row in rows]


def is_like(text: str | None, pattern: str) -> bool:
    """Match as GLOB does, but slowly."""
    if text is None:
        return False
    marks = re.sub(r"\\(.)", lambda mark: f"[{mark[1]}]", pattern.replace("[", "\0"))
    return re.fullmatch(translate(marks.replace("\0", "[[]")), text) is not None


SIGNS: dict[str, Callable[[int | float, int], bool]] = {
    "=": lambda a, b: a == b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip


class _Missing:
    pass


class Number(str):
    """A number as it is written."""

    __slots__ = ()


def member(body: bytes | None, path: str) -> Any:
    def refuse(_: str) -> None:
        raise ValueError

    try:
        value = json.loads(
            (body or b"").decode(errors="surrogateescape"), parse_constant=refuse,
            parse_int=Number, parse_float=lambda text: Number(float(text)),
        )  # fmt: skip
        for step in path.removeprefix("$.").split("."):
            value = value[int(step) if step.isdecimal() else step]
            if isinstance(value, str) and step != path.rpartition(".")[2]:
                return _Missing
    except (ValueError, RecursionError, KeyError, TypeError, IndexError):
        return _Missing
    return value


def holds(term: Term, row: Plain) -> bool:
    """Tell whether a term holds, its negation apart."""
    match term.kind:
        case "queue":
            return is_like(QUEUES[row.queue_id], term.value)
        case "state":
            return State(row.state).name.lower() == term.value
        case "urn":
            starts = ("", "urn:", "urn:babel:")
            return any(is_like(row.urn, start + term.value) for start in starts)
        case "trace":
            return is_like(row.trace_id, term.value)
        case "id":
            return is_like(wire_id(row.seq, row.token), term.value)
        case "reason":
            return is_like(row.reason, term.value) or is_like(row.source_reason, term.value)
        case "origin":
            return is_like(QUEUES.get(row.source_queue_id), term.value)
        case "client":
            addresses = [
                {0: "admin", 7: "10.0.0.7:5007", 8: "10.0.0.8:5008"}.get(number)
                for number in (row.publisher, row.consumer)
            ]
            patterns = (term.value, f"{term.value}:*")
            numbers = [str(n) for n in (row.publisher, row.consumer) if n is not None]
            return term.value in numbers or any(
                is_like(address, pattern) for address in addresses for pattern in patterns
            )
        case "deliveries" | "size":
            return SIGNS[term.sign](row.columns[term.kind], term.number)
        case "age":
            return SIGNS[term.sign](NOW_MS - row.published_at, term.number)
        case "ttl":
            if term.value == "never" or row.deadline_ms is None:
                return (term.value == "never") == (row.deadline_ms is None) and not term.sign
            ended = NOW_MS if row.is_alive else row.settled_at
            return SIGNS[term.sign](row.deadline_ms + CLOCK_STEP_MS - ended, term.number)
        case "text":
            escaped = json.dumps(term.value)[1:-1].replace("/", "\\/").encode()
            return row.body is not None and (term.value.encode() in row.body or escaped in row.body)
    paths = {term.path, re.sub(r"^data\.", "$.", term.path)}  # an envelope's member, or the body's
    return any(holds_member(term, member(row.body, path)) for path in paths)


def holds_member(term: Term, value: Any) -> bool:
    if value is _Missing or isinstance(value, dict | list):
        return False
    if term.sign:
        return isinstance(value, Number) and SIGNS[term.sign](float(value), term.number)
    if value is None or isinstance(value, bool):
        return json.dumps(value) == term.value
    return is_like(str(value), term.value)


ANY_OF = ("queue", "state", "urn", "trace", "id", "reason", "origin", "client")


def is_match(query: Query, row: Plain) -> bool:
    for term in query.terms:
        if term.is_negated and holds(term, row):
            return False
        if not term.is_negated and term.kind not in ANY_OF and not holds(term, row):
            return False
    return all(
        any(holds(term, row) for term in terms)
        for kind in ANY_OF
        if (terms := [term for term in query.of(kind) if not term.is_negated])
    )


# -- the tests


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Database(tmp_path_factory.mktemp("search") / "phpmq.db")
    fill(made)
    made.connection.close()
    return made.path


@pytest.fixture(scope="module")
def rows(path: Path) -> list[Plain]:
    return everything(path)


@pytest.fixture(params=["along numbers", "walked over"])
async def search(
    path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Search]:
    """Search in slices that are much smaller than the database, where most are placed or few."""
    monkeypatch.setattr(search_module, "_FIRST_WIDTH", 7)
    monkeypatch.setattr(search_module, "_FEW", 2_000 if request.param == "along numbers" else 0)
    if request.param == "walked over":
        monkeypatch.setattr(search_module, "_LONG_TAIL", -1)
    readers = Readers(path, count=1)
    yield Search(readers, now_ms=lambda: NOW_MS)
    await readers.close()


async def pages(search: Search, query: Query, limit: int, **given: Any) -> list[Found]:
    """Go through all pages."""
    found = [await search.page(query, limit=limit, **given)]
    while found[-1].next is not None:
        given["place"] = found[-1].next
        found.append(await search.page(query, limit=limit, **given))
    return found


TEXTS = [
    "", "queue:orders", "queue:orders*", "queue:*r*", "queue:nothing", "-queue:mail",
    "queue:orders queue:mail", "queue:orders* -queue:*.dlq", r'queue:"od[d] \"q\" \*"',
    "state:ready", "state:dispatched", "state:ready state:dispatched", "state:acked",
    "state:dead state:deleted", "-state:acked", "-state:ready", "state:ready state:dead",
    "state:ready -state:ready", "queue:mail state:ready", "queue:mail state:dispatched",
    "queue:mail state:dead", "queue:mail state:ready state:acked", "queue:orders* state:expired",
    "urn:*", "-urn:*", "urn:orders:*", "urn:urn:test:[y]", "-urn:test:*", "urn:orders:x urn:test:*",
    "trace:7b3f*", "trace:7b3f-1", "-trace:7b3f-1",
    "trace:*-1", "trace:7b3f-1 trace:7b3f-2 state:dead", "queue:mail trace:7b* state:ready",
    "trace:7b3f-1 trace:*-2 state:acked", "queue:mail trace:7b3f-2 state:dispatched",
    "reason:crc", "-reason:crc", "reason:c*",
    "origin:orders", "-origin:*", "client:10.0.0.7", "client:10.0.*", "-client:8", "client:0",
    "client:admin", "deliveries:>3", "deliveries:0", "-deliveries:<=2", "size:0", "size:>100",
    "size:>1k", "age:>1h", "age:<=30m", "ttl:<60s", "ttl:never", "-ttl:never", "-ttl:<60s",
    "id:#12", "id:000000000000000*", "id:#12 id:#13", "-id:#12", "id:0000000000000014*",
    "1042", "-1042", '"data"', "café", "a/b", "-café", "[[[", "DROP", '"\\u0065"',
    "data.n:1042", "-data.n:1042", "data.n:104?", "data.n:>1000", "data.n:<0", "data.n:10.5",
    "data.n:>=10", "data.s:eu", "data.s:*-1", "data.t:true", "data.z:null", "data.z:*",
    "data.big:123456789012345678901234567890", "data.a.0.k:v", "data.n:*", "$.n:1042",
    "meta.lang:php", 'dead_letter.error:"Key * of *"', 'data.s:""',
    "queue:orders state:ready data.n:1042 -urn:*", "state:acked queue:orders* 1042 age:>10m",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
async def test_search_finds_what_a_plain_filter_finds(
    search: Search, rows: list[Plain], text: str
) -> None:
    query = parse(text)
    expected = {row.seq for row in rows if is_match(query, row)}
    found = [row for page in await pages(search, query, 17) for row in page.rows]
    assert {row.seq for row in found} == expected
    assert len(found) == len(expected)  # none twice
    assert is_in_order(query, found)
    frozen = await search.freeze(query)
    assert (sorted(frozen.seqs), frozen.is_complete) == (sorted(expected), True)
    assert sum(frozen.by_state.values()) == sum(frozen.by_queue.values()) == len(expected)


def is_in_order(query: Query, found: list[Any]) -> bool:
    """By offset where all are settled, by position where they are of named queues, else by seq."""
    states = {row.state for row in found}
    keys = [[row.seq for row in found]]
    if not states & {0, 1}:
        keys.append([row.offset for row in found])
    if states <= {0, 1}:
        keys.append([row.position for row in found])
    return any(key == sorted(key, reverse=True) for key in keys)


KINDS = [text for text in TEXTS if text and " " not in text]


@pytest.mark.parametrize("seed", range(60))
async def test_search_finds_what_a_plain_filter_finds_in_any_mixture(
    search: Search, rows: list[Plain], seed: int
) -> None:
    made = random.Random(seed)
    query = parse(" ".join(made.sample(KINDS, made.randrange(2, 5))))
    expected = {row.seq for row in rows if is_match(query, row)}
    found = [row.seq for page in await pages(search, query, 5) for row in page.rows]
    assert set(found) == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize("text", ["", "state:ready", "state:dead", "-queue:mail", "1042"])
async def test_search_keeps_to_the_queues_that_may_be_seen(
    search: Search, rows: list[Plain], text: str
) -> None:
    query, allowed = parse(text), frozenset({2, 3})
    expected = {row.seq for row in rows if row.queue_id in allowed and is_match(query, row)}
    found = await pages(search, query, 50, queues=allowed)
    assert {row.seq for page in found for row in page.rows} == expected
    assert set((await search.freeze(query, queues=allowed)).seqs) == expected
    assert (await search.page(query, queues=frozenset())).rows == []


async def test_neighbours_are_those_of_the_list(search: Search) -> None:
    for text in ("", "queue:orders", "state:dead", "queue:mail state:ready"):
        query = parse(text)
        [page] = await pages(search, query, 200) if text else [await search.page(query, limit=200)]
        for before, row, after in zip(page.rows, page.rows[1:], page.rows[2:], strict=False):
            assert await search.newer(query, row) == before
            assert await search.older(query, row) == after
        assert await search.newer(query, page.rows[0]) is None


async def test_some_messages_are_matched_by_their_numbers(
    search: Search, rows: list[Plain]
) -> None:
    asked = [row.seq for row in rows][::3]
    for text in ("", "state:ready", "queue:mail -1042", "state:dead"):
        query = parse(text)
        expected = sorted(row.seq for row in rows if row.seq in asked and is_match(query, row))
        assert [row.seq for row in await search.matches(query, asked, None)] == expected
    assert await search.matches(parse(""), [], None) == []


async def test_ids_are_found_in_any_state_with_both_halves(
    search: Search, rows: list[Plain]
) -> None:
    ids = [wire_id(row.seq, row.token) for row in rows][:7]
    found = await search.page(of_ids([*ids, wire_id(rows[8].seq, 1)]))
    assert sorted(row.message_id for row in found.rows) == sorted(ids)


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
FIRST: Final = (1 << 16) - 20  # number and offset: some are in the next block of places


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


def place_upto(database: Database, upto: int) -> None:
    """Give the first settled messages, and half of those alive, their places, once."""
    [(last,)] = database.connection.execute('SELECT max("offset") FROM history')
    upto = min(FIRST - 1 + upto, last or 0)
    for name in ("place", "number", "trace"):
        database.connection.execute(load("places")[name], {"after": 0, "upto": upto})
    database.set_counter("placed_upto", upto)
    [(half,)] = database.connection.execute("SELECT (min(seq) + max(seq)) / 2 FROM message")
    database.connection.execute(load("places")["trace_alive"], {"after": 0, "upto": half or 0})
    database.set_counter("traced_upto", half or 0)


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
        place_upto(database, placed)
        readers = Readers(database.path, count=1)
        for name, value in (("_FIRST_WIDTH", 1), ("_FAST_S", 0), ("_FEW", 0)):
            patch.setattr(search_module, name, value)
        search = Search(readers, now_ms=lambda: NOW_MS)
        await leaps_agree(search, database, parse(text), limit)
        settle_all(database)
        store(database, later, first=FIRST + len(messages))
        await leaps_agree(search, database, parse(text), limit)
        await readers.close()
        database.connection.close()


async def leaps_agree(search: Search, database: Database, query: Query, limit: int) -> None:
    found = await pages(search, query, limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Search, "_leap", AsyncMock())
        assert found == await pages(search, query, limit)
        patch.setattr(search_module, "_LONG_TAIL", -1)
        assert found == await pages(search, query, limit)
    assert list((await search.freeze(query)).seqs) == [
        row.seq for page in reversed(found) for row in reversed(page.rows)
    ]
    expected = {row.seq for row in everything(database.path) if is_match(query, row)}
    seqs = [row.seq for page in found for row in page.rows]
    assert (set(seqs), len(seqs)) == (expected, len(expected))


@given(messages=MESSAGES, placed=st.sampled_from((0, 5, 15, 60)), data=st.data())
def test_leap_goes_as_far_as_it_can(messages: Story, placed: int, data: st.DataObject) -> None:
    place = data.draw(st.integers(FIRST, FIRST + len(messages)))
    wanted = data.draw(st.lists(st.integers(1, 3), min_size=1, unique=True))
    with tempfile.TemporaryDirectory() as folder:
        database = open_queues(Path(folder) / "phpmq.db")
        store(database, messages)
        place_upto(database, placed)
        rows = [row for row in everything(database.path) if row.queue_id in wanted]
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
    place_upto(database, 300)
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
            [page] = await pages(Search(readers), parse(text), 9)
            assert page.rows
            assert len(texts) < 9
    await readers.close()
    database.connection.close()


async def test_search_goes_on_where_a_leap_takes_too_long(
    path: Path, search: Search, rows: list[Plain], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = search._readers.run

    async def slow(name: str, text: str, parameters: dict[str, Any]) -> Any:
        if name == "next_seq":
            raise ReadTooLongError("too long")
        return await run(name, text, parameters)

    monkeypatch.setattr(search._readers, "run", slow)
    query = parse("queue:mail size:>100")
    found = [row.seq for page in await pages(search, query, 9) for row in page.rows]
    assert set(found) == {row.seq for row in rows if is_match(query, row)}


# -- frozen selections


async def test_frozen_selection_says_what_is_in_it(search: Search, rows: list[Plain]) -> None:
    query = of_queue("orders", ("ready", "dispatched"))
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
    frozen = await search.freeze(parse("state:ready"), limit=5)
    assert (len(frozen.seqs), frozen.is_complete, sum(frozen.by_queue.values())) == (5, False, 5)


# -- time


async def test_search_answers_with_what_it_found_when_the_time_is_over(search: Search) -> None:
    first = await search.page(parse(""), limit=200, limit_s=-1.0)
    assert first.next is not None
    assert not first.is_done
    assert 0 <= first.searched < first.total
    whole = [row.seq for page in await pages(search, parse(""), 200) for row in page.rows]
    seen = [row.seq for row in first.rows]
    place: tuple[int, int] | None = first.next
    while place is not None:
        page = await search.page(parse(""), limit=200, limit_s=-1.0, place=place)
        seen += [row.seq for row in page.rows]
        assert page.searched >= first.searched
        place = page.next
    assert seen == whole


async def test_later_messages_do_not_move_the_pages(
    path: Path, search: Search, tmp_path: Path
) -> None:
    copy = tmp_path / "phpmq.db"
    copy.write_bytes(content_of(path))
    readers = Readers(copy, count=1)
    mine = Search(readers, now_ms=lambda: NOW_MS)
    first = await mine.page(parse(""), limit=20)
    with sqlite3.connect(copy) as connection:
        connection.execute(
            "INSERT INTO message (seq, token, queue_id, position, state, published_at, size, crc) "
            "VALUES (10000, 1, 1, 10000, 0, 0, 0, 0)"
        )
        connection.execute("UPDATE counter SET value = 10001 WHERE name = 'next_number'")
    connection.close()
    later = await pages(mine, parse(""), 20, place=first.next)
    seen = [row.seq for page in [first, *later] for row in page.rows]
    assert seen == [row.seq for page in await pages(search, parse(""), 200) for row in page.rows]
    await readers.close()


async def test_slice_that_takes_too_long_is_made_smaller(
    search: Search, rows: list[Plain], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body that alone takes too long is passed over; the search goes on behind it."""
    run = search._readers.run
    bad = max(row.seq for row in rows) - 3

    async def slow(name: str, text: str, parameters: dict[str, Any]) -> Any:
        if "low" in parameters and parameters["low"] < bad < parameters["high"]:
            raise ReadTooLongError("too long")
        return await run(name, text, parameters)

    monkeypatch.setattr(search._readers, "run", slow)
    query = parse("-nothing")
    found = [row.seq for page in await pages(search, query, 200) for row in page.rows]
    assert set(found) == {row.seq for row in rows} - {bad}


# -- looking changes nothing, and reads along its indexes


async def test_searching_changes_nothing(path: Path, search: Search) -> None:
    before = content_of(path)
    for text in TEXTS:
        await search.page(parse(text))
    assert content_of(path) == before


COMPOSED = [  # a search, the queues given to the plan, and what it must read along
    ("state:dispatched", "", "message_held"),
    ("state:ready", "1", "message_place"),
    ("state:dead", "", "history_unusual"),
    ("state:dead", "1", "history_place USING PRIMARY KEY"),
    ("state:acked", "1", "history_place USING PRIMARY KEY"),
    ("state:acked", "1", "m USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
    ("", "1", "m USING INDEX message_place (queue_id=? AND position>? AND position<?)"),
    ("", "1", "m USING INDEX message_moved (queue_id=? AND rowid>? AND rowid<?)"),
    ("", "1", "history_number USING PRIMARY KEY (block=? AND queue_id=? AND seq>? AND seq<?)"),
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
def test_source_reads_along_its_index(
    path: Path, text: str, queues: str, index: str, is_newest_first: bool
) -> None:
    plan = plans.make(parse(text), [int(queues)] if queues else None, [], NOW_MS)
    assert plan is not None
    connection = sqlite3.connect(path)
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
    assert [step for step in scans if "message_held" not in step] == []  # what is held is little


@pytest.mark.parametrize(
    "name", ["queue", "urn", "trace", "reason", "origin", "client", "data.x", "$.y", ""]
)
def test_values_are_parameters_only(name: str) -> None:
    """No text that was typed gets into the statement."""
    marked = "'); DROP TABLE zzyzx; --"
    query = parse(f'{name}:"{marked}"' if name else f'"{marked}"')
    plan = plans.make(query, None, [], NOW_MS)
    assert plan is not None
    assert "zzyzx" not in plan.text(is_newest_first=True)
