"""Once a second: ends sessions that are too slow, measures loop and memory, samples the rates."""

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from phpmq_lite.clock import GAP_MS
from phpmq_lite.server.figures import NOT_READ, NOT_TAKEN, SILENT, SILENT_S, TOO_SLOW
from phpmq_lite.server.memory import MemoryBrake, resident_bytes
from phpmq_lite.server.status import Front
from phpmq_lite.server.tcp import Session

_EACH_S: Final = 1.0


@dataclass(slots=True, frozen=True)
class TimeLimits:
    """How slow a peer may be; see ``docs/security.md`` 9."""

    frame_s: int = 60  # for a frame that has begun,
    frame_bytes_per_s: int = 64 << 10  # longer while this rate is kept
    write_s: int = 30  # without progress, with a full write buffer or the rest to take at the end
    silent_s: int = SILENT_S  # with nothing to wait for, once places are short
    places: int = 500  # connections that fit; short from four fifths on


class TimedSession(Protocol):
    """A session whose times are compared with ``TimeLimits``; seconds of the loop's clock."""

    frame_began_at: float | None
    choked_at: float | None
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


def overdue(session: TimedSession, now_s: float, limits: TimeLimits) -> str | None:
    """Return why a session must end now, or None.  ``now_s`` is the loop's time."""
    began_s = session.frame_began_at
    if began_s is not None and not session.paused:
        allowed_s = limits.frame_s + session.frame_bytes / limits.frame_bytes_per_s
        if now_s - began_s > allowed_s:
            return TOO_SLOW
    if session.choked_at is not None and now_s - session.choked_at > limits.write_s:
        return NOT_READ
    if session.closing_at is not None and now_s - session.closing_at > limits.write_s:
        return NOT_TAKEN
    return None


def longest_silent(
    sessions: Iterable[AnySession], now_s: float, limits: TimeLimits
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
    if session.choked_at is not None:
        session.choked_at += seconds
    if session.closing_at is not None:
        session.closing_at += seconds


class Watch:
    """Looks after all sessions.  ``run`` ends when it is cancelled."""

    def __init__(
        self,
        sessions: Collection[Session],
        front: Front,
        limits: TimeLimits,
        brake: MemoryBrake | None = None,
    ) -> None:
        self._sessions = sessions
        self._front = front
        self._limits = limits
        self._brake = brake

    async def run(self) -> None:
        """Look once a second."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + _EACH_S
            await asyncio.sleep(_EACH_S)
            late_s = max(0.0, loop.time() - due_s)
            self._front.loop_lag_ms = late_s * 1_000
            if late_s * 1_000 > GAP_MS:
                for session in self._sessions:
                    excuse(session, late_s)
            self.look(loop.time())

    def look(self, now_s: float) -> None:
        """End what is overdue and take a sample."""
        for session in list(self._sessions):
            session.note_writing(now_s)
            if session.connection is not None:
                session.acks.sample(session.connection.acked, _EACH_S)
            if session.paused and session.frame_began_at is not None:
                session.frame_began_at += _EACH_S  # its time stands still while it is not read
            reason = overdue(session, now_s, self._limits)
            if reason is not None:
                session.abort(reason)
        if self._brake is not None:
            self._brake.look(self._sessions, resident_bytes())
        self._front.figures.inspector.end_idle(now_s)
        crowd = len(self._sessions) - self._limits.places * 4 // 5
        if crowd > 0:
            for session in longest_silent(self._sessions, now_s, self._limits)[:crowd]:
                session.end(SILENT)
        if self._front.engine is not None:
            self._front.rates.sample(self._front.engine.core.lives.by_id, now_s)
