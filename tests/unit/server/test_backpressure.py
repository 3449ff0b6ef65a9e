"""Publishers wait while the process has too much memory; whoever consumes does not."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from phpmq_lite.process_memory import resident_bytes
from phpmq_lite.server.backpressure import (
    CGROUP_SHARE,
    FREE_BYTES,
    REASON,
    MemoryLimiter,
    ReadBackpressure,
    SlowPeerLimits,
    exclude_time,
    memory_bound,
    overdue_reason,
)
from phpmq_lite.server.counters import ConnectionCounters
from phpmq_lite.server.session import Session
from phpmq_lite.server.status import BrokerHandle
from phpmq_lite.server.watchdog import SessionMonitor


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
    brake = MemoryLimiter(100)
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
    brake, publisher = MemoryLimiter(100), FakeSession(3)
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


LIMIT = 10 * FREE_BYTES


@dataclass(eq=False)
class Reader:
    """One connection, without a socket."""

    name: str
    paused: set[str] = field(default_factory=set)
    is_parked: bool = False

    def pause_reading(self, reason: str) -> None:
        assert reason not in self.paused
        self.paused.add(reason)

    def resume_reading(self, reason: str) -> None:
        self.paused.remove(reason)

    @property
    def is_read(self) -> bool:
        return not self.paused


@pytest.fixture
def pressure() -> ReadBackpressure:
    return ReadBackpressure(LIMIT)


@pytest.fixture
def readers() -> list[Reader]:
    return [Reader(name) for name in "abcd"]


def who_is_read(readers: list[Reader]) -> str:
    return "".join(reader.name for reader in readers if reader.is_read)


def test_all_are_read_up_to_the_limit(pressure: ReadBackpressure, readers: list[Reader]) -> None:
    for reader in readers[:2]:
        pressure.report(reader, LIMIT // 2)
    assert pressure.total_bytes == LIMIT
    assert who_is_read(readers) == "abcd"


def test_only_the_one_that_waits_longest_is_read_past_the_limit(
    pressure: ReadBackpressure, readers: list[Reader]
) -> None:
    for reader in readers:
        pressure.report(reader, LIMIT // 3)
    for reader in readers:
        pressure.report(reader, LIMIT // 3 + 1)
    assert who_is_read(readers) == "a"


def test_the_next_one_is_read_when_the_first_has_finished(
    pressure: ReadBackpressure, readers: list[Reader]
) -> None:
    for reader in readers:
        pressure.report(reader, LIMIT // 2)
    for reader in readers:
        pressure.report(reader, LIMIT // 2)
    assert who_is_read(readers) == "a"
    pressure.report(readers[0], 0)
    assert who_is_read(readers) == "ab"  # a has nothing here any more


def test_all_are_read_again_below_the_limit(
    pressure: ReadBackpressure, readers: list[Reader]
) -> None:
    for reader in readers:
        pressure.report(reader, LIMIT // 3)
    pressure.report(readers[1], LIMIT // 3 + 1)
    pressure.report(readers[3], 0)
    assert pressure.total_bytes <= LIMIT
    assert who_is_read(readers) == "abcd"


def test_who_holds_little_is_read_past_the_limit(
    pressure: ReadBackpressure, readers: list[Reader]
) -> None:
    pressure.report(readers[0], LIMIT + 1)
    pressure.report(readers[1], FREE_BYTES - 1)
    pressure.report(readers[2], FREE_BYTES)
    assert who_is_read(readers) == "abd"


def test_who_holds_little_again_is_read_past_the_limit(
    pressure: ReadBackpressure, readers: list[Reader]
) -> None:
    """Its messages were stored; that others still fill the room is no reason to wait."""
    pressure.report(readers[0], LIMIT + 1)
    pressure.report(readers[1], FREE_BYTES)
    assert who_is_read(readers) == "acd"
    pressure.report(readers[1], 0)
    assert who_is_read(readers) == "abcd"


def test_who_is_parked_does_not_take_the_turn_of_others(
    pressure: ReadBackpressure, readers: list[Reader]
) -> None:
    parked, *others = readers
    parked.is_parked = True
    pressure.report(parked, LIMIT + 1)
    for reader in others:
        pressure.report(reader, FREE_BYTES)
    assert who_is_read(others) == "b"
    pressure.report(others[0], 0)
    assert who_is_read(others) == "bc"


def test_bytes_of_who_has_left_do_not_count(
    pressure: ReadBackpressure, readers: list[Reader]
) -> None:
    pressure.report(readers[0], LIMIT)
    pressure.report(readers[0], 0)
    assert pressure.total_bytes == 0
    pressure.report(readers[1], LIMIT)
    assert who_is_read(readers) == "abcd"


LIMITS = SlowPeerLimits(frame_s=60, frame_bytes_per_s=1_000, write_s=30, silent_s=10, places=10)
LATE = "a message took too long to arrive"


@dataclass(eq=False)
class Peer:
    """What the watch sees of a session."""

    frame_began_at: float | None = None
    frame_bytes: int = 0
    blocked_at: float | None = None
    closing_at: float | None = None
    last_read_at: float = 0.0
    is_idle: bool = True
    paused: set[str] = field(default_factory=set)
    has_eof: bool = False
    ended: str | None = None
    connection: None = None  # the core does not know it yet

    def note_writing(self, now_s: float) -> None:
        """Nothing is written in these tests."""

    def abort(self, reason: str) -> None:
        self.ended = reason

    def end(self, reason: str) -> None:
        self.ended = reason


def verdict(peer: Peer, now_s: float) -> str | None:
    return overdue_reason(cast(Session, peer), now_s, LIMITS)


def look(now_s: float, *peers: Peer) -> list[str | None]:
    """Have the watch look once; give why each was ended."""
    sessions = [cast(Session, peer) for peer in peers]
    SessionMonitor(sessions, BrokerHandle(ConnectionCounters()), LIMITS).check(now_s)
    return [peer.ended for peer in peers]


def test_peer_has_time_for_a_message() -> None:
    assert verdict(Peer(frame_began_at=100), 160) is None
    assert verdict(Peer(frame_began_at=100), 160.1) == LATE


def test_peer_has_longer_while_its_bytes_come() -> None:
    """``limits.frame_rate_bytes``: each 1,000 bytes give a second."""
    assert verdict(Peer(frame_began_at=100, frame_bytes=5_000), 165) is None
    assert verdict(Peer(frame_began_at=100, frame_bytes=5_000), 165.1) == LATE


def test_peer_between_messages_has_all_the_time() -> None:
    assert verdict(Peer(), 1e9) is None


def test_time_stands_still_while_a_peer_is_not_read() -> None:
    """It may be in the middle of a large message when memory is short."""
    peer = Peer(frame_began_at=0, paused={"memory"})
    for now_s in range(1, 101):
        assert look(now_s, peer) == [None]
    peer.paused.clear()
    assert verdict(peer, 160) is None
    assert verdict(peer, 161) == LATE


def test_peer_that_does_not_read_is_ended() -> None:
    assert verdict(Peer(blocked_at=100), 130) is None
    assert verdict(Peer(blocked_at=100), 130.1) == "the peer does not read"


def test_peer_that_does_not_take_the_rest_is_ended() -> None:
    """Its connection was closed, but a few bytes are still to leave, and its place is taken."""
    assert verdict(Peer(closing_at=100), 130) is None
    assert verdict(Peer(closing_at=100), 130.1) == "the peer does not read the remaining data"


@pytest.mark.parametrize("since", ["frame_began_at", "blocked_at", "closing_at"])
def test_peer_is_excused_for_a_time_in_which_the_broker_stood_still(since: str) -> None:
    peer = Peer(**{since: 100.0})  # type: ignore[arg-type]
    exclude_time(cast(Session, peer), 50.0)
    assert (peer.last_read_at, verdict(peer, 180)) == (50.0, None)
    assert verdict(peer, 250) is not None


def test_silent_peers_stay_while_there_is_room() -> None:
    assert look(1_000, *(Peer() for _ in range(8))) == [None] * 8


def test_longest_silent_peers_make_room() -> None:
    peers = [Peer(last_read_at=at) for at in (3, 1, 2, 4, 5, 6, 7, 8, 9, 10)]
    ended = look(1_000, *peers)
    assert [peer.last_read_at for peer, end in zip(peers, ended, strict=True) if end] == [1, 2]


def test_peer_that_has_left_makes_room_at_once() -> None:
    """Its publishes wait for a queue that is full, and it will never know."""
    others = [Peer(last_read_at=1_000) for _ in range(9)]
    gone = Peer(last_read_at=1_000, has_eof=True)
    assert [bool(end) for end in look(1_000, *others, gone)] == [False] * 9 + [True]


@pytest.mark.parametrize("busy", [Peer(is_idle=False), Peer(last_read_at=995)])
def test_peer_that_does_something_does_not_make_room(busy: Peer) -> None:
    """A consumer waits for good reason, and who spoke lately may speak again."""
    others = [Peer(is_idle=False) for _ in range(9)]
    assert look(1_000, busy, *others) == [None] * 10
