"""What SIGINT and SIGTERM do to a running command: the first asks, the second aborts."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self, TypeVar


class StopRequest:
    """Hears SIGINT and SIGTERM: the first lets the batch end, a second SIGINT does not.

    To be heard after the session is there: Spark sets a handler then that cancels what runs.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._asked = threading.Event()
        self.signal: int | None = None  # the first one heard
        self.is_cut = False  # a second Ctrl-C came: nothing is waited for

    def __call__(self) -> bool:
        """Tell whether somebody asked to stop."""
        return self._asked.is_set()

    def wait(self, seconds: float) -> None:
        """Wait so long, or until somebody asks to stop."""
        self._asked.wait(seconds)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Hear the signals inside the block; works in the main thread only, as Python's do."""
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in before:
            signal.signal(number, self._hear)
        try:
            yield
        except Exception:
            if self.is_cut:  # what was cut off says that it failed
                raise KeyboardInterrupt from None
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._asked.is_set():
            if number == signal.SIGINT:
                self.is_cut = True
                raise KeyboardInterrupt
            return
        self.signal = number
        self._asked.set()
        # in a thread: the handler may have interrupted who holds the lock of the progress
        text = "stopping after this batch; Ctrl-C again ends at once"
        threading.Thread(target=self._note, args=(text,), daemon=True).start()


T = TypeVar("T")


class Interruption:
    """Ctrl-C and SIGTERM end the command between two messages; only a second one inside one."""

    __slots__ = ("_is_allowed", "_previous", "is_asked")

    def __init__(self) -> None:
        self.is_asked = False
        self._is_allowed = False
        self._previous: list[tuple[int, Any]] = []

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous.append((number, signal.signal(number, self._on_signal)))
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous:
            signal.signal(number, handler)

    def _on_signal(self, *_: object) -> None:
        is_second, self.is_asked = self.is_asked, True
        if self._is_allowed or is_second:
            raise KeyboardInterrupt

    def wait(self, wait: Callable[[], T]) -> T | None:
        """Call what waits; a signal breaks it, and then, or after one, the answer is None."""
        try:
            self._is_allowed = True
            # asked only now: a signal before this line raised nothing, and none would follow
            return None if self.is_asked else wait()
        except KeyboardInterrupt:
            return None
        finally:
            self._is_allowed = False
