"""Migration 0002 on both engines: messages of NAME.retry become scheduled in NAME."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from phpmq_lite.installation import migrations_folder
from phpmq_lite.storage.sqlite.migrate import split_statements as statements
from tests.support.http_users import broker_fixture
from tests.support.postgres_server import PROGRAMS, PostgresServer
from tests.support.stored_rows import stored_rows, unseal

Rows = list[tuple[Any, ...]]
Execute = Callable[[str], Rows]
NAME: Final = "0002_delivery_options.sql"

# queue -> on_expire, settings, number of messages with and without a deadline, dispatched ones
QUEUES: Final[dict[str, tuple[str | None, str, int, int, int]]] = {
    "plain": (None, "{}", 1, 2, 0),
    "orders": (None, '{"default_ttl_s": 60}', 1, 1, 1),
    "orders.retry": (None, "{}", 3, 2, 1),  # 3 move; those without a deadline and held ones stay
    "missing.retry": (None, "{}", 2, 0, 0),
    "removed": (None, '{"removed": true}', 0, 0, 0),
    "removed.retry": (None, "{}", 1, 0, 0),
    "own.retry": ("forward:elsewhere", "{}", 2, 0, 0),
    "other": (None, '{"removed": true}', 0, 0, 0),
    "other.retry": (None, "{}", 0, 1, 0),
    "twice.retry": (None, "{}", 1, 0, 0),
    "twice.retry.retry": (None, '{"default_ttl_s": 9}', 2, 0, 0),
    "LOUD.RETRY": (None, "{}", 1, 0, 0),
    ".retry": (None, "{}", 1, 0, 0),
}


def fill(execute: Execute) -> None:
    """Store the queues as version 0.1.0 does, with messages of 10 bytes that settle one by one."""
    seq = 0
    for queue_id, (name, row) in enumerate(QUEUES.items(), 11):
        on_expire, settings, *counts = row
        value = "NULL" if on_expire is None else f"'{on_expire}'"
        execute(
            "INSERT INTO queue (queue_id, name, created_at, created_by, on_expire, settings,"
            f" live_count, live_bytes) VALUES ({queue_id}, '{name}', {queue_id}, 'anna', {value},"
            f" '{settings}', {sum(counts)}, {10 * sum(counts)})"
        )
        for kind, count in enumerate(counts):
            for _ in range(count):
                seq += 1
                execute(
                    "INSERT INTO message (seq, token, queue_id, position, state, ttl_s,"
                    " deadline_ms, published_at, size, crc, urn) VALUES"
                    f" ({seq}, 7, {queue_id}, {seq}, {int(kind == 2)},"
                    f" {'NULL, NULL' if kind == 1 else f'30, {1000 * seq}'}, 5, 10, 1, 'urn:x')"
                )
    execute("INSERT INTO counter (name, value) VALUES ('next_queue_id', 41)")


@pytest.fixture(params=["sqlite", "postgres"])
def older(request: pytest.FixtureRequest) -> Iterator[tuple[Execute, Callable[[], object]]]:
    """Return how to execute in a database of version 1, and how to migrate it."""
    first, second = (
        (migrations_folder() / ("postgres" if request.param == "postgres" else "") / name)
        for name in ("0001_initial.sql", NAME)
    )
    if request.param == "sqlite":
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            for text in statements(first.read_text(encoding="utf-8")):
                connection.execute(text)

            def migrate_file() -> None:
                for text in statements(second.read_text(encoding="utf-8")):
                    connection.execute(text)

            yield lambda text: connection.execute(text).fetchall(), migrate_file
        return
    if PROGRAMS is None:
        pytest.skip("PostgreSQL is not installed")
    server: PostgresServer = request.getfixturevalue("postgres")
    with (
        server.database(template="template0") as name,
        psycopg.connect(server.conninfo(name), autocommit=True) as other,
    ):

        def execute(text: str) -> Rows:
            cursor = other.execute(text.encode())
            return cursor.fetchall() if cursor.description else []

        execute(first.read_text(encoding="utf-8"))
        yield execute, lambda: execute(second.read_text(encoding="utf-8"))


def test_delayed_messages_become_scheduled(
    older: tuple[Execute, Callable[[], object]],
) -> None:
    execute, upgrade = older
    fill(execute)
    before = {row[0]: row[1:] for row in execute(DETAILS)}
    upgrade()
    counts = execute(
        "SELECT name, live_count, live_bytes, scheduled_count FROM queue"
        " WHERE live_count > 0 OR settings <> '{\"removed\": true}' ORDER BY queue_id"
    )
    assert counts == [
        ("plain", 3, 30, 0),
        ("orders", 6, 60, 3),
        ("orders.retry", 3, 30, 0),
        ("missing.retry", 0, 0, 0),
        ("removed", 1, 10, 1),
        ("removed.retry", 0, 0, 0),
        ("own.retry", 2, 20, 0),
        ("other.retry", 1, 10, 0),
        ("twice.retry", 2, 20, 2),  # one suffix is stripped
        ("twice.retry.retry", 0, 0, 0),
        ("LOUD.RETRY", 1, 10, 0),
        (".retry", 1, 10, 0),
        ("missing", 2, 20, 2),
        ("twice", 1, 10, 1),
    ]
    created = "SELECT queue_id, created_at, created_by FROM queue WHERE name = 'missing'"
    assert execute(created) == [(41, 14, "anna")]
    after = {row[0]: row[1:] for row in execute(DETAILS)}
    assert after == before  # nothing else of any message changed
    scheduled = execute(
        "SELECT queue.name, seq, due_ms, ttl_s, deadline_ms FROM message JOIN queue"
        " USING (queue_id) WHERE state = 6 ORDER BY seq"
    )
    assert [row for row in scheduled if row[0] == "orders"] == [
        ("orders", seq, 1000 * seq, 60, 1000 * seq + 60_000) for seq in (7, 8, 9)
    ]
    rest = {
        (name, ttl_s, deadline) for name, _, _, ttl_s, deadline in scheduled if name != "orders"
    }
    assert rest == {(name, None, None) for name in ("missing", "removed", "twice", "twice.retry")}
    counters = "SELECT name FROM counter WHERE name <> 'next_queue_id'"
    assert execute(counters) == [("without_default_ttl",)]  # of the whole broker, see below
    kept = "SELECT count(*), sum(deadline_ms - 1000 * seq) FROM message WHERE state <> 6"
    [(count, moved)] = execute(f"{kept} AND deadline_ms IS NOT NULL")
    assert (count, moved) == (8, 0)


@pytest.mark.parametrize(("default_s", "expected"), [(60, [60, None, None]), (0, [None] * 3)])
async def test_migrated_messages_have_the_default_of_the_broker(
    tmp_path: Path, default_s: int, expected: list[int | None]
) -> None:
    """A migration does not know it, so the next start adds it; later messages have their own."""
    data = tmp_path / "data"
    later = {"content": "{}", "delay_s": 600}
    async with broker_fixture(data) as home:
        await home.control("POST", "/queues/orders/messages", later)
        await home.control("POST", "/queues/own/messages", later)
        await home.control("PATCH", "/queues/own", {"default_ttl_s": 0})
    unseal(data)
    stored_rows(data, "INSERT INTO counter (name, value) VALUES ('without_default_ttl', 1)")
    async with broker_fixture(data, queues={"default_ttl_s": default_s}) as home:
        await home.control("POST", "/queues/orders/messages", later | {"ttl_s": 0})
    async with broker_fixture(data, queues={"default_ttl_s": 9}) as home:
        rows = home.rows("SELECT ttl_s, deadline_ms - due_ms FROM message ORDER BY seq")
    assert rows == [(ttl_s, ttl_s and ttl_s * 1_000) for ttl_s in expected]


DETAILS: Final = (
    "SELECT seq, token, position, published_at, size, crc, urn, deliveries FROM message"
)
