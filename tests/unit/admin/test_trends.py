"""From points to buckets: gaps, rates, peaks, percentiles, forecasts, sparklines."""

from collections.abc import Sequence

import pytest

from phpmq_lite.admin.trends import (
    PERIODS,
    SPARK_SAMPLES,
    SPARK_STEP_S,
    Trend,
    TrendBucket,
    forecast,
    growth,
    make_spark,
    make_trend,
    polyline,
    slope,
)
from phpmq_lite.histogram import BUCKETS, add, add_packed, bucket, pack, unpack
from phpmq_lite.storage.read.activity import Point, UptimeSpan
from tests.unit.admin.cases import queue_status

HOUR = PERIODS["1h"]
NOW_S = 1_700_006_400  # on the hour


def beats(*places: int, span_s: int = 10, has_rest: bool = False) -> list[UptimeSpan]:
    """Return spans in which the broker ran, each starting that many seconds before now."""
    return [UptimeSpan(NOW_S - at, span_s, has_rest) for at in places]


def measured(**counts: int) -> bytes:
    """Pack a histogram: ms5=3 counts three values of five milliseconds."""
    made = [0] * BUCKETS
    for name, count in counts.items():
        made[bucket(int(name.removeprefix("ms")))] += count
    return pack(made)


def last(made: Trend, count: int = 3) -> list[float | None]:
    """Return published/s of the newest buckets."""
    return [None if one is None else one.published for one in made.buckets[-count:]]


def depths(buckets: Sequence[TrendBucket | None]) -> list[tuple[int, int]]:
    return [(bucket.ready, bucket.held) for bucket in buckets if bucket is not None]


@pytest.mark.parametrize("period", PERIODS.values(), ids=PERIODS.keys())
def test_number_of_buckets_is_bounded(period: object) -> None:
    made = make_trend([], [], period, NOW_S)  # type: ignore[arg-type]
    assert len(made.buckets) <= 240
    assert not any(made.buckets)


def test_rate_is_what_happened_by_the_time_that_was_observed() -> None:
    points = [Point(NOW_S - 40, 10, published=30), Point(NOW_S - 10, 10, published=50)]
    made = make_trend(points, beats(40, 30, 10), HOUR, NOW_S - 1)
    assert last(made, 2) == [1.5, 5.0]


def test_time_without_the_broker_is_a_gap_and_idle_time_is_zero() -> None:
    made = make_trend([Point(NOW_S - 60, 10, published=10)], beats(60, 50, 20, 10), HOUR, NOW_S - 1)
    assert last(made) == [0.5, None, 0.0]


def test_queue_that_may_be_counted_with_others_is_unknown_not_idle() -> None:
    made = make_trend([Point(NOW_S - 20, 10)], beats(40, 20, has_rest=True), HOUR, NOW_S - 1)
    assert last(made, 2) == [None, 0.0]


def test_depth_keeps_its_peak() -> None:
    points = [Point(NOW_S - 20, 10, ready=900, held=1), Point(NOW_S - 10, 10, ready=3, held=7)]
    trend = make_trend(points, beats(20, 10), HOUR, NOW_S - 1)
    assert depths(trend.buckets) == [(900, 7)]
    assert depths(trend.drawn) == [(3, 7)]  # a line ends with the current depth


def test_line_ends_at_zero_once_the_queue_is_empty() -> None:
    points = [Point(NOW_S - 20, 10, ready=900)]
    assert depths(make_trend(points, beats(20, 10), HOUR, NOW_S - 1).drawn) == [(0, 0)]
    rest = beats(20, 10, has_rest=True)  # the queue may be counted with others
    assert depths(make_trend(points, rest, HOUR, NOW_S - 1).drawn) == [(900, 0)]


def test_minute_is_spread_over_the_steps_that_it_covers() -> None:
    made = make_trend([Point(NOW_S - 60, 60, published=60)], beats(60, span_s=60), HOUR, NOW_S - 1)
    assert last(made, 4) == [None, 1.0, 1.0, 1.0]


def test_point_that_began_before_the_chart_counts_with_its_share() -> None:
    first = NOW_S - 3_600
    ran = [UptimeSpan(first - 30, 60, False)]
    made = make_trend([Point(first - 30, 60, published=60)], ran, HOUR, NOW_S - 1)
    assert [one.published for one in made.buckets if one is not None] == [1.0, 1.0]


def test_percentiles_of_a_bucket_include_all_its_points() -> None:
    points = [
        Point(NOW_S - 20, 10, wait=measured(ms2=90)),
        Point(NOW_S - 10, 10, wait=measured(ms2=4, ms1000=6), hold=measured(ms7=1)),
    ]
    newest = make_trend(points, beats(20, 10), HOUR, NOW_S - 1).buckets[-1]
    assert newest is not None
    assert (newest.wait_p50_ms, newest.hold_p50_ms, newest.hold_p95_ms) == (2, 7, 7)
    assert newest.wait_p95_ms is not None
    assert 1_000 <= newest.wait_p95_ms <= 1_125


def test_percentiles_are_none_without_dispatches() -> None:
    points = [Point(NOW_S - 10, 10, ready=4, oldest_age_ms=90_000)]
    newest = make_trend(points, beats(10), HOUR, NOW_S - 1).buckets[-1]
    assert newest is not None
    assert (newest.wait_p50_ms, newest.oldest_age_ms) == (None, 90_000)


def falling(per_s: float, ready: int = 3_000) -> float | None:
    places = range(300, 0, -10)
    points = [Point(NOW_S - at, 10, ready=round(ready - per_s * (300 - at))) for at in places]
    return slope(points, beats(*places), NOW_S)


def test_slope_is_that_of_the_last_minutes() -> None:
    assert falling(4.0) == pytest.approx(-4.0)
    assert falling(-2.5) == pytest.approx(2.5)


def test_slope_needs_three_points() -> None:
    assert slope([], beats(20, 10), NOW_S) is None


@pytest.mark.parametrize(
    ("ready", "per_s", "rate", "consumers", "expected"),
    [
        (0, -5.0, -5.0, 1, ""),
        (960, -4.0, -4.0, 2, "Empty in about 4 min"),
        (40, -4.0, -4.0, 2, "Empty in about 10 s"),
        (500_000, -2.0, -2.0, 2, "Empty in about 3 d"),
        (960, 12.4, 12.4, 2, "Grows by 12/s"),
        (960, 12.4, 12.4, 0, "Grows by 12/s, no consumers"),
        (30, 0.05, 0.05, 1, "Grows by 3.0/min"),
        (960, 0.001, 0.001, 1, "Steady"),
        (960, 0.0, 0.0, 0, "Steady, no consumers"),
        (960, None, 5.0, 0, "No consumers"),
        (960, None, 5.0, 1, ""),
        # The rates shown beside the forecast decide; if the last minutes differ, it says nothing.
        (960, -8.0, -4.0, 2, "Empty in about 4 min"),
        (960, -4.0, 0.0, 2, ""),
        (960, -4.0, 3.0, 2, ""),
        (960, 0.0, 30.0, 2, ""),
        (960, 4.0, 0.0, 0, "No consumers"),
    ],
)
def test_backlog_forecast(
    ready: int, per_s: float | None, rate: float, consumers: int, expected: str
) -> None:
    queue = queue_status(
        ready=ready, consumers=consumers, published_per_s=50.0 + rate, acked_per_s=50.0
    )
    assert forecast(queue, per_s) == expected


@pytest.mark.parametrize(
    ("per_s", "rate", "expected"),
    [
        (-4.0, -4.0, "Delivery paused"),
        (0.0, 0.0, "Steady, delivery paused"),
        (3.0, 3.0, "Grows by 3.0/s, delivery paused"),
        (None, 3.0, "Delivery paused"),
    ],
)
def test_paused_queue_is_not_said_to_empty(per_s: float | None, rate: float, expected: str) -> None:
    queue = queue_status(
        ready=960, consumers=2, published_per_s=50 + rate, acked_per_s=50, delivery_paused=True
    )
    assert forecast(queue, per_s) == expected


@pytest.mark.parametrize(("per_s", "expected"), [(4.0, 1_200), (-4.0, 0), (0.0, 0)])
def test_growth_is_that_of_the_last_minutes(per_s: float, expected: int) -> None:
    places = range(310, 0, -10)
    points = [Point(NOW_S - at, 10, ready=round(3_000 + per_s * (310 - at))) for at in places]
    assert growth(points, beats(*places), NOW_S) == expected


def test_growth_counts_a_queue_that_was_empty() -> None:
    points = [Point(NOW_S - at, 10, ready=700 - at) for at in range(280, 0, -10)]
    assert growth(points, beats(*range(320, 0, -10)), NOW_S) == 690


def test_burst_is_no_growth() -> None:
    points = [Point(NOW_S - at, 10, ready=700) for at in (40, 30, 20, 10)]
    assert growth(points, beats(*range(320, 0, -10)), NOW_S) == 0


def test_growth_is_unknown_shortly_after_a_start() -> None:
    assert growth([Point(NOW_S - 10, 10, ready=700)], beats(20, 10), NOW_S) == 0


def test_spark_begins_after_the_last_gap() -> None:
    points = [Point(NOW_S - 600, 10, published=9), Point(NOW_S - 30, 30, published=60)]
    seen = [*beats(600), *beats(60, 30, span_s=30)]
    assert make_spark(points, seen, "published", NOW_S - 1, is_rate=True) == [0.0, 2.0]


def test_spark_of_a_depth_shows_the_peaks() -> None:
    points = [Point(NOW_S - 30, 10, ready=8), Point(NOW_S - 10, 10, ready=2)]
    assert make_spark(points, beats(30, 20, 10), "ready", NOW_S - 1, is_rate=False) == [8]


def test_spark_has_a_value_for_each_half_minute_of_an_hour() -> None:
    ran = [UptimeSpan(NOW_S - 4_000, 4_000, False)]
    assert len(make_spark([], ran, "ready", NOW_S - 1, is_rate=False)) == SPARK_SAMPLES
    assert SPARK_SAMPLES * SPARK_STEP_S == 3_600


def test_line_ends_at_the_right_edge() -> None:
    points = polyline([0, 5, 10], 119, 28).split()
    assert [point.split(",")[0] for point in points] == ["117.0", "118.0", "119.0"]
    assert points[0].split(",")[1] == "26.5"


def test_line_of_nothing_is_not_drawn() -> None:
    assert polyline([5]) == polyline([0, 0, 0]) == ""


@pytest.mark.parametrize("count", [1, 127, 128, 70_000])
def test_packed_histogram_adds_up_as_an_unpacked_one(count: int) -> None:
    one, other = unpack(measured(ms5=3, ms900=count)), measured(ms5=count, ms86400000=count)
    expected = add(one, unpack(other))
    add_packed(one, other)
    assert one == expected
