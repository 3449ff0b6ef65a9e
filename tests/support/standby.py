"""Brokers with a standby by the Litestream of the test extra."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from phpmq_lite.storage.sqlite.standby.litestream import is_running
from tests.support.fork_server import BrokerProcess, broker_process

COMMAND_S: Final = 120.0
# Litestream is next to Python.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def command(*arguments: object) -> str:
    """Run a command of ``phpmq-lite`` with the Litestream of this environment."""
    done = subprocess.run(
        [sys.executable, "-m", "phpmq_lite", *map(str, arguments)],
        capture_output=True, text=True, timeout=COMMAND_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{arguments}: {done.stderr or done.stdout}"
    return done.stderr + done.stdout


class Litestream:
    """A process of ``standby run``."""

    def __init__(self, data: Path) -> None:
        self.log = data.parent / f"{data.name}-litestream.log"
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "phpmq_lite", "standby", "run", "--data", str(data)],
                stdout=log, stderr=log,
            )  # fmt: skip
        until = time.monotonic() + COMMAND_S
        while not is_running(data):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < until
            time.sleep(0.02)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, wait for the end and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(COMMAND_S)


@contextmanager
def broker_with_standby(folder: Path, target: Path, *flags: str) -> Iterator[BrokerProcess]:
    """Start a broker with a standby; both are killed at the end."""
    data = folder / "data"
    with broker_process(data, *flags) as first:
        assert first.terminate() == 0
    command("standby", "init", target, "--data", data)
    litestream = Litestream(data)
    try:
        with broker_process(data, *flags) as broker:
            yield broker
    finally:
        litestream.end(signal.SIGKILL)
