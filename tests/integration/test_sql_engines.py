"""Both engines have the same statements: the same names, parts, parameters and columns.

What only one engine has is listed here with its reason.
"""

import re
import sqlite3
from collections.abc import Iterator
from typing import Final

import psycopg
import pytest

from phpmq_lite.storage.statements import MultiRowStatement, compiled, load, parts
from tests.support.postgres_server import PostgresServer
from tests.support.statement_files import comments, files
from tests.support.stores import empty_database
from tests.unit.admin.cases import add_reader_functions

NUMERIC: Final = 1700  # Python would get a Decimal

ONE_ENGINE_FILES: Final = {
    "epoch": "an SQLite file has one broker",
    "server": "SQLite is not a server",
    "standby": "PostgreSQL replicates by itself",
    "scrub": "PostgreSQL verifies its pages by their checksums",
}
_RUNS: Final = "SQLite indexes the history in runs; PostgreSQL has an index of rows"
_TRACES: Final = "SQLite indexes traces in their own table; PostgreSQL has an index of rows"
_TAIL: Final = "SQLite indexes the newest rows later; PostgreSQL does at once"
_FOLDER_STATE: Final = "for SQLite, the data folder says that it has been copied"
ONE_ENGINE: Final = {
    (file, name): reason
    for reason, files_of in {
        _RUNS: {
            "copy": "forget_index",
            "history_index": "columns continues count_runs index_runs index_singly "
            "placed progress slice",
            "retention": "remove_runs",
            "database_check": "inconsistent_index",
            "messages": "from_stop from_acked upto_acked",
            "search": "near_offsets near_numbers near",
        },
        "SQLite assigns the next number without a sequence": {"copy": "identities"},
        _FOLDER_STATE: {"copy": "states set_state drop_state"},
        "SQLite reads this with its progress": {"history_index": "waiting"},
        _TAIL: {
            "arrow": "placed",
            "history_index": "advance_traced index_live_traces index_traces next_live_numbers",
            "messages": "indexed_upto older_tail newer_tail",
            "search": "placed traced settled_tail settled_unnumbered "
            "alive_untraced settled_untraced",
        },
        "PostgreSQL stores no text of its schema": {"migrate": "statements"},
        "an SQLite file has one broker": {"migrate": "wait_for_others"},
        _TRACES: {"retention": "remove_traces remove_traces_range"},
    }.items()
    for file, names in files_of.items()
    for name in names.split()
}


BOTH: Final = sorted(files("sqlite") & files("postgres"))
STATEMENTS: Final = [
    (file, name)
    for file in BOTH
    for name in load(file, "postgres")
    if (file, name) not in ONE_ENGINE
]
INDEXES: Final = [
    (file, name, index)
    for file in BOTH
    for name, comment in comments(file, "postgres").items()
    for index in re.findall(r"^-- index: (\w+|PRIMARY KEY)$", comment, re.M)
]


# With a few rows and their statistics, the planner chooses indexes as in a large database.
ROWS: Final = """\
INSERT INTO message (seq, token, queue_id, position, state, deadline_ms, published_at, size, crc)
  SELECT n, n, n % 20, n, (n % 50 = 0)::int, CASE WHEN n % 30 = 0 THEN n END, n, n, n
  FROM generate_series(1, 3000) AS n;
INSERT INTO message (seq, token, queue_id, position, state, published_at, size, crc, due_ms,
  deliver_at, group_name, unique_key)
  SELECT 100000 + n, n, n % 20, 100000 + n, 6 + n % 2, n, n, n,
    CASE WHEN n % 2 = 0 THEN n END, CASE WHEN n % 4 = 0 THEN n END,
    CASE WHEN n % 2 = 1 THEN 'g' || n % 100 END, 'k' || n
  FROM generate_series(1, 2000) AS n;
INSERT INTO rollup SELECT 60, n % 40, n / 40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
  FROM generate_series(1, 8000) AS n;
INSERT INTO history ("offset", seq, token, queue_id, position, outcome, settled_at, published_at,
  deliveries, charged, size, crc)
  SELECT n, 3000 + n, n, n % 97, n, 2 + (n % 30 = 0)::int * (n % 4), n, n, 1, 0, n, n
  FROM generate_series(1, 30000) AS n;
INSERT INTO client (client, kind, address, opened_at, closed_at)
  SELECT n, 'tcp', '', n, CASE WHEN n % 100 <> 0 THEN n END FROM generate_series(1, 3000) AS n;
INSERT INTO audit
  SELECT n, n, CASE WHEN n % 2 = 0 THEN 'nobody' ELSE '' END, '', '', '', n % 500, 1, '', '', '', ''
  FROM generate_series(1, 8000) AS n;
ANALYZE"""


@pytest.fixture(scope="module")
def sqlite() -> Iterator[sqlite3.Connection]:
    made = sqlite3.connect(":memory:", isolation_level=None)
    made.deserialize(empty_database())
    add_reader_functions(made)
    made.create_function("checksum", 2, lambda *_: 0)
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(postgres: PostgresServer) -> Iterator["psycopg.Connection[tuple[str]]"]:
    with (
        postgres.database() as name,
        psycopg.connect(postgres.conninfo(name), autocommit=True) as connection,
    ):
        connection.execute(ROWS)
        yield connection


def text_of(file: str, name: str, engine: str) -> str:
    text = load(file, engine)[name]
    return MultiRowStatement(text)._texts[1] if "{rows:" in text else text


def test_files_of_one_engine_have_a_reason() -> None:
    assert files("sqlite") ^ files("postgres") == ONE_ENGINE_FILES.keys()


def test_statements_and_parts_of_one_engine_have_a_reason() -> None:
    found = {
        (file, name)
        for file in BOTH
        for read in (load, parts)
        for name in read(file, "sqlite").keys() ^ read(file, "postgres").keys()
    }
    assert found == ONE_ENGINE.keys()


@pytest.mark.parametrize(("file", "name"), STATEMENTS)
def test_statement_has_the_same_parameters(file: str, name: str) -> None:
    ours, theirs = load(file, "sqlite")[name], load(file, "postgres")[name]
    if "{rows:" in ours:
        rows = MultiRowStatement(ours)
        numbers = {int(number) for number in re.findall(r"\$(\d+)", compiled(theirs)[0])}
        assert theirs.count("[]") == rows.width
        assert numbers == set(range(1, len(compiled(rows._texts[1])[1]) + 1))
    elif "$1" in theirs:
        assert len(set(re.findall(r"\$\d+", theirs))) == len(compiled(ours)[1])
    else:
        assert sorted(compiled(ours)[1]) == sorted(compiled(theirs)[1])


@pytest.mark.parametrize("file", BOTH)
def test_part_has_the_same_parameters(file: str) -> None:
    for name in parts(file, "sqlite").keys() & parts(file, "postgres").keys():
        ours, theirs = (
            set(compiled(parts(file, engine)[name])[1]) for engine in ("sqlite", "postgres")
        )
        # Of the messages of each state, one engine has in the part what the other has around it.
        is_of_state = name.endswith(("_after", "_before", "_seqs", "_dead_letters"))
        assert ours ^ theirs <= ({"limit", "queues"} if is_of_state else set()), name


@pytest.mark.parametrize(("file", "name"), STATEMENTS)
def test_statement_prepares_with_the_same_columns(
    sqlite: sqlite3.Connection, server: "psycopg.Connection[tuple[str]]", file: str, name: str
) -> None:
    text, _ = compiled(text_of(file, name, "postgres"))
    prepared = server.pgconn.prepare(b"", text.encode())
    assert not prepared.error_message, prepared.error_message.decode()
    described = server.pgconn.describe_prepared(b"")
    columns = range(described.nfields)
    assert NUMERIC not in [described.ftype(at) for at in columns]
    theirs = [(described.fname(at) or b"").decode() for at in columns]
    sqlite.execute("BEGIN")
    ours = text_of(file, name, "sqlite")
    names = compiled(ours)[1]
    given = dict.fromkeys(names, 0) if ":" in ours else [0] * len(names)
    try:
        found = sqlite.execute(ours, given).description or ()
    except sqlite3.IntegrityError:  # a write of a second row; it returns nothing
        found = ()
    finally:
        sqlite.execute("ROLLBACK")
    assert len(found) == len(theirs)
    for (mine, *_), other in zip(found, theirs, strict=True):
        assert mine == other or not mine.isidentifier() or other == "?column?"


@pytest.mark.parametrize(("file", "name", "index"), INDEXES)
def test_statement_uses_the_index_that_it_names(
    server: "psycopg.Connection[tuple[str]]", file: str, name: str, index: str
) -> None:
    text, names = compiled(text_of(file, name, "postgres"))
    server.execute("SET enable_seqscan = off")
    server.execute("SET plan_cache_mode = force_generic_plan")
    server.execute(f"PREPARE asked AS {text}".encode())
    try:
        values = f"({', '.join(['NULL'] * len(names))})" if names else ""
        plan = "\n".join(
            row[0] for row in server.execute(f"EXPLAIN EXECUTE asked{values}".encode())
        )
    finally:
        server.execute("DEALLOCATE asked")
    index = r"\w+_pkey" if index == "PRIMARY KEY" else index
    assert re.search(rf"\b{index}\b", plan), plan
