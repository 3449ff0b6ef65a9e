"""The engine watchdog, and once-a-second checks of slow sessions, lag, memory and rates."""

import asyncio
from collections.abc import Collection, Iterable
from typing import Final

from phpmq_lite.broker.broker import Broker
from phpmq_lite.clock import GAP_MS
from phpmq_lite.logs import get_logger
from phpmq_lite.os_process import resident_bytes
from phpmq_lite.server.admission import SCARCE_PERCENT
from phpmq_lite.server.backpressure import (
    NOT_READ,
    NOT_TAKEN,
    SILENT,
    TOO_SLOW,
    UNANSWERED,
    MemoryLimiter,
    SlowPeerLimits,
    is_unanswered,
)
from phpmq_lite.server.engine import Engine
from phpmq_lite.server.session import Session
from phpmq_lite.server.status import LATE_S, BrokerHandle
from phpmq_lite.storage.backend import StoreWriter

_INTERVAL_S: Final = 1.0
_DEAD_CHECKS: Final = 15  # checks after which dead peers are looked for
_LIMIT_CHECKS: Final = 60  # checks between two lines about the limit of queues
_log = get_logger(__name__)


class SessionMonitor:
    """Checks all sessions; ``run`` continues until it is cancelled."""

    def __init__(
        self,
        sessions: Collection[Session],
        handle: BrokerHandle,
        limits: SlowPeerLimits,
        memory_limiter: MemoryLimiter | None = None,
    ) -> None:
        self._sessions = sessions
        self._handle = handle
        self._limits = limits
        self._memory_limiter = memory_limiter
        self._checks = 0
        self._report_at_s = LATE_S  # the age of a batch at which the next line is logged
        # by event of ``QueueRegistry.limited``: what was logged last, and at which check
        self._limited: dict[str, tuple[int, int]] = {}

    async def run(self) -> None:
        """Check all sessions once a second."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + _INTERVAL_S
            await asyncio.sleep(_INTERVAL_S)
            late_s = max(0.0, loop.time() - due_s)
            self._handle.loop_lag_ms = late_s * 1_000
            if late_s * 1_000 > GAP_MS:
                for session in self._sessions:
                    exclude_time(session, late_s)
            self.check(loop.time())

    def check(self, now_s: float) -> None:
        """End overdue sessions, and sample memory and rates."""
        self._checks += 1
        for session in list(self._sessions):
            session.note_writing(now_s)
            if session.connection is not None:
                session.acks.sample(session.connection.acked, _INTERVAL_S)
            if session.paused and session.frame_began_at is not None:
                session.frame_began_at += _INTERVAL_S  # it was not read because reading is paused
            reason = overdue_reason(session, now_s, self._limits)
            if not self._checks % _DEAD_CHECKS and is_unanswered(session.transport):
                reason = UNANSWERED
            if reason is not None:
                session.abort(reason)
        age_s = self._handle.oldest_batch_s
        if age_s >= self._report_at_s:  # and again each time that it has doubled
            self._report_at_s = 2 * age_s
            _log.error("batch_not_answered", oldest_batch_s=round(age_s, 1))
        elif age_s < LATE_S < self._report_at_s:
            self._report_at_s = LATE_S
            _log.info("batch_answered")
        self._report_queue_limit()
        if self._memory_limiter is not None:
            self._memory_limiter.check(self._sessions, resident_bytes())
        self._handle.counters.inspector.end_idle(now_s)
        excess = len(self._sessions) - self._limits.places * SCARCE_PERCENT // 100
        if excess > 0:
            for session in idle_sessions(self._sessions, now_s, self._limits)[:excess]:
                session.end(SILENT)
        if self._handle.engine is not None:
            self._handle.rates.sample(self._handle.engine.core.queues_by_id, now_s)

    def _report_queue_limit(self) -> None:
        """Log what the limit of queues has caused, each kind at most once a minute."""
        if self._handle.engine is None:
            return
        core = self._handle.engine.core
        for event, (times, name) in core.registry.limited.items():
            logged, check = self._limited.get(event, (0, -_LIMIT_CHECKS))
            if times != logged and self._checks >= check + _LIMIT_CHECKS:
                self._limited[event] = times, self._checks
                _log.warning(
                    event,
                    count=times - (logged if logged < times else 0),
                    queue=name,
                    limit=core.limits.queues,
                    setting="limits.max_queues",
                    remedy="remove empty queues, or raise the limit",
                )


def overdue_reason(session: Session, now_s: float, limits: SlowPeerLimits) -> str | None:
    """Return why a session must end now, or None.  ``now_s`` is on the event loop's clock."""
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


def idle_sessions(
    sessions: Iterable[Session], now_s: float, limits: SlowPeerLimits
) -> list[Session]:
    """Return sessions without credit or an incomplete frame, longest idle first.

    Sessions that wait for a paused or full queue are included.  If the peer has left, a session
    counts as idle immediately.
    """
    silent = [
        session
        for session in sessions
        if session.is_idle and (session.has_eof or now_s - session.last_read_at > limits.silent_s)
    ]
    return sorted(silent, key=lambda session: session.last_read_at)


def exclude_time(session: Session, seconds: float) -> None:
    """Extend a session's timeouts by the time during which the process was suspended."""
    session.last_read_at += seconds
    if session.frame_began_at is not None:
        session.frame_began_at += seconds
    if session.blocked_at is not None:
        session.blocked_at += seconds
    if session.closing_at is not None:
        session.closing_at += seconds


class EngineWatchdog:
    """Detects an engine or writer that has stopped permanently, for example because the disk hangs.

    Health checks do not wait for the writer, so they respond even if the disk is slow.
    """

    def __init__(self, engine: Engine, writer: StoreWriter) -> None:
        self._engine = engine
        self._writer = writer
        self._is_waiting = False  # True while a probe is unanswered

    def probe(self) -> bool:
        """Return whether the last probe, if any, was answered, and send the next one.

        A writer that waits for disk space or another program is alive; a restart would not help.
        """
        if self._is_waiting:
            return self._writer.space.write_problem is not None

        def on_answer(probe: asyncio.Future[None]) -> None:
            self._is_waiting = probe.cancelled() or probe.exception() is not None  # for good

        def probe_writer(_core: Broker) -> None:
            self._writer.start(lambda _store: None).add_done_callback(on_answer)

        self._is_waiting = True
        self._engine.submit(probe_writer)
        return True
