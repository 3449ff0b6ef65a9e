"""Queue labels of metrics: permanent, with counters that never decrease."""

from phpmq_lite.admin.system.metric_labels import OTHER, MetricLabels, QueueSeries, label_name
from phpmq_lite.histogram import BUCKETS
from phpmq_lite.server.status import QueueStatus
from tests.unit.admin.cases import queue_status


def scrape(labels: MetricLabels, *queues: QueueStatus, limit: int = 2) -> dict[str, QueueSeries]:
    labels.begin()
    labels.add(queues, limit)
    labels.end()
    return {group.label: group for group in labels.groups()}


def acked(name: str, queue_id: int, count: int) -> QueueStatus:
    return queue_status(name, queue_id, ready=1, totals={"acked": count})


def test_queues_past_the_limit_share_a_label() -> None:
    found = scrape(MetricLabels(), *(acked(f"q{at}", at, at) for at in range(1, 6)))
    assert {name: group.counts["acked"] for name, group in found.items()} == {
        "q1": 1, "q2": 2, OTHER: 3 + 4 + 5,
    }  # fmt: skip


def test_counter_of_a_queue_that_is_gone_stays() -> None:
    labels = MetricLabels()
    scrape(labels, acked("a", 1, 7), acked("b", 2, 1))
    found = scrape(labels, acked("b", 2, 2))
    assert (found["a"].counts["acked"], found["a"].is_alive) == (7, False)


def test_counter_continues_when_a_queue_comes_back_under_its_name() -> None:
    labels = MetricLabels()
    scrape(labels, acked("a", 1, 7))
    for queue_id in (1, 9):  # a removed queue may return under another number
        scrape(labels)
        found = scrape(labels, acked("a", queue_id, 2))
        assert len(found) == 1
    assert found["a"].counts["acked"] == 7 + 2 + 2


def test_counter_of_a_queue_recreated_between_two_scrapes_does_not_decrease() -> None:
    labels = MetricLabels()
    scrape(labels, acked("a", 1, 7))
    assert scrape(labels, acked("a", 9, 2))["a"].counts["acked"] == 9


def test_shared_counter_does_not_decrease_when_a_queue_is_removed() -> None:
    labels = MetricLabels()
    first = [acked("a", 1, 0), acked("b", 2, 0), acked("c", 3, 10), acked("d", 4, 5)]
    scrape(labels, *first)
    assert scrape(labels, *first[:3])[OTHER].counts["acked"] == 15


def test_queue_under_the_shared_label_never_gets_its_own() -> None:
    """Otherwise ~other would decrease, and the queue's own counter would start with a jump."""
    labels = MetricLabels()
    scrape(labels, acked("a", 1, 1), acked("b", 2, 1), acked("c", 3, 1))
    assert "c" not in scrape(labels, acked("a", 1, 1), acked("c", 3, 1))


def test_new_queue_takes_the_place_of_the_longest_gone() -> None:
    labels = MetricLabels()
    scrape(labels, acked("a", 1, 1), acked("b", 2, 1))
    scrape(labels, acked("b", 2, 1))
    scrape(labels)
    assert set(scrape(labels, acked("c", 3, 1))) == {"b", "c"}


def test_histograms_of_one_label_add_up_and_never_fall() -> None:
    labels = MetricLabels()
    few = [0] * BUCKETS
    few[3] = 2
    one = queue_status("a", 1, wait=few)
    others = [queue_status(f"q{at}", at, wait=few, hold=few) for at in (3, 4)]
    found = scrape(labels, one, queue_status("b", 2), *others)
    assert (found["a"].wait[3], found[OTHER].wait[3], found[OTHER].hold[3]) == (2, 4, 4)
    found = scrape(labels, queue_status("b", 2), *others[1:])
    assert (found["a"].wait[3], found[OTHER].wait[3]) == (2, 4)


def test_name_like_the_shared_label_is_escaped() -> None:
    assert (label_name("~other"), label_name("orders")) == ("~~other", "orders")


def test_oldest_message_of_the_shared_label_is_the_oldest_of_all() -> None:
    labels = MetricLabels()
    scrape(labels, *(acked(f"q{at}", at, 0) for at in range(1, 5)))
    labels.set_oldest({1: 50, 3: 40, 4: 30})
    assert {group.label: group.oldest_ready_at for group in labels.groups()} == {
        "q1": 50, "q2": None, OTHER: 30,
    }  # fmt: skip
