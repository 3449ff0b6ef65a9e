"""Random filters on the history: what the reader pushes and Spark keeps is exact together."""

import json
import random
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import datasource as ds

from phpmq_lite.spark.filters import PushedFilters
from phpmq_lite.storage.arrow import HistoryRanges, RowFilters, RowSelection
from phpmq_lite.storage.statements import load
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
    index_runs = load("history_index", "sqlite")["index_runs"].replace(":count", "108")
    indexed = (  # the changed rows, in runs of several messages
        'UPDATE history SET queue_id = 1 + ("offset" / 17) % 3, outcome = 2 + ("offset" / 9) % 4',
        "DELETE FROM trace_place",
        "INSERT INTO trace_place SELECT seq >> 14, trace_id, seq FROM history"
        ' WHERE trace_id IS NOT NULL AND "offset" <= 108',
        "DELETE FROM history_run",
        "UPDATE counter SET value = 0 WHERE name = 'placed_upto'",
        index_runs,
        "UPDATE counter SET value = 108 WHERE name = 'placed_upto'",
    )
    execute_in_process(database, *STEPS, *indexed)
    with HistoryRanges(database, driver="python") as opened:
        yield opened


@pytest.fixture(scope="module")
def rows(ranges: HistoryRanges) -> list[dict[str, Any]]:
    found = ranges.history(RowSelection(0, ROWS))
    listed: list[dict[str, Any]] = pa.Table.from_batches(list(found), found.schema).to_pylist()
    assert len(listed) == ROWS
    return listed


class Dice(random.Random):
    """Makes filters."""

    def moment(self) -> datetime:
        ms = self.choice(
            [
                self.randint(-50, 150) * 1_000 + NOW_MS,  # as the rows are settled
                self.randint(-3, ROWS + 3) + NOW_MS,  # as they are published
                self.randint(8_990, 9_100) * 1_000 + NOW_MS,
                self.randint(-5, 5),
            ]
        )
        zone = timezone(timedelta(hours=self.choice([0, 2, -9])))
        micros = self.choice([0, 0, 0, 1, 999])
        return (EPOCH + timedelta(milliseconds=ms, microseconds=micros)).astimezone(zone)

    def value(self, name: str) -> Any:
        match name:
            case "settled_at" | "published_at":
                return self.moment()
            case "queue":
                return self.choice([*QUEUES, "nowhere", ""])
            case "outcome":
                return self.choice(["acked", "expired", "dead", "deleted", "lost", "ACKED"])
            case "urn":
                return self.choice([*(f"urn:orders:{n}" for n in range(5)), "", "a\0b", "ü" * 500])
            case "trace_id":
                return self.choice([f"{self.randint(8, 130):08x}-0000", "shared", "x", "00000"])
            case "reason":
                return "client"
        return self.randint(-3, ROWS + 5)

    def condition(self) -> ds.Filter:
        name = self.choice(COLUMNS)
        kind = self.randrange(12)
        made: ds.Filter
        if kind < 7:
            made = self.choice(BINARY)((name,), self.value(name))
        elif kind == 7:
            made = ds.EqualNullSafe((name,), None)
        elif kind == 8:
            made = self.choice([ds.IsNull, ds.IsNotNull])((name,))
        elif kind == 9:
            made = ds.StringStartsWith((name,), "urn:orders:1")
        else:
            values = [self.value(name) for _ in range(self.randrange(5))]
            made = ds.In((name,), (*values, *([None] * self.randrange(2))))
        return ds.Not(made) if self.randrange(6) == 0 else made


COLUMNS: Final = (
    "offset", "history_offset", "settled_at", "settled_at", "published_at", "queue", "outcome",
    "urn", "trace_id", "seq", "reason",
)  # fmt: skip
BINARY: Final[tuple[Any, ...]] = (
    ds.EqualTo, ds.EqualNullSafe, ds.GreaterThan, ds.GreaterThanOrEqual, ds.LessThan,
    ds.LessThanOrEqual,
)  # fmt: skip


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


@pytest.mark.parametrize("seed", range(20))
def test_broker_and_spark_together_return_what_sql_says(
    ranges: HistoryRanges, rows: list[dict[str, Any]], seed: int
) -> None:
    dice = Dice(seed)
    by_offset = {row["offset"]: row for row in rows}
    for _ in range(100):
        filters = [dice.condition() for _ in range(dice.randint(1, 3))]
        pushed = PushedFilters()
        kept = [condition for condition in filters if not pushed.push(condition)]
        taken = [each for each in filters if not any(each is other for other in kept)]
        sent = read_pushed(ranges, pushed)
        expected = [n for n, row in by_offset.items() if all(evaluate(e, row) for e in taken)]
        assert sent == expected, taken
        returned = [n for n in sent if all(evaluate(each, by_offset[n]) for each in kept)]
        assert returned == [
            n for n, row in by_offset.items() if all(evaluate(each, row) for each in filters)
        ], filters
