"""Publishers beside consumers at work: each has its part of each queue, and its turn."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from phpmq_lite.broker.flow_control import MIN_PER_BATCH
from tests.support.engine_driver import EngineClient, EngineDriver, disable_timers

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
    """Give the queues one message after the other, in one piece."""
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
