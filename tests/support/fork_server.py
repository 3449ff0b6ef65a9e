"""Processes of ``python -m …``, forked from a server that has imported the package already.

They are real processes with a pid, signals and an exit code, but save the second of processor time
that the imports take.  Tests of the start itself, or of memory, use
``phpmq_lite.broker_process``, which starts a broker as a user does.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any, Final, TextIO, cast

from phpmq_lite import broker_process as processes

PRELOADED: Final = [
    "phpmq_lite.admin.app",  # these two: a broker imports them behind the rest
    "phpmq_lite.admin.serving",
    "phpmq_lite.cli.admin_client",
    "phpmq_lite.cli.admin_client",
    "phpmq_lite.cli.serve",
    "phpmq_lite.cli.worker",
    "phpmq_lite.envelopes.worker",
    "phpmq_lite.logs",
    "phpmq_lite.process",
    "phpmq_lite.service.lifecycle",
    "pytest",  # the main module here; each process imports it once more
]
_server: Final = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(PRELOADED)


class ForkedProcess:
    """The part of ``subprocess.Popen`` that tests use, for ``python -m MODULE ARGUMENT…``."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        stderr: TextIO | int,
        stdin: int | None = None,
        stdout: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Start the process; ``arguments`` begin with the module, ``stdout`` may be a text pipe.

        Without ``stdin`` it reads nothing; without ``stdout`` it inherits that of the tests.
        """
        self.stdout: IO[str] | None = None
        out = 1 if stdout is None else stdout
        if stdout == subprocess.PIPE:
            reader, out = os.pipe()
            self.stdout = os.fdopen(reader, encoding="utf-8")
        self._process = _server.Process(
            target=_run,
            args=(
                list(arguments), dict(os.environ if env is None else env), str(cwd or Path.cwd()),
                None if stdin is None else _SentDescriptor(stdin), _SentDescriptor(out),
                _SentDescriptor(stderr if isinstance(stderr, int) else stderr.fileno()),
            ),
            daemon=True,  # ends with the tests
        )  # fmt: skip
        try:
            self._process.start()
        finally:
            if self.stdout is not None:
                os.close(out)

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        """The exit code, the negative number of the signal that ended it, or None."""
        return self._process.exitcode

    @property
    def sentinel(self) -> int:
        """A handle for ``multiprocessing.connection.wait``, ready when the process has ended."""
        return self._process.sentinel

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process; return the exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("a preloaded process", timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Wait for the end of the process; return its remaining output."""
        self.wait(timeout)
        with self.stdout or open(os.devnull) as stdout:
            return stdout.read(), None

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None:
            with suppress(ProcessLookupError):  # reaped already
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


class _SentDescriptor:
    """A file descriptor that is sent along and arrives as a number."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (DupFd(self._fd),)


def _received(given: Any) -> int:
    return int(given.detach())


def _run(
    arguments: list[str],
    environment: dict[str, str],
    folder: str,
    stdin: int | None,
    stdout: int,
    stderr: int,
) -> None:
    """Run ``python -m MODULE ARGUMENT…`` in this process."""
    for given, number in ((stdin, 0), (stdout, 1), (stderr, 2)):
        if given is not None:
            os.dup2(given, number)
            os.close(given)
    if stdin is not None:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:0] = [folder, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = arguments[:]
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


class BrokerProcess(processes.BrokerProcess):
    def _open(self, log: TextIO) -> "subprocess.Popen[str]":
        process = ForkedProcess(self.command[2:], stdout=subprocess.PIPE, stderr=log, env=self.env)
        return cast("subprocess.Popen[str]", process)


def broker_process(data: Path, *flags: str, listeners: int = 1) -> BrokerProcess:
    return BrokerProcess(data, list(flags), listeners)


def broker_with_all_listeners(data: Path) -> BrokerProcess:
    """Return a broker with an admin and both listeners: the newer revision first."""
    flags = "--admin", "127.0.0.1:0", "--legacy-listen", "127.0.0.1:0"
    return broker_process(data, *flags, listeners=2)


def start_error(data: Path, *flags: str) -> str:
    """Start a broker that must not start; return its exit code and error."""
    try:
        with broker_process(data, *flags):
            raise AssertionError("the broker has started")
    except processes.StartFailedError as error:
        return str(error)
