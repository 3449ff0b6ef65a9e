"""The history as a view of PostgreSQL: the rows of the export, for a role that reads only it."""

import re
from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pyarrow as pa
import pytest
from psycopg import errors

from phpmq_lite.storage.arrow import BODY, COLUMNS, HistoryRanges, RowSelection
from tests.docs.pages import blocks
from tests.support.both_engines import copy_rows
from tests.support.postgres_server import PostgresServer
from tests.support.settled_folder import NOW_MS, execute_in_process, settled_folder

PAGE: Final = "docs/guides/postgresql-view.md"
ROWS: Final = 300
ROLE: Final = "history_reader"
TYPES: Final = {
    "int32": "integer",
    "int64": "bigint",
    "string": "text",
    "timestamp": "timestamp with time zone",
}
# As Grafana replaces them.
MACROS: Final = {
    r"\$__timeGroupAlias\((\w+), '1m'\)": r'floor(extract(epoch from \1)/60)*60 AS "time"',
    r"\$__timeFilter\((\w+)\)": r"\1 BETWEEN '2000-01-01T00:00:00Z' AND '2100-01-01T00:00:00Z'",
}


def statements(section: str) -> list[str]:
    return [
        block.text for block in blocks(PAGE) if block.section == section and block.language == "sql"
    ]


@pytest.fixture(scope="module")
def database(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return a database with a history, over a clock that was set, and the role of the page."""
    path = settled_folder(tmp_path_factory.mktemp("view") / "data", ROWS)
    execute_in_process(
        path,
        "DELETE FROM clock_step",
        "INSERT INTO clock_step (from_offset, at_ms, step_ms) VALUES (3, 0, 7), (151, 1, -90000)",
        "UPDATE history SET source_seq = 11, source_queue_id = 2, source_reason = 'client',"
        ' charged = 3, erased_at = 1800000000001 WHERE "offset" % 5 = 0',
        "UPDATE body SET content = x'00' WHERE seq = 15",  # damaged
        "DELETE FROM body WHERE seq = 16",
        'UPDATE history SET deadline_ms = deadline_ms + 3153600000000 WHERE "offset" = 9',
    )
    with postgres.database() as name:
        copy_rows(path, postgres.conninfo(name))
        for text in statements("A role for readers"):
            postgres.execute(text, name)
        try:
            yield name
        finally:
            postgres.execute(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}", name)


@pytest.fixture
def reader(postgres: PostgresServer, database: str) -> Iterator[psycopg.Connection[Any]]:
    url = postgres.url(database).replace("postgres@", f"{ROLE}@")
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def test_view_has_the_rows_and_columns_of_the_export(
    postgres: PostgresServer, database: str, reader: psycopg.Connection[Any]
) -> None:
    cursor = reader.execute('SELECT * FROM settled_message ORDER BY "offset"')
    rows = cursor.fetchall()
    assert cursor.description is not None
    assert [column.name for column in cursor.description] == [column.name for column in COLUMNS]
    types = reader.execute(
        "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
        " WHERE attrelid = 'settled_message'::regclass"
    ).fetchall()
    assert dict(types) == {column.name: TYPES[column.type] for column in COLUMNS}
    with HistoryRanges(postgres.url(database)) as ranges:
        exported = ranges.history(RowSelection(0, ROWS))
        table = pa.Table.from_batches(list(exported), exported.schema)
    for column, values in zip(COLUMNS, zip(*rows, strict=True), strict=True):
        assert list(values) == table[column.name].to_pylist(), column.name
        assert column.is_nullable or None not in values, column.name
    assert len(rows) == ROWS


def test_bodies_are_those_of_the_export(
    postgres: PostgresServer, database: str, reader: psycopg.Connection[Any]
) -> None:
    rows = reader.execute("SELECT * FROM settled_body ORDER BY history_offset").fetchall()
    with HistoryRanges(postgres.url(database)) as ranges:
        exported = ranges.history(RowSelection(0, ROWS, columns=("offset",), body=True))
        table = pa.Table.from_batches(list(exported), exported.schema)
    offsets, bodies = (table[name].to_pylist() for name in ("offset", BODY.name))
    assert {offset: body for offset, body, is_intact in rows if is_intact} == {
        offset: body for offset, body in zip(offsets, bodies, strict=True) if body is not None
    }
    assert [(offset, body) for offset, body, is_intact in rows if not is_intact] == [(5, b"\0")]


def test_role_reads_the_views_and_nothing_else(
    postgres: PostgresServer, database: str, reader: psycopg.Connection[Any]
) -> None:
    relations = reader.execute(
        "SELECT oid::regclass::text, has_table_privilege(oid, 'SELECT'),"
        " has_table_privilege(oid, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')"
        " OR has_any_column_privilege(oid, 'INSERT, UPDATE, REFERENCES'),"
        " has_any_column_privilege(oid, 'SELECT')"
        " FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v')"
    ).fetchall()
    assert len(relations) > 20
    assert [row for row in relations if True in row[1:]] == [
        (name, True, False, True) for name in ("settled_message", "settled_body")
    ]
    reader.execute("SET default_transaction_read_only = off")  # which a reader may do
    for text in (
        "SELECT * FROM message", 'SELECT * FROM "user"', "SELECT * FROM token",
        "SELECT * FROM counter_value('next_number')", "SELECT change_counter('x', 1, true)",
        "DELETE FROM settled_message", "CREATE TABLE mine (x INT)",
    ):  # fmt: skip
        with pytest.raises((errors.InsufficientPrivilege, errors.ObjectNotInPrerequisiteState)):
            reader.execute(text.encode())
    postgres.execute(f"REVOKE SELECT ON settled_body FROM {ROLE}", database)
    try:
        with pytest.raises(errors.InsufficientPrivilege):
            reader.execute("SELECT * FROM settled_body")
    finally:
        postgres.execute(f"GRANT SELECT ON settled_body TO {ROLE}", database)


@pytest.mark.parametrize("section", ["psql", "JDBC", "Grafana"])
def test_queries_of_the_page_work_for_the_role(
    reader: psycopg.Connection[Any], section: str
) -> None:
    texts = statements(section)
    assert texts
    for text in texts:
        for macro, expansion in MACROS.items():
            text = re.sub(macro, expansion, text)
        assert "$__" not in text
        rows = reader.execute(text.encode()).fetchall()
        assert rows or "trace_id" in text
        if "count(*) AS messages\n" in text and section == "Grafana":
            assert sum(row[2] for row in rows) == ROWS


def test_conditions_that_the_page_names_use_an_index(
    postgres: PostgresServer, database: str
) -> None:
    conditions = {
        "history_offset > 290": "history_pkey",
        '"offset" > 290': "history_pkey",
        "queue = 'orders'": "history_(place|number)",
        "trace_id = 'x'": "history_trace",
        "seq = 12": "history_seq",
    }
    with psycopg.connect(postgres.conninfo(database)) as connection:
        connection.execute("SET enable_seqscan = off")
        for condition, index in conditions.items():
            query = f"EXPLAIN SELECT queue, settled_at FROM settled_message WHERE {condition}"
            plan = "\n".join(row[0] for row in connection.execute(query.encode()))
            assert re.search(rf"Index[^\n]* {index}\b", plan), plan


def test_deadline_beyond_the_range_of_other_types_is_shown(
    reader: psycopg.Connection[Any],
) -> None:
    (row,) = reader.execute('SELECT deadline FROM settled_message WHERE "offset" = 9').fetchall()
    assert row[0].timestamp() * 1000 > NOW_MS + 3_153_600_000_000
