"""How much is published to a queue in a batch while its consumers are at work."""

import pytest

from phpmq_lite.broker import shares
from phpmq_lite.broker.queue import Connection
from phpmq_lite.broker.shares import LEAST, UNLIMITED, take_share
from phpmq_lite.model import Limits
from tests.unit.broker.rig import Rig, sent

WINDOW = 200
QUIET_BATCHES = 20  # 10 ms each: whoever has acknowledged nothing in them is not at work


@pytest.fixture
def rig() -> Rig:
    return Rig(Limits(window=WINDOW))


def take(rig: Rig, count: int = 1, queue: str = "orders") -> list[int]:
    """Have that many publishers take their parts in one batch."""
    rig.begin()
    parts = [take_share(rig.core, queue) for _ in range(count)]
    rig.finish()
    return parts


def acknowledge(rig: Rig, worker: Connection, count: int = 1) -> None:
    """Settle the oldest ones that it holds."""
    [consumer] = worker.consumers.values()
    held = list(consumer.held.values())[:count]
    assert len(held) == count
    rig.turn(
        *(
            lambda m=message: rig.core.acknowledge(worker, "orders", m.message_id)
            for message in held
        )
    )


def at_work(rig: Rig, ready: int = 0, *, credit: int = 10) -> Connection:
    """Return a consumer that has just acknowledged, with full credit and that many ready ones."""
    worker = rig.consumer(credit=credit)
    batch = rig.publish(*(b"%d" % n for n in range(credit)))
    assert len(sent(batch, worker)) == credit
    take(rig)
    acknowledge(rig, worker)
    assert len(sent(rig.publish(b"in its place"), worker)) == 1
    rig.publish(*(b"%d" % n for n in range(ready)))
    window = rig.queue().window
    assert window is not None
    assert len(window) == ready
    return worker


# -- nobody is at work


def test_unknown_queue_takes_all(rig: Rig) -> None:
    assert take(rig) == [UNLIMITED]


def test_queue_without_consumers_takes_all(rig: Rig) -> None:
    worker = at_work(rig)
    rig.consume(worker, 0)
    assert take(rig, 3) == [UNLIMITED] * 3


def test_consumer_that_has_just_come_counts_as_at_work(rig: Rig) -> None:
    rig.consumer()
    rig.publish(b"a")
    assert take(rig) == [WINDOW]


def test_queue_of_which_nothing_was_acknowledged_takes_all_after_a_while(rig: Rig) -> None:
    """Each publisher, and one that publishes by turns to this queue and another one, often."""
    rig.consumer()
    rig.publish(b"a")
    for _ in range(QUIET_BATCHES):
        take(rig)
    assert take(rig, 3) == [UNLIMITED] * 3


def test_consumer_that_comes_back_counts_as_at_work(rig: Rig) -> None:
    worker = rig.consumer()
    rig.publish(b"a")
    for _ in range(QUIET_BATCHES):
        take(rig)
    rig.consume(worker, 0)
    assert take(rig) == [UNLIMITED]
    rig.consume(worker, 10)
    assert take(rig) == [WINDOW]


def test_a_while_after_the_last_acknowledgement_the_queue_takes_all(rig: Rig) -> None:
    at_work(rig)
    for _ in range(QUIET_BATCHES):
        parts = take(rig, 2)
        rig.advance(0.01)
    assert parts == [UNLIMITED] * 2
    assert take(rig) == [UNLIMITED]


def test_an_acknowledgement_ends_the_quiet(rig: Rig) -> None:
    worker = at_work(rig)
    for _ in range(QUIET_BATCHES):
        take(rig)
        rig.advance(0.01)
    acknowledge(rig, worker)
    assert take(rig) == [WINDOW]


# -- consumers are at work


def test_the_room_of_the_window_is_taken(rig: Rig) -> None:
    at_work(rig, ready=50)
    assert take(rig) == [WINDOW - 50]


@pytest.mark.parametrize("ready", [WINDOW - LEAST, WINDOW - LEAST + 1, WINDOW])
def test_the_least_is_taken_from_a_full_window_too(rig: Rig, ready: int) -> None:
    at_work(rig, ready)
    assert take(rig) == [LEAST]


def test_the_least_is_taken_where_others_wait_on_disk(rig: Rig) -> None:
    worker = at_work(rig, WINDOW)
    rig.publish(b"one more")
    acknowledge(rig, worker, 10)
    window = rig.queue().window
    assert window is not None
    assert not window.reaches_end
    assert len(window) < WINDOW
    assert take(rig) == [LEAST]


def test_the_next_batch_takes_again(rig: Rig) -> None:
    at_work(rig)
    assert take(rig) == [WINDOW]
    assert take(rig) == [WINDOW]


def test_each_queue_has_a_share_of_its_own(rig: Rig) -> None:
    at_work(rig)
    rig.begin()
    assert take_share(rig.core, "orders") == WINDOW
    assert take_share(rig.core, "mails") == UNLIMITED
    assert take_share(rig.core, "orders") == 0
    rig.finish()


# -- several publishers


def test_who_comes_late_for_the_first_time_waits_one_batch(rig: Rig) -> None:
    at_work(rig)
    assert take(rig, 3) == [WINDOW, 0, 0]
    assert take(rig, 3) == [WINDOW // 3] * 3


def test_parts_are_equal_and_together_no_more_than_the_room(rig: Rig) -> None:
    at_work(rig, ready=60)
    take(rig, 4)
    assert take(rig, 4) == [35, 35, 35, 35]


def test_who_has_left_leaves_its_part_to_the_others(rig: Rig) -> None:
    at_work(rig)
    take(rig, 4)
    take(rig, 4)
    take(rig, 2)
    assert take(rig, 2) == [WINDOW // 2] * 2


def test_nobody_starves_among_more_publishers_than_parts(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who gets nothing comes first in the next batch, as the engine has it."""
    monkeypatch.setattr(shares, "LEAST", 3)
    at_work(rig, WINDOW)
    waiting = list(range(8))
    taken = dict.fromkeys(waiting, 0)
    for _ in range(7):
        parts = dict(zip(waiting, take(rig, len(waiting)), strict=True))
        for publisher, part in parts.items():
            taken[publisher] += part
        waiting = [p for p in waiting if not parts[p]] + [p for p in waiting if parts[p]]
    assert sum(taken.values()) == 7 * 3
    assert min(taken.values()) >= 1
