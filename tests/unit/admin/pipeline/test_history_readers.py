"""Lag of history readers, and the limit that reaches them first."""

from dataclasses import replace
from typing import Any

import pytest

from phpmq_lite.admin.pipeline.history_readers import (
    HistoryExtent,
    ReaderLag,
    ReaderView,
    RowLimits,
    measure_lag,
)
from phpmq_lite.storage.read.consumers import HistoryReaderRow, UnreadRows

NOW = 1_000_000_000
HOUR = 3_600_000
DAY = 24 * HOUR
OTHERS = RowLimits(lo=101, rows=1_000, bytes=1_000_000, rows_max=5_000, bytes_max=1 << 40)
NONE = RowLimits(lo=1, rows=0, bytes=0, rows_max=500, bytes_max=1 << 30)
KEPT = HistoryExtent(hi=1_100, per_ms=1 / 10_000, age_ms=7 * DAY, others=OTHERS, deleted=NONE)


@pytest.mark.parametrize("position", [1_100, 2_000])
def test_reader_that_has_read_all_is_not_reached(position: int) -> None:
    assert measure_lag(KEPT, position, None, NOW) == ReaderLag(0, False, None, None)


@pytest.mark.parametrize(("position", "is_reached"), [(99, True), (100, False), (0, True)])
def test_reader_is_reached_where_its_next_row_has_gone(position: int, is_reached: bool) -> None:
    found = measure_lag(KEPT, position, NOW - DAY, NOW)
    assert (found.behind, found.is_reached) == (1_100 - position, is_reached)
    assert (found.reached_at is None) == is_reached


def test_reader_is_reached_where_a_deleted_message_that_it_has_not_read_has_gone() -> None:
    purged = replace(KEPT, deleted=replace(NONE, lo=601))
    assert measure_lag(purged, 599, NOW - DAY, NOW).is_reached
    assert not measure_lag(purged, 600, NOW - DAY, NOW).is_reached


def test_reader_is_reached_where_no_row_is_left() -> None:
    assert measure_lag(KEPT, 100, None, NOW).is_reached


# Every fifth message is deleted, and their share is nearly full: 20 more of 220 rows fit.
PURGED: dict[str, Any] = {
    "others": replace(OTHERS, rows=800),
    "deleted": RowLimits(lo=1, rows=220, bytes=0, rows_max=240, bytes_max=1 << 30),
}


@pytest.mark.parametrize(
    ("changes", "position", "settled_at", "reached_at", "bound"),
    [
        ({"others": replace(OTHERS, rows_max=1 << 40)}, 100, NOW - DAY, NOW + 6 * DAY, "days"),
        # One row per 10,000 ms; 4,000 more rows fit, and 100 are older than the 201st.
        ({}, 200, NOW, NOW + 4_100 * 10_000, "rows"),
        # by the mean size
        ({"others": replace(OTHERS, bytes_max=1_500_000)}, 100, NOW, NOW + 5_000_000, "bytes"),
        ({}, 100, NOW - 8 * DAY, NOW, "days"),  # overdue
        ({"per_ms": 0.0}, 100, NOW, NOW + 7 * DAY, "days"),  # nothing is settled
        ({"per_ms": 1 / 3_600}, 100, NOW, NOW + 4_000 * 3_600, "rows"),
        (PURGED, 1_000, NOW, NOW + (20 * 5 + 1_000) * 10_000, "rows"),
    ],
)
def test_first_bound_reaches_a_reader(
    changes: dict[str, Any], position: int, settled_at: int, reached_at: int, bound: str
) -> None:
    found = measure_lag(replace(KEPT, **changes), position, settled_at, NOW)
    assert (found.reached_at, found.bound) == (reached_at, bound)


def view(
    offset: int, unread: UnreadRows, silent_ms: int = 0, extent: HistoryExtent = KEPT
) -> ReaderView:
    row = HistoryReaderRow("archive", offset, NOW - silent_ms, "anna")
    return ReaderView.measure(row, extent, unread, NOW)


NOTHING = UnreadRows(0, 0, None, is_cut=False)


@pytest.mark.parametrize("silent_ms", [0, 30 * DAY])
def test_reader_without_unread_rows_is_neither_late_nor_stopped(silent_ms: int) -> None:
    done = view(1_100, NOTHING, silent_ms)
    assert (done.behind, done.behind_bytes, done.lag_s, done.reached_in_s) == (0, 0, None, None)
    assert (done.is_stopped, done.share_left) == (False, 1.0)


@pytest.mark.parametrize(("silent_ms", "is_stopped"), [(26 * HOUR, False), (27 * HOUR, True)])
def test_reader_with_unread_rows_that_is_silent_has_stopped(
    silent_ms: int, is_stopped: bool
) -> None:
    unread = UnreadRows(100, 7_000, NOW - DAY, is_cut=False)
    late = view(1_000, unread, silent_ms, replace(KEPT, per_ms=0.0))
    assert late.is_stopped == is_stopped
    assert (late.behind, late.behind_bytes, late.lag_s) == (100, 7_000, 86_400)
    assert late.reached_in_s == 6 * 86_400
    assert late.share_left == 6 / 7


def test_bytes_of_many_unread_rows_are_estimated_from_the_first() -> None:
    assert view(500, UnreadRows(20, 600, NOW, is_cut=True)).behind_bytes == 600 * 30
    # Only 1,000 rows are left of those that it has not read.
    assert view(0, UnreadRows(20, 600, NOW, is_cut=True)).behind_bytes == 1_000 * 30


@pytest.mark.parametrize("settled_at", [NOW - HOUR, None])
def test_reader_whose_rows_are_gone_has_nothing_left(settled_at: int | None) -> None:
    lost = view(0, UnreadRows(0, 0, settled_at, is_cut=False), HOUR)
    assert (lost.is_reached, lost.reached_in_s, lost.lag_s, lost.share_left) == (True, 0, 3_600, 0)
