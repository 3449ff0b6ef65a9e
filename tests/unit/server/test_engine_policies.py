"""How often the engine has the loop call it: as seldom as it can, and never too late."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from phpmq_lite.errors import OutcomeUnknownError
from phpmq_lite.server import engine_policies
from tests.support.engine_driver import EngineClient, EngineDriver, disable_timers


@pytest.fixture
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EngineDriver]:
    disable_timers(monkeypatch)
    house = EngineDriver(tmp_path)
    house.start()
    await house.run_until_idle()
    yield house
    await house.stop()
    house.close()


async def test_commit_without_work_behind_it_opens_no_batch(house: EngineDriver) -> None:
    EngineClient(house).publish("orders", b"a")
    await house.run_until_idle()
    assert house.core.batch_number == 1
    await house.end_commit()
    assert house.core.batch_number == 1


async def test_waits_share_a_timer(house: EngineDriver) -> None:
    timer = house.engine._timer
    assert timer is not None
    program = EngineClient(house)
    for body in (b"a", b"b", b"c"):
        program.publish("orders", body)
        await house.settle()
    assert house.engine._timer is timer
    assert not timer.cancelled()


async def test_what_is_due_sooner_has_a_timer_of_its_own(house: EngineDriver) -> None:
    timer = house.engine._timer
    program = EngineClient(house)
    program.publish("orders", b"a", ttl_s=1)
    await house.settle()
    assert timer is not None
    assert timer.cancelled()
    house.engine._on_timer()  # too early: nothing is due
    await house.run_until_idle()
    assert house.writer.batch is None
    house.clock.advance(1)
    house.engine._on_timer()
    await house.settle()
    assert house.rows("SELECT count(*) FROM message") == [(0,)]


async def test_what_is_due_beside_a_commit_follows_on_it(house: EngineDriver) -> None:
    program = EngineClient(house)
    program.publish("orders", b"a", ttl_s=1)
    await house.settle()
    program.publish("orders", b"b")
    await house.run_until_idle()
    assert house.writer.batch is not None
    house.advance(1)
    await house.end_commit()
    assert house.writer.batch is not None  # which loads what is due
    await house.settle()
    assert house.rows("SELECT seq FROM message") == [(2,)]


async def test_open_acknowledgement_is_stored_when_its_timer_ends(
    house: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_policies, "_ACK_DELAY_S", 1e9)
    program = EngineClient(house)
    program.consume("orders", 1)
    program.publish("orders", b"a")
    await house.settle()
    program.acknowledge(program.got[0])
    await house.run_until_idle()
    assert house.writer.batch is None
    assert not house.is_stored
    house.engine._ack_delay.ends_at = 0.0
    house.engine._on_timer()
    await house.settle()
    assert house.rows("SELECT count(*) FROM history") == [(1,)]


async def test_cancelled_engine_does_nothing_any_more(tmp_path: Path) -> None:
    house = EngineDriver(tmp_path)
    house.start()
    await house.run_until_idle()
    assert house.running is not None
    house.running.cancel()
    await asyncio.wait([house.running])
    EngineClient(house).publish("orders", b"a")
    for _ in range(5):
        await asyncio.sleep(0)
    assert house.writer.batch is None
    assert house.engine.waiting
    house.close()


async def test_upkeep_is_due_beside_batches_that_store_nothing(
    house: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishers that are refused and try again at once leave no rest, and nothing to store."""
    calls: list[object] = []

    async def run(work: object) -> bool:
        calls.append(work)
        return False

    monkeypatch.setattr(house.writer, "run", run)
    for number in range(1, 4):
        house.engine._maintained_at = -1e12  # it is time for the next
        house.engine.submit(lambda _core: None)
        await house.run_until_idle()
        await asyncio.sleep(0)  # its task begins
        assert len(calls) == number
    assert house.engine.commits.count == 0


async def test_upkeep_that_failed_ends_it_though_nothing_else_happens(tmp_path: Path) -> None:
    async def fail() -> None:
        raise OutcomeUnknownError("the disk has gone")

    house = EngineDriver(tmp_path)
    house.start()
    await house.run_until_idle()
    house.engine._maintenance = asyncio.create_task(fail())
    await asyncio.wait([house.engine._maintenance])
    house.engine._maintained_at = -1e12  # it is time for the next
    house.engine._on_timer()
    assert house.running is not None
    with pytest.raises(OutcomeUnknownError):
        await asyncio.wait_for(house.running, 10)
    house.close()
