"""The loop of ``phpmq-lite worker``: runs an app until a limit, a signal or ``stop()`` ends it."""

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from babelqueue import BabelQueue

from phpmq_lite.client.session import ClientSession
from phpmq_lite.envelopes.handlers import Middleware, wrap_handlers
from phpmq_lite.envelopes.transport import RELEASE_S, PhpmqTransport
from phpmq_lite.envelopes.worker_app import App
from phpmq_lite.errors import LocalProtocolError, SettingsError
from phpmq_lite.os_process import peak_resident_bytes, resident_bytes


@dataclass(slots=True, frozen=True)
class WorkerLimits:
    """Limits that stop a worker; 0 means unlimited."""

    max_jobs: int = 0
    max_runtime_s: float = 0.0
    memory_bytes: int = 0  # maximum resident memory of the worker
    stop_when_empty: bool = False
    parent: int = 0  # process id; the worker stops when this process has exited

    def reached(self, jobs: int, runtime_s: float) -> str | None:
        """Return the limit that has been reached (jobs, runtime, memory or orphaned), or None."""
        if self.max_jobs and jobs >= self.max_jobs:
            return "jobs"
        if self.max_runtime_s and runtime_s >= self.max_runtime_s:
            return "runtime"
        if self.memory_bytes:
            size = resident_bytes() or peak_resident_bytes()  # only Linux reports the current value
            if size >= self.memory_bytes:
                return "memory"
        if self.parent and os.getppid() != self.parent:
            return "orphaned"
        return None


RESERVE_S = 1.0  # time to wait for a message before limits are checked again
_ENCODER: Final = ClientSession(1).side  # used only to validate queue names


@dataclass(slots=True, frozen=True)
class WorkerOutcome:
    """The result of a worker run."""

    jobs: int  # number of messages received, including malformed ones
    reason: str  # one of stopped, exit, jobs, runtime, memory, orphaned, empty
    events: Mapping[str, int] = field(default_factory=dict, compare=False)  # number by name


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
    """Handle messages from a queue until a limit is reached or a signal arrives; then disconnect.

    Args:
        app: created by ``connect``, or any SDK app together with a ``transport``.
        queue: replaces the app's queue.
        transport: replaces the app's transport.
        limits: limits that are checked between jobs.
        reserve_timeout_s: how long to wait for a message; ``stop_when_empty`` stops after one
            wait without a message.
        drop_exhausted: run even if dead letters are disabled in the app, and drop failed messages.
        middleware: wraps the app's own middleware.
        handle_signals: handle SIGTERM and SIGINT, if this is the main thread.
        monotonic: clock in seconds, for ``limits.max_runtime_s``.

    Raises:
        SettingsError: dead letters are disabled, there is no transport, or the queue name is
            invalid, which the SDK would retry forever.
        SystemExit: raised by a handler; its message was requeued.
    """
    if transport is not None:
        app.transport = transport
    target = queue or app.queue
    phpmq_transport = _checked_transport(app, target, drop_exhausted=drop_exhausted)
    layers = [*middleware, *(app.middleware if isinstance(app, App) else ())]
    events_before = Counter(phpmq_transport.events)
    run_limits = _RunLimits(
        app,
        phpmq_transport,
        limits or WorkerLimits(),
        monotonic,
        jobs_before=phpmq_transport.jobs,
        started_s=monotonic(),
    )
    with _applied(run_limits, phpmq_transport), wrap_handlers(app, phpmq_transport, layers):
        phpmq_transport.emit("info", "worker.started", target)
        try:
            # App.consume would wrap the handlers again.
            BabelQueue.consume(
                app, target, timeout=reserve_timeout_s, handle_signals=handle_signals
            )
        except SystemExit:
            run_limits.reason = "exit"
            raise
        finally:
            phpmq_transport.emit("info", "worker.stopping", target, reason=run_limits.reason)
            phpmq_transport.close()
    events = phpmq_transport.events - events_before
    return WorkerOutcome(run_limits.jobs, run_limits.reason, events)


def _checked_transport(app: BabelQueue, queue: str, *, drop_exhausted: bool) -> PhpmqTransport:
    """Return the app's transport; raise an error if the app would lose messages."""
    transport = app.transport
    if not isinstance(transport, PhpmqTransport):
        raise SettingsError(
            "the app does not use PHPMQ; create it with connect(), or pass a transport"
        )
    if not app.dead_letter_enabled and not drop_exhausted:
        raise SettingsError(
            "dead letters are disabled, so messages that keep failing would be lost; "
            "create the app with dead_letter=True, or pass --drop-exhausted"
        )
    try:
        _ENCODER.publish(queue, b"", 0)
    except LocalProtocolError as error:
        raise SettingsError(f"the app cannot consume {queue!r}: {error}") from None
    if app.unknown_urn_release_delay <= 0:
        app.unknown_urn_release_delay = RELEASE_S  # without a delay, `release` would loop endlessly
    transport.max_attempts = app.max_attempts
    if transport.dead_letter_queue is None:
        suffix = app.dead_letter_suffix
        transport.dead_letter_queue = app.dead_letter_queue or (queue + suffix if suffix else None)
    return transport


@dataclass(slots=True)
class _RunLimits:
    app: BabelQueue
    transport: PhpmqTransport
    limits: WorkerLimits
    monotonic: Callable[[], float]
    jobs_before: int
    started_s: float
    reason: str = "stopped"  # default, because the SDK reports neither signals nor stop()

    @property
    def jobs(self) -> int:
        return self.transport.jobs - self.jobs_before

    def must_stop(self, is_empty: bool) -> bool:
        """Stop the loop and return True if a limit is reached or if an empty queue ends the run."""
        if is_empty:
            reason = "empty" if self.limits.stop_when_empty else None
        else:
            runtime_s = self.monotonic() - self.started_s
            reason = self.limits.reached(self.jobs, runtime_s)
        if reason is None:
            return False
        self.reason = reason
        self.app.stop()
        return True


@contextmanager
def _applied(run_limits: _RunLimits, transport: PhpmqTransport) -> Iterator[None]:
    """Within the block, let ``run_limits`` control the transport, and mute the SDK's codec.

    The codec would log a warning on every decode; the transport warns once.
    """
    codec = logging.getLogger("babelqueue.codec")
    must_stop, level = transport.must_stop, codec.level
    transport.must_stop = run_limits.must_stop
    codec.setLevel(logging.ERROR)
    try:
        yield
    finally:
        transport.must_stop = must_stop
        codec.setLevel(level)
