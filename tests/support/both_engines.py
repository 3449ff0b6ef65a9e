"""The same rows in SQLite and in PostgreSQL: random ones, or those of any SQLite database."""

import json
import random
import sqlite3
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql

from tests.support.reference_search import FIRST, QUEUES, fill
from tests.unit.admin.cases import NOW_MS, Database

_SQLITE_ONLY: Final = ("history_run", "trace_place", "migration")
NAMES: Final = ("orders", "Orders", "mail", "orders.dlq", "größe", "a_b%", "Zeta", "[x]*")
LOSSES: Final = (None, '[["dead","failed","urn:x",3]]')
EVENTS: Final = ("requeue", "return", "redrive", "restore", "edit", "dead_letter")


def copy_rows(path: Path, conninfo: str) -> None:
    """Copy all rows of an SQLite database to a migrated PostgreSQL database."""
    source = sqlite3.connect(path)
    tables = [
        name
        for (name,) in source.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        if name not in _SQLITE_ONLY and not name.startswith("sqlite_")
    ]
    with psycopg.connect(conninfo) as target, target.cursor() as cursor:
        for table in tables:
            columns = [row[1] for row in source.execute(f"PRAGMA table_info('{table}')")]
            names = sql.SQL(", ").join(map(sql.Identifier, columns))
            cursor.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
            into = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table), names)
            with cursor.copy(into) as copy:
                for row in source.execute(f"SELECT * FROM '{table}'"):
                    copy.write_row(row)
    source.close()


def fill_randomly(database: Database, seed: int) -> None:
    """Store messages of all kinds as for the search, and rows of all other tables."""
    made = random.Random(seed)
    fill(database, seed=seed)
    insert = database.connection.execute
    for number, name in enumerate(sorted({*NAMES} - {*QUEUES.values()}), 10):
        database.queue(name, number, made.randrange(3))
    pick = made.choice
    for client in range(100, 140):
        address, since = f"10.0.0.{client}:1", NOW_MS - client
        until, label = pick((None, NOW_MS - made.randrange(5))), pick((None, "new"))
        kind, reason = pick(("tcp", "unix")), pick((None, "closed"))
        add(database, "client", client, kind, address, since, until, None, label, reason)
    numbers = [seq for (seq,) in insert("SELECT seq FROM message UNION SELECT seq FROM history")]
    for _ in range(300):
        seq = made.choice(numbers)
        other = f"{made.choice((seq - 1, seq, seq + 1)):016x}{made.getrandbits(63):016x}"
        detail = pick((None, "x", other, other))
        event = "event (seq, at_ms, kind, detail)"
        add(database, event, seq, NOW_MS - made.randrange(9_000), pick(EVENTS), detail)
    for number in range(1, 200):
        actor, address = pick(("anna", "bob")), pick(("::1", "10.0.0.7"))
        action = pick(("queue.purge", "queue", "queues.x", "session.login"))
        place = (NOW_MS - 1_000 + number, actor, "ui", address, action, pick(NAMES))
        result, detail = pick(("done", "running", "denied")), pick(("", "{}"))
        count = made.randrange(9)
        add(database, "audit", number, *place, count, "", result, detail, f"r{number}")
    for number in range(1, 60):
        span_s, queue_id = pick((60, 900)), pick((-2, -1, 0, 1, 10))
        figures = [made.randrange(99) for _ in range(12)]
        waits = pick((None, b"\0\xff"))
        add(database, "rollup", span_s, queue_id, number * 60, *figures, waits, None, pick(LOSSES))
    _fill_accounts(database, made)
    _fill_pipeline(database, made)


def add(database: Database, table: str, *values: object) -> None:
    marks = ", ".join("?" * len(values))
    database.connection.execute(f"INSERT INTO {table} VALUES ({marks})", values)


def _fill_accounts(database: Database, made: random.Random) -> None:
    for number, name in enumerate(NAMES, 1):
        queues = json.dumps([name], ensure_ascii=False)
        role, kind = made.choice(("viewer", "operator", "admin")), made.choice(("view", "label"))
        digest, down_from_ms = bytes([number, 255]), made.choice((None, 7))
        add(database, "user", number, name, "hash", role, queues, NOW_MS, None)
        add(database, "token", number, name, digest, role, queues, NOW_MS, "anna", None, NOW_MS)
        session = bytes([number, 0])
        add(database, "session", number, session, number, "csrf", 1, 2, 3, "::1", "agent")
        add(database, "saved", kind, name, "{}", NOW_MS, "anna")
        start = "start (at_ms, version, was_clean, down_from_ms, report)"
        add(database, start, NOW_MS + number, "1", number % 2, down_from_ms, "{}")


def _fill_pipeline(database: Database, made: random.Random) -> None:
    rows = database.connection.execute("SELECT seq FROM message WHERE state = 1").fetchall()
    for number, name in enumerate(NAMES, 1):
        owner = made.choice((None, "anna"))
        add(database, "subscription", number, name, made.choice((1, 99)), 40, number, NOW_MS)
        add(database, "reader", name, number, NOW_MS, owner)
        add(database, "published", name, number, NOW_MS, 9, owner, 0, number % 3 == 0)
    for number, (seq,) in enumerate(rows):
        add(database, "claim", 1 + number % 3, number, seq, NOW_MS)
    add(database, "meta", "history_id", "abc")
    database.set_counter("retention_removed", 7)
    database.set_counter("history_lo", FIRST + 2)
