"""Roll-ups: slots, minutes, quarters, and the queues that have their own points."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import pytest

from phpmq_lite.broker.queue import Queue
from phpmq_lite.histogram import BUCKETS, bucket, unpack
from phpmq_lite.losses import EXPIRED_NEVER, count_loss, unpack_losses
from phpmq_lite.model import QueueRow
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.server.rollups import HOUR_S, QUEUES_MAX, Rollups
from phpmq_lite.storage.read.activity import ALL, DEAD_LETTERS, MINUTE_S, OTHERS, QUARTER_S, Point
from phpmq_lite.writes import PutRollup, TrimRollups, Write

START_S = 1_700_000_100  # the start of a quarter of an hour


def make_queue(name: str = "orders", queue_id: int = 1, live: int = 0) -> Queue:
    return Queue(QueueRow(queue_id, name, 0, live_count=live, live_bytes=live * 10),
                 QueueSettings())  # fmt: skip


def publish(queue: Queue, count: int) -> None:
    queue.counters.published += count
    queue.row.live_count += count


def settle(queue: Queue, count: int, wait_ms: int = 5, hold_ms: int = 3) -> None:
    queue.counters.dispatched += count
    queue.counters.acked += count
    queue.row.live_count -= count
    queue.wait_histogram = queue.wait_histogram or [0] * BUCKETS
    queue.hold_histogram = queue.hold_histogram or [0] * BUCKETS
    queue.wait_histogram[bucket(wait_ms)] += count
    queue.hold_histogram[bucket(hold_ms)] += count


class Rig:
    """Roll-ups driven slot by slot, and the rows that they write."""

    def __init__(self, *queues: Queue, start_s: int = START_S) -> None:
        self.queues = list(queues)
        self.now_s = start_s
        self.rollups = Rollups()
        self.rollups.begin(start_s)
        self.writes: list[Write] = []

    def slot(self, count: int = 1) -> None:
        for _ in range(count):
            self.stop(after_s=10, is_last=False)

    def stop(self, after_s: int, *, is_last: bool = True) -> None:
        self.now_s += after_s
        self._keep(self.rollups.collect(self.queues))
        self._keep(self.rollups.close(self.now_s, is_last=is_last))

    def _keep(self, steps: Iterable[Sequence[Write]]) -> None:
        for writes in steps:
            self.writes += writes

    def rows(self, span_s: int, queue_id: int) -> list[Point]:
        kept = {}
        for write in self.writes:
            if isinstance(write, PutRollup) and (write.span_s, write.queue_id) == (
                span_s,
                queue_id,
            ):
                kept[write.at_s] = Point(*cast(Any, write[:-1]))
        return [kept[at_s] for at_s in sorted(kept)]


@pytest.fixture
def orders() -> Queue:
    return make_queue()


@pytest.fixture
def rig(orders: Queue) -> Rig:
    return Rig(orders)


def test_slot_has_its_counts_and_its_final_state(orders: Queue, rig: Rig) -> None:
    publish(orders, 5)
    rig.slot()
    settle(orders, 2)
    rig.slot()
    points = rig.rollups.points(1)
    assert [(p.at_s - START_S, p.published, p.acked, p.ready) for p in points] == [
        (0, 5, 0, 5),
        (10, 0, 2, 3),
    ]


def test_idle_empty_queue_has_no_points_but_uptime_is_recorded(rig: Rig) -> None:
    rig.slot(3)
    assert rig.rollups.points(1) == []
    assert [beat.at_s - START_S for beat in rig.rollups.uptime()] == [0, 10, 20]


def test_queue_that_has_become_empty_has_one_more_point() -> None:
    orders = make_queue(live=2)
    rig = Rig(orders)
    rig.slot()
    orders.row.live_count = 0  # moved to another queue: no counter changes
    rig.slot(2)
    assert [p.ready for p in rig.rollups.points(1)] == [2, 0]


def test_scheduled_messages_are_not_ready() -> None:
    orders = make_queue(live=5)
    orders.row.scheduled_count = 3
    rig = Rig(orders)
    rig.slot()
    assert [p.ready for p in rig.rollups.points(1)] == [2]
    orders.row.scheduled_count = 5
    rig.slot()
    assert (rig.rollups.points(1)[-1].ready, rig.rollups.ready_queues) == (0, [])


def test_minute_is_the_sum_of_its_slots(orders: Queue, rig: Rig) -> None:
    for _ in range(6):
        publish(orders, 3)
        settle(orders, 2, wait_ms=40)
        rig.slot()
    [row] = rig.rows(MINUTE_S, 1)
    assert (row.at_s, row.span_s, row.published, row.acked, row.ready) == (START_S, 60, 18, 12, 6)
    assert row.wait is not None
    assert unpack(row.wait)[bucket(40)] == 12
    assert rig.rows(MINUTE_S, ALL) == [row]


def test_quarter_is_the_sum_of_its_minutes(orders: Queue, rig: Rig) -> None:
    for _ in range(90):
        publish(orders, 1)
        settle(orders, 1)
        rig.slot()
    [row] = rig.rows(QUARTER_S, 1)
    assert (row.at_s, row.published, row.acked, row.ready) == (START_S, 90, 90, 0)
    assert row.hold is not None
    assert sum(unpack(row.hold)) == 90


def test_dead_letters_are_counted_separately() -> None:
    orders, records = make_queue(live=4), make_queue("orders.dlq", 2, live=3)
    rig = Rig(orders, records)
    rig.slot()
    assert [p.ready for p in rig.rollups.points(ALL)] == [4]
    assert [p.ready for p in rig.rollups.points(DEAD_LETTERS)] == [3]
    assert [p.live_bytes for p in rig.rollups.points(ALL)] == [70]


def test_age_is_that_of_the_oldest_ready_message() -> None:
    orders, mail, records = (
        make_queue(live=1),
        make_queue("mail", 2, live=1),
        make_queue("mail.dlq", 3, live=1),
    )
    rig = Rig(orders, mail, records)
    at_ms = (START_S + 10) * 1_000
    rig.rollups.oldest_ready_at = {1: at_ms - 5_000, 2: at_ms - 9_000, 3: at_ms - 90_000}
    rig.slot()
    ages = [rig.rollups.points(key)[0].oldest_age_ms for key in (1, 2, ALL, DEAD_LETTERS)]
    assert ages == [5_000, 9_000, 9_000, 90_000]


def test_only_the_busiest_queues_have_their_own_points() -> None:
    queues = [make_queue(f"q{at}", at) for at in range(1, QUEUES_MAX + 11)]
    rig = Rig(*queues)
    for _ in range(7):  # busier queues get their points after the first minute
        for queue in queues:
            publish(queue, 1 if queue.queue_id <= QUEUES_MAX else 50)
        rig.slot()
    own = [at for at in range(1, QUEUES_MAX + 11) if rig.rollups.points(at)]
    assert sum(p.published for p in rig.rollups.points(OTHERS)[:6]) == 6 * 10 * 50
    assert rig.rollups.points(QUEUES_MAX + 1)[0].at_s == START_S + 60
    assert len(own) == QUEUES_MAX + 10  # the ten that were displaced keep their earlier points
    assert rig.rollups.points(OTHERS)[-1].published == 10
    assert rig.rollups.uptime()[0].has_rest
    whole = sum(p.published for p in rig.rollups.points(ALL))
    assert whole == sum(queue.counters.published for queue in queues)


def test_points_are_kept_for_an_hour() -> None:
    orders = make_queue(live=1)
    rig = Rig(orders)
    rig.slot(400)
    points = rig.rollups.points(1)
    assert len(points) == 360
    assert points[0].at_s == rig.now_s - HOUR_S


def test_old_rows_are_removed_each_minute(rig: Rig) -> None:
    rig.slot(6)
    removed = [write for write in rig.writes if isinstance(write, TrimRollups)]
    assert [(write.span_s, rig.now_s - write.before_s) for write in removed] == [
        (60, 90_000),
        (900, 2_678_400),
    ]


def test_histogram_is_counted_once(orders: Queue, rig: Rig) -> None:
    settle(orders, 3)
    rig.slot()
    orders.counters.published += 1
    rig.slot()
    first, second = rig.rollups.points(1)[:2]
    assert first.wait is not None
    assert second.wait is None


def test_late_sample_covers_the_elapsed_time_up_to_a_minute() -> None:
    orders = make_queue(live=1)
    rig = Rig(orders)
    rig.now_s += 25
    rig.slot()
    rig.now_s += 600
    rig.slot()
    assert [p.span_s for p in rig.rollups.points(1)] == [30, 60]


@pytest.mark.parametrize("count", [2, 9, 12])
def test_recreated_queue_starts_at_zero(orders: Queue, rig: Rig, count: int) -> None:
    publish(orders, 9)
    settle(orders, 9)
    rig.slot()
    other = make_queue("mail", 1)
    publish(other, count)
    settle(other, count)
    rig.queues[:] = [other]
    rig.slot()
    assert [p.published for p in rig.rollups.points(1)] == [9, count]
    assert [sum(unpack(p.wait or b"")) for p in rig.rollups.points(1)] == [9, count]
    assert all(min(p[2:]) >= 0 for p in ((*q[:14],) for q in rig.rollups.points(1)))


def test_removed_queue_is_forgotten(orders: Queue, rig: Rig) -> None:
    publish(orders, 1)
    rig.slot()
    rig.rollups.forget([])
    rig.slot()
    assert [p.published for p in rig.rollups.points(1)] == [1, 1]  # counted from zero again


def test_start_continues_an_interrupted_minute_and_quarter() -> None:
    orders = make_queue()
    first = Rig(orders)
    for _ in range(8):
        publish(orders, 1)
        first.slot()
    publish(orders, 1)
    first.stop(after_s=5)
    again = make_queue(live=9)
    second = Rig(again, start_s=first.now_s + 3)
    rows = [(key, row) for at in (0, 60) for key in (1, ALL)
            for row in first.rows(MINUTE_S, key) if row.at_s == START_S + at]  # fmt: skip
    list(second.rollups.load(rows))
    publish(again, 4)
    while second.now_s < START_S + 900:
        second.now_s = second.now_s // 10 * 10
        second.slot()
    whole = {row.at_s - START_S: row.published for row in second.rows(MINUTE_S, 1)}
    assert whole[60] == 3 + 4
    assert [row.published for row in second.rows(QUARTER_S, 1)] == [9 + 4]
    assert sum(p.published for p in second.rollups.points(1)) == 9 + 4


def test_start_completes_the_quarter_of_a_crash() -> None:
    rig = Rig(make_queue(), start_s=START_S + 3_000)
    rows = [(1, Point(START_S + at * 60, 60, published=2)) for at in range(14)]
    rig._keep(rig.rollups.load(rows))
    assert [(row.at_s, row.published) for row in rig.rows(QUARTER_S, 1)] == [(START_S, 28)]


def test_refusals_of_the_last_hour_are_separate() -> None:
    rollups = Rollups()
    rollups.record_refused(0, {"paused": 5})
    assert rollups.recently_refused({"paused": 7, "too large": 1}) == {"paused": 2, "too large": 1}
    rollups.record_refused(3_700, {"paused": 7})
    assert rollups.recently_refused({"paused": 7}) == {}


# -- quarter hours that are not stored yet, for Insights


def sums(rig: Rig, queue_id: int) -> dict[int, int]:
    """Return what was published in each quarter hour that is not read from the database."""
    found: dict[int, int] = {}
    for at_s, part in rig.rollups.quarters(rig.queues):
        if queue_id in part:
            found[at_s - START_S] = found.get(at_s - START_S, 0) + part[queue_id].counts[0]
    return found


def test_quarters_count_what_is_not_collected_and_what_is_not_stored(
    orders: Queue, rig: Rig
) -> None:
    publish(orders, 5)
    assert sums(rig, 1) == {0: 5}
    rig.slot(7)
    publish(orders, 2)
    assert (sums(rig, 1), sums(rig, ALL)) == ({0: 7}, {0: 7})
    rig.slot(83)
    publish(orders, 1)
    assert (sums(rig, 1), sums(rig, ALL)) == ({0: 7, 900: 1}, {0: 7, 900: 1})
    assert rig.rollups.stored_until_s == START_S
    rig.slot(180)  # the first of three is stored by now
    assert rig.rollups.stored_until_s == START_S + 900
    assert sums(rig, 1) == {900: 1, 1800: 0}


def test_quarters_have_every_count_between_the_slices_of_a_sample() -> None:
    queues = [make_queue(f"q{number}", number) for number in range(1, 121)]
    rig = Rig(*queues, start_s=START_S + 880)
    for _ in range(4):  # over the end of the minute and of the quarter hour
        for queue in queues:
            publish(queue, 1)
        rig.now_s += 10
        before = sum(sums(rig, ALL).values())
        for steps in (rig.rollups.collect(queues), rig.rollups.close(rig.now_s)):
            for _writes in steps:
                assert sum(sums(rig, ALL).values()) == before
                total = sum(sum(sums(rig, queue.queue_id).values()) for queue in queues)
                assert total == before


def test_quarter_of_before_a_restart_is_continued(orders: Queue, rig: Rig) -> None:
    publish(orders, 5)
    rig.stop(65)
    rows = [(1, row) for row in rig.rows(MINUTE_S, 1)]
    again = Rig(orders, start_s=START_S + 120)
    orders.counters.published = 0  # those of a new process
    for _ in again.rollups.load(rows):
        pass
    publish(orders, 2)
    assert sums(again, 1) == {0: 7}


def test_losses_are_stored_with_the_row_and_taken_from_the_queue(orders: Queue, rig: Rig) -> None:
    for urn in ("urn:a", "urn:a", None):
        orders.counters.dead += 1
        orders.count_dead_letter("failed", urn)
    rig.slot(6)
    count_loss(orders.losses, EXPIRED_NEVER)
    orders.counters.expired += 1
    rig.slot(84)
    first, *_ = rig.rows(MINUTE_S, 1)
    dead = {("dead", "failed", "urn:a"): 2, ("dead", "failed", None): 1}
    assert unpack_losses(first.losses) == dead
    [quarter] = rig.rows(QUARTER_S, 1)
    assert unpack_losses(quarter.losses) == dead | {("never", None, None): 1}
    assert orders.losses == {}
    assert [row.losses for row in rig.rows(QUARTER_S, ALL)] == [None]  # those of the queues count


def test_losses_of_a_stored_minute_are_continued() -> None:
    losses = '[["dead", "failed", "urn:a", 2]]'
    orders = make_queue()
    rig = Rig(orders, start_s=START_S + 30)
    for _ in rig.rollups.load([(1, Point(START_S, 60, dead=2, losses=losses))]):
        pass
    orders.counters.dead += 1
    orders.count_dead_letter("failed", "urn:a")
    rig.slot(3)
    [row] = rig.rows(MINUTE_S, 1)
    assert (row.dead, unpack_losses(row.losses)) == (3, {("dead", "failed", "urn:a"): 3})


def test_removed_queue_counts_until_its_end(orders: Queue, rig: Rig) -> None:
    publish(orders, 5)
    rig.slot()
    publish(orders, 2)
    rig.queues.clear()
    rig.rollups.forget([])
    rig.slot(89)
    [row], [total] = rig.rows(QUARTER_S, 1), rig.rows(QUARTER_S, ALL)
    assert (row.published, total.published) == (7, 7)


def test_queue_that_was_created_again_counts_both(orders: Queue, rig: Rig) -> None:
    publish(orders, 5)
    rig.slot()
    publish(orders, 2)
    again = make_queue()
    rig.queues[:] = [again]
    publish(again, 4)
    rig.slot(89)
    assert [row.published for row in rig.rows(QUARTER_S, 1)] == [11]
