"""The broker under test: ``phpmq-lite serve`` in a process of its own, ended by its pid."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from phpmq_lite.bench.processes import signals_blocked
from phpmq_lite.errors import StartRefusedError

_READY: Final = "listening phpmq "
_START_S: Final = 60.0
_STOP_S: Final = 20.0


class BrokerProcess:
    """One broker on a free port of the loopback, on a data folder that stays.

    A context manager: it starts the broker; at the end, and where anything was raised, no process
    is left.  Settings are the defaults: environment and usual files are not read.
    """

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self.log = data.with_name(data.name + ".log")
        self.address = ("", 0)  # these two: once it has started
        self.pid = 0
        self._options = options  # more of ``serve``
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.stop()
        self.kill()

    def start(self) -> float:
        """Start it; return the seconds until clients may connect.

        Raises:
            StartRefusedError: it ended, or was not ready in time; the message has its last words.
        """
        began_s = time.monotonic()
        command = (
            *(sys.executable, "-m", "phpmq_lite", "serve", "--config", os.devnull),
            *("--data", str(self.data), "--listen", "127.0.0.1:0"),
            *("--legacy-listen", "none", "--admin", "none", *self._options),
        )
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PHPMQ_")}
        with signals_blocked(signal.SIGINT), self.log.open("ab") as log:
            self._process = process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C in our terminal is not for it
            )
        self.pid = process.pid
        self.address = self._read_address(process, began_s + _START_S)
        return time.monotonic() - began_s

    def _read_address(self, process: subprocess.Popen[bytes], end_s: float) -> tuple[str, int]:
        pipe = process.stdout.fileno() if process.stdout is not None else -1
        text = ""
        while time.monotonic() < end_s:
            if not select.select([pipe], [], [], 0.25)[0]:
                continue
            piece = os.read(pipe, 4096)
            if not piece:
                break
            text += piece.decode()
            for line in text.splitlines(keepends=True):
                if line.startswith(_READY) and line.endswith("\n"):
                    host, _, port = line.removeprefix(_READY).strip().rpartition(":")
                    return host, int(port)
        raise StartRefusedError(f"the broker did not start: {self._last_words()}")

    def _last_words(self) -> str:
        text = self.log.read_text(errors="replace").strip()
        return text.splitlines()[-1] if text else "it wrote nothing"

    def stop(self) -> None:
        """Ask it to stop, and wait until it has; a no-op where it has ended."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """End it as ``kill -9`` does, and wait until it has."""
        with signals_blocked(signal.SIGINT, signal.SIGTERM):
            if self._process is None:
                return
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGKILL)
                self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()

    def database_bytes(self) -> int:
        """Return the size of the database, with its write-ahead log."""
        return sum(file.stat().st_size for file in self.data.glob("phpmq.db*"))
