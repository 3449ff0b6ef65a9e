"""What SIGINT and SIGTERM do to a running command: the first requests a stop, a second aborts."""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class StopRequest:
    """Handles SIGINT and SIGTERM in the block: the first requests a stop, a second aborts.

    To abort is to raise KeyboardInterrupt in the main thread.  ``note`` gets a line for the user
    at the first signal.  Enter it after the Spark session has started: Spark sets a handler of its
    own, which cancels the running query.
    """

    def __init__(self, note: Callable[[str], None] | None = None) -> None:
        self._note = note
        self._requested = threading.Event()
        self._is_interruptible = False
        self._previous: list[tuple[int, Any]] = []
        self.signal: int | None = None  # the first one received
        self.is_aborted = False

    @property
    def is_requested(self) -> bool:
        """Whether a signal has arrived."""
        return self._requested.is_set()

    def __call__(self) -> bool:
        """Return whether a signal has arrived."""
        return self._requested.is_set()

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous.append((number, signal.signal(number, self._on_signal)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for number, handler in self._previous:
            signal.signal(number, handler)
        if self.is_aborted and isinstance(error, Exception):  # the aborted call reports a failure
            raise KeyboardInterrupt from None

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self.is_requested:
            self.is_aborted = True
            raise KeyboardInterrupt
        self.signal = number
        self._requested.set()
        if self._note is not None:
            # In a thread: the interrupted code may hold the lock of the progress display.
            text = "stopping after this batch; press Ctrl-C again to stop at once"
            threading.Thread(target=self._note, args=(text,), daemon=True).start()
        if self._is_interruptible:
            raise KeyboardInterrupt

    def sleep(self, seconds: float) -> None:
        """Wait for this many seconds, or until a stop is requested."""
        self._requested.wait(seconds)

    def interruptible(self, call: Callable[[], T]) -> T | None:
        """Return the result of ``call``; None if a signal has arrived before, or interrupts it."""
        try:
            self._is_interruptible = True
            # Checked only now: a signal before the line above raised nothing.
            return None if self.is_requested else call()
        except KeyboardInterrupt:
            return None
        finally:
            self._is_interruptible = False
