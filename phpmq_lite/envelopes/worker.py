"""Runs an app on a queue until a limit, a signal or its own end: ``phpmq-lite worker``."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from babelqueue import BabelQueue

from phpmq_lite.client.session import ClientSession
from phpmq_lite.envelopes.app import App
from phpmq_lite.envelopes.handlers import Middleware, wrap_handlers
from phpmq_lite.envelopes.transport import RELEASE_S, PhpmqTransport
from phpmq_lite.errors import LocalProtocolError, SettingsError
from phpmq_lite.process_memory import peak_resident_bytes, resident_bytes


@dataclass(slots=True, frozen=True)
class WorkerLimits:
    """Bounds of one run; 0: none."""

    max_jobs: int = 0
    max_runtime_s: float = 0.0
    memory_bytes: int = 0  # resident
    stop_when_empty: bool = False
    parent: int = 0  # process id: end when it is gone

    def reached(self, jobs: int, runtime_s: float, resident_bytes: Callable[[], int]) -> str | None:
        """Name the bound that is reached: jobs, runtime, memory or orphaned; None: go on."""
        if self.max_jobs and jobs >= self.max_jobs:
            return "jobs"
        if self.max_runtime_s and runtime_s >= self.max_runtime_s:
            return "runtime"
        if self.memory_bytes and resident_bytes() >= self.memory_bytes:
            return "memory"
        if self.parent and os.getppid() != self.parent:
            return "orphaned"
        return None


def _memory_bytes() -> int:
    return resident_bytes() or peak_resident_bytes()  # only Linux shows what is in RAM now


RESERVE_S = 1.0  # one wait for a message; limits and signals are looked at in between
_CHECKS: Final = ClientSession(1).side  # sends nothing


@dataclass(slots=True, frozen=True)
class WorkerOutcome:
    """What a run did."""

    jobs: int  # taken, malformed ones too
    reason: str  # why it ended: stopped, exit, jobs, runtime, memory, orphaned, empty


def run_worker(
    app: BabelQueue,
    queue: str | None = None,
    *,
    transport: PhpmqTransport | None = None,
    limits: WorkerLimits | None = None,
    reserve_timeout_s: float = RESERVE_S,
    drop_exhausted: bool = False,
    middleware: Sequence[Middleware] = (),
    handle_signals: bool = True,
    monotonic: Callable[[], float] = time.monotonic,
) -> WorkerOutcome:
    """Handle messages of a queue until a limit or a signal; the connection is closed afterwards.

    Args:
        app: made by ``connect``, or any app of the SDK: that one needs a ``transport``.
        queue: instead of the app's.
        transport: instead of the app's.
        limits: when to end; they are looked at between two jobs.
        reserve_timeout_s: one wait for a message; ``stop_when_empty`` ends after one in vain.
        drop_exhausted: run although the app has dead letters off, and drop what fails for good.
        middleware: outside that of the app.
        handle_signals: SIGTERM and SIGINT, where this is the main thread.
        monotonic: seconds, for ``limits.max_runtime_s``.

    Raises:
        SettingsError: dead letters are off, there is no transport, or no queue can be called
            that: the SDK would try on for ever.
        SystemExit: a handler raised it; its message went back to the queue.
    """
    if transport is not None:
        app.transport = transport
    target = queue or app.queue
    ours = _prepared(app, target, drop_exhausted=drop_exhausted)
    around = [*middleware, *(app.middleware if isinstance(app, App) else ())]
    stops = _Stops(app, limits or WorkerLimits(), monotonic)
    with _watched(ours, stops), wrap_handlers(app, ours, around), _silenced():
        ours.events.emit("info", "worker.started", queue=target)
        try:
            # the SDK's own: App.consume would put its equipment on once more
            BabelQueue.consume(
                app, target, timeout=reserve_timeout_s, handle_signals=handle_signals
            )
        except SystemExit:
            stops.reason = "exit"
            raise
        finally:
            ours.events.emit("info", "worker.stopping", queue=target, reason=stops.reason)
            ours.close()
    return WorkerOutcome(ours.jobs - stops.jobs_before, stops.reason)


def _prepared(app: BabelQueue, queue: str, *, drop_exhausted: bool) -> PhpmqTransport:
    """Refuse what would lose messages; give the app's transport."""
    transport = app.transport
    if not isinstance(transport, PhpmqTransport):
        raise SettingsError("the app is not on PHPMQ: make it with connect(), or give a transport")
    if not app.dead_letter_enabled and not drop_exhausted:
        raise SettingsError(
            "dead letters are off, so what fails for good would be lost: "
            "make the app with dead_letter=True, or say --drop-exhausted"
        )
    try:
        _CHECKS.publish(queue, b"", 0)
    except LocalProtocolError as error:
        raise SettingsError(f"the app cannot work on {queue!r}: {error}") from None
    if app.unknown_urn_release_delay <= 0:
        app.unknown_urn_release_delay = RELEASE_S  # without a delay `release` spins
    if transport.dead_letter_queue is None:
        suffix = app.dead_letter_suffix
        transport.dead_letter_queue = app.dead_letter_queue or (queue + suffix if suffix else None)
    return transport


class _Stops:
    """Asks the limits, and ends the SDK's loop."""

    def __init__(
        self, app: BabelQueue, limits: WorkerLimits, monotonic: Callable[[], float]
    ) -> None:
        self.reason = "stopped"  # by a signal, or by app.stop(): the SDK tells nobody
        self.jobs_before = 0
        self._app = app
        self._limits = limits
        self._monotonic = monotonic
        self._started_s = monotonic()

    def why(self, jobs: int) -> str | None:
        """Name the limit that is reached, before a job is taken."""
        runtime_s = self._monotonic() - self._started_s
        return self._limits.reached(jobs - self.jobs_before, runtime_s, _memory_bytes)

    def when_empty(self) -> str | None:
        """Tell whether a wait in vain ends the run."""
        return "empty" if self._limits.stop_when_empty else None

    def stop(self, reason: str) -> None:
        """End the loop."""
        self.reason = reason
        self._app.stop()


@contextmanager
def _watched(transport: PhpmqTransport, stops: _Stops) -> Iterator[None]:
    """Have the transport ask ``stops``, for the time of a run."""
    before = transport.why_stop, transport.when_empty, transport.stop
    stops.jobs_before = transport.jobs
    transport.why_stop, transport.when_empty = stops.why, stops.when_empty
    transport.stop = stops.stop
    try:
        yield
    finally:
        transport.why_stop, transport.when_empty, transport.stop = before


@contextmanager
def _silenced() -> Iterator[None]:
    """Keep the SDK's codec from warning at each decode: the transport warns, once."""
    codec = logging.getLogger("babelqueue.codec")
    before = codec.level
    codec.setLevel(logging.ERROR)
    try:
        yield
    finally:
        codec.setLevel(before)
