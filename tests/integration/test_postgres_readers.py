"""Reading PostgreSQL gives the same as reading SQLite: the same rows, compared on both."""

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import uvloop

from phpmq_lite.errors import ReadTooLongError, StorageError
from phpmq_lite.model import ALIVE, BEFORE_ALL, State
from phpmq_lite.storage.disk_space import measure_database
from phpmq_lite.storage.postgres.read_connections import PostgresReaders
from phpmq_lite.storage.read.accounts import SavedItems, read_all
from phpmq_lite.storage.read.activity import RecentActivity, StoredRollups
from phpmq_lite.storage.read.audit import AuditFilter, AuditLog, BulkJobLog
from phpmq_lite.storage.read.consumers import StoredClients, StoredPipeline
from phpmq_lite.storage.read.dead_letter_groups import DeadLetterGroups
from phpmq_lite.storage.read.messages import MessageReader
from phpmq_lite.storage.read.read_pool import Readers
from phpmq_lite.storage.search import reader as search_module
from phpmq_lite.storage.search.language import (
    SearchQuery,
    SearchTerm,
    as_glob,
    ids_search,
    parse_search,
)
from phpmq_lite.storage.search.reader import Search
from phpmq_lite.storage.sqlite.read_connections import SqliteReaders, matches_glob
from phpmq_lite.storage.statements import load
from tests.integration.test_search import KINDS, TEXTS
from tests.support.both_engines import NAMES, copy_rows, fill_randomly
from tests.support.postgres_server import PostgresServer
from tests.support.reference_search import FIRST, QUEUES, pages
from tests.unit.admin.cases import NOW_MS, Database

SEEDS: Final = (1, 2)


@dataclass
class Filled:
    """A database of each engine with the same rows."""

    path: Path
    conninfo: str
    seqs: list[int]
    traces: list[str]


@pytest.fixture(scope="module", params=SEEDS)
def filled(
    request: pytest.FixtureRequest,
    postgres: PostgresServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Filled]:
    database = Database(tmp_path_factory.mktemp("both") / "phpmq.db")
    fill_randomly(database, request.param)
    numbers = database.connection.execute("SELECT seq FROM message UNION SELECT seq FROM history")
    seqs = [seq for (seq,) in numbers]
    rows = database.connection.execute(
        "SELECT DISTINCT trace_id FROM history WHERE trace_id IS NOT NULL ORDER BY 1"
    )
    traces = [trace for (trace,) in rows]
    database.connection.execute("UPDATE queue SET live_count = queue_id % 3")
    database.connection.close()
    with postgres.database() as name:
        copy_rows(database.path, postgres.conninfo(name))
        yield Filled(database.path, postgres.conninfo(name), seqs, traces)


@pytest.fixture
async def both(filled: Filled) -> AsyncIterator[tuple[Readers, Readers]]:
    """Return readers of SQLite and of PostgreSQL; no time limit decides what they return."""
    ours = SqliteReaders(filled.path, limit_s=30)
    theirs = PostgresReaders(lambda: filled.conninfo, limit_s=30)
    yield ours, theirs
    await ours.close()
    await theirs.close()


# -- each statement

VALUES: Final[dict[str, list[Any]]] = {
    "queue_id": [1, 2, 3, 4, 10, 99],
    "states": [0, 1, 2, 64 + 128, 1 + 2 + 64 + 128],
    "unique_key": ["k1", ""],
    "outcome": [2, 3, 4, 5],
    "position": [BEFORE_ALL, -1, FIRST, FIRST + 90, 5_100, 1 << 62],
    "limit": [1, 7, 500],
    "start": [0, 30, 80, 1 << 62],
    "stop": [0, 10, 100],
    "size": [1, 480, 1 << 20],
    "looked": [3, 500],
    "queues": [None, "[]", "[1, 3]", "[99]"],
    "queue_ids": ["[]", "[1, 2, 3, 10]"],
    "names": ["[]", '["mail", "größe"]'],
    "moment": [NOW_MS, NOW_MS + 60_000],
    "number": [FIRST, FIRST + 100, 10_000_000],
    "most": [3, 1_000],
    "before_ms": [NOW_MS + 60_000],
    "at": [0, 50, 10_000],
    "before": [50, 1 << 62],
    "after": [0, 50, FIRST],
    "since": [0, NOW_MS - 900],
    "among": [50, 2_000],
    "kind": ["view", "label", "x"],
    "name": [None, *NAMES],
    "span_s": [60, 900],
    "until": [1_000, 1 << 40],
    "before_at": [NOW_MS - 2, 1 << 62],
    "before_client": [0, 120, 1 << 62],
    "client": [0, 7, 120],
    "lo": [0, 40],
    "first": [1, 41],
    "last": [60, 120],
    "hi": [60, 120],
    "at_ms": [0, NOW_MS - 9_000, NOW_MS + 1],
    "1": [NOW_MS, NOW_MS + 60_000],
    "low": [0, FIRST, FIRST + 100],
    "high": [FIRST + 60, FIRST + 190, 1 << 62],
    "outcomes": ["[2, 3, 4, 5]", "[4]"],
    "globs": ["[]", '["orders*", "?????", "[[]x]*"]', '["a_b%", "*"]'],
    "end": ["7b3g", "z"],
    "floor": [0, 60],
    "ceiling": [150, 190],
    "actor": [None, "anna"],
    "action": [None, "queue", "session.login"],
    "result": [None, "done", "refused"],
    "target": [None, "orders", "größe"],
    "upto": [None, NOW_MS - 850],
    "audit_id": [7, 999],
}
ONLY: Final[dict[str, dict[str, list[Any]]]] = {
    "few_traced": {"start": ["7b", "7b3f-2"], "limit": [500]},
    "search_ends": {"queues": ["[]", "[1, 3]", "[99]"]},
    "next_seq": {"queues": ["[1]", "[2, 3]", "[99]"]},
    "next_offset": {"queues": ["[1]", "[2, 3]", "[99]"]},
    "app_ids": {"after": ["", "a", "m"]},
    "names": {"queues": ["[]", "[1, 3, 99]"]},
    "body_part": {"start": [0, 5, 60_000, 90_000]},
}
# Their rows differ, because the engines differ: the size of the file, and how far the indexes go;
# the indexes of SQLite only know blocks of numbers.
ENGINES_DIFFER: Final = {"pages", "schema", "search_ends", "next_seq", "next_offset", "few_traced"}
TIES: Final = {"since"}  # in no order where they are equal
OTHERS: Final = {"insert_start", "trim_starts", "overdue_messages"}  # not read through a pool
FILES: Final = (
    "messages search activity audit consumers accounts rollups database_size startup arrow"
)
STATEMENTS: Final = [
    (file, name)
    for file in FILES.split()
    for name in load(file, "postgres")
    if name not in OTHERS | ENGINES_DIFFER
]


@pytest.mark.parametrize(("file", "name"), STATEMENTS)
async def test_statement_returns_the_same_rows(
    both: tuple[Readers, Readers], filled: Filled, file: str, name: str
) -> None:
    made = random.Random(name)
    is_ordered = "ORDER BY" in load(file, "sqlite")[name].rpartition(")")[2] and name not in TIES
    some = [f"[{', '.join(map(str, made.sample(filled.seqs, 40)))}]", "[]"]
    traces = [json.dumps(filled.traces[::2]), "[]"]
    values = VALUES | {"seq": filled.seqs[:40], "seqs": some, "traces": traces}
    values |= ONLY.get(name, {})
    for _ in range(25):
        given = {key: made.choice(choices) for key, choices in values.items()}
        ours, theirs = [await readers.read(file, name, **given) for readers in both]
        if not is_ordered:
            ours, theirs = sorted(ours, key=repr), sorted(theirs, key=repr)
        assert theirs == ours, given


# -- each reader


Call = Callable[[Readers], Awaitable[Any]]


def calls(seqs: list[int]) -> dict[str, Call]:
    """Return calls of the methods that do more than read one statement."""
    filters = [AuditFilter(), AuditFilter(actor="anna", result="refused"), AuditFilter("bob")]
    return {
        "rows": lambda readers: MessageReader(readers).rows(seqs[:200]),
        "message pages": lambda readers: _message_pages(MessageReader(readers)),
        "bodies": lambda readers: _bodies(MessageReader(readers), seqs[:60]),
        "history pages": lambda readers: _history_pages(MessageReader(readers)),
        "trash": lambda readers: MessageReader(readers).trash(limit=20, queues=frozenset({1, 2})),
        "dead letters": lambda readers: DeadLetterGroups(readers).groups(
            NOW_MS, names=["mail"], limit_s=30
        ),
        "previews": lambda readers: RecentActivity(readers).previews(seqs),
        "deaths": lambda readers: RecentActivity(readers).deaths(0),
        "held": lambda readers: _sorted(RecentActivity(readers).held()),
        "events": lambda readers: RecentActivity(readers).recent_events(1, 50),
        "audit": lambda readers: _audit_pages(AuditLog(readers), filters),
        "trash size": lambda readers: BulkJobLog(readers).trash(),
        "clients": lambda readers: StoredClients(readers).closed(0, limit=200),
        "subscriptions": lambda readers: StoredPipeline(readers).subscriptions(),
        "bounds": lambda readers: StoredPipeline(readers).history_bounds(),
        "saved": lambda readers: SavedItems(readers).all("view"),
        "accounts": lambda readers: _accounts(readers),
        "rollups": lambda readers: StoredRollups(readers).uptime(60, 0, 1 << 40),
        "size": lambda readers: _size(readers),
        "newest": lambda readers: Search(readers).newest_contents(50),
    }


async def _sorted(rows: Awaitable[list[Any]]) -> list[Any]:
    return sorted(await rows, key=repr)


async def _accounts(readers: Readers) -> Any:
    found = await read_all(readers, 0)
    return replace(found, addresses=sorted(found.addresses))


async def _size(readers: Readers) -> Any:
    return replace(await measure_database(readers), pages=0, pages_free=0, page_bytes=0, schema=0)


async def _message_pages(reader: MessageReader) -> list[Any]:
    return [
        await reader.messages(queue_id, states=states, limit=20, **{way: position})
        for queue_id in QUEUES
        for states in (ALIVE, {State.READY}, {State.DISPATCHED}, {State.SCHEDULED, State.BLOCKED})
        for way in ("after", "before")
        for position in (-1, FIRST + 100, 5_080)
    ]


async def _bodies(reader: MessageReader, seqs: list[int]) -> list[Any]:
    rows = await reader.rows(seqs)
    return [
        [
            await reader.body(row),
            await reader.body_part(row, 7, 90),
            await reader.sha256(row),
            await reader.whole_body(row),
            await reader.events(row.seq),
            await reader.links([row.seq]),
        ]
        for row in rows
    ]


async def _history_pages(reader: MessageReader) -> list[Any]:
    found = []
    for queue_id in (None, *QUEUES):
        for outcome in (None, State.ACKED, State.DEAD):
            before = None
            while True:
                page = await reader.history(
                    queue_id=queue_id, outcome=outcome, before=before, limit=30
                )
                found.append(page)
                if not page.has_more:
                    break
                before = page.rows[-1].offset
            found.append(await reader.history(queue_id=queue_id, outcome=outcome, after=3))
    return found


async def _audit_pages(log: AuditLog, filters: list[AuditFilter]) -> list[Any]:
    return [
        await log.page(wanted, limit=40, **place)
        for wanted in filters
        for place in ({}, {"before": 90}, {"after": 20})
    ]


@pytest.mark.parametrize("name", calls([]))
async def test_reader_returns_the_same(
    both: tuple[Readers, Readers], filled: Filled, name: str
) -> None:
    ours, theirs = [await calls(filled.seqs)[name](readers) for readers in both]
    assert theirs == ours


# -- the search


@pytest.fixture
def searches(
    both: tuple[Readers, Readers], monkeypatch: pytest.MonkeyPatch
) -> tuple[Search, Search]:
    monkeypatch.setattr(search_module, "_FIRST_WIDTH", 7)
    ours, theirs = (Search(readers, now_ms=lambda: NOW_MS) for readers in both)
    return ours, theirs


async def search_everywhere(search: Search, query: SearchQuery, **given: Any) -> list[Any]:
    found = [row for page in await pages(search, query, 17, **given) for row in page.rows]
    frozen = await search.freeze(query, **given)
    return [found, frozen]


_TEXTS: Final = r"""
data.n:1e3 data.n:10.* data.big:1.2* data.big:1* data.x:* data.s:?u data.s:*%* data.s:"_u"
data.t:* urn:*[y] urn:*_* client:10.0.0.7:* verdict:poison attempts:>0 meta:x* reason:* trace:7b*
queue:Orders queue:a_b% queue:größe data.s:e\*
"""
MORE_TEXTS: Final = [*_TEXTS.split(), "x\0y", "data.n:>1000 data.n:<1043", "\U0001f600"]


@pytest.mark.parametrize("text", [*TEXTS, *MORE_TEXTS])
async def test_search_finds_the_same(searches: tuple[Search, Search], text: str) -> None:
    ours, theirs = [await search_everywhere(search, parse_search(text)) for search in searches]
    assert theirs == ours


@pytest.mark.parametrize("seed", range(40))
async def test_search_with_mixed_terms_finds_the_same(
    searches: tuple[Search, Search], seed: int
) -> None:
    made = random.Random(seed)
    query = parse_search(" ".join(made.sample(KINDS, made.randrange(2, 5))))
    allowed = made.choice((None, frozenset({1, 3, 4})))
    ours, theirs = [await search_everywhere(search, query, queues=allowed) for search in searches]
    assert theirs == ours


async def test_neighbours_and_matches_are_the_same(
    searches: tuple[Search, Search], filled: Filled
) -> None:
    for text in ("", "queue:orders", "state:dead", "queue:mail state:ready"):
        query = parse_search(text)
        pairs = [await search.matches(query, filled.seqs, None) for search in searches]
        assert pairs[0] == pairs[1]
        for row in pairs[0][::9]:
            for is_newest_first in (True, False):
                found = [
                    await search.neighbour(query, row, is_newest_first=is_newest_first)
                    for search in searches
                ]
                assert found[0] == found[1]
    query = ids_search([row.message_id for row in pairs[0][:5]])
    ours, theirs = [await search_everywhere(search, query) for search in searches]
    assert theirs == ours


_VALUES: Final = r"""
"qq\u0000y","b":1 "\\u0000" 1,"a":2 1e400 -1e400 1e3 -0 9223372036854775807 9223372036854775808
0.1 1e-5 123456789012345.678 1e999999999 true "true" {"b":1} [1,{"b":"x"}] null 01 "größe"
"\ud800x" "\ud83d\ude00"
"""
BODIES: Final = [
    *(b'{"a":%s}' % value.encode() for value in _VALUES.split()),
    b'{"b":"\\u0000","a":"x"}',
    b'{"a":"\xff"}',
    b'{"\xff":1,"a":"x"}',
    b' \n\t[{"a":1}]',
    b'\xef\xbb\xbf{"a":1}',
    b'{"a":1}x',
    b'{"a":"\x01"}',
    b"[" * 100_000,
    b'{"a" :1}',
    b'{"A":"x"}',
]


async def test_hostile_bodies_are_found_as_in_sqlite(
    postgres_database: str, tmp_path: Path
) -> None:
    """No body makes a search fail; the same members have the same values."""
    database = Database(tmp_path / "phpmq.db")
    database.queue("orders", 1)
    for body in BODIES:
        database.message(1, body)
    database.connection.close()
    copy_rows(database.path, postgres_database)
    readers = SqliteReaders(database.path), PostgresReaders(lambda: postgres_database)
    values = "* x *x* 1 0 1.* 1000.0 Inf -Inf 0.1 922337203685477580? 9.* true null >0 <=1 gr??e ?"
    terms = [f"$.a:{value}" for value in values.split()]
    terms += ["$.a:1.0e-05", "$.a.b:1", "$.a.1.b:x", "$.0.a:1", "$.b:*"]
    for text in terms:
        for query in (parse_search(text), parse_search(f"-{text}")):
            ours, theirs = [
                [row.seq for row in (await Search(each).page(query, limit=200)).rows]
                for each in readers
            ]
            assert theirs == ours, text
    for each in readers:
        await each.close()


async def test_patterns_match_the_same_texts(postgres_database: str) -> None:
    """Both kinds of patterns do, with any mark in the pattern and in the text."""
    made = random.Random(3)
    marks = "ab\u00e9[]?*%_\\.^$|(){}+-\n"
    connection = await psycopg.AsyncConnection.connect(postgres_database)
    async with connection, connection.cursor() as cursor:
        for _ in range(500):
            pattern = "".join(made.choices(marks, k=made.randrange(6)))
            text = "".join(made.choices(marks, k=made.randrange(6)))
            text = made.choice((text, pattern, pattern.replace("*", text).replace("?", "x")))
            glob = as_glob(pattern)
            await cursor.execute(
                "SELECT %s::text LIKE like_pattern(%s), %s::text ~ regex_pattern(%s)",
                (text, glob, text, glob),
            )
            expected = matches_glob(text.encode(), glob, lambda: None)
            assert await cursor.fetchone() == (expected, expected), (pattern, text)


# -- connections


@pytest.fixture
async def readers(postgres_database: str) -> AsyncIterator[PostgresReaders]:
    made = PostgresReaders(lambda: postgres_database, limit_s=0.3)
    yield made
    await made.close()


SLOW: Final = "SELECT pg_sleep(60)"


async def test_slow_read_ends_at_the_limit_of_the_server(readers: PostgresReaders) -> None:
    with pytest.raises(ReadTooLongError, match="reading naps took longer than"):
        await readers.run("naps", SLOW, {})
    assert await readers.run("one", "SELECT :a + 1", {"a": 1}) == [(2,)]


async def test_pattern_in_a_large_body_ends_at_the_limit(
    readers: PostgresReaders, postgres_database: str
) -> None:
    """LIKE would run for a quarter of a minute."""
    with psycopg.connect(postgres_database) as connection:
        connection.execute(
            "INSERT INTO message (seq, token, queue_id, position, state, published_at, size, crc)"
            " SELECT n, 1, 1, n, 0, 0, 8 << 20, 1 FROM generate_series(1, 9) AS n"
        )
        connection.execute(
            "INSERT INTO body SELECT n, convert_to('{\"a\":\"' || repeat('a', 8 << 20) || '\"}',"
            " 'UTF8') FROM generate_series(1, 9) AS n"
        )
        connection.execute("INSERT INTO counter VALUES ('next_number', 10)")
    query = SearchQuery((SearchTerm("data", f"*{'a' * 1_900}b*", path="$.a"),))
    began_s = asyncio.get_running_loop().time()
    await Search(readers).page(query, limit_s=0.5)
    assert asyncio.get_running_loop().time() - began_s < 10


async def test_nothing_can_be_written(readers: PostgresReaders) -> None:
    with pytest.raises(StorageError, match="cannot read writing: cannot execute DELETE"):
        await readers.run("writing", "DELETE FROM queue", {})


async def test_close_ends_a_running_read(postgres_database: str) -> None:
    readers = PostgresReaders(lambda: postgres_database, count=1, limit_s=60)
    read = asyncio.create_task(readers.run("naps", SLOW, {}))
    waiting = asyncio.create_task(readers.run("naps", SLOW, {}))
    await asyncio.sleep(0.2)  # until the server runs it; if not, the connection closes at once
    await asyncio.wait_for(readers.close(), 10)
    for each in (read, waiting):
        with pytest.raises(StorageError, match="the broker is stopping"):
            await each
    assert await readers.run("one", "SELECT 1", {}) == [(1,)]
    await readers.close()


async def test_cancelled_read_leaves_the_connection_usable(postgres_database: str) -> None:
    readers = PostgresReaders(lambda: postgres_database, count=1, limit_s=60)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await readers.run("naps", SLOW, {})
    assert await readers.run("one", "SELECT 1", {}) == [(1,)]
    await readers.close()


async def test_read_is_repeated_after_the_server_closed_all_connections(
    readers: PostgresReaders, postgres_database: str
) -> None:
    one = "SELECT pg_backend_pid()"
    before = await asyncio.gather(*(readers.run("pid", one, {}) for _ in range(2)))
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    for _ in range(3):
        assert await readers.run("pid", one, {}) not in before


async def test_unreachable_server_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    readers = PostgresReaders(lambda: f"host=127.0.0.1 port={port} user=x dbname=x")
    with pytest.raises(StorageError, match="cannot connect to the database"):
        await readers.read("messages", "next_number")
    await readers.close()


async def test_server_that_does_not_answer_is_given_up(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is cut off answers nothing, not even a request to cancel."""
    readers = PostgresReaders(lambda: postgres_database, count=1, limit_s=0.2)
    await readers.run("one", "SELECT 1", {})
    readers.limit_s = -0.9  # of the client; that of the server is never reached
    with pytest.raises(StorageError):
        await readers.run("long", "SELECT count(*) FROM generate_series(1, 100000000)", {})
    readers.limit_s = 0.2
    assert await readers.run("one", "SELECT 1", {}) == [(1,)]
    await readers.close()


def test_readers_work_with_uvloop(postgres: PostgresServer) -> None:
    async def read() -> list[Any]:
        readers = PostgresReaders(lambda: postgres.conninfo(name), limit_s=0.3)
        with pytest.raises(ReadTooLongError):
            await readers.run("naps", SLOW, {})
        rows = await readers.read("messages", "next_number")
        await readers.close()
        return rows

    with postgres.database() as name, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(read()) == [(1,)]


async def test_pages_read_by_index_in_a_database_without_statistics(
    readers: PostgresReaders, postgres_database: str
) -> None:
    """Rows are returned in order of position, without reading the rest of the queue."""
    with psycopg.connect(postgres_database) as connection:
        connection.execute(
            "INSERT INTO message (seq, token, queue_id, position, state, published_at, size, crc)"
            " SELECT n, 1, n % 2, n, 0, 0, 2, 1 FROM generate_series(1, 50000) AS n"
        )
    rows = await MessageReader(readers).messages(1, limit=200)
    assert [row.position for row in rows] == list(range(1, 400, 2))
    assert all(a.position < b.position for a, b in pairwise(rows))
