"""How long a worker's job may take: holds are extended while it runs, and it ends at its limit."""

import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Final

from phpmq_lite.client.delivery import Delivery
from phpmq_lite.envelopes.worker_connection import WorkerConnection
from phpmq_lite.errors import ClientError
from phpmq_lite.os_process import reset_after_fork

DEFAULT_LIMIT_S: Final = 3_600.0  # or the hold that the queue gives, if that is longer
_AGAIN_S: Final = 10.0  # after which a handler that still runs is interrupted again
_GRACE_S: Final = 5.0  # after the limit, until a handler that cannot be interrupted loses its hold
_TURNS: Final = 3  # extensions for each hold


class JobInterrupt(BaseException):
    """Raised in a handler at its time limit; the worker turns it into a JobTimeoutError."""


def limit_of(delivery: Delivery, limit_s: float | None) -> float:
    """Return the time limit of a job in seconds; 0 means none.

    By default it is an hour, or the hold that the queue gives, if that is longer; none without one.
    """
    if limit_s is not None:
        return limit_s
    return max(DEFAULT_LIMIT_S, delivery.hold_s) if delivery.hold_s else 0.0


class TimeLimit:
    """Interrupts a handler at its limit, by SIGALRM: only in the main thread, and not in C code."""

    def __init__(self) -> None:
        self._limit_s = 0.0  # 0 while no handler is limited
        self._previous: Any = None  # handler of the signal
        self._until_s = 0.0  # when the timer of that handler would have expired; 0 if it had none

    def begin(self, limit_s: float) -> None:
        """Limit the handler that begins now; 0 means no limit."""
        is_main = threading.current_thread() is threading.main_thread()
        if limit_s > 0 and is_main and hasattr(signal, "SIGALRM"):
            self._limit_s = limit_s
            self._previous = signal.signal(signal.SIGALRM, self._expire)
            left_s, _ = signal.setitimer(signal.ITIMER_REAL, limit_s, _AGAIN_S)
            self._until_s = time.monotonic() + left_s if left_s else 0.0

    def end(self) -> None:
        """The handler has ended."""
        if self._limit_s:
            self._limit_s = 0.0
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._previous)
            if self._until_s:
                left_s = max(0.001, self._until_s - time.monotonic())
                signal.setitimer(signal.ITIMER_REAL, left_s)

    def _expire(self, _number: int, _frame: FrameType | None) -> None:
        if self._limit_s:
            raise JobInterrupt(f"the handler ran longer than its limit of {self._limit_s:.15g} s")


class HoldExtender:
    """Extends the holds of a worker's messages, from its own thread, while a handler runs.

    The thread looks three times per hold, so that a job needs no start or end of a timer.
    """

    def __init__(
        self, link: Callable[[], WorkerConnection], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._link = link
        self._now_s = now_s
        self._job: tuple[Delivery, float] | None = None  # and until when it is extended
        self._period_s = float("inf")  # between two looks
        self._is_closed = False
        self.forked()
        reset_after_fork(self)

    def forked(self) -> None:
        """Forget the thread, which does not exist in a forked child."""
        self._thread: threading.Thread | None = None
        self._changed = threading.Event()
        self._job = None

    def begin(self, delivery: Delivery, limit_s: float) -> None:
        """Extend the hold of a message until the limit; 0 means no limit."""
        if not delivery.hold_s:
            return
        self._job = delivery, self._now_s() + (limit_s or float("inf"))
        period_s = delivery.hold_s / _TURNS
        if period_s < self._period_s or self._thread is None:
            self._period_s, self._is_closed = period_s, False
            if self._thread is not None:
                self._changed.set()
            else:
                self._thread = threading.Thread(target=self._run, name="holds", daemon=True)
                self._thread.start()

    def end(self) -> None:
        """Extend nothing any more."""
        self._job = None

    def close(self) -> None:
        """End the thread."""
        self._job, self._thread, self._is_closed = None, None, True
        self._changed.set()

    def _run(self) -> None:
        changed = self._changed
        while not self._is_closed:
            changed.wait(self._period_s)
            changed.clear()
            with suppress(ClientError):  # without a connection, there are no holds
                self.extend()

    def extend(self) -> None:
        """Extend the hold of the current job, and of the messages that wait behind it."""
        job = self._job
        if job is None:
            return
        delivery, until_s = job
        hold_s, left_s = delivery.hold_s or 0.0, until_s - self._now_s()
        if left_s > 0:
            delivery.extend(min(hold_s, left_s + _GRACE_S))
        for waiting in self._link().waiting_for(delivery.queue):
            waiting.extend(hold_s)
