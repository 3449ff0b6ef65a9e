"""Background work and pauses of other tasks between batches."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.broker.broker import Broker
from phpmq_lite.clock import Clock
from phpmq_lite.model import Batch, Limits, LoadedRows, NextScheduled, RecoveredState
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.server import engine as engines
from phpmq_lite.server.engine import Engine
from phpmq_lite.storage.sqlite.writer import Writer


def fail(_core: Broker) -> None:
    raise ValueError("it failed")


class SlowWriter(Writer):
    """Stores nothing; a commit ends when the test releases ``may_end``."""

    def __init__(self) -> None:
        super().__init__(Path("never-opened"))
        self.under_way = asyncio.Event()
        self.may_end = asyncio.Semaphore(0)

    def commit(self, batch: Batch) -> asyncio.Future[LoadedRows | None]:
        self.under_way.set()
        return asyncio.ensure_future(self._store_slowly())

    async def _store_slowly(self) -> None:
        await self.may_end.acquire()
        self.under_way.clear()


def submit(engine: Engine) -> None:
    engine.submit(lambda core: core.batch.counters.update(x=1))


@pytest.fixture
def writer() -> SlowWriter:
    return SlowWriter()


@pytest.fixture
def engine(writer: SlowWriter, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(engines, "_MAINTENANCE_S", 1e9)
    core = Broker(RecoveredState([], [], {}, None, 0), Limits(), QueueSettings())
    made = Engine(core, writer, Clock())
    made._maintained_at = 1e12  # disabled: it would use the writer
    return made


@pytest.mark.parametrize("is_failing", [True, False])
async def test_queued_background_work_does_not_start_after_the_end(
    engine: Engine, is_failing: bool
) -> None:
    release, begun = threading.Event(), list[Any]()
    engine._background.run(release.wait, begun.append)
    engine._background.run(lambda: begun.append("second"), begun.append)
    await asyncio.sleep(0.05)
    if is_failing:
        engine.submit(fail)
        with pytest.raises(ValueError, match="it failed"):
            await engine.run()
    else:
        await engine.end()
    release.set()
    await asyncio.to_thread(engine._background._executor.shutdown, wait=True)
    assert begun == []


async def test_pause_returns_at_once_without_a_batch(engine: Engine) -> None:
    await engine.pause()


async def test_one_paused_task_runs_after_each_batch(
    engine: Engine, writer: SlowWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_MAX_DEFER_S", 60.0)
    order: list[str] = []

    async def page(name: str) -> None:
        await engine.pause()
        order.append(name)

    running = asyncio.create_task(engine.run())
    submit(engine)
    await writer.under_way.wait()
    pages = [asyncio.create_task(page(name)) for name in ("one", "two")]
    for _ in range(5):
        await asyncio.sleep(0)
    assert order == []
    submit(engine)  # there is a next batch at once
    writer.may_end.release()
    await writer.under_way.wait()
    await asyncio.wait(pages, return_when=asyncio.FIRST_COMPLETED)
    assert order == ["one"]
    engine.stop()
    writer.may_end.release()
    await asyncio.gather(running, *pages)
    assert order == ["one", "two"]


async def test_pause_ends_although_the_disk_hangs(
    engine: Engine, writer: SlowWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_MAX_DEFER_S", 0.0)
    running = asyncio.create_task(engine.run())
    submit(engine)
    await writer.under_way.wait()
    await engine.pause()  # the batch is still with the writer
    assert writer.under_way.is_set()
    engine.stop()
    writer.may_end.release()
    await running


def test_date_is_compared_with_the_clock_several_times_a_second(engine: Engine) -> None:
    """The clock may be set to after it; a delay needs no such look."""
    now = engine.clock.now()
    engine.core.next_scheduled = NextScheduled(now.steady_ms + 3_600_000, None)
    assert engine._delay_s > 3_000
    engine.core.next_scheduled = NextScheduled(None, now.wall_ms + 3_600_000)
    assert engine._delay_s < 0.5
