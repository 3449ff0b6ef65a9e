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


class FlowRig(CoreRig):
    """A core with flow control and a window of ``WINDOW`` messages by default."""

    def __init__(self, window: int = WINDOW) -> None:
        super().__init__(Limits(window=window))
        self.flow = FlowControl(self.core)

    def ask(self, queue: str = "orders") -> int:
        """Return the available count in a batch of its own that publishes nothing."""
        self.begin()
        count = self.flow.available(queue)
        self.finish()
        return count

    def acknowledge(self, worker: Connection, count: int = 1) -> None:
        """Acknowledge the oldest messages that a consumer holds."""
        [consumer] = worker.consumers.values()
        held = list(consumer.held.values())[:count]
        assert len(held) == count
        self.begin()
        for message in held:
            self.core.acknowledge(worker, "orders", message.message_id)
        self.finish()

    def at_work(self, ready: int = 0, *, credit: int = 10) -> Connection:
        """Return an active consumer with full credit, beside ``ready`` ready messages."""
        worker = self.consumer(credit=credit)
        self.publish(*(b"%d" % n for n in range(credit + 1)))
        self.acknowledge(worker)
        self.publish(*(b"%d" % n for n in range(ready)))
        assert len(list(self.queue().window or ())) == ready
        self.ask()  # the next batch has published nothing yet
        return worker

    def call_up(self) -> None:
        """Run the commands of publishers whose turn has come, as the engine does."""
        for command in self.flow.take_ready():
            command(self.core)


@pytest.fixture
def rig() -> FlowRig:
    return FlowRig()


def publish(rig: CoreRig, publisher: Connection, count: int) -> None:
    for number in range(count):
        rig.core.publish(publisher, "orders", b"%d" % number, 0, None)


# -- no active consumer


def test_unknown_queue_is_unlimited(rig: FlowRig) -> None:
    assert rig.ask() == UNLIMITED


def test_queue_without_consumers_is_unlimited(rig: FlowRig) -> None:
    worker = rig.at_work()
    rig.consume(worker, 0)
    assert rig.ask() == UNLIMITED


def test_new_consumer_counts_as_active(rig: FlowRig) -> None:
    rig.consumer()
    rig.publish(b"a")
    assert rig.ask() == ROOM


def test_queue_without_acknowledgements_becomes_unlimited(rig: FlowRig) -> None:
    rig.consumer()
    rig.publish(b"a")
    for _ in range(QUIET_BATCHES):
        rig.ask()
    assert rig.ask() == UNLIMITED


def test_returning_consumer_counts_as_active(rig: FlowRig) -> None:
    worker = rig.consumer()
    rig.publish(b"a")
    for _ in range(QUIET_BATCHES):
        rig.ask()
    rig.consume(worker, 0)
    assert rig.ask() == UNLIMITED
    rig.consume(worker, 10)
    assert rig.ask() == ROOM


def test_idle_consumers_make_the_queue_unlimited(rig: FlowRig) -> None:
    rig.at_work()
    assert rig.ask() == ROOM
    for _ in range(QUIET_BATCHES):
        rig.ask()
    assert rig.ask() == UNLIMITED


def test_an_acknowledgement_ends_the_quiet(rig: FlowRig) -> None:
    worker = rig.at_work()
    for _ in range(QUIET_BATCHES):
        rig.ask()
    rig.acknowledge(worker)
    assert rig.ask() == ROOM


# -- active consumers


def test_room_of_the_window_is_available(rig: FlowRig) -> None:
    rig.at_work(ready=50)
    assert rig.ask() == ROOM - 50


def test_room_comes_back_within_the_batch(rig: FlowRig) -> None:
    """While the disk stores the last batch, consumers make room for messages in this one."""
    worker = rig.at_work(ready=ROOM, credit=100)
    held = list(next(iter(worker.consumers.values())).held)
    rig.begin()
    assert rig.flow.available("orders") == MIN_PER_BATCH
    rig.core.acknowledge_run(worker, [("orders", message_id) for message_id in held])
    rig.core.dispatch()
    assert rig.flow.available("orders") == len(held) == 100
    rig.finish()


def test_one_publisher_takes_at_most_its_limit_at_once() -> None:
    rig = FlowRig(10 * MAX_PER_PUBLISHER)
    rig.at_work()
    assert rig.ask() == MAX_PER_PUBLISHER


@pytest.mark.parametrize("ready", [ROOM - MIN_PER_BATCH + 1, ROOM, WINDOW])
def test_minimum_is_available_without_room(rig: FlowRig, ready: int) -> None:
    rig.at_work(ready)
    assert rig.ask() == MIN_PER_BATCH


def test_minimum_is_available_when_messages_wait_on_disk(rig: FlowRig) -> None:
    worker = rig.at_work(WINDOW, credit=150)
    rig.publish(b"one more")
    rig.acknowledge(worker, 150)
    window = rig.queue().window
    assert window is not None
    assert not window.reaches_end
    assert len(window) < ROOM
    assert rig.ask() == MIN_PER_BATCH


def test_minimum_is_available_once_per_batch(rig: FlowRig) -> None:
    rig.at_work(ROOM)
    publisher = rig.connect()
    for _ in range(2):
        rig.begin()
        assert rig.flow.available("orders") == MIN_PER_BATCH
        publish(rig, publisher, MIN_PER_BATCH - 10)
        assert rig.flow.available("orders") == 10
        publish(rig, publisher, 10)
        assert rig.flow.available("orders") == 0
        rig.finish()


def test_nothing_is_available_after_more_than_the_minimum(rig: FlowRig) -> None:
    """Otherwise the window would overflow while it is being drained."""
    rig.at_work()
    publisher = rig.connect()
    rig.begin()
    publish(rig, publisher, rig.flow.available("orders"))
    rig.finish()
    assert rig.ask() == 0
    assert rig.ask() == MIN_PER_BATCH


def test_each_queue_has_a_share_of_its_own(rig: FlowRig) -> None:
    rig.at_work(ROOM)
    assert rig.ask("mails") == UNLIMITED


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

        rig.flow.wait_in_line(queue, say, count, at_front=at_front)
    return called


def test_no_publisher_is_called_without_room(rig: FlowRig) -> None:
    rig.at_work()
    publisher = rig.connect()
    rig.begin()
    publish(rig, publisher, rig.flow.available("orders"))
    called = line_up(rig, "anna")
    rig.call_up()
    assert called == []
    assert rig.flow.waiting_publishers == 1
    rig.finish()


def test_first_in_line_comes_first_and_alone_without_room(rig: FlowRig) -> None:
    rig.at_work(ROOM)
    called = line_up(rig, "anna", "bert")
    for so_far in (["anna"], ["anna", "bert"]):
        rig.begin()
        rig.call_up()
        assert called == so_far
        publish(rig, rig.core.connections[1], MIN_PER_BATCH)
        rig.finish()
    assert rig.flow.waiting_publishers == 0


def test_publishers_are_called_while_there_is_room() -> None:
    rig = FlowRig(3 * MAX_PER_PUBLISHER)
    rig.at_work()
    called = line_up(rig, "anna", "bert", "cora", "dora")
    rig.begin()
    rig.call_up()
    assert called == ["anna", "bert", "cora"]
    assert rig.flow.waiting_publishers == 1
    rig.finish()


def test_all_are_called_when_no_consumer_is_left(rig: FlowRig) -> None:
    worker = rig.at_work(ROOM)
    called = line_up(rig, "anna", "bert", "cora")
    rig.consume(worker, 0)
    rig.begin()
    rig.call_up()
    assert called == ["anna", "bert", "cora"]
    assert rig.flow.waiting_publishers == 0
    rig.finish()


def test_lines_of_queues_do_not_wait_for_each_other(rig: FlowRig) -> None:
    rig.at_work(ROOM)
    rig.publish(b"a", queue="mails")
    publisher = rig.connect()
    rig.begin()
    publish(rig, publisher, rig.flow.available("orders"))
    anna = line_up(rig, "anna")
    bert = line_up(rig, "bert", queue="mails")
    rig.call_up()
    assert (anna, bert) == ([], ["bert"])
    assert rig.flow.waiting_publishers == 1
    rig.finish()


def test_waiting_publishers_have_priority(rig: FlowRig) -> None:
    rig.at_work(ROOM)
    line_up(rig, "anna")
    rig.begin()
    assert rig.flow.available("orders") == 0
    assert rig.flow.available("orders", is_called=True) == MIN_PER_BATCH
    assert rig.flow.available("mails") == UNLIMITED
    rig.call_up()
    assert rig.flow.available("orders") == MIN_PER_BATCH
    rig.finish()


def test_publisher_called_too_early_stays_first_in_line(rig: FlowRig) -> None:
    rig.at_work(ROOM)
    back = line_up(rig, "bert")
    front = line_up(rig, "anna", at_front=True)
    rig.begin()
    rig.call_up()
    assert (front, back) == (["anna"], [])
    rig.finish()


def test_small_publishers_are_called_together(rig: FlowRig) -> None:
    rig.at_work(ROOM)
    called = line_up(rig, *map(str, range(MIN_PER_BATCH + 6)), count=1)
    rig.begin()
    rig.call_up()
    assert len(called) == MIN_PER_BATCH
    assert rig.flow.waiting_publishers == 6
    rig.finish()


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


async def test_interleaved_messages_to_queues_share_a_batch(driver: EngineDriver) -> None:
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
