"""Each named statement is used, valid on the migrated schema, and uses its index."""

import inspect
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from phpmq_lite import writes
from phpmq_lite.broker.state_table import TRANSITIONS
from phpmq_lite.model import ALIVE, DeliveryOptions, Message, MessageSource, Schedule, State
from phpmq_lite.storage import statements
from phpmq_lite.storage.batch_sql import write_statements
from phpmq_lite.storage.statements import MultiRowStatement, load
from tests.support.builds import NEEDS_SOURCES
from tests.support.statement_files import comments, files
from tests.support.stores import empty_database
from tests.unit.admin.cases import add_reader_functions

PACKAGE = Path(statements.__file__).parent.parent
FILES = sorted(files("sqlite"))
STATEMENTS = [(file, name) for file in FILES for name in load(file, "sqlite")]

WRITTEN = {
    name
    for kind in (*vars(writes).values(), Schedule)
    if isinstance(kind, type) and issubclass(kind, tuple | Schedule)
    for name in write_statements(kind)
}


INDEXES = [
    (file, name, index)
    for file in FILES
    for name, comment in comments(file, "sqlite").items()
    for index in re.findall(r"^-- index(?: of SQLite)?: ([\w ]+)$", comment, flags=re.M)
]


@pytest.fixture(scope="module")
def connection() -> Iterator[sqlite3.Connection]:
    made = sqlite3.connect(":memory:", isolation_level=None)
    made.deserialize(empty_database())
    add_reader_functions(made)
    made.create_function("checksum", 2, lambda *_: 0)  # store.py
    yield made
    made.close()


def texts(file: str, name: str) -> list[str]:
    """Return a statement as it is run; one with rows, once for each size."""
    text = load(file, "sqlite")[name]
    if "{rows:" not in text:
        return [text]
    return list(MultiRowStatement(text)._texts.values())


def explain(connection: sqlite3.Connection, text: str, how: str) -> list[str]:
    names = re.findall(r"(?<![:\w]):(\w+)", text)
    count = 0
    for number in re.findall(r"\?(\d*)", text):
        count = max(count, int(number)) if number else count + 1
    given = dict.fromkeys(names) if names else [None] * count
    return [str(row[-1]) for row in connection.execute(f"{how} {text}", given)]


def test_every_statement_is_used() -> None:
    code = "".join(path.read_text("utf-8") for path in (PACKAGE / "storage").rglob("*.py"))
    used = set(re.findall(r'"(\w+)"', code)).union(WRITTEN)
    used |= {f"{name}_{way}" for name in used for way in ("newer", "older")}  # read/messages.py
    assert [key for key in STATEMENTS if key[1] not in used] == []


def test_every_write_has_its_statements() -> None:
    assert load("writes", "sqlite").keys() == WRITTEN
    assert WRITTEN.isdisjoint(load("batch", "sqlite"))


@pytest.mark.parametrize(("file", "name"), STATEMENTS)
def test_statement_prepares_on_the_migrated_schema(
    connection: sqlite3.Connection, file: str, name: str
) -> None:
    for text in texts(file, name):
        assert explain(connection, text, "EXPLAIN")


@pytest.mark.parametrize(("file", "name", "index"), INDEXES)
def test_statement_uses_the_index_that_it_names(
    connection: sqlite3.Connection, file: str, name: str, index: str
) -> None:
    for text in texts(file, name):
        plan = explain(connection, text, "EXPLAIN QUERY PLAN")
        assert any(index in step for step in plan), plan


HOT = """
settle_messages delete_messages messages_by_seq bodies checksums update_messages
dispatch_messages settle_run settle_dispatched_run delete_run dispatch_run dispatch_several
close_client update_queue
"""


@pytest.mark.parametrize("name", HOT.split())
def test_statement_of_the_hot_path_searches_by_number(
    connection: sqlite3.Connection, name: str
) -> None:
    for text in texts("batch", name):
        plan = explain(connection, text, "EXPLAIN QUERY PLAN")
        assert any("USING INTEGER PRIMARY KEY" in step for step in plan), plan
        assert not any("TEMP B-TREE" in step for step in plan), plan


def test_next_page_needs_no_sorting(connection: sqlite3.Connection) -> None:
    for name in ("ready_page", "due_messages"):
        plan = explain(connection, load("batch", "sqlite")[name], "EXPLAIN QUERY PLAN")
        assert len(plan) == 1, plan
    plan = explain(connection, load("batch", "sqlite")["all_page"], "EXPLAIN QUERY PLAN")
    assert not any("TEMP B-TREE" in step for step in plan), plan


def states_allowed(connection: sqlite3.Connection, table: str, column: str) -> set[State]:
    [(sql,)] = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,))
    check = re.search(
        rf"{column} INTEGER NOT NULL\s+(?:--.*\s+)?(?:CONSTRAINT \w+\s+(?:--.*\s+)?)?"
        r"(CHECK \((?:[^()]|\([^()]*\))*\))",
        sql,
    )
    assert check is not None
    connection.execute(f"CREATE TEMP TABLE probe ({column} INTEGER {check[1]})")
    allowed = set()
    for state in range(-1, 10):
        try:
            connection.execute("INSERT INTO probe VALUES (?)", (state,))
        except sqlite3.IntegrityError:
            continue
        allowed.add(State(state))
    connection.execute("DROP TABLE temp.probe")
    return allowed


def test_live_table_accepts_the_live_states(connection: sqlite3.Connection) -> None:
    assert states_allowed(connection, "message", "state") == ALIVE


def test_history_accepts_the_outcomes_of_the_transitions(connection: sqlite3.Connection) -> None:
    settled = set(TRANSITIONS.values()) - ALIVE
    assert states_allowed(connection, "history", "outcome") == settled


@NEEDS_SOURCES
def test_message_rows_have_the_order_of_the_columns(connection: sqlite3.Connection) -> None:
    """``message_of(row)``: the order is the contract between SQL and ``model.py``."""
    *own, indexed, source, options = inspect.signature(Message).parameters
    assert (indexed, source, options) == ("indexed", "source", "options")
    envelope = ["urn", "trace_id", "meta_id", "attempts"]
    expected = [*own, *envelope, *(f"source_{name}" for name in MessageSource._fields)]
    expected += ["group_name" if name == "group" else name for name in DeliveryOptions._fields]
    stored = [row[1] for row in connection.execute("PRAGMA table_info(message)")]
    assert sorted(expected) == sorted(stored)  # their order on disk is another, for its speed
    for name in ("ready_page", "messages_by_seq", "due_messages"):
        text = texts("batch", name)[-1]
        columns = re.split(r",\s*", re.sub(r"\s+", " ", text[7 : text.index("FROM")]).strip())
        assert columns == expected
