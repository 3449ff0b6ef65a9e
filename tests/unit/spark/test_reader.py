"""Partitions of a range, and pushed-down filters, without a JVM."""

import pickle

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNotNull, LessThan, Not

from phpmq_lite.spark.columns import HISTORY_COLUMNS
from phpmq_lite.spark.reader import FilteringHistoryReader, HistoryReader, OffsetRange, cut_range
from phpmq_lite.spark.source_options import HistoryOptions, SourceConnection


@pytest.mark.parametrize(
    ("lo", "hi", "asked", "ranges"),
    [
        (0, 10, 3, [(0, 3), (3, 6), (6, 10)]),
        (5, 7, 9, [(5, 6), (6, 7)]),
        (7, 7, 4, []),
        (9, 7, None, []),
        (0, 50_000, None, [(0, 50_000)]),
        (0, 50_001, None, [(0, 25_000), (25_000, 50_001)]),
    ],
)
def test_range_is_divided_without_gaps_or_empty_parts(
    lo: int, hi: int, asked: int | None, ranges: list[tuple[int, int]]
) -> None:
    whole = OffsetRange(lo, hi, "id", "machine", ("q",), ("dead",))
    assert cut_range(whole, asked) == [
        OffsetRange(*ends, "id", "machine", ("q",), ("dead",)) for ends in ranges
    ]


def test_long_range_is_divided_into_at_most_a_million_each() -> None:
    parts = cut_range(OffsetRange(0, 2_500_000, "id", "machine"), None)
    assert len(parts) == 3
    assert max(part.hi - part.lo for part in parts) <= 1_000_000


def test_filters_on_offset_and_queue_are_pushed_down() -> None:
    reader = FilteringHistoryReader(
        HistoryOptions(connection=SourceConnection("http://a")), HISTORY_COLUMNS
    )
    kept = [EqualTo(("size",), 4), Not(EqualTo(("queue",), "a")), GreaterThan(("seq",), 1)]
    taken = [GreaterThan(("offset",), 4), LessThan(("offset",), 9), IsNotNull(("offset",)),
             In(("queue",), ("a", "b")), EqualTo(("queue",), "b")]  # fmt: skip
    assert list(reader.pushFilters([*taken, *kept])) == kept
    pushed = reader._pushed
    assert (pushed.lo, pushed.hi, pushed.queues) == (4, 8, frozenset("b"))


def test_reader_without_the_option_does_not_accept_filters() -> None:
    assert "pushFilters" not in vars(HistoryReader)


def test_readers_and_ranges_can_be_pickled() -> None:
    reader = HistoryReader(
        HistoryOptions(connection=SourceConnection("http://a", "t")), HISTORY_COLUMNS
    )
    part = OffsetRange(1, 2, "id", "machine", ("q",))
    assert pickle.loads(pickle.dumps(reader))._options == reader._options
    assert pickle.loads(pickle.dumps(part)) == part
