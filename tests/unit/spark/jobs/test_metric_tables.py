"""Each metric table against SQL on the same rows, in DuckDB; ``tests/spark`` uses Spark."""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any
from unittest.mock import Mock

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from phpmq_lite.spark.insights_figures import path_item
from phpmq_lite.spark.jobs.metric_tables import (
    ROW_COLUMNS,
    find_retried,
    map_rows,
    metric_tables,
    read_records,
    reduce_parts,
)
from phpmq_lite.spark.table_columns import COUNTS
from tests.spark.history_rows import DAY_MS, START_MS, Row, history_row, history_rows, to_arrow

FIRST_DAY = START_MS // DAY_MS
ALL_DAYS = range(FIRST_DAY - 100, FIRST_DAY + 100)
SHARES = 3

RETRIED = """
  outcome = 'acked' AND EXISTS (
    SELECT 1 FROM history t
    WHERE t.meta_id = h.meta_id AND t.seq > h.seq AND t.attempts > coalesce(h.attempts, 0)
      AND t.published BETWEEN h.first AND h.settled)
"""
EVENTS = f"""
  SELECT queue, published AS event_at, 1 AS published, size AS bytes, 0 AS dispatched,
    0 AS redelivered, 0 AS acked, 0 AS expired, 0 AS dead, 0 AS deleted,
    0 AS redelivered_messages, 0 AS retried, 0 AS expired_dispatched, 0 AS expired_never,
    NULL::BIGINT AS wait, NULL::BIGINT AS hold FROM history h
  UNION ALL SELECT queue, first, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    CASE WHEN ready <= greatest(first, published) OR deliveries = 1
      THEN greatest(first - ready, 0) END, NULL
    FROM history h WHERE first IS NOT NULL
  UNION ALL SELECT queue, last, 0, 0, 0, deliveries - 1, 0, 0, 0, 0, 0, 0, 0, 0,
    CASE WHEN ready > greatest(first, published) THEN greatest(last - ready, 0) END, NULL
    FROM history h WHERE deliveries > 1
  UNION ALL SELECT queue, settled, 0, 0, 0, 0, (outcome = 'acked')::INT,
    (outcome = 'expired')::INT, (outcome = 'dead')::INT, (outcome = 'deleted')::INT,
    (deliveries > 1)::INT, ({RETRIED})::INT, (outcome = 'expired' AND deliveries > 0)::INT,
    (outcome = 'expired' AND deliveries = 0)::INT, NULL,
    CASE WHEN outcome IN ('acked', 'dead') AND last IS NOT NULL THEN greatest(settled - last, 0) END
    FROM history h
"""
FIGURES = ", ".join(
    f"quantile_cont({span}, {share}) AS {span}_{name}"
    for span in ("wait", "hold")
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
)


def narrowed(rows: Sequence[Row]) -> pa.Table:
    """Return the columns that Spark sends, with shares of the keys."""
    history = to_arrow(rows)
    names = {"published_at": "published", "first_dispatched_at": "first", "settled_at": "settled",
             "last_dispatched_at": "last", "ready_at": "ready"}  # fmt: skip
    columns: dict[str, Any] = {}
    for name in history.column_names:
        column = history[name]
        columns[names.get(name, name)] = (
            column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        )
    for share, name in (("trace", "trace_id"), ("meta", "meta_id")):
        values = [hash(value) % SHARES for value in columns[name].to_pylist()]
        columns[f"{share}_share"] = pa.array(values, pa.int32())
    return pa.table({name: columns[name] for name in ROW_COLUMNS})


def computed(rows: pa.Table, days: Sequence[int] = ALL_DAYS, size: int = 90) -> dict[str, pa.Table]:
    """Compute all tables as Spark does: in parts of the rows, then in shares of the keys."""
    shares = defaultdict(list)
    for begin in range(0, rows.num_rows, 400):  # tasks
        for record in map_rows(rows.slice(begin, 400).to_batches(size), days, SHARES):
            shares[record["share"][0].as_py()].append(record)
    reduced = [result for share in shares.values() for result in reduce_parts(share)]
    return metric_tables(read_records(reduced))


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return history_rows(1_000)


@pytest.fixture(scope="module")
def history(rows: list[Row]) -> pa.Table:
    return narrowed(rows)


@pytest.fixture(scope="module")
def tables(history: pa.Table) -> dict[str, pa.Table]:
    return computed(history)


@pytest.fixture(scope="module")
def database(history: pa.Table) -> Iterator[duckdb.DuckDBPyConnection]:
    with closing(duckdb.connect()) as database:
        database.execute("SET TimeZone = 'UTC'")
        database.register("history", history)
        yield database


def items(table: pa.Table | duckdb.DuckDBPyRelation, *keys: str) -> dict[Any, dict[str, Any]]:
    if not isinstance(table, pa.Table):
        table = table.to_arrow_table()
    return {tuple(item[key] for key in keys): item for item in table.to_pylist()}


@pytest.mark.parametrize(
    ("table", "name", "period_ms"), [("minutes", "minute", 60_000), ("hours", "hour", 3_600_000)]
)
def test_figures_of_periods_equal_sql(
    tables: dict[str, pa.Table], database: duckdb.DuckDBPyConnection, table: str, name: str,
    period_ms: int,
) -> None:  # fmt: skip
    sums = ", ".join(f"sum({count})::BIGINT AS {count}" for count in COUNTS)
    expected = items(
        database.sql(
            f"SELECT make_timestamptz((event_at // {period_ms}) * {period_ms} * 1000) AS {name}, "
            f"(DATE '1970-01-01' + (event_at // {DAY_MS})::INTEGER) AS date, queue, {sums}, "
            f"{FIGURES} "
            f"FROM ({EVENTS}) GROUP BY ALL"
        ),
        name, "queue",
    )  # fmt: skip
    found = items(tables[table], name, "queue")
    assert found.keys() == expected.keys()
    for key, item in expected.items():
        of_table = {figure: found[key][figure] for figure in item}
        assert present(of_table) == pytest.approx(present(item), rel=1e-9), key
    assert sum(item["retried"] for item in expected.values()) > 50  # the rows contain such cases
    assert sum(item["expired_never"] for item in expected.values()) > 5


def present(item: dict[str, Any]) -> dict[str, Any]:
    """Drop nulls and keys: ``approx`` compares only numbers, and missing keys differ as well."""
    return {name: value for name, value in item.items() if isinstance(value, int | float)}


@pytest.mark.parametrize(
    ("table", "sql"),
    [
        (
            "deaths",
            "SELECT day(settled) AS date, queue, urn, reason, count(*) AS count FROM history "
            "WHERE outcome = 'dead' GROUP BY ALL",
        ),
        (
            "attempts",
            "SELECT day(settled) AS date, queue, urn, attempts, count(*) AS count FROM history "
            "WHERE urn IS NOT NULL AND attempts IS NOT NULL GROUP BY ALL",
        ),
        (
            "expiries",
            "SELECT day(settled) AS date, queue, count_if(deliveries > 0) AS dispatched, "
            "count_if(deliveries = 0) AS never FROM history WHERE outcome = 'expired' GROUP BY ALL",
        ),
        (
            "urns",
            f"""SELECT date, queue, urn, sum(published) AS published, sum(bytes) AS bytes,
              sum(acked) AS acked, sum(expired) AS expired, sum(dead) AS dead,
              sum(deleted) AS deleted, sum(retried) AS retried,
              sum(redelivered) AS redelivered_messages FROM (
                SELECT day(published) AS date, queue, urn, 1 AS published, size AS bytes,
                  0 AS acked, 0 AS expired, 0 AS dead, 0 AS deleted, 0 AS retried,
                  0 AS redelivered FROM history
                UNION ALL SELECT day(settled), queue, urn, 0, 0, (outcome = 'acked')::INT,
                  (outcome = 'expired')::INT, (outcome = 'dead')::INT, (outcome = 'deleted')::INT,
                  ({RETRIED})::INT, (deliveries > 1)::INT FROM history h)
              WHERE urn IS NOT NULL GROUP BY ALL""",
        ),
    ],
)
def test_tables_of_days_equal_sql(
    tables: dict[str, pa.Table], database: duckdb.DuckDBPyConnection, table: str, sql: str
) -> None:
    database.execute(
        "CREATE OR REPLACE MACRO day(event_at) AS "
        f"DATE '1970-01-01' + (event_at // {DAY_MS})::INTEGER"
    )
    relation = database.sql(sql)
    names = relation.columns
    expected = Counter(tuple(row) for row in relation.fetchall())
    found = Counter(tuple(row[name] for name in names) for row in tables[table].to_pylist())
    assert found == expected
    assert len(expected) > 5


def test_paths_equal_a_plain_count(tables: dict[str, pa.Table], rows: list[Row]) -> None:
    traces: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        if row["trace_id"] is not None:
            traces[row["published_at"] // DAY_MS, row["trace_id"]].append(row)
    expected: dict[Any, list[int]] = defaultdict(list)
    for (day, _), steps in traces.items():
        steps.sort(key=lambda row: int(row["seq"]))
        path = tuple(f"{row['queue']}:{row['urn']}" for row in steps[:50])
        begin, end = min(r["published_at"] for r in steps), max(r["settled_at"] for r in steps)
        expected[day, path].append(end - begin)
    table = tables["paths"]
    days = table["date"].cast(pa.int32()).to_pylist()
    found = {(d, tuple(r["path"])): r for d, r in zip(days, table.to_pylist(), strict=True)}
    assert found.keys() == expected.keys()
    for key, durations in expected.items():
        item = found[key]
        assert item["traces"] == len(durations)
        ordered = sorted(durations)
        for name, share in (("p50_ms", 0.5), ("p95_ms", 0.95)):
            exact = ordered[math.ceil(share * len(ordered)) - 1]
            assert item[name] == pytest.approx(exact, rel=0.01)
        assert path_item(item["path"], [dict(item["buckets"])])["p50_ms"] == item["p50_ms"]


def test_long_trace_keeps_its_first_steps() -> None:
    rows = [history_row(n, queue=f"q{n:02}", urn="u", trace_id="t") for n in range(1, 61)]
    [row] = computed(narrowed(rows), [FIRST_DAY])["paths"].to_pylist()
    assert row["path"] == [f"q{n:02}:u" for n in range(1, 51)]
    duration = rows[-1]["settled_at"] - rows[0]["published_at"]
    assert row["p50_ms"] == pytest.approx(duration, rel=0.01)


def test_date_computed_alone_equals_the_same_of_all(
    tables: dict[str, pa.Table], history: pa.Table
) -> None:
    """A date needs rows of other dates: published before, settled after, retried later."""
    alone = computed(history, [FIRST_DAY + 1])
    for name, table in tables.items():
        expected = [r for r in table.to_pylist() if str(r["date"]) == "2026-03-02"]
        assert sorted(map(repr, alone[name].to_pylist())) == sorted(map(repr, expected)), name
        assert expected


def test_names_with_any_characters_stay_apart() -> None:
    """A path is one text while traces are counted."""
    queues = ('a","b', "a", "b", "a:b", "\\", "\x00", "é\n")
    rows = [
        history_row(n, queue=queue, urn=None, trace_id=f"t{n // 2}", body=None)
        for n, queue in enumerate(queues, 1)
    ]
    found = computed(narrowed(rows))
    steps = [step for path in found["paths"]["path"].to_pylist() for step in path]
    assert sorted(steps) == sorted(f"{queue}:" for queue in queues)
    assert sorted(set(found["hours"]["queue"].to_pylist())) == sorted(queues)


def test_queue_in_which_nothing_was_dispatched_is_counted() -> None:
    """No duration was measured in the share of its keys."""
    none = dict.fromkeys(("first_dispatched_at", "last_dispatched_at"))
    rows = [history_row(n, queue=f"q{n}") for n in range(1, 10)]
    rows += [
        history_row(n, queue=f"q{n}", outcome="expired", deliveries=0, **none)
        for n in range(10, 20)
    ]
    hours = computed(narrowed(rows))["hours"].to_pylist()
    assert sum(hour["expired_never"] for hour in hours) == 10
    assert {hour["wait_max"] is None for hour in hours} == {True, False}


def test_rows_of_version_0_1_waited_since_they_were_published(rows: list[Row]) -> None:
    history = narrowed(rows)
    place = history.column_names.index("ready")
    older = history.set_column(place, "ready", pa.nulls(len(rows), pa.int64()))
    waits = [
        row["first_dispatched_at"] - row["published_at"]
        for row in rows
        if row["first_dispatched_at"] is not None
    ]
    maxima = computed(older)["hours"]["wait_max"].to_pylist()
    assert max(value or 0 for value in maxima) == max(waits)


def test_nothing_gives_no_tables() -> None:
    assert computed(narrowed([])) == {}
    assert computed(narrowed([history_row(1)]), [FIRST_DAY + 5]) == {}


def events_of(events: Iterable[tuple[int, int, bool, int, int]]) -> pa.Table:
    names = ("seq", "attempts", "is_retry", "since", "until")
    columns = dict(zip(names, zip(*events, strict=True), strict=True))
    count = len(columns["seq"])
    return pa.table({"meta_id": ["m"] * count, "queue": ["q"] * count,
                     "urn": [str(seq) for seq in columns["seq"]], **columns})  # fmt: skip


@pytest.mark.parametrize("seed", range(200))
def test_retries_equal_the_definition_with_any_timestamps(seed: int) -> None:
    dice = random.Random(seed)
    retries, rows = [(99, 0, True, 0, 0)], [(98, 9, False, 0, 0)]
    for seq in range(dice.randint(0, 40)):
        published, attempts = dice.randint(0, 30), dice.randint(0, 5)
        if attempts:
            retries.append((seq, attempts, True, published, published))
        if dice.random() < 0.8:
            first = dice.randint(0, 30)
            rows.append((seq, attempts, False, first, first + dice.randint(-2, 12)))
    events = [*retries, *rows]
    dice.shuffle(events)
    expected = {
        str(seq)
        for seq, attempts, _, since, until in rows
        if any(r[0] > seq and r[1] > attempts and since <= r[3] <= until for r in retries)
    }
    found = find_retried(events_of(events)).to_pylist()
    assert {item["urn"] for item in found} == expected
    assert all(item["retried"] == 1 for item in found)


def test_message_with_many_retries_needs_no_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rows whose order of arrival is not that of time are compared one by one."""
    attempts = range(2_000)
    events = [(n, n, False, 10 * n + 1, 100_000) for n in attempts]
    events += [(n, n, True, 10 * n, 10 * n) for n in attempts if n]
    compared = Mock(wraps=np.any)
    monkeypatch.setattr(np, "any", compared)
    found = find_retried(events_of(events))
    assert sum(found["retried"].to_pylist()) == len(attempts) - 1
    compared.assert_not_called()
