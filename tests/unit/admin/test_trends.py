"""The samples behind the small charts."""

from phpmq_lite.admin.trends import QUEUES_MAX, SAMPLES, Series, Trends, polyline
from tests.unit.admin.cases import broker_status, queue_status


def test_series_forgets_the_oldest() -> None:
    series = Series()
    for value in range(SAMPLES + 3):
        series.add(value)
    assert (len(series.values), series.values[0]) == (SAMPLES, 3.0)


def test_trends_follow_the_first_queues_and_forget_the_gone() -> None:
    trends = Trends()
    queues = [queue_status(f"q{at}", at, published_per_s=at) for at in range(QUEUES_MAX + 5)]
    trends.add(broker_status(*queues))
    trends.add(broker_status(*queues[1:]))
    assert list(trends.queue(0)) == []
    assert list(trends.queue(7)) == [7.0, 7.0]
    assert list(trends.queue(QUEUES_MAX)) == [float(QUEUES_MAX)]  # took the place of the gone one
    assert list(trends.total("published")) == [sum(range(QUEUES_MAX + 5))] * 2


def test_line_ends_at_the_right_edge() -> None:
    points = polyline([0, 5, 10], 119, 28).split()
    assert [point.split(",")[0] for point in points] == ["117.0", "118.0", "119.0"]
    assert points[0].split(",")[1] == "26.5"


def test_line_of_nothing_is_not_drawn() -> None:
    assert polyline([5]) == polyline([0, 0, 0]) == ""
