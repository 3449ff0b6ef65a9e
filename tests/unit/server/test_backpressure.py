"""Limits on memory, on unprocessed bytes, and on slow or silent peers."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from phpmq_lite.broker.queue import Connection
from phpmq_lite.os_process import resident_bytes
from phpmq_lite.server.backpressure import (
    CGROUP_SHARE,
    FREE_BYTES,
    REASON,
    MemoryLimiter,
    ReadBackpressure,
    SlowPeerLimits,
    memory_bound,
)
from phpmq_lite.server.session import Session
from phpmq_lite.server.status import BrokerHandle
from phpmq_lite.server.watchdog import SessionMonitor, exclude_time, overdue_reason
from phpmq_lite.settings import Settings


class FakeSession:
    """A connection as the memory limiter sees it."""

    def __init__(self, published: int, *, consumes: bool = False) -> None:
        self.connection = Connection(1, cast("Any", None), "tcp", "", 0)
        self.connection.published = published
        self.connection.consumers = cast("Any", {1: 1} if consumes else {})
        self.paused: set[str] = set()
        self.was_read = 0

    def pause_reading(self, reason: str) -> None:
        self.paused.add(reason)

    def resume_reading(self, reason: str) -> None:
        self.was_read += reason in self.paused
        self.paused.discard(reason)


async def timers_end() -> None:
    """Advance the clock until the timers of a check expire."""
    await asyncio.sleep(0.03)


async def test_publishers_are_read_briefly_while_memory_is_short() -> None:
    limiter = MemoryLimiter(100)
    publisher, worker, idle = FakeSession(3), FakeSession(3, consumes=True), FakeSession(0)
    sessions: Any = [publisher, worker, idle]
    limiter.check(sessions, 100)
    await timers_end()
    assert not publisher.paused
    limiter.check(sessions, 101)
    await timers_end()
    assert [bool(one.paused) for one in sessions] == [True, False, False]
    limiter.check(sessions, 150)
    assert (publisher.paused, publisher.was_read) == (set(), 1)
    await timers_end()
    assert publisher.paused == {REASON}
    limiter.check(sessions, 99)
    await timers_end()
    assert (publisher.paused, limiter.limit_hits, limiter.resident_bytes) == (set(), 1, 99)


async def test_publisher_that_begins_to_consume_is_not_paused() -> None:
    limiter, publisher = MemoryLimiter(100), FakeSession(3)
    sessions: Any = [publisher]
    limiter.check(sessions, 101)
    await timers_end()
    publisher.connection.consumers = cast("Any", {1: 1})
    limiter.check(sessions, 101)
    await timers_end()
    assert not publisher.paused


@pytest.mark.parametrize(
    ("text", "bound"), [("max\n", 1_000), ("1000000\n", 1_000), ("1000\n", 600), (None, 1_000)]
)
def test_memory_limit_is_below_that_of_the_container(
    tmp_path: Path, text: str | None, bound: int
) -> None:
    file = tmp_path / "memory.max"
    if text is not None:
        file.write_text(text)
    assert memory_bound(1_000, [file]) == bound
    assert CGROUP_SHARE < 1


def test_resident_memory_is_measured() -> None:
    assert resident_bytes() > 1 << 20


LIMIT = 10 * FREE_BYTES


@dataclass(eq=False)
class Reader:
    """One connection, without a socket."""

    name: str
    pressure: ReadBackpressure
    paused: set[str] = field(default_factory=set)
    is_parked: bool = False

    def pause_reading(self, reason: str) -> None:
        assert reason not in self.paused
        self.paused.add(reason)

    def resume_reading(self, reason: str) -> None:
        self.paused.remove(reason)

    def report(self, size: int) -> None:
        self.pressure.report(self, size)


@pytest.fixture
def readers() -> list[Reader]:
    """Return four connections, a to d, with a common limit."""
    pressure = ReadBackpressure(LIMIT)
    return [Reader(name, pressure) for name in "abcd"]


def read_names(readers: list[Reader]) -> str:
    """Return the names of the connections that are not paused."""
    return "".join(reader.name for reader in readers if not reader.paused)


def test_all_are_read_up_to_the_limit(readers: list[Reader]) -> None:
    for reader in readers[:2]:
        reader.report(LIMIT // 2)
    assert readers[0].pressure.total_bytes == LIMIT
    assert read_names(readers) == "abcd"


def test_connections_above_the_limit_are_read_one_after_the_other(readers: list[Reader]) -> None:
    for size in (LIMIT // 3, LIMIT // 3 + 1):
        for reader in readers:
            reader.report(size)
    assert read_names(readers) == "a"
    readers[0].report(0)
    assert read_names(readers) == "ab"  # a has no bytes left


def test_all_are_read_again_below_the_limit(readers: list[Reader]) -> None:
    for reader in readers:
        reader.report(LIMIT // 3)
    readers[1].report(LIMIT // 3 + 1)
    readers[3].report(0)
    assert readers[0].pressure.total_bytes <= LIMIT
    assert read_names(readers) == "abcd"


def test_connection_with_few_bytes_is_read_above_the_limit(readers: list[Reader]) -> None:
    readers[0].report(LIMIT + 1)
    readers[1].report(FREE_BYTES - 1)
    readers[2].report(FREE_BYTES)
    assert read_names(readers) == "abd"
    readers[2].report(0)  # its messages were stored
    assert read_names(readers) == "abcd"


def test_parked_connection_does_not_take_the_turn_of_others(readers: list[Reader]) -> None:
    parked, *others = readers
    parked.is_parked = True
    parked.report(LIMIT + 1)
    for reader in others:
        reader.report(FREE_BYTES)
    assert read_names(others) == "b"
    others[0].report(0)
    assert read_names(others) == "bc"


def test_bytes_of_a_closed_connection_do_not_count(readers: list[Reader]) -> None:
    readers[0].report(LIMIT)
    readers[0].report(0)
    assert readers[0].pressure.total_bytes == 0
    readers[1].report(LIMIT)
    assert read_names(readers) == "abcd"


LIMITS = SlowPeerLimits(frame_s=60, frame_bytes_per_s=1_000, write_s=30, silent_s=10, places=10)
LATE = "a message took too long to arrive"


@dataclass(eq=False)
class Peer:
    """A session as the monitor sees it."""

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


def check(now_s: float, *peers: Peer) -> list[str | None]:
    """Check the peers once; return the reason why each was ended."""
    sessions = [cast(Session, peer) for peer in peers]
    SessionMonitor(sessions, BrokerHandle(Settings()), LIMITS).check(now_s)
    return [peer.ended for peer in peers]


@pytest.mark.parametrize(
    ("peer", "until_s", "reason"),
    [
        pytest.param(Peer(frame_began_at=100), 160, LATE, id="message"),
        # limits.frame_rate_bytes: each 1,000 bytes extend the time by a second
        pytest.param(Peer(frame_began_at=100, frame_bytes=5_000), 165, LATE, id="large message"),
        pytest.param(Peer(blocked_at=100), 130, "the peer does not read", id="not reading"),
        pytest.param(
            Peer(closing_at=100), 130, "the peer does not read the remaining data", id="closing"
        ),
    ],
)
def test_slow_peer_is_ended_after_its_time(peer: Peer, until_s: float, reason: str) -> None:
    assert verdict(peer, until_s) is None
    assert verdict(peer, until_s + 0.1) == reason


def test_peer_between_messages_has_unlimited_time() -> None:
    assert verdict(Peer(), 1e9) is None


def test_time_in_which_a_peer_is_not_read_does_not_count() -> None:
    """Reading may stop in the middle of a large message when memory is short."""
    peer = Peer(frame_began_at=0, paused={"memory"})
    for now_s in range(1, 101):
        assert check(now_s, peer) == [None]
    peer.paused.clear()
    assert verdict(peer, 160) is None
    assert verdict(peer, 161) == LATE


@pytest.mark.parametrize("since", ["frame_began_at", "blocked_at", "closing_at"])
def test_time_in_which_the_broker_hung_does_not_count(since: str) -> None:
    peer = Peer(**{since: 100.0})  # type: ignore[arg-type]
    exclude_time(cast(Session, peer), 50.0)
    assert (peer.last_read_at, verdict(peer, 180)) == (50.0, None)
    assert verdict(peer, 250) is not None


def test_silent_peers_stay_while_places_are_free() -> None:
    assert check(1_000, *(Peer() for _ in range(8))) == [None] * 8


def test_longest_silent_peers_are_ended() -> None:
    peers = [Peer(last_read_at=at) for at in (3, 1, 2, 4, 5, 6, 7, 8, 9, 10)]
    ended = check(1_000, *peers)
    assert [peer.last_read_at for peer, end in zip(peers, ended, strict=True) if end] == [1, 2]


def test_peer_that_has_left_is_ended_first() -> None:
    """Its publishes wait for a full queue, and nobody will read their receipts."""
    others = [Peer(last_read_at=1_000) for _ in range(9)]
    gone = Peer(last_read_at=1_000, has_eof=True)
    assert [bool(end) for end in check(1_000, *others, gone)] == [False] * 9 + [True]


@pytest.mark.parametrize("busy", [Peer(is_idle=False), Peer(last_read_at=995)])
def test_busy_peer_is_not_ended(busy: Peer) -> None:
    """A consumer waits for messages, and a peer that sent lately may send again."""
    others = [Peer(is_idle=False) for _ in range(9)]
    assert check(1_000, busy, *others) == [None] * 10
