"""Who is too slow, and who makes room when places are short."""

from dataclasses import dataclass, field
from typing import cast

import pytest

from phpmq_lite.server.backpressure import SlowPeerLimits, exclude_time, overdue_reason
from phpmq_lite.server.counters import ConnectionCounters
from phpmq_lite.server.session import Session
from phpmq_lite.server.status import BrokerHandle
from phpmq_lite.server.watchdog import SessionMonitor

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
