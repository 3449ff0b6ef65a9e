"""Handles SIGINT and SIGTERM: the first signal requests a stop, and a second one aborts."""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Final, Self, TypeVar

T = TypeVar("T")


class StopRequest:
    """A context in which one SIGINT or SIGTERM requests a stop, and a second one aborts.

    An abort raises KeyboardInterrupt in the main thread.  ``note`` receives a line for the user at
    the first signal.  After the start of a Spark session in the block, call ``handle_signals``,
    because Spark sets a handler of its own, which cancels the running query.
    """

    def __init__(self, note: Callable[[str], None] | None = None) -> None:
        self._note = note
        self._requested = threading.Event()
        self._is_interruptible = False
        self._grace_s = 0.0  # how long a call may continue after the signal
        self._previous: list[tuple[int, Any]] = []
        self.signal: int | None = None  # the first signal received
        self.is_aborted = False

    @property
    def is_requested(self) -> bool:
        return self._requested.is_set()

    def __call__(self) -> bool:
        return self._requested.is_set()

    def __enter__(self) -> Self:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
        self._previous = [(number, signal.getsignal(number)) for number in numbers]
        self.handle_signals()
        return self

    def handle_signals(self) -> None:
        """Handle the signals until the block ends, instead of a handler that was set in it."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGALRM, self._on_alarm)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for number, handler in self._previous:
            signal.signal(number, handler)
        if self.is_aborted and isinstance(error, Exception):  # the abort has caused this error
            raise KeyboardInterrupt from None

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self.is_requested:
            self.is_aborted = True
            raise KeyboardInterrupt
        self.signal = number
        self._requested.set()
        if self._note is not None:
            # Use a thread, because the interrupted code may hold the lock of the progress display.
            text = "stopping after this batch; press Ctrl-C again to stop immediately"
            threading.Thread(target=self._note, args=(text,), daemon=True).start()
        if self._grace_s:
            signal.setitimer(signal.ITIMER_REAL, self._grace_s)
        elif self._is_interruptible:
            raise KeyboardInterrupt

    def _on_alarm(self, _number: int, _: FrameType | None) -> None:
        if self._is_interruptible:
            raise KeyboardInterrupt

    def sleep(self, seconds: float) -> None:
        """Wait until ``seconds`` have passed or a stop is requested."""
        self._requested.wait(seconds)

    def interruptible(self, call: Callable[[], T], grace_s: float = 0.0) -> T | None:
        """Return the result of ``call``, or None if it has not ended ``grace_s`` after a signal."""
        try:
            self._is_interruptible, self._grace_s = True, grace_s
            # Check here, because an earlier signal has not raised an exception.
            return None if self.is_requested else call()
        except KeyboardInterrupt:
            return None
        finally:
            self._is_interruptible, self._grace_s = False, 0.0
            signal.setitimer(signal.ITIMER_REAL, 0)


_NOT_FORWARDED: Final = (
    {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV}
    | {signal.SIGSYS, signal.SIGTRAP}  # up to here, errors of this process
    | {signal.SIGTTIN, signal.SIGTTOU}  # these stop a process in the background
)


def become_child_of_first_process() -> None:
    """Return in a child process if this is process 1, which then only waits; else just return.

    The kernel makes process 1 the parent of all orphans, and ignores signals that process 1 does
    not handle.  Programs expect neither.  Must be called before any thread is started.
    """
    if os.getpid() != 1:
        return
    forwarded = signal.valid_signals() - _NOT_FORWARDED
    original_mask = signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
    command = os.fork()
    if command == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, original_mask)
        return
    while True:
        received = signal.sigwaitinfo(forwarded)
        if received.si_signo == signal.SIGCHLD:
            _reap(command)
        elif received.si_code <= 0:  # a terminal sends its signals to the command, too
            with suppress(ProcessLookupError):
                os.kill(command, received.si_signo)


def _reap(command: int) -> None:
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        if pid == command:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
