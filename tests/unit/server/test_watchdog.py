"""When engine and writer count as moving."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from phpmq_lite.server.engine import Engine
from phpmq_lite.server.watchdog import EngineWatchdog
from phpmq_lite.storage.write.writer import Writer


class Broker:
    """An engine and a writer that answer when they are told to; ``write_problem`` is the disk's."""

    def __init__(self) -> None:
        self.space = self
        self.write_problem: str | None = None
        self.commands: list[Callable[[Any], None]] = []
        self.works: list[asyncio.Future[None]] = []
        self.pulse = EngineWatchdog(cast("Engine", self), cast("Writer", self))

    def submit(self, command: Callable[[Any], None]) -> None:
        self.commands.append(command)

    def start(self, work: Callable[[Any], None]) -> asyncio.Future[None]:
        self.works.append(asyncio.get_running_loop().create_future())
        return self.works[-1]

    def decide(self) -> None:
        """Be the engine: do what was submitted."""
        while self.commands:
            self.commands.pop()(None)

    async def store(self, failure: Exception | None = None) -> None:
        """Be the writer's thread: end what was given to it."""
        if failure is None:
            self.works.pop().set_result(None)
        else:
            self.works.pop().set_exception(failure)
        await asyncio.sleep(0)  # the loop tells who waits


async def test_pulse_is_felt_while_both_answer() -> None:
    broker = Broker()
    for _ in range(3):
        assert broker.pulse.probe()
        broker.decide()
        await broker.store()


async def test_engine_that_stands_is_noticed() -> None:
    broker = Broker()
    assert broker.pulse.probe()
    assert not broker.pulse.probe()
    assert len(broker.commands) == 1  # nobody is asked twice


async def test_writer_that_hangs_is_noticed_until_it_goes_on() -> None:
    broker = Broker()
    assert broker.pulse.probe()
    broker.decide()
    assert not broker.pulse.probe()
    assert not broker.pulse.probe()
    await broker.store()
    assert broker.pulse.probe()


async def test_writer_that_waits_for_room_moves() -> None:
    """A restart would find the disk as full."""
    broker = Broker()
    assert broker.pulse.probe()
    broker.decide()
    broker.write_problem = "the disk is full"
    assert broker.pulse.probe()
    broker.write_problem = None
    assert not broker.pulse.probe()


async def test_writer_that_has_failed_is_not_felt_again() -> None:
    broker = Broker()
    assert broker.pulse.probe()
    broker.decide()
    await broker.store(OSError("the end"))
    assert not broker.pulse.probe()
