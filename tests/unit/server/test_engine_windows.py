"""Window pages requested in the open batch, of queues that change before the batch ends."""

import asyncio
from collections.abc import Callable

import pytest

from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.model import AuditEntry, Limits
from tests.support.engine_driver import EngineClient, EngineDriver


@pytest.fixture
async def driver(make_driver: Callable[[Limits], EngineDriver]) -> EngineDriver:
    return make_driver(Limits(window=4))


async def request_page_in_open_batch(
    driver: EngineDriver, publisher: EngineClient, worker: EngineClient
) -> None:
    """Acknowledge during a commit, until the window requests a page."""
    publisher.publish("other", b"x")
    await driver.run_until_idle()
    for _ in range(4):
        if driver.engine._open is not None and driver.engine._open.windows:
            return
        worker.acknowledge(worker.got[-1])
        await driver.run_until_idle()
    raise AssertionError("no page was requested")


async def consume_rest(driver: EngineDriver, worker: EngineClient) -> None:
    taken = len(worker.got) - 1
    while taken < len(worker.got):
        fresh, taken = worker.got[taken:], len(worker.got)
        worker.acknowledge(*fresh)
        await driver.settle()


async def test_trimmed_messages_of_a_window_are_loaded_again(driver: EngineDriver) -> None:
    """They would be lost if the window accepted the page that follows them."""
    publisher, leaving, worker = EngineClient(driver), EngineClient(driver), EngineClient(driver)
    publisher.publish("orders", *(b"%d" % n for n in range(20)))
    await driver.settle()
    leaving.consume("orders", 4)
    await driver.settle()
    worker.consume("orders", 1)
    await driver.settle()
    await request_page_in_open_batch(driver, publisher, worker)
    leaving.disconnect()
    await driver.settle()
    await consume_rest(driver, worker)
    assert sorted(map(int, worker.bodies)) == list(range(20))
    assert driver.core.queues["orders"].row.live_count == 0


async def test_new_window_does_not_accept_a_page_of_the_old_one(driver: EngineDriver) -> None:
    publisher, worker = EngineClient(driver), EngineClient(driver)
    publisher.publish("orders", *(b"%d" % n for n in range(20)))
    await driver.settle()
    worker.consume("orders", 2)
    await driver.settle()
    await request_page_in_open_batch(driver, publisher, worker)
    before = len(worker.got)
    worker.consume("orders", 0)
    worker.consume("orders", 1)
    await driver.settle()
    await consume_rest(driver, worker)
    assert sorted(set(map(int, worker.bodies))) == list(range(20))
    numbers = [int(body) for body in worker.bodies[before:]]
    assert numbers == sorted(numbers)
    assert driver.core.bodies.total_bytes == 0


@pytest.mark.parametrize("has_dispatched", [True, False], ids=["dispatched", "requested"])
async def test_queue_is_removed_in_the_batch_that_used_it(
    driver: EngineDriver, has_dispatched: bool
) -> None:
    publisher, worker = EngineClient(driver), EngineClient(driver)
    if has_dispatched:
        publisher.publish("orders", b"a", b"b")
        worker.consume("orders", 1)
    await driver.settle()
    publisher.publish("other", b"x")
    await driver.run_until_idle()
    if has_dispatched:
        worker.acknowledge(worker.got[0])
        await driver.run_until_idle()
        worker.acknowledge(worker.got[1])
    else:
        worker.consume("orders", 1)
        await driver.run_until_idle()
    worker.consume("orders", 0)
    await driver.run_until_idle()
    entry = AuditEntry("anna", "http", "127.0.0.1", "queue.remove")
    removing = asyncio.create_task(
        driver.engine.call(queue_operations.remove_queue, entry, "orders")
    )
    await driver.run_until_idle()
    await driver.settle()
    assert await asyncio.wait_for(removing, 10) is True
    assert "orders" not in driver.core.queues
