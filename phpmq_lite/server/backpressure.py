"""Limits that make peers wait, and limits beyond which slow peers are disconnected."""

import asyncio
import socket
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple, Protocol

from phpmq_lite.broker.queue import Connection
from phpmq_lite.model import OrderedSet
from phpmq_lite.sockets import UNACKNOWLEDGED_MS

# Connections that hold fewer bytes are always read, because pausing them would gain nothing.
FREE_BYTES: Final = 64 << 10


class PausableConnection(Protocol):
    """A connection from which reading can be paused and resumed."""

    @property
    def is_parked(self) -> bool:
        """Whether the connection is waiting for something while its data stays in memory."""

    def pause_reading(self, reason: str) -> None:
        """Stop reading until this reason is removed."""

    def resume_reading(self, reason: str) -> None:
        """Remove a pause reason; reading resumes once no reasons remain."""


class ReadBackpressure:
    """Limits the bytes that all connections together have read but not yet stored.

    Above the limit, only the longest-waiting of the connections that hold ``FREE_BYTES`` or more is
    read.  So one message can always be completed.  Acknowledgements and small messages still pass.
    The effective bound is the limit plus ``FREE_BYTES`` and one read per connection; see
    section 9 of ``docs/operate/security.md``.  ``report`` costs O(1) below the limit, and above it
    O(connections that hold bytes).
    """

    REASON = "memory"

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.total_bytes = 0
        self.limit_hits = 0  # number of times that the limit was reached
        # Number of bytes held by each connection; the longest-waiting connection comes first.
        self._waiting: dict[PausableConnection, int] = {}
        self._held = OrderedSet[PausableConnection]()

    def report(self, reader: PausableConnection, held_bytes: int) -> None:
        """Record how many bytes ``reader`` now holds; 0 removes the reader."""
        self.total_bytes += held_bytes - self._waiting.get(reader, 0)
        if held_bytes:
            self._waiting[reader] = held_bytes
        else:
            self._waiting.pop(reader, None)
        if self.total_bytes > self.limit_bytes:
            self._apply_limit(reader, held_bytes)
        elif self._held:
            held, self._held = self._held, OrderedSet()
            for paused in held:
                paused.resume_reading(self.REASON)

    def _apply_limit(self, reader: PausableConnection, held_bytes: int) -> None:
        # the connection that may complete its message, which a parked one cannot
        waiting = self._waiting.items()
        able = (it for it, size in waiting if size >= FREE_BYTES and not it.is_parked)
        oldest = next(able, None)
        if oldest is not None:
            self._resume(oldest)
        if held_bytes < FREE_BYTES:
            self._resume(reader)
        elif reader is not oldest and reader not in self._held:
            self.limit_hits += not self._held
            self._held.add(reader)
            reader.pause_reading(self.REASON)

    def _resume(self, reader: PausableConnection) -> None:
        if reader in self._held:
            self._held.discard(reader)
            reader.resume_reading(self.REASON)


REASON: Final = "resident"  # reason for pausing reads from publishers
CGROUP_SHARE: Final = 0.6
_BRIEF_READ_S: Final = 0.01  # a paused publisher is read for this long once a second
_CGROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def memory_bound(setting: int, files: Iterable[Path] = _CGROUP_LIMITS) -> int:
    """Return the memory limit: the setting, or 60 % of the container's limit if that is lower.

    The rest of the container's memory is for SQLite and the page cache.
    """
    for file in files:
        try:
            return min(setting, int(int(file.read_text(encoding="ascii")) * CGROUP_SHARE))
        except (OSError, ValueError):  # no limit if the file is missing or contains "max"
            continue
    return setting


class Publisher(PausableConnection, Protocol):
    """A session that ``MemoryLimiter`` can pause."""

    connection: Connection | None


class MemoryLimiter:
    """Pauses publishers while the process uses more memory than ``bound_bytes``.

    Consumers are still read, because their acknowledgements free memory.  Paused publishers are
    read briefly once a second, because Python does not return all freed memory to the system and
    publishers must not wait forever.
    """

    def __init__(self, bound_bytes: int) -> None:
        self.bound_bytes = bound_bytes
        self.resident_bytes = 0  # memory used by the process at the last check
        self.limit_hits = 0  # number of times that the limit was reached
        self._is_on = False
        self._held = OrderedSet[Publisher]()

    def check(self, sessions: Collection[Publisher], resident: int) -> None:
        """Pause or resume publishers according to memory usage; call this about once a second."""
        self.resident_bytes = resident
        was_on, self._is_on = self._is_on, resident > self.bound_bytes
        self.limit_hits += self._is_on and not was_on
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
                loop.call_later(_BRIEF_READ_S if was_on else 0, self._pause, session)

    def _pause(self, session: Publisher) -> None:
        if session in self._held:
            session.pause_reading(REASON)


# The fields of Linux's tcp_info in ``_TcpInfo``; new ones are only appended.
_TCP_INFO: Final = Struct("=3xB20xI28xI60xQ")


class _TcpInfo(NamedTuple):
    probes: int
    unacked: int  # number of packets
    last_ack_ms: int  # time since the last acknowledgement
    acked_bytes: int


class WriteProgress:
    """How much a connection had written at the last check."""

    __slots__ = ("_acked", "_unsent")

    def __init__(self) -> None:
        self._acked = 0
        self._unsent = 0

    def has_progress(self, transport: asyncio.Transport) -> bool:
        """Return whether the peer has accepted anything since the last call.

        For TCP on Linux, compare the bytes that the peer's system has acknowledged; otherwise the
        size of the write buffer.  A peer's system accepts more data once a sixteenth of its own
        buffer has been read.
        """
        unsent, acked = transport.get_write_buffer_size(), acked_bytes(transport)
        is_less = unsent < self._unsent
        is_more = acked is not None and acked > self._acked
        self._unsent, self._acked = unsent, acked or 0
        return is_more if acked is not None else is_less


def acked_bytes(transport: asyncio.Transport) -> int | None:
    """Return how many bytes the peer's system has acknowledged, or None if this is unknown."""
    info = _tcp_info(transport)
    return None if info is None else info.acked_bytes


def is_unanswered(transport: asyncio.Transport) -> bool:
    """Return whether the peer's system has not acknowledged data for 70 s (Linux).

    A system that is there answers even if its program reads nothing, so ``TCP_USER_TIMEOUT``, which
    makes no difference between them, is not used: a handler may take longer than that.
    """
    info = _tcp_info(transport)
    if info is None or not (info.probes > 1 or info.unacked):
        return False
    return info.last_ack_ms > UNACKNOWLEDGED_MS


def _tcp_info(transport: asyncio.Transport) -> _TcpInfo | None:
    used = transport.get_extra_info("socket")
    if used is None or sys.platform != "linux":
        return None
    try:
        info: bytes = used.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except (OSError, ValueError):  # not TCP, or just closed (uvloop raises ValueError)
        return None
    return _TcpInfo(*_TCP_INFO.unpack(info)) if len(info) == _TCP_INFO.size else None


# Reasons for closing a connection that exceeded a limit.
TOO_SLOW: Final = "a message took too long to arrive"
NOT_READ: Final = "the peer does not read"
NOT_TAKEN: Final = "the peer does not read the remaining data"
UNANSWERED: Final = "the peer's machine does not answer"
SILENT: Final = "idle while connections are scarce"
IDLE_S: Final = 10  # idle time allowed once connections are scarce


@dataclass(slots=True, frozen=True)
class SlowPeerLimits:
    """Limits on how slow a peer may be; see ``docs/operate/security.md``, section 9."""

    frame_s: int = 60  # time allowed to complete a frame that has begun
    frame_bytes_per_s: int = 64 << 10  # frames arriving at least this fast may exceed frame_s
    write_s: int = 30  # time allowed without progress while blocked or closing
    silent_s: int = IDLE_S  # idle time allowed once connections are scarce
    places: int = 500  # maximum number of connections; ``SCARCE_PERCENT`` in use make them scarce
