"""Random filters on the history: what the reader pushes and Spark keeps is exact together."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as ds

from phpmq_lite.spark.filters import PushedFilters
from phpmq_lite.storage.arrow import HistoryRanges, RowFilters, RowSelection
from tests.support.settled_folder import NOW_MS, QUEUES, execute_in_process, settled_folder

ROWS = 120
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STEPS = (  # the clock is set back, far ahead and back again
    "INSERT INTO clock_step VALUES (1, 1, 0, 0), (2, 41, 0, -30000), (3, 81, 0, 9000000),"
    " (4, 91, 0, -20000)",
    'UPDATE history SET settled_at = settled_at - 30000 WHERE "offset" BETWEEN 41 AND 80',
    'UPDATE history SET settled_at = settled_at + 9000000 WHERE "offset" BETWEEN 81 AND 90',
    'UPDATE history SET settled_at = settled_at - 20000 WHERE "offset" > 90',
    "UPDATE history SET trace_id = 'shared' WHERE trace_id IS NOT NULL AND \"offset\" % 7 = 0",
)


@pytest.fixture(scope="module")
def ranges(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HistoryRanges]:
    database = settled_folder(tmp_path_factory.mktemp("filters") / "data", ROWS)
    trace_places = (  # as the index of the changed traces
        "DELETE FROM trace_place",
        "INSERT INTO trace_place SELECT seq >> 14, trace_id, seq FROM history"
        ' WHERE trace_id IS NOT NULL AND "offset" <= 108',
    )
    execute_in_process(database, *STEPS, *trace_places)
    with HistoryRanges(database, driver="python") as opened:
        yield opened


@pytest.fixture(scope="module")
def rows(ranges: HistoryRanges) -> list[dict[str, Any]]:
    found = ranges.history(RowSelection(0, ROWS))
    listed: list[dict[str, Any]] = pa.Table.from_batches(list(found), found.schema).to_pylist()
    assert len(listed) == ROWS
    return listed


def at(ms: int, micros: int, offset_h: int) -> datetime:
    zone = timezone(timedelta(hours=offset_h))
    return (EPOCH + timedelta(milliseconds=ms, microseconds=micros)).astimezone(zone)


offsets = st.integers(-3, ROWS + 5)
times = st.builds(
    at,
    st.integers(NOW_MS - 40_000, NOW_MS + 150_000) | st.integers(-5, 5),
    st.sampled_from([0, 0, 1, 999]),
    st.sampled_from([0, 2, -9]),
)
queues = st.sampled_from([*QUEUES, "nowhere", ""])
outcomes = st.sampled_from(["acked", "expired", "dead", "deleted", "lost", "ACKED"])
urns = st.sampled_from([f"urn:orders:{n}" for n in range(5)] + ["", "a\0b", "ü" * 500])
traces = st.sampled_from([f"{n:08x}-0000" for n in range(10, 14)] + ["shared", "x", "00000"])
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "offset": offsets, "history_offset": offsets, "settled_at": times, "published_at": times,
    "queue": queues, "outcome": outcomes, "urn": urns, "trace_id": traces,
    "seq": offsets, "reason": st.just("client"),
}  # fmt: skip
BINARY = (ds.EqualTo, ds.EqualNullSafe, ds.GreaterThan, ds.GreaterThanOrEqual, ds.LessThan,
          ds.LessThanOrEqual)  # fmt: skip


@st.composite
def conditions(draw: st.DrawFn) -> ds.Filter:
    name = draw(st.sampled_from(sorted(COLUMNS)))
    values = COLUMNS[name]
    made: ds.Filter = draw(
        st.one_of(
            *(st.builds(kind, st.just((name,)), values) for kind in BINARY),
            st.builds(ds.EqualNullSafe, st.just((name,)), st.none() | values),
            st.builds(ds.In, st.just((name,)), st.lists(st.none() | values, max_size=4).map(tuple)),
            st.just(ds.IsNull((name,))),
            st.just(ds.IsNotNull((name,))),
            st.builds(ds.StringStartsWith, st.just((name,)), st.just("urn:orders:1")),
        )
    )
    return ds.Not(made) if draw(st.integers(0, 4)) == 0 else made


def evaluate(condition: ds.Filter, row: dict[str, Any]) -> bool | None:
    """Return what SQL says, with None for unknown."""
    if isinstance(condition, ds.Not):
        inner = evaluate(condition.child, row)
        return None if inner is None else not inner
    value = row[condition.attribute[0]]  # type: ignore[attr-defined]
    match condition:
        case ds.IsNull():
            return value is None
        case ds.IsNotNull():
            return value is not None
        case ds.EqualNullSafe(_, other):
            return bool(value == other)
    if value is None:
        return None
    match condition:
        case ds.In(_, others):
            return True if value in others else None if None in others else False
        case ds.StringStartsWith(_, other):
            return isinstance(value, str) and value.startswith(other)
        case ds.EqualTo(_, other):
            return bool(value == other)
        case ds.GreaterThan(_, other):
            return bool(value > other)
        case ds.GreaterThanOrEqual(_, other):
            return bool(value >= other)
        case ds.LessThan(_, other):
            return bool(value < other)
        case ds.LessThanOrEqual(_, other):
            return bool(value <= other)
    raise AssertionError(condition)


def read_pushed(ranges: HistoryRanges, pushed: PushedFilters) -> list[int]:
    """Return the offsets that the broker sends, as ``HistoryReader.partitions`` asks for them."""
    filters = pushed.rows
    settled = ranges.settled_range(filters.settled_from, filters.settled_until)
    lo, hi = max(pushed.lo, settled[0]), min(pushed.hi, settled[1])
    names = None if pushed.queues is None else tuple(pushed.queues & set(ranges.queues()))
    if pushed.is_empty or not pushed.outcomes or names == () or lo >= hi:
        return []
    # As for a request over HTTP.
    filters = RowFilters(**json.loads(json.dumps(asdict(filters))))
    found = ranges.history(
        RowSelection(lo, hi, names or (), outcomes=tuple(pushed.outcomes), filters=filters)
    )
    listed = [offset for batch in found for offset in batch.column("offset").to_pylist()]
    assert len(listed) == found.count
    return listed


@given(st.lists(conditions(), min_size=1, max_size=4))
def test_broker_and_spark_together_return_what_sql_says(
    ranges: HistoryRanges, rows: list[dict[str, Any]], filters: list[ds.Filter]
) -> None:
    pushed = PushedFilters()
    kept = [condition for condition in filters if not pushed.push(condition)]
    sent = read_pushed(ranges, pushed)
    by_offset = {row["offset"]: row for row in rows}
    returned = [n for n in sent if all(evaluate(each, by_offset[n]) for each in kept)]
    assert returned == [
        n for n, row in by_offset.items() if all(evaluate(each, row) for each in filters)
    ]
    taken = [each for each in filters if not any(each is other for other in kept)]
    assert sent == [n for n, row in by_offset.items() if all(evaluate(e, row) for e in taken)]
