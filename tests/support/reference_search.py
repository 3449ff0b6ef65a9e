"""The expected results of a search by a plain filter over all rows, and a database for it."""

import json
import random
import re
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from typing import Any, Final

from phpmq_lite.model import ALIVE, State, position_of
from phpmq_lite.storage.read.messages import MessageRow, wire_id
from phpmq_lite.storage.read.read_pool import Page
from phpmq_lite.storage.search.language import SearchQuery, SearchTerm
from phpmq_lite.storage.search.reader import Search, SearchCursor
from phpmq_lite.storage.statements import load
from tests.unit.admin.cases import NOW_MS, Database

FIRST: Final = (1 << 16) - 20  # number and offset: some are in the next block of places
QUEUES = {1: "orders", 2: "mail", 3: "orders.dlq", 4: 'od[d] "q" *'}
CLOCK_STEP_MS = 5_000
BODIES = (
    b'{"data":{"n":1042,"s":"eu","t":true,"z":null,"a":[{"k":"v"}]},"meta":{"lang":"php"}}',
    b'{"data":{"n":"1042","s":"us-1"},"text":"caf\\u00e9 a\\/b"}',
    b'{"data":{"n":"1042","s":"us-1"},"text":"caf\\u00E9 a/b"}',
    '{"text":"café a\\/b"}'.encode(),
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
    b'{"data":{"s":"us-1","n":1042},"x":"' + b"a" * 20_000 + b'"}',  # functions of ours read it
    '{"data":{"n":104,"s":"eu","a":[{"k":"v"}]},"text":"café a/b"}'.encode() + b" " * 70_000,
    b'{"dead_letter":{"reason":"poison","error":"missing_urn"}}',
    b'{"dead_letter":{"reason":"poison","error":"missing_urn"}}',
)


def fill(database: Database, count: int = 240, *, seed: int = 7) -> None:
    """Store live and settled messages of all kinds in a random mixture."""
    made = random.Random(seed)
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
            columns |= {"source_seq": FIRST + made.randrange(count), "source_queue_id": 1}
            columns["source_reason"] = made.choice(("client", "poison"))
        queue_id = made.choice(list(QUEUES))
        if made.random() < 0.5:
            number = made.choice((at + 1, at + 5_001))  # requeued
            columns["position"] = position_of(number, made.choice((128, 128, 128, 0, 127, 255)))
            columns["ready_at"] = made.choice((None, NOW_MS - made.randrange(7_200_000)))
            database.message(queue_id, body, state=made.choice(sorted(ALIVE)), **columns)
        else:
            columns |= {
                "outcome": made.randrange(2, 6),
                "settled_at": NOW_MS - made.randrange(60_000),
                "reason": made.choice((None, "crc", "purge", "poison")),
            }
            content = None if made.random() < 0.1 else body
            database.settled(queue_id, content, **columns)
    database.set_counter("next_number", 10_000)
    (half,) = database.connection.execute('SELECT max("offset") / 2 FROM history').fetchone()
    index_upto(database, half)


# -- the plain filter


@dataclass
class ReferenceRow:
    """A row of either table, its columns by name, and its body."""

    columns: dict[str, Any]
    body: bytes | None

    def __getattr__(self, name: str) -> Any:
        return self.columns[name]

    @property
    def is_alive(self) -> bool:
        return self.state in ALIVE


def content_of(path: Path) -> bytes:
    return path.read_bytes()


def all_rows(path: Path) -> list[ReferenceRow]:
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    bodies = dict(map(tuple, connection.execute("SELECT seq, content FROM body")))
    rows = [dict(row) for row in connection.execute("SELECT * FROM message")]
    rows += [
        dict(row) | {"state": row["outcome"]} for row in connection.execute("SELECT * FROM history")
    ]
    connection.close()
    plain = [
        ReferenceRow({"reason": None, "offset": None} | row, bodies.get(row["seq"])) for row in rows
    ]
    for row in plain:
        row.columns["details"] = list(details(row, plain))
    return plain


def details(row: ReferenceRow, rows: list[ReferenceRow]) -> Iterator[str]:
    """Yield the errors in the dead-letter records of a message."""
    about = [other for other in rows if other.is_alive and other.source_seq == row.seq]
    records = [other for other in about if other.source_reason == row.reason == "poison"]
    for record in [*records, *([row] if row.source_reason == "poison" else [])]:
        said = member(record.body, "dead_letter.error")
        if isinstance(said, str):
            yield said


def is_like(text: str | None, pattern: str) -> bool:
    if text is None:
        return False
    marks = re.sub(r"\\(.)", lambda mark: f"[{mark[1]}]", pattern.replace("[", "\0"))
    return re.fullmatch(translate(marks.replace("\0", "[[]")), text) is not None


OPERATORS: dict[str, Callable[[int | float, int], bool]] = {
    "=": lambda a, b: a == b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip


class _Missing:
    pass


class Number(str):
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


def spellings(text: str) -> list[bytes]:
    """Return the text as the bodies of ``BODIES`` spell it."""
    raw = json.dumps(text, ensure_ascii=False)[1:-1]
    lower = json.dumps(text)[1:-1]
    upper = re.sub(r"u[0-9a-f]{4}", lambda code: "u" + code[0][1:].upper(), lower)
    forms = [text, *(one.replace("/", slash) for one in (raw, lower, upper)
                     for slash in ("/", "\\/"))]  # fmt: skip
    return [form.encode() for form in forms]


def term_matches(term: SearchTerm, row: ReferenceRow) -> bool:
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
            said = (row.reason, row.source_reason, *row.details)
            return any(is_like(text, term.value) for text in said)
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
            return OPERATORS[term.sign](row.columns[term.kind], term.number)
        case "age":
            return OPERATORS[term.sign](NOW_MS - (row.ready_at or row.published_at), term.number)
        case "ttl":
            if term.value == "never" or row.deadline_ms is None:
                return (term.value == "never") == (row.deadline_ms is None) and not term.sign
            ended = NOW_MS if row.is_alive else row.settled_at
            return OPERATORS[term.sign](row.deadline_ms + CLOCK_STEP_MS - ended, term.number)
        case "text":
            return row.body is not None and any(one in row.body for one in spellings(term.value))
    paths = {term.path, re.sub(r"^data\.", "$.", term.path)}  # an envelope's member, or the body's
    return any(member_matches(term, member(row.body, path)) for path in paths)


def member_matches(term: SearchTerm, value: Any) -> bool:
    if value is _Missing or isinstance(value, dict | list):
        return False
    if term.sign:
        return isinstance(value, Number) and OPERATORS[term.sign](float(value), term.number)
    if value is None or isinstance(value, bool):
        return json.dumps(value) == term.value
    return is_like(str(value), term.value)


ANY_OF = ("queue", "state", "urn", "trace", "id", "reason", "origin", "client")


def is_match(query: SearchQuery, row: ReferenceRow) -> bool:
    for term in query.terms:
        if term.is_negated and term_matches(term, row):
            return False
        if not term.is_negated and term.kind not in ANY_OF and not term_matches(term, row):
            return False
    return all(
        any(term_matches(term, row) for term in terms)
        for kind in ANY_OF
        if (terms := [term for term in query.of(kind) if not term.is_negated])
    )


def index_upto(database: Database, upto: int) -> None:
    """Index the first settled messages and half of the live ones."""
    [(last,)] = database.connection.execute('SELECT max("offset") FROM history')
    upto = min(FIRST - 1 + upto, last or 0)
    for name in ("index_singly" if upto % 2 else "index_runs", "index_traces"):
        database.connection.execute(load("history_index", "sqlite")[name], {"count": upto})
    database.set_counter("placed_upto", upto)
    [(half,)] = database.connection.execute("SELECT (min(seq) + max(seq)) / 2 FROM message")
    database.connection.execute(
        load("history_index", "sqlite")["index_live_traces"], {"after": 0, "upto": half or 0}
    )
    database.set_counter("traced_upto", half or 0)


async def pages(
    search: Search, query: SearchQuery, limit: int, **given: Any
) -> list[Page[MessageRow, SearchCursor]]:
    found = [await search.page(query, limit=limit, **given)]
    while found[-1].next is not None:
        given["place"] = found[-1].next
        found.append(await search.page(query, limit=limit, **given))
    return found
