"""How much is published to a queue while its consumers are at work, and who waits for its turn."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.flow_control import (
    MAX_PER_PUBLISHER,
    MIN_PER_BATCH,
    UNLIMITED,
    FlowControl,
)
from phpmq_lite.broker.queue import Connection
from phpmq_lite.model import Limits
from tests.support.core_rig import CoreRig
from tests.support.engine_driver import EngineClient, EngineDriver, disable_timers

WINDOW = 400
ROOM = 300  # a fourth is kept for the least of some batches
QUIET_BATCHES = 20  # a consumer without an acknowledgement in these is idle


@pytest.fixture
def rig() -> CoreRig:
    return CoreRig(Limits(window=WINDOW))


@pytest.fixture
def shares(rig: CoreRig) -> FlowControl:
    return FlowControl(rig.core)


def ask(rig: CoreRig, shares: FlowControl, queue: str = "orders") -> int:
    """Ask in a batch of its own, in which nothing is published."""
    rig.begin()
    count = shares.available(queue)
    rig.finish()
    return count


def publish(rig: CoreRig, publisher: Connection, count: int) -> None:
    """Publish in the open batch."""
    for number in range(count):
        rig.core.publish(publisher, "orders", b"%d" % number, 0, None)


def acknowledge(rig: CoreRig, worker: Connection, count: int = 1) -> None:
    """Settle the oldest ones that it holds."""
    [consumer] = worker.consumers.values()
    held = list(consumer.held.values())[:count]
    assert len(held) == count
    rig.run(
        *(
            lambda m=message: rig.core.acknowledge(worker, "orders", m.message_id)
            for message in held
        )
    )


def at_work(rig: CoreRig, shares: FlowControl, ready: int = 0, *, credit: int = 10) -> Connection:
    """Return a consumer that has just acknowledged, with full credit and that many ready ones."""
    worker = rig.consumer(credit=credit)
    rig.publish(*(b"%d" % n for n in range(credit + 1)))
    acknowledge(rig, worker)
    rig.publish(*(b"%d" % n for n in range(ready)))
    window = rig.queue().window
    assert window is not None
    assert len(window) == ready
    ask(rig, shares)  # all that is there has been published in earlier batches
    return worker


# -- nobody is at work


def test_unknown_queue_takes_all(rig: CoreRig, shares: FlowControl) -> None:
    assert ask(rig, shares) == UNLIMITED


def test_queue_without_consumers_takes_all(rig: CoreRig, shares: FlowControl) -> None:
    worker = at_work(rig, shares)
    rig.consume(worker, 0)
    assert ask(rig, shares) == UNLIMITED


def test_consumer_that_has_just_come_counts_as_at_work(rig: CoreRig, shares: FlowControl) -> None:
    rig.consumer()
    rig.publish(b"a")
    assert ask(rig, shares) == ROOM


def test_queue_of_which_nothing_was_acknowledged_takes_all_after_a_while(
    rig: CoreRig, shares: FlowControl
) -> None:
    rig.consumer()
    rig.publish(b"a")
    for _ in range(QUIET_BATCHES):
        ask(rig, shares)
    assert ask(rig, shares) == UNLIMITED


def test_consumer_that_comes_back_counts_as_at_work(rig: CoreRig, shares: FlowControl) -> None:
    worker = rig.consumer()
    rig.publish(b"a")
    for _ in range(QUIET_BATCHES):
        ask(rig, shares)
    rig.consume(worker, 0)
    assert ask(rig, shares) == UNLIMITED
    rig.consume(worker, 10)
    assert ask(rig, shares) == ROOM


def test_a_while_after_the_last_acknowledgement_the_queue_takes_all(
    rig: CoreRig, shares: FlowControl
) -> None:
    at_work(rig, shares)
    assert ask(rig, shares) == ROOM
    for _ in range(QUIET_BATCHES):
        ask(rig, shares)
    assert ask(rig, shares) == UNLIMITED


def test_an_acknowledgement_ends_the_quiet(rig: CoreRig, shares: FlowControl) -> None:
    worker = at_work(rig, shares)
    for _ in range(QUIET_BATCHES):
        ask(rig, shares)
    acknowledge(rig, worker)
    assert ask(rig, shares) == ROOM


# -- consumers are at work


def test_the_room_of_the_window_is_taken(rig: CoreRig, shares: FlowControl) -> None:
    at_work(rig, shares, ready=50)
    assert ask(rig, shares) == ROOM - 50


def test_room_comes_back_within_the_batch(rig: CoreRig, shares: FlowControl) -> None:
    """While the disk has the last batch, consumers make room for the next messages in this one."""
    worker = at_work(rig, shares, ready=ROOM, credit=100)
    held = list(next(iter(worker.consumers.values())).held)
    rig.begin()
    assert shares.available("orders") == MIN_PER_BATCH
    rig.core.acknowledge_run(worker, [("orders", message_id) for message_id in held])
    rig.core.dispatch()
    assert shares.available("orders") == len(held) == 100
    rig.finish()


def test_one_publisher_takes_so_many_at_once() -> None:
    rig = CoreRig(Limits(window=10 * MAX_PER_PUBLISHER))
    shares = FlowControl(rig.core)
    at_work(rig, shares)
    assert ask(rig, shares) == MAX_PER_PUBLISHER


@pytest.mark.parametrize("ready", [ROOM - MIN_PER_BATCH + 1, ROOM, WINDOW])
def test_the_least_is_taken_where_there_is_no_room_worth_a_turn(
    rig: CoreRig, shares: FlowControl, ready: int
) -> None:
    at_work(rig, shares, ready)
    assert ask(rig, shares) == MIN_PER_BATCH


def test_the_least_is_taken_where_others_wait_on_disk(rig: CoreRig, shares: FlowControl) -> None:
    worker = at_work(rig, shares, WINDOW, credit=150)
    rig.publish(b"one more")
    acknowledge(rig, worker, 150)
    window = rig.queue().window
    assert window is not None
    assert not window.reaches_end
    assert len(window) < ROOM
    assert ask(rig, shares) == MIN_PER_BATCH


def test_the_least_is_taken_once_a_batch(rig: CoreRig, shares: FlowControl) -> None:
    at_work(rig, shares, ROOM)
    publisher = rig.connect()
    for _ in range(2):
        rig.begin()
        assert shares.available("orders") == MIN_PER_BATCH
        publish(rig, publisher, MIN_PER_BATCH - 10)
        assert shares.available("orders") == 10
        publish(rig, publisher, 10)
        assert shares.available("orders") == 0
        rig.finish()


def test_after_more_than_the_least_a_batch_without_room_takes_nothing(
    rig: CoreRig, shares: FlowControl
) -> None:
    """So that the window does not overflow while it is emptied all the time."""
    at_work(rig, shares)
    publisher = rig.connect()
    rig.begin()
    publish(rig, publisher, shares.available("orders"))
    rig.finish()
    assert ask(rig, shares) == 0
    assert ask(rig, shares) == MIN_PER_BATCH


def test_each_queue_has_a_share_of_its_own(rig: CoreRig, shares: FlowControl) -> None:
    at_work(rig, shares, ROOM)
    assert ask(rig, shares, "mails") == UNLIMITED


# -- the line


def line_up(
    shares: FlowControl,
    *who: str,
    queue: str = "orders",
    count: int = MAX_PER_PUBLISHER,
    at_front: bool = False,
) -> list[str]:
    """Make publishers wait; each appends its name to the list when its turn comes."""
    called: list[str] = []
    for name in who:

        def say(_: Broker, name: str = name) -> None:
            called.append(name)

        shares.wait_in_line(queue, say, count, at_front=at_front)
    return called


def call_up(rig: CoreRig, shares: FlowControl) -> None:
    """Do what the engine does at the end of its decisions, and at the beginning of the next."""
    for command in shares.take_ready():
        command(rig.core)


def test_nobody_is_called_up_without_room(rig: CoreRig, shares: FlowControl) -> None:
    at_work(rig, shares)
    publisher = rig.connect()
    rig.begin()
    publish(rig, publisher, shares.available("orders"))
    called = line_up(shares, "anna")
    call_up(rig, shares)
    assert called == []
    assert shares.waiting_publishers == 1
    rig.finish()


def test_the_first_in_line_comes_first_and_one_at_a_time_where_room_is_short(
    rig: CoreRig, shares: FlowControl
) -> None:
    at_work(rig, shares, ROOM)
    called = line_up(shares, "anna", "bert")
    for so_far in (["anna"], ["anna", "bert"]):
        rig.begin()
        call_up(rig, shares)
        assert called == so_far
        publish(rig, rig.core.connections[1], MIN_PER_BATCH)
        rig.finish()
    assert shares.waiting_publishers == 0


def test_as_many_are_called_up_as_there_is_room_for() -> None:
    rig = CoreRig(Limits(window=3 * MAX_PER_PUBLISHER))
    shares = FlowControl(rig.core)
    at_work(rig, shares)
    called = line_up(shares, "anna", "bert", "cora", "dora")
    rig.begin()
    call_up(rig, shares)
    assert called == ["anna", "bert", "cora"]
    assert shares.waiting_publishers == 1
    rig.finish()


def test_all_are_called_up_where_nobody_consumes_any_more(
    rig: CoreRig, shares: FlowControl
) -> None:
    worker = at_work(rig, shares, ROOM)
    called = line_up(shares, "anna", "bert", "cora")
    rig.consume(worker, 0)
    rig.begin()
    call_up(rig, shares)
    assert called == ["anna", "bert", "cora"]
    assert shares.waiting_publishers == 0
    rig.finish()


def test_lines_of_queues_do_not_wait_for_each_other(rig: CoreRig, shares: FlowControl) -> None:
    at_work(rig, shares, ROOM)
    rig.publish(b"a", queue="mails")
    publisher = rig.connect()
    rig.begin()
    publish(rig, publisher, shares.available("orders"))
    anna = line_up(shares, "anna")
    bert = line_up(shares, "bert", queue="mails")
    call_up(rig, shares)
    assert (anna, bert) == ([], ["bert"])
    rig.finish()


def test_nobody_comes_ahead_of_a_line(rig: CoreRig, shares: FlowControl) -> None:
    at_work(rig, shares, ROOM)
    line_up(shares, "anna")
    rig.begin()
    assert shares.available("orders") == 0
    assert shares.available("orders", is_called=True) == MIN_PER_BATCH
    assert shares.available("mails") == UNLIMITED
    call_up(rig, shares)
    assert shares.available("orders") == MIN_PER_BATCH
    rig.finish()


def test_who_was_called_in_vain_is_the_first_again(rig: CoreRig, shares: FlowControl) -> None:
    at_work(rig, shares, ROOM)
    heard = line_up(shares, "bert")
    heard_too = line_up(shares, "anna", at_front=True)
    rig.begin()
    call_up(rig, shares)
    assert (heard_too, heard) == (["anna"], [])
    rig.finish()


def test_many_with_few_messages_are_called_together(rig: CoreRig, shares: FlowControl) -> None:
    at_work(rig, shares, ROOM)
    called = line_up(shares, *map(str, range(MIN_PER_BATCH + 6)), count=1)
    rig.begin()
    call_up(rig, shares)
    assert len(called) == MIN_PER_BATCH
    assert shares.waiting_publishers == 6
    rig.finish()


QUEUES = ("mails", "orders", "prices")


@pytest.fixture
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EngineDriver]:
    disable_timers(monkeypatch)
    it = EngineDriver(tmp_path)
    it.start()
    yield it
    await it.stop()
    it.close()


def publish_by_turns(publisher: EngineClient, rounds: int) -> None:
    """Publish one message to each queue in turn, in one write."""
    frames = [publisher._wire.publish(queue, b"x", 0, None) for queue in QUEUES]
    publisher.session.data_received(b"".join(frames) * rounds)


async def test_messages_to_queues_by_turns_are_stored_in_one_batch(house: EngineDriver) -> None:
    publisher = EngineClient(house)
    workers = [EngineClient(house) for _ in QUEUES]
    for worker, queue in zip(workers, QUEUES, strict=True):
        worker.consume(queue, 10)
    publish_by_turns(publisher, 1)
    await house.settle()
    for worker in workers:
        worker.acknowledge(*worker.got)  # now they are at work
    await house.settle()
    publish_by_turns(publisher, MIN_PER_BATCH // 2)
    await house.run_until_idle()
    assert house.writer.batch is not None
    assert len(house.writer.batch.created) == MIN_PER_BATCH // 2 * len(QUEUES)
    await house.settle()


async def test_who_waits_is_not_overtaken_by_those_that_come_later(house: EngineDriver) -> None:
    """One brings as much as a batch takes, in each batch: the other one comes all the same."""
    worker, patient, quick = EngineClient(house), EngineClient(house), EngineClient(house)
    worker.consume("orders", 10)
    await house.settle()
    patient.publish("orders", *[b"backlog"] * 6_000)
    quick.publish("mails", b"to be known")
    await house.settle()
    worker.acknowledge(worker.got[0])  # it is at work
    patient.publish("orders", *[b"patient"] * 300)
    stored: list[bytes] = []
    for number in range(20):
        if not quick.session.frames._frames:
            quick.publish("orders", *[b"quick"] * MIN_PER_BATCH)
        worker.acknowledge(worker.got[number + 1])
        await house.run_until_idle()
        if house.writer.batch is not None:
            stored += house.writer.batch.bodies[1::2]
            house.writer.end()
    assert stored.count(b"patient") == 300
    assert stored.count(b"quick") >= 300
    await house.settle()
