"""Insight charts: sums of counts, maxima of times, and the same figures as a table."""

from typing import Any

from phpmq_lite.admin.pipeline.summary import (
    InsightsCharts,
    draw_insights,
    queue_totals,
    read_summary,
    steps_of,
)
from phpmq_lite.insights_document import PipelineSummary
from tests.unit.admin.pipeline.cases import HOUR_MS, MINUTE_MS, as_bytes, step, summary

NOW = 1_790_000_100_000  # a quarter of an hour has just begun
QUARTER_MS = 15 * MINUTE_MS


def made(*rows: dict[str, Any]) -> PipelineSummary:
    return read_summary(as_bytes(summary(NOW) | {"last24h": [], "last30d": list(rows)}))


def drawn(*rows: dict[str, Any], key: str = "24h", queue: str = "") -> InsightsCharts:
    """Draw charts of the period that ends now."""
    return draw_insights(steps_of(made(*rows), queue), key, NOW)


def column(found: Any, title: str) -> list[str]:
    """Return the cells of a column, newest first, without zeros and gaps."""
    at = found.table.head.index(title)
    return [cells[at] for _, _, cells in found.table.rows if cells[at] not in ("0", "–")]


def test_counts_of_a_step_are_sums_over_its_rows() -> None:
    found = drawn(
        {"minute": NOW} | step("a", 10), {"minute": NOW + 14 * MINUTE_MS} | step("a", 20),
        {"minute": NOW} | step("b", 5), {"minute": NOW - MINUTE_MS} | step("a", 1),
    )  # fmt: skip
    assert column(found, "Published") == ["35", "1"]
    assert found.step == "15 min"
    assert len(found.table.rows) == 96


def test_times_of_a_step_are_the_highest_and_silence_is_a_gap() -> None:
    found = drawn(
        {"minute": NOW} | step("a", 1, wait_p95=40.0, hold_max=2_000),
        {"minute": NOW} | step("b", 1, wait_p95=90.0),
    )
    assert column(found, "Wait, 95 %") == ["90 ms"]
    assert column(found, "Hold, longest") == ["2 s"]
    waits = found.charts[2]
    assert [len(line.runs) for line in waits.lines] == [0, 1, 0, 0]


def test_one_queue_is_drawn_alone() -> None:
    found = drawn({"minute": NOW} | step("a", 7), {"minute": NOW} | step("b", 5), queue="b")
    assert column(found, "Published") == ["5"]


def test_month_is_drawn_from_hours_and_ends_with_the_summary() -> None:
    hour = NOW // HOUR_MS * HOUR_MS
    rows = [{"hour": hour - at * HOUR_MS} | step("a", 1) for at in range(720)]
    found = drawn(*rows, key="30d")
    assert column(found, "Published") == ["3"] * 240
    assert found.until == "Sep 21, 14:15 UTC"
    assert "30 d up to" in found.charts[0].about


def test_rows_outside_the_span_are_left_out() -> None:
    day = 96 * QUARTER_MS
    found = drawn(
        {"minute": NOW - day} | step("a", 9), {"minute": NOW + day} | step("a", 9),
        {"minute": 0} | step("a", 9),
    )  # fmt: skip
    assert column(found, "Published") == []


def test_no_rows_draw_empty_charts() -> None:
    found = drawn()
    assert [chart.is_empty for chart in found.charts] == [False, False, True, True]


def test_bytes_that_were_not_counted_are_no_error() -> None:
    [row] = queue_totals(made({"hour": NOW} | step("a", 2) | {"bytes": None}).last30d)
    assert (row.published, row.bytes) == (2, 0)


def test_totals_of_queues_come_busiest_first_with_their_share() -> None:
    steps = steps_of(
        made(
            {"hour": NOW} | step("quiet", 1), {"hour": NOW} | step("busy", 80, wait_p95=3.0),
            {"hour": NOW - HOUR_MS} | step("busy", 40, wait_p95=9.0),
        )
    )  # fmt: skip
    busy, quiet = queue_totals(steps)
    assert (busy.queue, quiet.queue) == ("busy", "quiet")
    assert (busy.published, busy.dead, busy.expired, busy.acked) == (120, 3, 1, 116)
    assert (busy.wait_p95, quiet.wait_p95) == (9.0, None)
    assert busy.acked_share == 116 / 120


def test_queue_that_settled_nothing_has_no_share() -> None:
    [row] = queue_totals(made({"hour": NOW} | step("a", 0)).last30d)
    assert row.acked_share is None
