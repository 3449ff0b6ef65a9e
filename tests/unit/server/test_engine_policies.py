"""How often the engine schedules itself: as rarely as possible, and never too late."""

import asyncio

import pytest

from phpmq_lite.errors import OutcomeUnknownError
from phpmq_lite.model import ClockReading
from phpmq_lite.server import engine
from tests.support.engine_driver import EngineClient, EngineDriver


async def test_commit_without_further_work_opens_no_batch(driver: EngineDriver) -> None:
    EngineClient(driver).publish("orders", b"a")
    await driver.run_until_idle()
    assert driver.core.batch_number == 1
    await driver.end_commit()
    assert driver.core.batch_number == 1


async def test_waits_share_a_timer(driver: EngineDriver) -> None:
    timer = driver.engine._timer
    assert timer is not None
    program = EngineClient(driver)
    for body in (b"a", b"b", b"c"):
        program.publish("orders", body)
        await driver.settle()
    assert driver.engine._timer is timer
    assert not timer.cancelled()


async def test_earlier_deadline_replaces_the_timer(driver: EngineDriver) -> None:
    timer = driver.engine._timer
    program = EngineClient(driver)
    program.publish("orders", b"a", ttl_s=1)
    await driver.settle()
    assert timer is not None
    assert timer.cancelled()
    driver.engine._on_timer()  # too early: nothing is due
    await driver.run_until_idle()
    assert driver.writer.batch is None
    driver.clock.advance(1)
    driver.engine._on_timer()
    await driver.settle()
    assert driver.rows("SELECT count(*) FROM message") == [(0,)]


async def test_deadline_during_a_commit_is_handled_after_it(driver: EngineDriver) -> None:
    program = EngineClient(driver)
    program.publish("orders", b"a", ttl_s=1)
    await driver.settle()
    program.publish("orders", b"b")
    await driver.run_until_idle()
    assert driver.writer.batch is not None
    driver.advance(1)
    await driver.end_commit()
    assert driver.writer.batch is not None  # it loads the due messages
    await driver.settle()
    assert driver.rows("SELECT seq FROM message") == [(2,)]


async def test_open_acknowledgement_is_stored_when_its_timer_ends(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_ACK_DELAY_S", 1e9)
    program = EngineClient(driver)
    program.consume("orders", 1)
    program.publish("orders", b"a")
    await driver.settle()
    program.acknowledge(program.got[0])
    await driver.run_until_idle()
    assert driver.writer.batch is None
    assert not driver.is_stored
    driver.engine._delay_ends_at = 0.0
    driver.engine._on_timer()
    await driver.settle()
    assert driver.rows("SELECT count(*) FROM history") == [(1,)]


async def test_cancelled_engine_does_nothing_more(driver: EngineDriver) -> None:
    driver.task.cancel()
    await asyncio.wait([driver.task])
    EngineClient(driver).publish("orders", b"a")
    for _ in range(5):
        await asyncio.sleep(0)
    assert driver.writer.batch is None
    assert driver.engine.waiting


async def test_maintenance_runs_during_batches_that_store_nothing(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishers that retry at once after a refusal leave no pause, and nothing to store."""
    calls: list[object] = []

    async def maintain(now: ClockReading, *, is_idle: bool) -> bool:
        calls.append(now)
        return False

    monkeypatch.setattr(driver.writer, "maintain", maintain)
    for number in range(1, 4):
        driver.engine._maintained_at = -1e12  # it is time for the next
        driver.engine.submit(lambda _core: None)
        await driver.run_until_idle()
        await asyncio.sleep(0)  # its task begins
        assert len(calls) == number
    assert driver.engine.commits.count == 0


async def test_failed_maintenance_ends_an_idle_engine(driver: EngineDriver) -> None:
    async def fail() -> None:
        raise OutcomeUnknownError("the disk has gone")

    driver.engine._maintenance = asyncio.create_task(fail())
    await asyncio.wait([driver.engine._maintenance])
    driver.engine._maintained_at = -1e12  # it is time for the next
    driver.engine._on_timer()
    with pytest.raises(OutcomeUnknownError):
        await asyncio.wait_for(driver.task, 10)
