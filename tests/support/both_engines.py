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
    for client in range(100, 140):
        insert(
            "INSERT INTO client VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (client, made.choice(("tcp", "unix")), f"10.0.0.{client}:1", NOW_MS - client,
             made.choice((None, NOW_MS - made.randrange(5))), None, made.choice((None, "new")),
             made.choice((None, "closed"))),
        )  # fmt: skip
    numbers = [seq for (seq,) in insert("SELECT seq FROM message UNION SELECT seq FROM history")]
    for _ in range(300):
        seq = made.choice(numbers)
        other = f"{made.choice((seq - 1, seq, seq + 1)):016x}{made.getrandbits(63):016x}"
        insert(
            "INSERT INTO event (seq, at_ms, kind, detail) VALUES (?, ?, ?, ?)",
            (seq, NOW_MS - made.randrange(9_000), made.choice(EVENTS),
             made.choice((None, "x", other, other))),
        )  # fmt: skip
    for number in range(1, 200):
        insert(
            "INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (number, NOW_MS - 1_000 + number, made.choice(("anna", "bob")), "ui",
             made.choice(("::1", "10.0.0.7")),
             made.choice(("queue.purge", "queue", "queues.x", "session.login")),
             made.choice(NAMES), made.randrange(9), "", made.choice(("done", "running", "denied")),
             made.choice(("", "{}")), f"r{number}"),
        )  # fmt: skip
    for number in range(1, 60):
        insert(
            f"INSERT INTO rollup VALUES ({', '.join('?' * 16)}, NULL)",
            (made.choice((60, 900)), made.choice((-2, -1, 0, 1, 10)), number * 60,
             *(made.randrange(99) for _ in range(12)), made.choice((None, b"\0\xff"))),
        )  # fmt: skip
    _fill_accounts(database, made)
    _fill_pipeline(database, made)


def _fill_accounts(database: Database, made: random.Random) -> None:
    insert = database.connection.execute
    for number, name in enumerate(NAMES, 1):
        queues = json.dumps([name], ensure_ascii=False)
        role = made.choice(("viewer", "operator", "admin"))
        insert("INSERT INTO user VALUES (?, ?, 'hash', ?, ?, ?, NULL)",
               (number, name, role, queues, NOW_MS))  # fmt: skip
        insert("INSERT INTO token VALUES (?, ?, ?, ?, ?, ?, 'anna', NULL, ?)",
               (number, name, bytes([number, 255]), role, queues, NOW_MS, NOW_MS))  # fmt: skip
        insert("INSERT INTO session VALUES (?, ?, ?, 'csrf', 1, 2, 3, '::1', 'agent')",
               (number, bytes([number, 0]), number))  # fmt: skip
        insert("INSERT INTO saved VALUES (?, ?, '{}', ?, 'anna')",
               (made.choice(("view", "label")), name, NOW_MS))  # fmt: skip
        insert("INSERT INTO start (at_ms, version, was_clean, down_from_ms, report)"
               " VALUES (?, '1', ?, ?, '{}')",
               (NOW_MS + number, number % 2, made.choice((None, 7))))  # fmt: skip


def _fill_pipeline(database: Database, made: random.Random) -> None:
    insert = database.connection.execute
    held = [seq for (seq,) in insert("SELECT seq FROM message WHERE state = 1")]
    for number, name in enumerate(NAMES, 1):
        insert("INSERT INTO subscription VALUES (?, ?, ?, ?, ?, ?)",
               (number, name, made.choice((1, 99)), 40, number, NOW_MS))  # fmt: skip
        insert("INSERT INTO reader VALUES (?, ?, ?, ?)",
               (name, number, NOW_MS, made.choice((None, "anna"))))  # fmt: skip
        insert("INSERT INTO published VALUES (?, ?, ?, ?, ?, 0, ?)",
               (name, number, NOW_MS, 9, made.choice((None, "anna")), number % 3 == 0))  # fmt: skip
    for number, seq in enumerate(held):
        insert("INSERT INTO claim VALUES (?, ?, ?, ?)", (1 + number % 3, number, seq, NOW_MS))
    insert("INSERT INTO meta VALUES ('history_id', 'abc')")
    database.set_counter("retention_removed", 7)
    database.set_counter("history_lo", FIRST + 2)
