"""Publishers wait while the process has too much memory; whoever consumes does not."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phpmq_lite.process_memory import resident_bytes
from phpmq_lite.server.backpressure import (
    CGROUP_SHARE,
    REASON,
    MemoryBrake,
    memory_bound,
)


class FakeSession:
    """A connection as the brake sees it."""

    def __init__(self, published: int, *, consumes: bool = False) -> None:
        self.connection = SimpleNamespace(published=published, consumers={1: 1} if consumes else {})
        self.paused: set[str] = set()
        self.was_read = 0

    def pause_reading(self, reason: str) -> None:
        self.paused.add(reason)

    def resume_reading(self, reason: str) -> None:
        self.was_read += reason in self.paused
        self.paused.discard(reason)


async def passed() -> None:
    """Let the timers of a look end."""
    await asyncio.sleep(0.03)


async def test_publishers_wait_while_memory_is_short_and_are_read_a_moment_each_second() -> None:
    brake = MemoryBrake(100)
    publisher, worker, idle = FakeSession(3), FakeSession(3, consumes=True), FakeSession(0)
    sessions: Any = [publisher, worker, idle]
    brake.check(sessions, 100)
    await passed()
    assert not publisher.paused
    brake.check(sessions, 101)
    await passed()
    assert [bool(one.paused) for one in sessions] == [True, False, False]
    brake.check(sessions, 150)
    assert (publisher.paused, publisher.was_read) == (set(), 1)
    await passed()
    assert publisher.paused == {REASON}
    brake.check(sessions, 99)
    await passed()
    assert (publisher.paused, brake.limit_hits, brake.resident_bytes) == (set(), 1, 99)


async def test_publisher_that_begins_to_consume_is_read_on() -> None:
    brake, publisher = MemoryBrake(100), FakeSession(3)
    sessions: Any = [publisher]
    brake.check(sessions, 101)
    await passed()
    publisher.connection.consumers = {1: 1}
    brake.check(sessions, 101)
    await passed()
    assert not publisher.paused


@pytest.mark.parametrize(
    ("text", "bound"), [("max\n", 1_000), ("1000000\n", 1_000), ("1000\n", 600), (None, 1_000)]
)
def test_bound_is_below_that_of_the_container(tmp_path: Path, text: str | None, bound: int) -> None:
    file = tmp_path / "memory.max"
    if text is not None:
        file.write_text(text)
    assert memory_bound(1_000, [file]) == bound
    assert CGROUP_SHARE < 1


def test_process_knows_its_memory() -> None:
    assert resident_bytes() > 1 << 20
