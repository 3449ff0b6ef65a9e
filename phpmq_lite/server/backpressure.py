"""How much was read and is not yet stored, over all connections: past the limit they wait."""

import asyncio
import resource
import socket
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from phpmq_lite.broker.queue import Connection

FREE_BYTES: Final = 64 << 10  # who holds less is always read: to stop it would gain nothing


class Reader(Protocol):
    """What can be told to stop and go on reading."""

    @property
    def is_parked(self) -> bool:
        """Whether it waits for something else, and keeps its bytes in the meantime."""

    def pause_reading(self, reason: str) -> None:
        """Read nothing more."""

    def resume_reading(self, reason: str) -> None:
        """This reason to wait has gone."""


class ReadBackpressure:
    """Bounds the bytes that wait in memory (``docs/operate/security.md`` 9).

    Past the limit, of those that hold ``FREE_BYTES`` or more only the one that has waited longest
    is read, so one message can always be finished; acknowledgements and small messages pass.
    So the bound is the limit, and per connection ``FREE_BYTES`` and one read.
    O(1) a report, O(readers that wait) past the limit.
    """

    REASON = "memory"

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.total_bytes = 0
        self.times = 0  # somebody was held though nobody was before
        self._waiting: dict[Reader, int] = {}  # bytes that each holds, the longest first
        self._held: set[Reader] = set()

    def report(self, reader: Reader, held_bytes: int) -> None:
        """Say how many bytes of ``reader`` wait now; 0 takes it out."""
        self.total_bytes += held_bytes - self._waiting.get(reader, 0)
        if held_bytes:
            self._waiting[reader] = held_bytes
        else:
            self._waiting.pop(reader, None)
        if self.total_bytes > self.limit_bytes:
            self._judge(reader, held_bytes)
        elif self._held:
            self._release()

    def _judge(self, reader: Reader, held_bytes: int) -> None:
        oldest = self._oldest()
        if oldest is not None:
            self._resume(oldest)
        if held_bytes < FREE_BYTES:
            self._resume(reader)
        elif reader is not oldest and reader not in self._held:
            self.times += not self._held
            self._held.add(reader)
            reader.pause_reading(self.REASON)

    def _oldest(self) -> Reader | None:
        """Return who may finish its message; who is parked cannot."""
        for reader, size in self._waiting.items():
            if size >= FREE_BYTES and not reader.is_parked:
                return reader
        return None

    def _resume(self, reader: Reader) -> None:
        if reader in self._held:
            self._held.discard(reader)
            reader.resume_reading(self.REASON)

    def _release(self) -> None:
        held, self._held = self._held, set()
        for reader in held:
            reader.resume_reading(self.REASON)


REASON: Final = "resident"  # why a publisher is not read
SHARE_OF_CGROUP: Final = 0.6
_GLANCE_S: Final = 0.01  # for which a publisher that waits is read, once a second
_STATM: Final = Path("/proc/self/statm")
_CGROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def resident_bytes() -> int:
    """Return how much memory the process has now; 0 where the system does not tell."""
    try:
        return int(_STATM.read_bytes().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def memory_bound(setting: int, files: Iterable[Path] = _CGROUP_LIMITS) -> int:
    """Return how much it may have: the setting, and of a container's limit no more than a share.

    The rest is for what SQLite and the system keep of the files.
    """
    for file in files:
        try:
            return min(setting, int(int(file.read_text(encoding="ascii")) * SHARE_OF_CGROUP))
        except (OSError, ValueError):  # there is no such limit: no file, or the word max
            continue
    return setting


class Publisher(Reader, Protocol):
    """A session that the memory brake can pause."""

    connection: Connection | None


class MemoryBrake:
    """Has publishers wait while the process has more memory than ``bound_bytes``.

    Whoever consumes is read on, for its acknowledgements make room.  Those who wait are read for a
    moment each second: memory that Python has freed does not always go back to the system, and
    they must not wait for ever.
    """

    def __init__(self, bound_bytes: int) -> None:
        self.bound_bytes = bound_bytes
        self.resident_bytes = 0  # at the last look
        self.times = 0  # it was reached
        self._is_on = False
        self._held: set[Publisher] = set()

    def look(self, sessions: Collection[Publisher], resident: int) -> None:
        """Judge by this much memory; call about once a second."""
        self.resident_bytes = resident
        was_on, self._is_on = self._is_on, resident > self.bound_bytes
        self.times += self._is_on and not was_on
        for session in self._held:
            session.resume_reading(REASON)
        self._held.clear()
        if not self._is_on:
            return
        loop = asyncio.get_running_loop()
        for session in sessions:
            connection = session.connection
            if connection is not None and connection.published and not connection.consumers:
                self._held.add(session)
                loop.call_later(_GLANCE_S if was_on else 0, self._hold, session)

    def _hold(self, session: Publisher) -> None:
        if session in self._held:
            session.pause_reading(REASON)


_INFO_BYTES: Final = 128
_ACKED: Final = slice(120, 128)  # tcpi_bytes_acked, from Linux 4.1 on; the layout only ever grows


class WriteProgress:
    """What was seen of one connection at the last look."""

    __slots__ = ("_acked", "_unsent")

    def __init__(self) -> None:
        self._acked = 0
        self._unsent = 0

    def is_made(self, transport: asyncio.Transport) -> bool:
        """Tell whether the peer has taken anything since the last call.

        Of TCP on Linux by what the peer's system has acknowledged, else by the write buffer.
        A peer's system takes more once a sixteenth of its own buffer was read.
        """
        unsent, acked = transport.get_write_buffer_size(), acked_bytes(transport)
        is_less = unsent < self._unsent
        is_more = acked is not None and acked > self._acked
        self._unsent, self._acked = unsent, acked or 0
        return is_more if acked is not None else is_less


def acked_bytes(transport: asyncio.Transport) -> int | None:
    """Count what the peer's system has acknowledged; None where the socket does not tell."""
    used = transport.get_extra_info("socket")
    if used is None or sys.platform != "linux":
        return None
    try:
        info = used.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except (OSError, ValueError):  # no TCP; or closed just now, of which uvloop says the second
        return None
    return int.from_bytes(info[_ACKED], sys.byteorder) if len(info) == _INFO_BYTES else None


# Why a connection was closed, where it passed a limit.
TOO_SLOW: Final = "a message took too long to arrive"
NOT_READ: Final = "it does not read what is sent"
NOT_TAKEN: Final = "it does not take the rest"
SILENT: Final = "silent, and places are short"
SILENT_S: Final = 10  # then, once four fifths of the places are taken


@dataclass(slots=True, frozen=True)
class SlowPeerLimits:
    """How slow a peer may be; see ``docs/operate/security.md`` 9."""

    frame_s: int = 60  # for a frame that has begun,
    frame_bytes_per_s: int = 64 << 10  # longer while this rate is kept
    write_s: int = 30  # without progress, with a full write buffer or the rest to take at the end
    silent_s: int = SILENT_S  # with nothing to wait for, once places are short
    places: int = 500  # connections that fit; short from four fifths on


class TimedSession(Protocol):
    """A session whose times are compared with ``TimeLimits``; seconds of the loop's clock."""

    frame_began_at: float | None
    blocked_at: float | None
    closing_at: float | None
    last_read_at: float
    has_eof: bool
    paused: set[str]

    @property
    def frame_bytes(self) -> int:
        """Bytes of the frame that has begun."""

    @property
    def is_idle(self) -> bool:
        """Return whether it has no credit, and no frame has begun."""


AnySession = TypeVar("AnySession", bound=TimedSession)


def overdue(session: TimedSession, now_s: float, limits: SlowPeerLimits) -> str | None:
    """Return why a session must end now, or None.  ``now_s`` is the loop's time."""
    began_s = session.frame_began_at
    if began_s is not None and not session.paused:
        allowed_s = limits.frame_s + session.frame_bytes / limits.frame_bytes_per_s
        if now_s - began_s > allowed_s:
            return TOO_SLOW
    if session.blocked_at is not None and now_s - session.blocked_at > limits.write_s:
        return NOT_READ
    if session.closing_at is not None and now_s - session.closing_at > limits.write_s:
        return NOT_TAKEN
    return None


def longest_silent(
    sessions: Iterable[AnySession], now_s: float, limits: SlowPeerLimits
) -> list[AnySession]:
    """Return whom nothing holds here, the longest silent first: no credit, no frame begun.

    One that waits for a paused or full queue is among them; at once if its peer has left.
    """
    silent = [
        session
        for session in sessions
        if session.is_idle and (session.has_eof or now_s - session.last_read_at > limits.silent_s)
    ]
    return sorted(silent, key=lambda session: session.last_read_at)


def excuse(session: TimedSession, seconds: float) -> None:
    """Let a time not count in which nobody was heard: the process stood still."""
    session.last_read_at += seconds
    if session.frame_began_at is not None:
        session.frame_began_at += seconds
    if session.blocked_at is not None:
        session.blocked_at += seconds
    if session.closing_at is not None:
        session.closing_at += seconds
