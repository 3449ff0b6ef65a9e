"""How much may be published to a queue with active consumers, and who publishes next."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.flow_control import MAX_PER_PUBLISHER, MIN_PER_BATCH, UNLIMITED, FlowControl
from phpmq_lite.broker.queue import Connection
from phpmq_lite.model import Limits
from tests.support.core_rig import CoreRig
from tests.support.engine_driver import EngineClient, EngineDriver

WINDOW = 400
ROOM = 300  # a quarter of the window is reserved for the minimum per batch
QUIET_BATCHES = 20  # a consumer that acknowledges nothing for this long is idle


@pytest.fixture
def rig() -> CoreRig:
    return CoreRig(Limits(window=WINDOW))


@pytest.fixture
def shares(rig: CoreRig) -> FlowControl:
    return FlowControl(rig.core)


def ask(rig: CoreRig, shares: FlowControl, queue: str = "orders") -> int:
    """Return the available count in a batch of its own that publishes nothing."""
    rig.begin()
    count = shares.available(queue)
    rig.finish()
    return count


def publish(rig: CoreRig, publisher: Connection, count: int) -> None:
    for number in range(count):
        rig.core.publish(publisher, "orders", b"%d" % number, 0, None)


def acknowledge(rig: CoreRig, worker: Connection, count: int = 1) -> None:
    """Acknowledge the oldest messages that a consumer holds."""
    [consumer] = worker.consumers.values()
    held = list(consumer.held)[:count]
    assert len(held) == count
    rig.begin()
    for message in held:
        rig.core.acknowledge(worker, "orders", message.message_id)
    rig.finish()


def at_work(rig: CoreRig, shares: FlowControl, ready: int = 0, *, credit: int = 10) -> Connection:
    """Return an active consumer with full credit, beside ``ready`` ready messages."""
    worker = rig.consumer(credit=credit)
    rig.publish(*(b"%d" % n for n in range(credit + 1)))
    acknowledge(rig, worker)
    rig.publish(*(b"%d" % n for n in range(ready)))
    assert len(list(rig.queue().window or ())) == ready
    ask(rig, shares)  # the next batch has published nothing yet
    return worker


# -- no active consumer


def test_queue_without_consumers_has_no_limit(rig: FlowRig) -> None:
    assert rig.available() == UNLIMITED  # unknown
    worker = active_consumer(rig)
    rig.consume(worker, 0)
    assert rig.available() == UNLIMITED


def test_new_or_returning_consumer_counts_as_active_for_a_while(rig: FlowRig) -> None:
    worker = rig.consumer()
    rig.publish(b"a")
    assert rig.available() == ROOM
    rig.pass_quiet_batches()
    assert rig.available() == UNLIMITED
    rig.consume(worker, 0)
    assert rig.available() == UNLIMITED
    rig.consume(worker, 10)
    assert rig.available() == ROOM


def test_limit_ends_a_while_after_the_last_acknowledgement(rig: FlowRig) -> None:
    worker = active_consumer(rig)
    assert rig.available() == ROOM
    rig.pass_quiet_batches()
    assert rig.available() == UNLIMITED
    acknowledge(rig, worker)
    assert rig.available() == ROOM


# -- active consumers


def test_quota_is_the_free_space_of_the_window(rig: FlowRig) -> None:
    active_consumer(rig, ready=50)
    assert rig.available() == ROOM - 50


def test_room_comes_back_within_the_batch(rig: CoreRig, shares: FlowControl) -> None:
    """While the disk stores the last batch, consumers make room for messages in this one."""
    worker = at_work(rig, shares, ready=ROOM, credit=100)
    held = list(next(iter(worker.consumers.values())).held)
    rig.begin()
    assert rig.flow.available("orders") == MIN_PER_BATCH
    rig.core.acknowledge_run(worker, [("orders", message_id) for message_id in held])
    rig.core.dispatch()
    assert rig.flow.available("orders") == len(held) == 100
    rig.finish()


def test_one_publisher_takes_at_most_its_limit_at_once() -> None:
    rig = CoreRig(Limits(window=10 * MAX_PER_PUBLISHER))
    shares = FlowControl(rig.core)
    at_work(rig, shares)
    assert ask(rig, shares) == MAX_PER_PUBLISHER


@pytest.mark.parametrize("ready", [ROOM - MIN_PER_BATCH + 1, ROOM, WINDOW])
def test_minimum_is_taken_if_little_space_is_left(rig: FlowRig, ready: int) -> None:
    active_consumer(rig, ready)
    assert rig.available() == MIN_PER_BATCH


def test_minimum_is_taken_if_others_wait_on_disk(rig: FlowRig) -> None:
    worker = active_consumer(rig, WINDOW, credit=150)
    rig.publish(b"one more")
    acknowledge(rig, worker, 150)
    assert not rig.window().reaches_end
    assert len(rig.window()) < ROOM
    assert rig.available() == MIN_PER_BATCH


def test_minimum_is_taken_once_per_batch(rig: FlowRig) -> None:
    active_consumer(rig, ROOM)
    publisher = rig.connect()
    for _ in range(2):
        rig.begin()
        assert rig.flow.available("orders") == MIN_PER_BATCH
        publish(rig, publisher, MIN_PER_BATCH - 10)
        assert rig.flow.available("orders") == 10
        publish(rig, publisher, 10)
        assert rig.flow.available("orders") == 0
        rig.finish()


def test_after_more_than_the_least_a_batch_without_room_takes_nothing(
    rig: CoreRig, shares: FlowControl
) -> None:
    """Otherwise the window would overflow while it is being drained."""
    at_work(rig, shares)
    publisher = rig.connect()
    rig.begin()
    publish(rig, publisher, rig.flow.available("orders"))
    rig.finish()
    assert rig.available() == 0
    assert rig.available() == MIN_PER_BATCH


def test_each_queue_has_a_share_of_its_own(rig: CoreRig, shares: FlowControl) -> None:
    at_work(rig, shares, ROOM)
    assert ask(rig, shares, "mails") == UNLIMITED


# -- waiting publishers


def line_up(
    rig: FlowRig,
    *who: str,
    queue: str = "orders",
    count: int = MAX_PER_PUBLISHER,
    at_front: bool = False,
) -> list[str]:
    """Make publishers wait; each appends its name to the returned list when its turn comes."""
    called: list[str] = []
    for name in who:

        def run(_: Broker, name: str = name) -> None:
            called.append(name)

        rig.flow.wait_in_line(queue, run, count, at_front=at_front)
    return called


def call_up(rig: CoreRig, shares: FlowControl) -> None:
    """Run the commands of publishers whose turn has come, as the engine does."""
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
        rig.run_ready()
        assert called == so_far
        publish(rig, rig.core.connections[1], MIN_PER_BATCH)
        rig.finish()
    assert rig.flow.waiting_publishers == 0


def test_as_many_publishers_run_as_the_quota_allows() -> None:
    rig = FlowRig(window=3 * MAX_PER_PUBLISHER)
    active_consumer(rig)
    called = line_up(rig, "anna", "bert", "cora", "dora")
    rig.run_ready_in_batch()
    assert called == ["anna", "bert", "cora"]
    assert rig.flow.waiting_publishers == 1


def test_all_publishers_run_after_the_last_consumer_left(rig: FlowRig) -> None:
    worker = active_consumer(rig, ROOM)
    called = line_up(rig, "anna", "bert", "cora")
    rig.consume(worker, 0)
    rig.run_ready_in_batch()
    assert called == ["anna", "bert", "cora"]
    assert rig.flow.waiting_publishers == 0


@pytest.mark.parametrize("ready", [0, ROOM])
def test_publisher_without_quota_waits_in_the_line_of_its_queue(rig: FlowRig, ready: int) -> None:
    active_consumer(rig, ready)
    rig.publish(b"a", queue="mails")
    publisher = rig.connect()
    rig.begin()
    publish(rig, publisher, rig.flow.available("orders"))
    anna = line_up(rig, "anna")
    bert = line_up(rig, "bert", queue="mails")
    rig.run_ready()
    assert (anna, bert) == ([], ["bert"])
    assert rig.flow.waiting_publishers == 1
    rig.finish()


def test_newcomer_does_not_overtake_the_line(rig: FlowRig) -> None:
    active_consumer(rig, ROOM)
    line_up(rig, "anna")
    rig.begin()
    assert rig.flow.available("orders") == 0
    assert rig.flow.available("orders", is_called=True) == MIN_PER_BATCH
    assert rig.flow.available("mails") == UNLIMITED
    rig.run_ready()
    assert rig.flow.available("orders") == MIN_PER_BATCH
    rig.finish()


def test_publisher_called_too_early_stays_first_in_line(rig: CoreRig, shares: FlowControl) -> None:
    at_work(rig, shares, ROOM)
    back = line_up(shares, "bert")
    front = line_up(shares, "anna", at_front=True)
    rig.begin()
    call_up(rig, shares)
    assert (front, back) == (["anna"], [])
    rig.finish()


def test_publishers_of_few_messages_run_together(rig: FlowRig) -> None:
    active_consumer(rig, ROOM)
    called = line_up(rig, *map(str, range(MIN_PER_BATCH + 6)), count=1)
    rig.run_ready_in_batch()
    assert len(called) == MIN_PER_BATCH
    assert rig.flow.waiting_publishers == 6


QUEUES = ("mails", "orders", "prices")


@pytest.fixture
async def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EngineDriver]:
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


async def test_messages_to_queues_by_turns_are_stored_in_one_batch(driver: EngineDriver) -> None:
    publisher = EngineClient(driver)
    workers = [EngineClient(driver) for _ in QUEUES]
    for worker, queue in zip(workers, QUEUES, strict=True):
        worker.consume(queue, 10)
    publish_by_turns(publisher, 1)
    await driver.settle()
    for worker in workers:
        worker.acknowledge(*worker.got)  # now they count as active
    await driver.settle()
    publish_by_turns(publisher, MIN_PER_BATCH // 2)
    await driver.run_until_idle()
    assert driver.writer.batch is not None
    assert len(driver.writer.batch.created) == MIN_PER_BATCH // 2 * len(QUEUES)
    await driver.settle()


async def test_waiting_publisher_is_not_overtaken_by_later_ones(driver: EngineDriver) -> None:
    """Another publisher fills each batch, and the waiting one still makes progress."""
    worker, patient, quick = EngineClient(driver), EngineClient(driver), EngineClient(driver)
    worker.consume("orders", 10)
    await driver.settle()
    patient.publish("orders", *[b"backlog"] * 6_000)
    quick.publish("mails", b"to be known")
    await driver.settle()
    worker.acknowledge(worker.got[0])  # now it counts as active
    patient.publish("orders", *[b"patient"] * 300)
    stored: list[bytes] = []
    for number in range(20):
        if not quick.session.frames._frames:
            quick.publish("orders", *[b"quick"] * MIN_PER_BATCH)
        worker.acknowledge(worker.got[number + 1])
        await driver.run_until_idle()
        if driver.writer.batch is not None:
            stored += driver.writer.batch.bodies[1::2]
            driver.writer.end()
    assert stored.count(b"patient") == 300
    assert stored.count(b"quick") >= 300
    await driver.settle()
