"""Ranges of the history through ADBC's PostgreSQL driver are those of the SQLite file."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from phpmq_lite.errors import RefusedError, StorageError
from phpmq_lite.model import checksum
from phpmq_lite.storage import arrow as module
from phpmq_lite.storage.arrow import (
    BODY,
    COLUMNS,
    HistoryRanges,
    RowFilters,
    RowSelection,
    arrow_schema,
)
from phpmq_lite.storage.statements import compiled
from tests.support.both_engines import copy_rows
from tests.support.postgres_server import PostgresServer
from tests.support.settled_folder import NOW_MS, QUEUES, execute_in_process, settled_folder

ROWS = 300
CLAIMS = (
    *(
        "INSERT INTO message (seq, token, queue_id, position, state, published_at, deliveries,"
        f" size, crc, urn) VALUES ({900 + n}, {n}, 1, {n}, 1, {NOW_MS + n}, 1, 3,"
        f" {checksum(900 + n, b'%d' % (900 + n))}, 'urn:a')"
        for n in (2, 3, 5)
    ),
    "INSERT INTO body SELECT seq, CAST(CAST(seq AS TEXT) AS BLOB) FROM message",
    "INSERT INTO subscription VALUES (7, 'nightly', 1, 6, 1, 0)",
    "INSERT INTO claim SELECT 7, seq - 900, seq, 0 FROM message",
    "INSERT INTO event (seq, at_ms, kind, detail, last_at) SELECT seq, published_at,"
    " CASE WHEN seq % 2 = 0 THEN 'return' ELSE 'requeue' END, reason, ready_at FROM history"
    " WHERE seq % 4 > 0",
    "UPDATE body SET content = x'00' WHERE seq = 15",  # damaged
    "DELETE FROM body WHERE seq = 16",
)


@pytest.fixture(scope="module")
def both(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[HistoryRanges, HistoryRanges]]:
    path = settled_folder(tmp_path_factory.mktemp("ranges") / "data", ROWS)
    execute_in_process(path, *CLAIMS)
    with postgres.database() as name:
        copy_rows(path, postgres.conninfo(name))
        with (
            HistoryRanges(path, driver="python") as ours,
            HistoryRanges(postgres.url(name)) as theirs,
        ):
            yield ours, theirs


def table_of(rows: module.RangeRows) -> Any:
    return pa.Table.from_batches(list(rows), rows.schema)


SELECTIONS = [
    RowSelection(0, ROWS),
    RowSelection(0, ROWS, body=True),
    RowSelection(17, 42, columns=("offset", "queue", "deadline"), body=True),
    RowSelection(0, ROWS, queues=(QUEUES[1],), outcomes=("dead", "expired")),
    RowSelection(0, ROWS, pattern="o*", allowed=("*",)),
    RowSelection(5, 5),
    RowSelection(0, 9_999, outcomes=("acked",)),
    RowSelection(0, ROWS, outcomes=("dead", "deleted"), pattern="*"),
    RowSelection(3, ROWS, filters=RowFilters(urns=("urn:orders:1", "urn:orders:3", "ü", "x"))),
    RowSelection(
        3, ROWS, QUEUES[:2], filters=RowFilters(traces=("0000000a-0000", "0000012b-0000", "x"))
    ),
    RowSelection(0, ROWS, filters=RowFilters(traces=("none",), settled_until=NOW_MS + 9_000)),
    RowSelection(
        0,
        ROWS,
        body=True,
        filters=RowFilters(settled_from=NOW_MS + 20_000, settled_until=NOW_MS + 260_500),
    ),
    RowSelection(0, ROWS, (QUEUES[0],), filters=RowFilters(published_from=NOW_MS + 250)),
    RowSelection(0, ROWS, filters=RowFilters(published_until=NOW_MS + 9, settled_from=1)),
]


@pytest.mark.parametrize("is_sliced", [False, True])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_range_has_the_same_rows(
    both: tuple[HistoryRanges, HistoryRanges],
    selection: RowSelection,
    is_sliced: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_sliced:
        monkeypatch.setattr(module, "RANGE_SLICE", 7)
        monkeypatch.setattr(module, "PART_BYTES", 90)
    ours, theirs = (ranges.history(selection) for ranges in both)
    assert (theirs.lo, theirs.hi, theirs.count) == (ours.lo, ours.hi, ours.count)
    table = table_of(theirs)
    assert table == table_of(ours)
    assert table.schema == ours.schema
    if selection == SELECTIONS[1]:
        assert table.schema == arrow_schema((*COLUMNS, BODY))


@pytest.mark.parametrize("selection", SELECTIONS[:1] + SELECTIONS[3:])
def test_events_are_the_same(
    both: tuple[HistoryRanges, HistoryRanges], selection: RowSelection
) -> None:
    ours, theirs = (ranges.events(selection) for ranges in both)
    assert theirs.count == ours.count
    assert table_of(theirs) == table_of(ours)


def test_claims_are_the_same(both: tuple[HistoryRanges, HistoryRanges]) -> None:
    ours, theirs = (ranges.claims("nightly", 1, 5) for ranges in both)
    assert theirs.queue == ours.queue
    assert table_of(theirs) == table_of(ours)
    for ranges in both:
        with pytest.raises(RefusedError, match="there is no subscription"):
            ranges.claims("x", 0, 1)


def test_bounds_are_the_same(both: tuple[HistoryRanges, HistoryRanges]) -> None:
    ours, theirs = both
    assert theirs.bounds() == ours.bounds()
    assert theirs.queues() == ours.queues()
    for at in (0, 11, 12, 150, 299, 300, 301, 9_999):
        at_ms = NOW_MS + at * 1_000
        assert theirs.offset_at(at_ms) == ours.offset_at(at_ms)


def test_deadlines_and_times_are_the_same_when_the_clock_was_set(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    path = settled_folder(tmp_path / "data", ROWS)
    execute_in_process(
        path,
        'UPDATE history SET settled_at = settled_at - 90000 WHERE "offset" > 150',
        "DELETE FROM clock_step",
        "INSERT INTO clock_step (from_offset, at_ms, step_ms) VALUES (1, 0, 0), (151, 1, -90000)",
    )
    with postgres.database() as name:
        copy_rows(path, postgres.conninfo(name))
        with (
            HistoryRanges(path, driver="python") as ours,
            HistoryRanges(postgres.url(name)) as theirs,
        ):
            selection = RowSelection(0, ROWS, columns=("offset", "deadline"))
            assert table_of(theirs.history(selection)) == table_of(ours.history(selection))
            for at in range(0, 310, 7):
                at_ms = NOW_MS + at * 1_000
                assert theirs.offset_at(at_ms) == ours.offset_at(at_ms)
            assert theirs.offset_at(NOW_MS + 100_000) == 99  # not 189, the first after the step


def test_rows_above_the_confirmed_offset_are_not_read(
    both: tuple[HistoryRanges, HistoryRanges],
) -> None:
    """A replica may have rows that a failover loses."""
    for ranges in both:
        ranges.upto = 120
        try:
            rows = ranges.history(RowSelection(100, ROWS, columns=("offset",)))
            assert table_of(rows)["offset"].to_pylist() == list(range(101, 121))
            assert ranges.bounds().hi == 120
            with pytest.raises(RefusedError, match="the last offset is 120"):
                ranges.history(RowSelection(121, ROWS))
        finally:
            ranges.upto = None


def test_rows_removed_below_are_a_gap(postgres: PostgresServer, tmp_path: Path) -> None:
    path = settled_folder(tmp_path / "data", 40)
    with postgres.database() as name:
        copy_rows(path, postgres.conninfo(name))
        with psycopg.connect(postgres.conninfo(name)) as connection:
            connection.execute('DELETE FROM history WHERE "offset" <= 10')
            for counter in ("history_lo", "deleted_lo"):
                connection.execute("INSERT INTO counter VALUES (%s, 11)", (counter,))
        with HistoryRanges(postgres.url(name)) as ranges:
            with pytest.raises(RefusedError, match="rows up to 10 were removed"):
                ranges.history(RowSelection(0, 40))
            rows = ranges.history(RowSelection(0, 40), is_gap_ok=True)
            assert (rows.lo, table_of(rows).num_rows) == (10, 30)


def test_unreachable_or_broken_database_is_an_error(postgres: PostgresServer) -> None:
    with pytest.raises(StorageError, match="cannot connect to the database"):
        HistoryRanges(postgres.url("no_such_database"))
    with (
        HistoryRanges(postgres.url("postgres")) as empty,
        pytest.raises(StorageError, match="cannot read the history"),
    ):
        empty.bounds()


def test_missing_driver_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adbc_driver_postgresql", None)
    with pytest.raises(StorageError, match="without the extra 'postgres'"):
        HistoryRanges("postgresql://127.0.0.1/x")


MANY = 60_000
FIND = RowFilters(traces=("0000ea5b-0000", "00000c35-0000"))


@pytest.fixture(scope="module")
def large(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[HistoryRanges, psycopg.RawCursor[Any]]]:
    path = settled_folder(tmp_path_factory.mktemp("large") / "data", MANY)
    with postgres.database() as name:
        conninfo = postgres.conninfo(name)
        copy_rows(path, conninfo)
        with (
            psycopg.connect(conninfo, autocommit=True) as connection,
            HistoryRanges(postgres.url(name)) as ranges,
        ):
            connection.execute(
                'UPDATE history SET outcome = CASE WHEN "offset" % 1000 = 7 THEN 4 ELSE 2 END,'
                ' queue_id = CASE WHEN "offset" % 1000 = 7 THEN 2 ELSE 1 END'
            )
            connection.execute("VACUUM ANALYZE history")
            yield ranges, psycopg.RawCursor(connection)


@pytest.mark.parametrize(
    ("selection", "index"),
    [
        (RowSelection(0, MANY), "history_pkey"),
        (RowSelection(0, MANY, queues=(QUEUES[1],)), "history_place"),
        (RowSelection(0, MANY, outcomes=("dead", "expired")), "history_unusual"),
        (RowSelection(0, MANY, filters=FIND), "history_trace"),
    ],
)
def test_selection_is_found_by_an_index(
    large: tuple[HistoryRanges, psycopg.RawCursor[Any]],
    selection: RowSelection,
    index: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranges, cursor = large
    plans: list[str] = []
    read_table = ranges._database.read_table

    def explain(text: str, values: dict[str, Any], columns: Any) -> Any:
        if "AS m" in text:
            statement, names = compiled(text)
            cursor.execute(f"EXPLAIN {statement}", [values[name] for name in names])
            plans.append("\n".join(line for (line,) in cursor))
        return read_table(text, values, columns)

    monkeypatch.setattr(ranges._database, "read_table", explain)
    rows = ranges.history(selection)
    assert rows.count == sum(batch.num_rows for batch in rows) > 0
    assert any(index in plan for plan in plans), plans
    assert not any("Seq Scan on history" in plan for plan in plans), plans
