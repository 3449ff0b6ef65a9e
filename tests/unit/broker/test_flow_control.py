"""How much is published to a queue with active consumers, and which publisher is next."""

import pytest

from phpmq_lite.broker import batches, commands
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.flow_control import MAX_PER_PUBLISHER, MIN_PER_BATCH, UNLIMITED, FlowControl
from phpmq_lite.broker.queue import Connection
from phpmq_lite.model import Limits
from tests.support.core_rig import CoreRig
from tests.support.engine_driver import EngineClient, EngineDriver

WINDOW = 400
ROOM = 300  # a quarter is reserved for the minimum of some batches
QUIET_BATCHES = 20  # without an acknowledgement, after which a consumer is idle


class FlowRig(CoreRig):
    def __init__(self, window: int = WINDOW) -> None:
        super().__init__(Limits(window=window))
        self.flow = FlowControl(self.core)

    def available(self, queue: str = "orders") -> int:
        """Return the quota of a queue, in a batch in which nothing is published."""
        self.begin()
        count = self.flow.available(queue)
        self.finish()
        return count

    def pass_quiet_batches(self) -> None:
        for _ in range(QUIET_BATCHES):
            self.available()

    def run_ready(self) -> None:
        """Run the publishers whose turn has come, as the engine does around its decisions."""
        for command in self.flow.take_ready():
            command(self.core)

    def run_ready_in_batch(self) -> None:
        self.begin()
        self.run_ready()
        self.finish()


@pytest.fixture
def rig() -> FlowRig:
    return FlowRig()


def publish(rig: CoreRig, publisher: Connection, count: int) -> None:
    for number in range(count):
        commands.publish(rig.core, publisher, "orders", b"%d" % number, 0, None)


def acknowledge(rig: CoreRig, worker: Connection, count: int = 1) -> None:
    """Acknowledge the oldest messages that a consumer holds."""
    [consumer] = worker.consumers.values()
    held = list(consumer.held)[:count]
    assert len(held) == count
    rig.run(lambda: commands.acknowledge_held(rig.core, worker, [("orders", id) for id in held]))


def active_consumer(rig: FlowRig, ready: int = 0, *, credit: int = 10) -> Connection:
    """Return a consumer that has just acknowledged, with full credit and some ready messages."""
    worker = rig.consumer(credit=credit)
    rig.publish(*(b"%d" % n for n in range(credit + 1)))
    acknowledge(rig, worker)
    rig.publish(*(b"%d" % n for n in range(ready)))
    assert len(rig.window()) == ready
    rig.available()  # from now on, all messages were published in earlier batches
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


def remove_with_consumer(rig: FlowRig, worker: Connection, name: str) -> None:
    rig.run(lambda: commands.disconnect(rig.core, worker, None, None, "bye"))
    rig.run(lambda: rig.core.remove_queue(rig.core.queues[name]))


def test_shares_of_removed_queues_are_forgotten(rig: FlowRig) -> None:
    for number in range(5):
        queue, worker = f"reply {number}", rig.consumer(f"reply {number}")
        assert rig.available(queue) == ROOM
        remove_with_consumer(rig, worker, queue)
    assert len(rig.flow._shares) == 1


def test_recreated_queue_starts_with_an_active_consumer(rig: FlowRig) -> None:
    worker = rig.consumer()
    rig.pass_quiet_batches()
    remove_with_consumer(rig, worker, "orders")
    rig.consumer("orders")
    assert rig.available() == ROOM


# -- active consumers


def test_quota_is_the_free_space_of_the_window(rig: FlowRig) -> None:
    active_consumer(rig, ready=50)
    assert rig.available() == ROOM - 50


def test_quota_grows_within_the_batch(rig: FlowRig) -> None:
    """Consumers free space for this batch while the last one commits."""
    worker = active_consumer(rig, ready=ROOM, credit=100)
    held = list(next(iter(worker.consumers.values())).held)
    rig.begin()
    assert rig.flow.available("orders") == MIN_PER_BATCH
    commands.acknowledge_held(rig.core, worker, [("orders", message_id) for message_id in held])
    batches.dispatch(rig.core)
    assert rig.flow.available("orders") == len(held) == 100
    rig.finish()


def test_quota_of_one_publisher_is_bounded() -> None:
    rig = FlowRig(window=10 * MAX_PER_PUBLISHER)
    active_consumer(rig)
    assert rig.available() == MAX_PER_PUBLISHER


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


def test_full_window_takes_nothing_after_more_than_the_minimum(rig: FlowRig) -> None:
    """Otherwise the window would overflow although it is drained continuously."""
    active_consumer(rig)
    publisher = rig.connect()
    rig.begin()
    publish(rig, publisher, rig.flow.available("orders"))
    rig.finish()
    assert rig.available() == 0
    assert rig.available() == MIN_PER_BATCH


# -- waiting publishers


def line_up(
    rig: FlowRig,
    *who: str,
    queue: str = "orders",
    count: int = MAX_PER_PUBLISHER,
    at_front: bool = False,
) -> list[str]:
    """Queue waiting publishers; each appends its name to the returned list when it runs."""
    called: list[str] = []
    for name in who:

        def run(_: Broker, name: str = name) -> None:
            called.append(name)

        rig.flow.wait_in_line(queue, run, count, at_front=at_front)
    return called


def test_first_in_line_runs_first_and_alone_if_quota_is_short(rig: FlowRig) -> None:
    active_consumer(rig, ROOM)
    called = line_up(rig, "anna", "bert")
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


def test_publisher_without_success_returns_to_the_front(rig: FlowRig) -> None:
    active_consumer(rig, ROOM)
    heard = line_up(rig, "bert")
    heard_too = line_up(rig, "anna", at_front=True)
    rig.run_ready_in_batch()
    assert (heard_too, heard) == (["anna"], [])


def test_publishers_of_few_messages_run_together(rig: FlowRig) -> None:
    active_consumer(rig, ROOM)
    called = line_up(rig, *map(str, range(MIN_PER_BATCH + 6)), count=1)
    rig.run_ready_in_batch()
    assert len(called) == MIN_PER_BATCH
    assert rig.flow.waiting_publishers == 6


QUEUES = ("mails", "orders", "prices")


def publish_by_turns(publisher: EngineClient, rounds: int) -> None:
    """Publish one message to each queue in turn, in one write."""
    frames = [publisher._wire.publish(queue, b"x", 0, None) for queue in QUEUES]
    publisher.session.data_received(b"".join(frames) * rounds)


async def test_publishes_to_alternating_queues_share_a_batch(driver: EngineDriver) -> None:
    publisher = EngineClient(driver)
    workers = [EngineClient(driver) for _ in QUEUES]
    for worker, queue in zip(workers, QUEUES, strict=True):
        worker.consume(queue, 10)
    publish_by_turns(publisher, 1)
    await driver.settle()
    for worker in workers:
        worker.acknowledge(*worker.got)  # they are active from now on
    await driver.settle()
    publish_by_turns(publisher, MIN_PER_BATCH // 2)
    await driver.run_until_idle()
    assert driver.writer.batch is not None
    assert len(driver.writer.batch.created) == MIN_PER_BATCH // 2 * len(QUEUES)
    await driver.settle()


async def test_waiting_publisher_is_not_starved_by_later_ones(driver: EngineDriver) -> None:
    """A publisher that could fill every batch must not starve the other one."""
    worker, patient, quick = EngineClient(driver), EngineClient(driver), EngineClient(driver)
    worker.consume("orders", 10)
    await driver.settle()
    patient.publish("orders", *[b"backlog"] * 6_000)
    quick.publish("mails", b"to be known")
    await driver.settle()
    worker.acknowledge(worker.got[0])  # it is active
    patient.publish("orders", *[b"patient"] * 300)
    stored: list[bytes] = []
    for number in range(20):
        if not quick.session.frames._frames:
            quick.publish("orders", *[b"quick"] * MIN_PER_BATCH)
        worker.acknowledge(worker.got[number + 1])
        await driver.run_until_idle()
        if driver.writer.batch is not None:
            stored += driver.writer.batch.bodies
            driver.writer.end()
    assert stored.count(b"patient") == 300
    assert stored.count(b"quick") >= 300
    await driver.settle()
