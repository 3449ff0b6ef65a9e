"""Lag of history readers, and the limit that reaches them first."""

from dataclasses import replace
from typing import Any

import pytest

from phpmq_lite.admin.pipeline.history_readers import HistoryExtent, ReaderLag, measure_lag

NOW = 1_000_000_000
DAY = 86_400_000
KEPT = HistoryExtent(
    lo=101, hi=1_100, rows=1_000, bytes=1_000_000, oldest_at=NOW - 10_000_000, age_ms=7 * DAY,
    rows_max=5_000, bytes_max=1 << 40,
)  # fmt: skip


@pytest.mark.parametrize("position", [1_100, 2_000])
def test_reader_that_has_read_all_is_not_reached(position: int) -> None:
    assert measure_lag(KEPT, position, None, NOW) == ReaderLag(0, False, None, None)


@pytest.mark.parametrize(("position", "is_reached"), [(99, True), (100, False), (0, True)])
def test_reader_is_reached_where_its_next_row_has_gone(position: int, is_reached: bool) -> None:
    found = measure_lag(KEPT, position, NOW - DAY, NOW)
    assert (found.behind, found.is_reached) == (1_100 - position, is_reached)
    assert (found.reached_at is None) == is_reached


def test_reader_is_reached_where_a_deleted_message_that_it_has_not_read_has_gone() -> None:
    purged = replace(KEPT, lo_deleted=601)
    assert measure_lag(purged, 599, NOW - DAY, NOW).is_reached
    assert not measure_lag(purged, 600, NOW - DAY, NOW).is_reached


def test_reader_is_reached_where_no_row_is_left() -> None:
    assert measure_lag(KEPT, 100, None, NOW).is_reached


@pytest.mark.parametrize(
    ("changes", "position", "settled_at", "reached_at", "bound"),
    [
        ({"rows_max": 1 << 40}, 100, NOW - DAY, NOW + 6 * DAY, "days"),
        # One row per 10,000 ms; 4,000 more rows fit, and 100 are older than the 201st.
        ({}, 200, NOW, NOW + 4_100 * 10_000, "rows"),
        ({"bytes_max": 1_500_000}, 100, NOW, NOW + 500 * 10_000, "bytes"),  # by the mean size
        ({}, 100, NOW - 8 * DAY, NOW, "days"),  # overdue
        ({"oldest_at": None}, 100, NOW, NOW + 7 * DAY, "days"),  # without a rate
        ({"oldest_at": NOW - 1_000}, 100, NOW, NOW + 4_000 * 3_600, "rows"),  # at least an hour
    ],
)
def test_first_bound_reaches_a_reader(
    changes: dict[str, Any], position: int, settled_at: int, reached_at: int, bound: str
) -> None:
    found = measure_lag(replace(KEPT, **changes), position, settled_at, NOW)
    assert (found.reached_at, found.bound) == (reached_at, bound)
