"""A data folder with as many messages as wanted, and a fingerprint of what a store contains.

The rows are inserted directly, because a broker would take minutes for a million of them.
"""

import hashlib
import random
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg

from phpmq_lite.model import checksum
from phpmq_lite.storage.copying import Table, tables_of
from phpmq_lite.storage.data_folder import DATABASE, DataFolder
from phpmq_lite.storage.sqlite.integrity.seal import seal
from phpmq_lite.storage.statements import load
from tests.support.stores import empty_database

NOW_MS: Final = 1_790_000_000_000
_NUMBERS: Final = (
    "WITH RECURSIVE n(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i < :last)"
)
_BODIES: Final = f"""{_NUMBERS}
INSERT INTO body SELECT i, randomblob(20 + abs(random()) % 300) FROM n"""
_COMMON: Final = """\
CASE WHEN i % 2 THEN 60 END, CASE WHEN i % 2 THEN :now + i END, :now + i,
CASE WHEN i % 5 THEN :now + i + 1 END, CASE WHEN i % 5 THEN :now + i + 2 END, i % 5, 0,
length(content), checksum(i, content), CASE WHEN i % 7 THEN 1 END, CASE WHEN i % 5 THEN 2 END,
CASE WHEN i % 3 = 0 THEN 'urn:orders:' || (i % 4) END,
CASE WHEN i % 3 = 0 THEN lower(hex(randomblob(16))) END,
CASE WHEN i % 3 = 0 THEN 'm-' || i END, CASE WHEN i % 3 = 0 THEN i % 2 END
FROM n JOIN body ON body.seq = n.i"""
_COLUMNS: Final = """\
ttl_s, deadline_ms, published_at, first_dispatched_at, last_dispatched_at, deliveries, charged,
size, crc, publisher, consumer, urn, trace_id, meta_id, attempts"""
_LIVE: Final = f"""{_NUMBERS}
INSERT INTO message (seq, token, queue_id, position, state, {_COLUMNS})
SELECT i, abs(random()), 1 + i % 20, CASE WHEN i % 50 THEN i ELSE i + 100000000 END,
  i % 40 = 0, {_COMMON}"""
_SETTLED: Final = f"""{_NUMBERS}
INSERT INTO history ("offset", seq, token, queue_id, position, outcome, reason, settled_at,
  {_COLUMNS})
SELECT i, i, abs(random()), 1 + i / 100 % 20, i, 2 + i % 4 * (i % 10 = 0),
  CASE WHEN i % 10 = 0 THEN 'client' END, :now + i, {_COMMON}"""
_EVENTS: Final = f"""{_NUMBERS}
INSERT INTO event (seq, at_ms, kind, detail)
SELECT i, :now + i, 'return', 'a tab \t and a \\N' FROM n WHERE i % 20 = 0"""

# id, order, outcome and body of each message, on both engines
_MESSAGES: Final = (
    """SELECT m.seq, m.token, m.queue_id, m.position, m.state, b.content
FROM message AS m LEFT JOIN body AS b ON b.seq = m.seq ORDER BY m.seq""",
    """SELECT h."offset", h.seq, h.token, h.queue_id, h.position, h.outcome, h.reason, b.content
FROM history AS h LEFT JOIN body AS b ON b.seq = h.seq ORDER BY h."offset\"""",
)


def filled_folder(data: Path, *, live: int, settled: int) -> Path:
    with closing(DataFolder.open(data)) as folder:
        folder.database.write_bytes(empty_database())
        with closing(sqlite3.connect(folder.database, isolation_level=None)) as connection:
            execute = connection.execute
            connection.create_function("checksum", 2, checksum, deterministic=True)
            execute("PRAGMA journal_mode = WAL").fetchall()
            execute("BEGIN")
            last = live + settled
            for queue_id in range(1, 21):
                execute(
                    "INSERT INTO queue (queue_id, name, created_at) VALUES (?, ?, ?)",
                    (queue_id, f"queue-{queue_id}", NOW_MS),
                )
            execute(_BODIES, {"first": 1, "last": last})
            execute(_SETTLED, {"first": 1, "last": settled, "now": NOW_MS})
            execute(_LIVE, {"first": settled + 1, "last": last, "now": NOW_MS})
            execute(_EVENTS, {"first": 1, "last": last, "now": NOW_MS})
            execute(
                "UPDATE queue SET (live_count, live_bytes) = (SELECT count(*),"
                " coalesce(sum(size), 0) FROM message WHERE message.queue_id = queue.queue_id)"
            )
            execute("INSERT INTO counter VALUES ('next_number', ?)", (last + 100_000_001,))
            execute("INSERT INTO meta VALUES ('history_id', 'a0')")
            execute("COMMIT")
            execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        folder.record(has_messages=True)
        seal(folder)
    return data


TEXTS: Final = (
    "", "plain", "\\", "\\N", "a\tb", "line\nbreak\r\n", "\b\v\f", "quote ' and \"", "grüße 🙂",
    "\\\\N", "C:\\New", "\u2028", "x" * 500,
)  # fmt: skip
_NUMBERS_USED: Final = (0, 1, -1, 2**63 - 1, -(2**63), 7)
# CHECKs, and what is summed up or raised
_FIXED: Final[dict[str, dict[str, Any]]] = {
    "INTEGER": {"state": 1, "outcome": 4, "size": 5, "position": 9, "value": 3},
    "TEXT": {"role": "admin", "encoding": "base64", "missed": "once", "outcome": "failed"},
}


def add_rows_of_all_kinds(database: Path, *, count: int = 40, seed: int = 1) -> None:
    """Insert rows with difficult values into all tables that are copied."""
    chance = random.Random(seed)
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        tables = tables_of(connection.execute(load("copy", "sqlite")["tables"]).fetchall())
        for table in tables.values():
            columns = connection.execute(f'PRAGMA table_info("{table.name}")').fetchall()
            needed = {name for _, name, _, is_needed, _, _ in columns if is_needed}
            names = ", ".join(f'"{name}"' for name in table.columns)
            marks = ", ".join("?" for _ in table.columns)
            for number in range(1, count + 1):
                row = [
                    _value(chance, table, name, number + 100, is_needed=name in needed)
                    for name in table.columns
                ]
                connection.execute(f'INSERT INTO "{table.name}" ({names}) VALUES ({marks})', row)


def _value(chance: random.Random, table: Table, name: str, number: int, *, is_needed: bool) -> Any:
    kind = table.columns[name]
    if name in (fixed := _FIXED.get(kind, {})):
        return fixed[name]
    is_unique = name in (*table.key, "name", "sha256", "token", "seq")
    if not is_needed and name not in table.key and chance.random() < 0.3:
        return None
    if kind == "INTEGER":
        return number if is_unique else chance.choice(_NUMBERS_USED)
    if kind == "BLOB":
        size = chance.choice((0, 1, 32) if is_unique else (0, 1, 32, 9_000))
        return chance.randbytes(size) + number.to_bytes(2, "big")
    text = chance.choice(TEXTS)
    return f"{number}{text}" if is_unique else text


def sqlite_rows(data: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(data / DATABASE)) as connection:
        return connection.execute(query).fetchall()


def sqlite_fingerprint(data: Path) -> list[str]:
    """Return a checksum of all messages by id, order, outcome and body."""
    with closing(sqlite3.connect(data / DATABASE)) as connection:
        return [_fingerprint(connection.execute(query)) for query in _MESSAGES]


def postgres_fingerprint(conninfo: str) -> list[str]:
    found = []
    for query in _MESSAGES:
        with psycopg.connect(conninfo) as connection, connection.cursor("rows") as cursor:
            cursor.itersize = 10_000
            cursor.execute(query.encode())
            found.append(_fingerprint(cursor))
    return found


def _fingerprint(rows: Iterable[tuple[Any, ...]]) -> str:
    digest, count = hashlib.sha256(), 0
    for row in rows:
        count += 1
        digest.update(repr(row).encode())
    return f"{count}:{digest.hexdigest()}"
