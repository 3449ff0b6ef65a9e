"""Texts of requests that become rows: whatever their length, the broker goes on on both engines."""

import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from phpmq_lite.admin.accounts.users import NAME_LENGTH
from phpmq_lite.admin.http.fields import AppIdParameter, SubscriptionName
from phpmq_lite.envelopes.indexed_fields import INDEX_CHARACTERS
from phpmq_lite.frame_options import GROUP_BYTES
from phpmq_lite.installation import migrations_folder
from phpmq_lite.queue_settings import KEY_BYTES, LONGEST_NAME
from phpmq_lite.storage.copying import INDEXED_BYTES, TEXT_BOUNDS
from phpmq_lite.storage.read.accounts import NAME_MAX
from phpmq_lite.storage.sqlite.migrate import migrate
from phpmq_lite.writes import AUDIT_BYTES
from tests.support.engine_stores import engine_store as engine_store
from tests.support.http_users import BrokerFixture, HttpUser, broker_fixture
from tests.support.postgres_server import PostgresServer

LETTERS = {1: ("A", "Z"), 3: ("ࠀ", "䶿"), 4: ("𐀀", "𯨟")}  # ranges, by bytes in UTF-8


def longest(kind: Any) -> int:
    """Return the most characters that an annotated text may have."""
    [field] = kind.__metadata__
    [most] = [one.max_length for one in field.metadata if hasattr(one, "max_length")]
    return int(most)


def random_text(number: int, size: int, seed: int = 1) -> str:
    """Return letters of ``size`` bytes each that no index can compress."""
    random, (first, last) = Random(seed), map(ord, LETTERS[size])
    return "".join(chr(random.randint(first, last)) for _ in range(number))


@pytest.fixture
async def home(tmp_path: Path, engine_store: dict[str, Any]) -> AsyncIterator[BrokerFixture]:
    async with broker_fixture(tmp_path / "data", store=engine_store) as home:
        yield home


async def newest_target(home: BrokerFixture) -> str:
    found = await home.control("GET", "/audit?limit=1")
    return str(found["items"][0]["target"])


@pytest.mark.parametrize("size", LETTERS)
async def test_stranger_with_a_long_path_leaves_a_short_audit_row(
    home: BrokerFixture, size: int
) -> None:
    await home.add_user("anna")
    text = random_text(3_500 if size == 1 else 860, size)
    async with HttpUser(home.url) as stranger:
        for pattern in ("/messages/{}/delete", "/queues/{}/pause"):
            path = pattern.replace("{}", quote(text)[:8_100])
            answer = await stranger.request("POST", f"/api/v1{path}", json={})
            assert answer.status == 401
    target = await newest_target(home)
    assert text.startswith(target.removesuffix("…"))
    assert 0 < len(target.encode()) <= AUDIT_BYTES["target"]
    await home.control("POST", "/queues/orders/messages", {"content": "{}"})


@pytest.mark.parametrize("size", LETTERS)
async def test_operator_with_a_long_search_leaves_a_short_audit_row(
    home: BrokerFixture, size: int
) -> None:
    await home.control("POST", "/queues/orders/messages", {"content": "{}"})
    await home.control("POST", "/selections", {"q": random_text(1_000, size)})
    assert len((await newest_target(home)).encode()) <= AUDIT_BYTES["target"]
    await home.control("POST", "/queues/orders/messages", {"content": "{}"})


# The longest value in bytes that models and checks allow, by indexed column.
LONGEST = {
    "audit.actor": AUDIT_BYTES["actor"],
    "audit.target": AUDIT_BYTES["target"],
    "copy_state.role": 6,  # these are words of the code
    "counter.name": 64,
    "history.trace_id": 4 * INDEX_CHARACTERS,
    "message.group_name": GROUP_BYTES,
    "message.trace_id": 4 * INDEX_CHARACTERS,
    "message.unique_key": KEY_BYTES,
    "meta.name": 64,
    "published.app_id": 4 * longest(AppIdParameter),
    "queue.name": LONGEST_NAME,
    "reader.name": 4 * 255,  # of the field reader of ArrowQuery
    "saved.kind": 64,
    "saved.name": 4 * NAME_MAX,
    "schedule.name": GROUP_BYTES,
    "stage.token": 64,
    "subscription.name": 4 * longest(SubscriptionName),
    "token.name": 4 * NAME_LENGTH,
    "trace_place.trace_id": 4 * INDEX_CHARACTERS,
    "user.name": 4 * NAME_LENGTH,
}
INDEXED_TEXTS = """
SELECT DISTINCT t.relname || '.' || a.attname FROM pg_index AS i
JOIN pg_class AS t ON t.oid = i.indrelid AND t.relnamespace = 'public'::regnamespace
JOIN pg_class AS x ON x.oid = i.indexrelid
JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum = ANY (i.indkey)
WHERE a.atttypid = 'text'::regtype
"""


def test_every_indexed_text_has_a_bound_that_postgresql_can_index(postgres: PostgresServer) -> None:
    with postgres.database() as name, psycopg.connect(postgres.conninfo(name)) as connection:
        indexed = {row[0] for row in connection.execute(INDEXED_TEXTS)}
        assert indexed - {*LONGEST} == set()
        connection.execute("CREATE TABLE bound (text TEXT, n BIGINT, PRIMARY KEY (text, n))")
        for size in LETTERS:
            text = random_text(INDEXED_BYTES // size, size)
            connection.execute("INSERT INTO bound VALUES (%s, 1)", (text,))
    bounds = {f"{table}.{name}" for table, names in TEXT_BOUNDS.items() for name in names}
    too_long = {column for column in indexed if LONGEST[column] > INDEXED_BYTES}
    assert too_long == set()
    keys = {"published.app_id", "reader.name", "saved.kind", "saved.name"}  # kept as they are
    keys |= {"message.group_name", "message.unique_key", "schedule.name"}
    words = {"copy_state.role", "counter.name", "meta.name", "migration.name"}
    assert indexed - bounds - keys - words == set()


def test_every_indexed_text_of_sqlite_has_a_bound() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, migrations_folder())
        rows = connection.execute(
            "SELECT t.name || '.' || c.name FROM sqlite_schema AS t,"
            " pragma_index_list(t.name) AS i,"
            " pragma_index_info(i.name) AS x, pragma_table_info(t.name) AS c"
            " WHERE t.type = 'table' AND x.cid = c.cid AND c.type = 'TEXT'"
        ).fetchall()
    assert {row[0] for row in rows} - {*LONGEST} == set()


def test_checks_of_both_engines_are_the_bounds_of_the_code() -> None:
    migrations = migrations_folder()
    for folder, length in (
        (migrations, r"length\(CAST\((\w+) AS BLOB\)\)"),
        (migrations / "postgres", r"octet_length\((\w+)\)"),
    ):
        text = (folder / "0001_initial.sql").read_text()
        bounds = re.findall(rf"CHECK \({length} <= (\d+)\)", text)
        assert {name: int(bound) for name, bound in bounds} == AUDIT_BYTES
