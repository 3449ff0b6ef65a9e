"""The status of a running broker, and of one that has not started."""

from pathlib import Path
from unittest.mock import patch

import pytest

from phpmq_lite.broker import batches, commands, dead_letters, transitions
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.queue import Connection, Queue, QueueCounters
from phpmq_lite.clock import Clock
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import ClockReading, Limits, LoadedRows, LoadedWindow, Message, RecoveredState
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.server import status as status_module
from phpmq_lite.server.engine import Engine
from phpmq_lite.server.status import BrokerHandle, Rates
from phpmq_lite.settings import Settings
from phpmq_lite.storage.sqlite.writer import Writer
from tests.support.core_rig import FakePeer

NOW = ClockReading(wall_ms=2_000_000, steady_ms=1_000_000)


@pytest.fixture
def core() -> Broker:
    return Broker(RecoveredState([], [], {}, None, 0), Limits(), QueueSettings(max_messages=5))


@pytest.fixture
def queue(core: Broker) -> Queue:
    batches.begin(core, NOW)
    made = core.registry.get_or_create(core.batch, "orders")
    assert made is not None
    return made


@pytest.fixture
def handle(core: Broker) -> BrokerHandle:
    handle = BrokerHandle(Settings())
    handle.engine = Engine(core, Writer(Path("never-opened")), Clock())
    return handle


@pytest.fixture
def client(core: Broker) -> Connection:
    batches.begin(core, NOW)
    return core.connect(FakePeer(), "tcp", "192.0.2.1:1234")


async def test_status_is_available_before_the_engine() -> None:
    handle = BrokerHandle(Settings())
    handle.set(step="checking the write-ahead log")
    status = handle.status()
    assert (status.step, status.is_ready, status.queues) == (
        "checking the write-ahead log", False, (),
    )  # fmt: skip


async def test_operator_is_refused_before_the_engine_exists() -> None:
    handle = BrokerHandle(Settings())
    with pytest.raises(RefusedError, match="the broker is not ready: starting"):
        await handle.run(lambda core, reply: reply(None))


async def test_operator_is_refused_when_the_broker_stops(handle: BrokerHandle) -> None:
    assert handle.engine is not None
    handle.engine.stop()
    with pytest.raises(RefusedError, match="not ready"):
        await handle.run(lambda core, reply: reply(None))


async def test_status_has_ready_and_held_messages(
    handle: BrokerHandle, core: Broker, client: Connection
) -> None:
    commands.consume(core, client, "orders", 3)
    batches.finish(core)
    batches.begin(core, NOW, LoadedRows(windows=[LoadedWindow(1, [], True)]))  # the requested page
    for number in range(5):
        commands.publish(core, client, "orders", b"%d" % number, None, None)
    commands.publish(core, client, "orders", b"one too many", None, b"key")
    batches.finish(core)
    (queue,) = handle.status().queues
    assert (queue.name, queue.ready, queue.dispatched, queue.bytes) == ("orders", 2, 3, 5)
    assert (queue.consumers, queue.credit) == (1, 0)
    assert queue.settings == QueueSettings(max_messages=5)
    assert {name: count for name, count in queue.totals.items() if count} == {
        "published": 5, "dispatched": 3, "refused": 1,
    }  # fmt: skip
    status = handle.status()
    assert (status.held, status.held_bytes, status.window_messages) == (3, 3, 2)
    assert status.refused == {"queue full: messages": 1}


async def test_status_of_an_unchanged_queue_is_reused(
    handle: BrokerHandle, core: Broker, client: Connection
) -> None:
    commands.publish(core, client, "quiet", b"", None, None)
    commands.publish(core, client, "busy", b"", None, None)
    batches.finish(core)
    before = handle.status().queues
    batches.begin(core, NOW)
    commands.publish(core, client, "busy", b"", None, None)
    batches.finish(core)
    after = handle.status().queues
    assert after[0] is before[0]
    assert (before[1].ready, after[1].ready) == (1, 2)


@pytest.mark.parametrize("change", ["configure", "place", "record", "consume", "remove"])
async def test_status_of_a_queue_follows_changes_without_a_counter(
    handle: BrokerHandle, core: Broker, queue: Queue, change: str, client: Connection
) -> None:
    commands.publish(core, client, "orders.dlq", b"", None, None)
    [before, *_] = handle.status().queues
    if change == "configure":
        queue.settings = QueueSettings(delivery_paused=True)
    elif change == "place":
        queue.row.live_count += 1
    elif change == "record":
        commands.publish(core, client, "orders.dlq", b"", None, None)
    elif change == "consume":
        commands.consume(core, client, "orders", 1)
    else:
        core.remove_queue(queue)
        core.registry.get_or_create(core.batch, "orders")
    names = {status.name: status for status in handle.status().queues}
    changed = names["orders"] != before
    assert changed is (change != "remove")
    assert names["orders"].settings is core.queues["orders"].settings


async def test_status_comes_in_slices(handle: BrokerHandle, core: Broker) -> None:
    batches.begin(core, NOW)
    for number in range(5):
        core.registry.get_or_create(core.batch, f"q{number}")
    slices = [[queue.name for queue in some] for some in handle.queue_slices(2)]
    assert slices == [["q0", "q1"], ["q2", "q3"], ["q4"]]
    assert handle.summary().queues == ()
    with patch.object(status_module, "_queue", side_effect=status_module._queue) as made:
        wanted = handle.status(lambda name: name in ("q1", "q3")).queues
    assert [queue.name for queue in wanted] == ["q1", "q3"]
    assert made.call_count <= 2  # other queues are not read
    assert list(BrokerHandle(Settings()).queue_slices()) == []


async def test_status_has_histograms_and_causes_of_death(
    handle: BrokerHandle, core: Broker, client: Connection
) -> None:
    commands.consume(core, client, "orders", 1)
    batches.finish(core)
    batches.begin(core, NOW, LoadedRows(windows=[LoadedWindow(1, [], True)]))
    commands.publish(core, client, "orders", b"", None, None)
    [quiet] = handle.status().queues
    assert (quiet.wait, quiet.hold, quiet.deaths) == ((), (), {})
    batches.finish(core)
    [held] = core.connections[1].consumers[1].held.values()
    batches.begin(core, NOW)
    commands.dead_letter(core, client, "orders", held.message_id)
    batches.finish(core)
    [queue, _] = handle.status().queues
    assert (sum(queue.wait), sum(queue.hold), queue.deaths) == (1, 1, {"client": 1})


async def test_status_has_the_clients(
    handle: BrokerHandle, core: Broker, client: Connection
) -> None:
    commands.publish(core, client, "orders", b"", None, None)
    commands.consume(core, client, "orders", 7)
    batches.finish(core)
    (shown,) = handle.status().clients
    assert (shown.client, shown.kind, shown.address, shown.opened_at) == (
        1, "tcp", "192.0.2.1:1234", NOW.wall_ms,
    )  # fmt: skip
    assert (shown.queues, shown.published, shown.acked) == ({"orders": (7, 0)}, 1, 0)


async def test_status_names_the_dead_letter_queue_and_counts_its_records(
    handle: BrokerHandle, core: Broker, client: Connection
) -> None:
    for name in ("orders", "orders.retry", "mails.retry", "orders.dlq"):
        commands.publish(core, client, name, b"x", 0, None)
    batches.finish(core)
    assert {
        queue.name: (queue.dead_letter_queue, queue.dead) for queue in handle.status().queues
    } == {
        "orders": ("orders.dlq", 1),
        "orders.retry": ("orders.dlq", 0),  # counted at orders
        "mails.retry": ("mails.dlq", 0),
        "orders.dlq": ("orders.dlq.dlq", 0),
    }


async def test_queues_that_share_a_dead_letter_queue_count_their_own_records(
    handle: BrokerHandle, core: Broker, client: Connection
) -> None:
    queues = {
        name: core.registry._create(core.batch, name, "")
        for name in ("orders", "orders.retry", "mail", "other")
    }
    for name in ("orders", "mail"):
        queues[name].row.own = {"dead_letter_queue": "failed"}
        core.registry.configure(queues[name])

    def dead() -> dict[str, int]:
        return {queue.name: queue.dead for queue in handle.status().queues if queue.dead}

    def kill(name: str) -> Message:
        [message] = core.create_messages(((queues[name], 1),), (b"x",), (0,), None)
        dead_letters.settle_dead(core, message, "client", b"x")
        return core.batch.created[-1]

    records = [kill(name) for name in ("orders", "orders.retry", "mail", "mail", "mail")]
    commands.publish(core, client, "failed", b"no record", 0, None)
    assert dead() == {"orders": 2, "mail": 3}
    failed = core.queues["failed"]
    transitions.acknowledge(core, records[0])
    transitions.delete(core, records[2], "operator")
    transitions.move(core, records[3], queues["other"], b"x")
    assert dead() == {"orders": 1, "mail": 1}
    transitions.move(core, records[3], failed, b"x")
    commands.consume(core, client, "failed", 9)
    batches.finish(core)
    records[4].body = b"x"
    batches.begin(
        core, NOW, LoadedRows(windows=[LoadedWindow(failed.queue_id, [records[4]], True)])
    )
    batches.finish(core)
    batches.begin(core, NOW)
    assert commands.acknowledge_held(core, client, [("failed", records[4].message_id)]) == 1
    assert dead() == {"orders": 1, "mail": 1}


@pytest.mark.parametrize("exists", [True, False])
async def test_dead_letters_count_at_a_retry_queue_only_without_its_home(
    handle: BrokerHandle, core: Broker, client: Connection, exists: bool
) -> None:
    for name in (*(["orders"] if exists else []), "orders.retry", "orders.dlq"):
        commands.publish(core, client, name, b"x", 0, None)
    batches.finish(core)
    counts = {queue.name: queue.dead for queue in handle.status().queues}
    assert counts["orders.retry"] == (not exists)
    assert sum(counts.values()) == 1


async def test_status_is_a_snapshot(handle: BrokerHandle, core: Broker) -> None:
    handle.counters.closed["closed by the peer"] += 1
    before = handle.status()
    handle.counters.closed["closed by the peer"] += 1
    core.ignored["foreign"] += 1
    assert (before.counters.closed, before.acks_ignored) == ({"closed by the peer": 1}, {})


def test_rates_are_those_of_the_last_ten_seconds(core: Broker, queue: Queue) -> None:
    rates = Rates()
    for second in range(30):
        queue.counters.published = 1_000 if second < 15 else 1_000 + 10 * (second - 14)
        rates.sample(core.queues_by_id, float(second))
    assert rates.of(queue, 29.0) == (10.0, 0.0, 0.0)


def test_rates_of_a_new_queue_start_at_zero(queue: Queue) -> None:
    rates = Rates()
    rates.sample({}, 0.0)
    queue.counters.acked = 20
    assert rates.of(queue, 4.0) == (0.0, 0.0, 5.0)


@pytest.mark.parametrize("published", [1, 2_000, 2_100])
def test_rates_of_a_recreated_queue_start_at_zero(
    core: Broker, queue: Queue, published: int
) -> None:
    queue.counters.published = 2_000
    rates = Rates()
    rates.sample(core.queues_by_id, 0.0)
    queue.counters = QueueCounters(published=published)  # removed, and published to again
    assert rates.of(queue, 10.0) == (published / 10, 0.0, 0.0)
