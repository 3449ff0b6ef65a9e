"""A page that was asked for in the open batch, whose queue changes before the batch ends."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.model import AuditEntry, Limits
from tests.support.engine_driver import EngineClient, EngineDriver, disable_timers


@pytest.fixture
async def house(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[EngineDriver]:
    disable_timers(monkeypatch)
    made = EngineDriver(tmp_path_factory.mktemp("house"), Limits(window=4))
    made.start()
    yield made
    assert made.running is not None
    if not made.running.done():
        await made.stop()
    made.close()


async def asked_in_the_open_batch(
    house: EngineDriver, publisher: EngineClient, worker: EngineClient
) -> None:
    """Acknowledge beside a batch that is with the writer, until the window asks for more."""
    publisher.publish("other", b"x")
    await house.run_until_idle()
    for _ in range(4):
        if house.engine._open is not None and house.engine._open.windows:
            return
        worker.acknowledge(worker.got[-1])
        await house.run_until_idle()
    raise AssertionError("no page was asked for")


async def take_the_rest(house: EngineDriver, worker: EngineClient) -> None:
    taken = len(worker.got) - 1
    while taken < len(worker.got):
        fresh, taken = worker.got[taken:], len(worker.got)
        worker.acknowledge(*fresh)
        await house.settle()


async def test_what_a_window_gives_up_is_asked_for_again(house: EngineDriver) -> None:
    """It stayed behind: the page came that follows on what had been given up."""
    publisher, leaving, worker = EngineClient(house), EngineClient(house), EngineClient(house)
    publisher.publish("orders", *(b"%d" % n for n in range(20)))
    await house.settle()
    leaving.consume("orders", 4)
    await house.settle()
    worker.consume("orders", 1)
    await house.settle()
    await asked_in_the_open_batch(house, publisher, worker)
    leaving.disconnect()
    await house.settle()
    await take_the_rest(house, worker)
    assert sorted(map(int, worker.bodies)) == list(range(20))
    assert house.core.state.queues["orders"].row.live_count == 0


async def test_a_new_window_gets_no_page_of_the_old_one(house: EngineDriver) -> None:
    publisher, worker = EngineClient(house), EngineClient(house)
    publisher.publish("orders", *(b"%d" % n for n in range(20)))
    await house.settle()
    worker.consume("orders", 2)
    await house.settle()
    await asked_in_the_open_batch(house, publisher, worker)
    before = len(worker.got)
    worker.consume("orders", 0)
    worker.consume("orders", 1)
    await house.settle()
    await take_the_rest(house, worker)
    assert sorted(set(map(int, worker.bodies))) == list(range(20))
    numbers = [int(body) for body in worker.bodies[before:]]
    assert numbers == sorted(numbers)
    assert house.core.state.bodies.total_bytes == 0


@pytest.mark.parametrize("has_dispatched", [True, False], ids=["dispatched from it", "asked"])
async def test_queue_is_removed_in_the_batch_that_used_it(
    house: EngineDriver, has_dispatched: bool
) -> None:
    publisher, worker = EngineClient(house), EngineClient(house)
    if has_dispatched:
        publisher.publish("orders", b"a", b"b")
        worker.consume("orders", 1)
    await house.settle()
    publisher.publish("other", b"x")
    await house.run_until_idle()
    if has_dispatched:
        worker.acknowledge(worker.got[0])
        await house.run_until_idle()
        worker.acknowledge(worker.got[1])
    else:
        worker.consume("orders", 1)
        await house.run_until_idle()
    worker.consume("orders", 0)
    await house.run_until_idle()
    entry = AuditEntry("anna", "http", "127.0.0.1", "queue.remove")
    removing = asyncio.create_task(
        house.engine.call(queue_operations.remove_queue, entry, "orders")
    )
    await house.run_until_idle()
    await house.settle()
    assert await asyncio.wait_for(removing, 10) is True
    assert "orders" not in house.core.state.queues
