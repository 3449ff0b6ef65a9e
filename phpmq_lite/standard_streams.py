"""The standard streams of a command: always open, and standard error never fails or blocks.

``prepare`` must be called before any thread is started.
"""

import atexit
import codecs
import io
import os
import select
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

MAX_BYTES: Final = 1 << 20  # maximum size of what waits for a slow reader
FLUSH_S: Final = 0.5  # maximum time to wait for a reader, once
_POLL_MS: Final = 1_000


class GuardedOutput(io.FileIO):
    """Writes to a descriptor in a thread, so that ``write`` neither waits nor fails.

    What exceeds ``MAX_BYTES`` because nobody reads is dropped, and so is what cannot be written
    because the reader is gone or the disk is full.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.dropped = 0  # number of lines
        self.on_resumed: Callable[[int], None] = lambda _lines: None  # called after dropped lines
        self._descriptor = descriptor
        self._reported = 0
        self._last_byte = b"\n"
        self._is_torn = False  # whether the rest of the last line is lost
        self._forget()
        os.register_at_fork(after_in_child=self._forget)  # what waits belongs to the parent
        atexit.register(self.flush)

    def _forget(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[bytes] = []
        self._bytes = 0  # of what waits or is being written
        self._is_stuck = False  # whether the last flush timed out
        self._thread: threading.Thread | None = None

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        """Queue data, or drop it if too much waits; return its size."""
        data = bytes(data)
        with self._changed:
            if self._bytes + len(data) > MAX_BYTES:
                self.dropped += data.count(b"\n") or 1
            elif data:
                self._waiting.append(data)
                self._bytes += len(data)
                self._changed.notify_all()
                self._start()
        return len(data)

    def _start(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run, name="output", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread can be started, for example because the process is ending
            self._write_waiting()
        else:
            self._thread = thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
            self._write_waiting()

    def _write_waiting(self) -> None:
        with self._changed:
            data, self._waiting = b"".join(self._waiting), []
        lost_lines = self._write_all(data)
        with self._changed:
            self._bytes -= len(data)
            self._is_stuck = False
            self.dropped += lost_lines
            unreported = 0 if lost_lines else self.dropped - self._reported
            self._reported += unreported
            self._changed.notify_all()
        if unreported:
            self.on_resumed(unreported)

    def _write_all(self, data: bytes) -> int:
        """Write data, and return how many lines could not be written."""
        remaining = b"\n" + data if self._is_torn else data
        self._is_torn = False
        while remaining:
            try:
                count = os.write(self._descriptor, remaining)
            except BlockingIOError:  # another process has made the descriptor non-blocking
                writable = select.poll()
                writable.register(self._descriptor, select.POLLOUT)
                writable.poll(_POLL_MS)
                continue
            except OSError:
                self._is_torn = self._last_byte != b"\n"
                return remaining.count(b"\n") or 1
            self._last_byte, remaining = remaining[count - 1 : count], remaining[count:]
        return 0

    def flush(self) -> None:
        """Wait until everything is written, but only once for a reader that does not read."""
        with self._changed:
            if self._bytes and not self._is_stuck and self._thread is not None:
                self._is_stuck = not self._changed.wait_for(lambda: not self._bytes, FLUSH_S)


class _TextOutput(io.TextIOWrapper):
    """Replaces a text stream, and escapes what its encoding lacks; click would write UTF-8."""

    def __init__(self, output: Any, before: Any, *, line_buffering: bool) -> None:
        super().__init__(
            output,
            before.encoding,
            "backslashreplace",
            line_buffering=line_buffering,
            write_through=True,
        )
        self._replaced = before  # would close its descriptor
        self.on_write: Callable[[str], None] = lambda _text: None

    def write(self, text: str, /) -> int:
        """Write text after a call of ``on_write``."""
        self.on_write(text)
        return super().write(text)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        name: str = super().encoding
        return "latin-1" if codecs.lookup(name).name == "ascii" else name


def prepare() -> None:
    """Open closed standard descriptors on /dev/null, and guard standard error.

    Otherwise, files and sockets would get these numbers: libuv aborts if one of them is closed, and
    a child process would take them for its own streams.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(descriptor, True)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - never closed
    output = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stdout = _TextOutput(output.buffer, output, line_buffering=output.isatty())
    sys.stderr = _TextOutput(GuardedOutput(2), sys.stderr or output, line_buffering=True)
