"""Named statements, and rows repeated in fixed sizes."""

import sqlite3
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.storage.statements import SIZES, MultiRowStatement, load, many, parts
from tests.support.statement_files import executed


class Recorder:
    """Accepts statements like a connection, and records how many parameters each had."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def execute(self, sql: str, parameters: Sequence[Any]) -> "Recorder":
        assert sql.count("?") == len(parameters)
        self.calls.append((sql, len(parameters)))
        return self

    def fetchall(self) -> list[Any]:
        return []


def test_statements_are_loaded_without_comments_and_semicolons() -> None:
    statements = load("batch", "sqlite")
    assert statements["delete_messages"] == "DELETE FROM message WHERE seq IN ({rows:?})"
    assert all("--" not in text and ";" not in text for text in statements.values())


def test_shared_statement_is_adapted_to_each_engine() -> None:
    assert load("batch", "postgres")["delete_messages"] == (
        "DELETE FROM message WHERE seq = ANY (?::bigint[])"
    )
    for engine, theirs in (("sqlite", "counter_value("), ("postgres", "FROM counter WHERE name")):
        assert theirs not in load("database_size", engine)["totals"]
    texts = "".join(load("messages", "postgres").values())
    assert "INDEXED" not in texts
    assert "json_each" not in texts


def test_rows_are_values_for_sqlite_and_arrays_for_postgresql() -> None:
    assert executed("sqlite", "insert_client").endswith(
        "INSERT INTO client (client, kind, address, opened_at) VALUES {rows:(?,?,?,?)};\n"
    )
    assert executed("postgres", "insert_client").endswith(
        "INSERT INTO client (client, kind, address, opened_at)"
        " SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[]);\n"
    )
    for engine, column in (("sqlite", "given.column3"), ("postgres", "given.at_ms")):
        assert f"last_dispatched_at = {column}," in load("batch", engine)["dispatch_messages"]


def test_twin_of_a_statement_has_the_other_of_each_two_choices() -> None:
    for engine in ("sqlite", "postgres"):
        older, newer = (load("audit", engine)[name] for name in ("older", "newer"))
        assert "audit_id < :start AND audit_id >= :stop" in older
        assert older.endswith("ORDER BY audit_id DESC LIMIT :limit")
        assert "audit_id > :start AND audit_id <= :stop" in newer
        assert newer.endswith("ORDER BY audit_id ASC LIMIT :limit")
        texts = {**load("messages", engine), **parts("messages", engine), **parts("search", engine)}
        assert [name for name, text in texts.items() if " | " in text] == []


def test_statement_without_repeated_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="no rows to repeat"):
        many("batch", "queues")


@pytest.mark.parametrize(
    ("count", "sizes"),
    [
        (0, []),
        (1, [1]),
        (5, [5]),
        (20, [20]),
        (100, [100]),
        (500, [500]),
        (1_000, [500, 500]),
        (499, [100] * 4 + [20] * 4 + [5] * 3 + [1] * 4),
        (626, [500, 100, 20, 5, 1]),
    ],
)
def test_rows_are_run_in_few_fixed_sizes(count: int, sizes: list[int]) -> None:
    recorder = Recorder()
    MultiRowStatement("INSERT INTO t VALUES {rows:(?,?)}").run(
        recorder.execute, list(range(2 * count))
    )
    assert [parameters // 2 for _, parameters in recorder.calls] == sizes


@given(count=st.integers(0, 3_000))
def test_number_of_texts_stays_small(count: int) -> None:
    """A small number keeps the statements cached."""
    recorder = Recorder()
    MultiRowStatement("DELETE FROM t WHERE a IN ({rows:?})").run(
        recorder.execute, list(range(count))
    )
    assert {parameters for _, parameters in recorder.calls} <= set(SIZES)
    assert sum(parameters for _, parameters in recorder.calls) == count
    assert len(recorder.calls) <= count // 500 + 4 + 4 + 3 + 4


@given(rows=st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=5)), max_size=130))
def test_all_rows_arrive_once_and_in_order(rows: list[tuple[int, bytes]]) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, tag, a, b)")
    statement = MultiRowStatement(
        "INSERT INTO t (tag, a, b) SELECT ?, column1, column2 FROM (VALUES {rows:(?,?)})"
        " RETURNING tag, a, b"
    )
    flat = [value for row in rows for value in row]
    given_back = statement.run(connection.execute, flat, before=("x",))
    assert given_back == [("x", *row) for row in rows]
    assert connection.execute("SELECT a, b FROM t ORDER BY n").fetchall() == rows
    connection.close()
