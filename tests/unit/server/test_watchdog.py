"""The watchdog detects an engine or a writer that hangs."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from phpmq_lite.server.engine import Engine
from phpmq_lite.server.watchdog import EngineWatchdog
from phpmq_lite.storage.sqlite.writer import Writer


class FakeBroker:
    """An engine and a writer that respond when the test calls ``decide`` and ``store``."""

    def __init__(self) -> None:
        self.space = self
        self.write_problem: str | None = None
        self.commands: list[Callable[[Any], None]] = []
        self.works: list[asyncio.Future[None]] = []
        self.watchdog = EngineWatchdog(cast("Engine", self), cast("Writer", self))

    def submit(self, command: Callable[[Any], None]) -> None:
        self.commands.append(command)

    def start(self, work: Callable[[Any], None]) -> asyncio.Future[None]:
        self.works.append(asyncio.get_running_loop().create_future())
        return self.works[-1]

    def decide(self) -> None:
        """Run the submitted commands, as the engine does."""
        while self.commands:
            self.commands.pop()(None)

    async def store(self, failure: Exception | None = None) -> None:
        """Finish the work, as the thread of the writer does."""
        if failure is None:
            self.works.pop().set_result(None)
        else:
            self.works.pop().set_exception(failure)
        await asyncio.sleep(0)  # the loop runs the callbacks


@pytest.fixture
async def broker() -> FakeBroker:
    return FakeBroker()


async def test_probe_succeeds_while_engine_and_writer_respond(broker: FakeBroker) -> None:
    for _ in range(3):
        assert broker.watchdog.probe()
        broker.decide()
        await broker.store()


async def test_hung_engine_is_detected(broker: FakeBroker) -> None:
    assert broker.watchdog.probe()
    assert not broker.watchdog.probe()
    assert len(broker.commands) == 1  # no second command is submitted


async def test_hung_writer_is_detected_until_it_continues(broker: FakeBroker) -> None:
    assert broker.watchdog.probe()
    broker.decide()
    assert not broker.watchdog.probe()
    assert not broker.watchdog.probe()
    await broker.store()
    assert broker.watchdog.probe()


async def test_writer_that_waits_for_disk_space_counts_as_responding(broker: FakeBroker) -> None:
    """A restart would not free space."""
    assert broker.watchdog.probe()
    broker.decide()
    broker.write_problem = "the disk is full"
    assert broker.watchdog.probe()
    broker.write_problem = None
    assert not broker.watchdog.probe()


async def test_failed_writer_never_responds_again(broker: FakeBroker) -> None:
    assert broker.watchdog.probe()
    broker.decide()
    await broker.store(OSError("the end"))
    assert not broker.watchdog.probe()
