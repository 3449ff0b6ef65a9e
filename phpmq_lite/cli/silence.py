"""Shows on a terminal how long a command has been running while it writes nothing else."""

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

_QUIET: Final = {  # these wait for messages or for the user, or print what the shell reads
    "completion", "consume", "docs", "outbox", "publish", "serve", "user", "worker",
}  # fmt: skip
_SILENT_S: Final = 0.8
_EVERY_S: Final = 0.2


@contextmanager
def shown_silence(words: Sequence[str]) -> Iterator[None]:
    """Show the silence of the command with these arguments, if it may be long."""
    name = " ".join(word for word in words[:2] if not word.startswith("-"))
    if name and words[0] not in _QUIET and sys.stderr.isatty():
        line = _SilenceLine(name)
        try:
            yield
        finally:
            line.end()
    else:
        yield


class _SilenceLine:
    """A line on standard error that is removed before anything else is written."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._output: Any = sys.stderr.buffer  # bypasses ``on_write``
        self._began_s = self._written_s = time.monotonic()
        self._lock = threading.RLock()
        self._shown = b""
        self._is_new_line = True  # False within a line, such as a prompt or a progress bar
        for stream in sys.stdout, sys.stderr:
            if stream.isatty():
                setattr(stream, "on_write", self._on_write)  # noqa: B010 - only prepared streams
        threading.Thread(target=self._run, name="silence", daemon=True).start()

    def end(self) -> None:
        """Remove the line, and show it no more."""
        with self._lock:
            self._remove()
            self._is_new_line = False

    def _on_write(self, text: str) -> None:
        with self._lock:
            self._remove()
            self._written_s = time.monotonic()
            self._is_new_line = text.endswith("\n") if text else self._is_new_line

    def _remove(self) -> None:
        if self._shown:
            self._output.write(b"\r\x1b[K")
            self._output.flush()
            self._shown = b""

    def _run(self) -> None:
        while True:
            time.sleep(_EVERY_S)
            with self._lock:
                now_s = time.monotonic()
                line = f"\r\x1b[K{self._name}: {now_s - self._began_s:.0f} s".encode()
                is_silent = self._is_new_line and now_s - self._written_s >= _SILENT_S
                if is_silent and line != self._shown:
                    self._output.write(line)
                    self._shown = line
