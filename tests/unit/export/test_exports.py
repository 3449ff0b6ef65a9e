"""Exports yield to messages by pausing between pieces."""

import asyncio

import pytest

from phpmq_lite.export.exports import MAX_PAUSE_S, MIN_PAUSE_S, ExportPacer


class Machine:
    """A clock, a message counter, and how late a sleeper is woken."""

    def __init__(self) -> None:
        self.at_s = 0.0
        self.passed = 0
        self.late_s = 0.0
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.at_s += seconds + self.late_s

    def pace(self) -> ExportPacer:
        return ExportPacer(lambda: self.passed, lambda: self.at_s, self.sleep)

    async def pieces(self, pace: ExportPacer, count: int, *, late_s: float) -> None:
        """Write pieces while messages pass."""
        self.late_s = late_s
        for _ in range(count):
            self.passed += 1
            await pace.pause()


@pytest.fixture
def machine() -> Machine:
    return Machine()


async def test_nothing_waits_while_no_message_passes(machine: Machine) -> None:
    pace = machine.pace()
    machine.late_s = 1.0
    for _ in range(10):
        assert await pace.pause() == 0.0
    assert machine.pauses == []


async def test_pause_returns_its_length(machine: Machine) -> None:
    pace = machine.pace()
    machine.passed += 1
    machine.late_s = 0.5
    assert await pace.pause() == MIN_PAUSE_S + 0.5


async def test_pauses_stay_short_while_the_loop_is_woken_in_time(machine: Machine) -> None:
    await machine.pieces(machine.pace(), 10, late_s=0.0005)
    assert machine.pauses == [MIN_PAUSE_S] * 10


async def test_pauses_grow_while_the_loop_is_woken_late_up_to_a_bound(machine: Machine) -> None:
    await machine.pieces(machine.pace(), 10, late_s=0.005)
    assert machine.pauses[:3] == [MIN_PAUSE_S, 2 * MIN_PAUSE_S, 4 * MIN_PAUSE_S]
    assert machine.pauses[-1] == MAX_PAUSE_S


async def test_pauses_shrink_again(machine: Machine) -> None:
    pace = machine.pace()
    await machine.pieces(pace, 10, late_s=0.005)
    await machine.pieces(pace, 300, late_s=0.0)
    assert machine.pauses[10:] == sorted(machine.pauses[10:], reverse=True)
    assert machine.pauses[-1] == MIN_PAUSE_S


async def test_two_exports_share_the_pauses() -> None:
    sleeping, most = 0, 0

    async def sleep(_: float) -> None:
        nonlocal sleeping, most
        sleeping += 1
        most = max(most, sleeping)
        await asyncio.sleep(0)
        sleeping -= 1

    passed = iter(range(100))
    pace = ExportPacer(lambda: next(passed), sleep=sleep)
    await asyncio.gather(*[pace.pause() for _ in range(10)])
    assert most == 1
