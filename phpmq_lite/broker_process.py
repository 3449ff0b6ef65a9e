"""A broker in a separate process, which tests and benchmarks can start, kill and restart."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self, TextIO

from phpmq_lite.errors import StartRefusedError
from phpmq_lite.storage.data_folder import locking_pid

_START_S: Final = 120.0  # seconds after which a broker that is not ready is killed
_STOP_S: Final = 30.0  # maximum number of seconds for the broker to exit
_POLL_S: Final = 0.005


class StartFailedError(StartRefusedError):
    """The broker exited before all its listeners were open; ``code`` is its exit code."""

    def __init__(self, code: int, output: str) -> None:
        super().__init__(f"the broker did not start (exit code {code}): {output}")
        self.code = code


@contextmanager
def signals_blocked(*signals: signal.Signals) -> Iterator[None]:
    """Block signals within the ``with`` block, also for processes that are started there."""
    former = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _hold_port() -> socket.socket:
    """Reserve a free loopback port that a broker keeps when it is restarted.

    A UDP socket holds the port, so that no other test uses it; the broker can still listen on it
    with TCP. The port is below the range from which systems choose outgoing ports.
    """
    while True:
        address = "127.0.0.1", 20_000 + secrets.randbelow(12_000)
        holder = socket.socket(type=socket.SOCK_DGRAM)
        try:
            holder.bind(address)
            with socket.socket() as probe:
                probe.bind(address)
        except OSError:
            holder.close()
        else:
            return holder


@dataclass
class BrokerProcess:
    """A ``phpmq-lite serve`` process on a free port that it keeps across restarts.

    Use it in a ``with`` block, which starts the broker and kills it on exit; the data folder may
    then be removed.
    """

    data: Path
    flags: list[str] = field(default_factory=list)
    listeners: int = 1  # number of PHPMQ listeners, including those added by flags
    phpmq: list[str] = field(default_factory=list)  # the listeners' addresses, set by start()
    admin: list[str] = field(default_factory=list)
    process: subprocess.Popen[str] | None = None
    program: tuple[str, ...] = ("-m", "phpmq_lite")  # arguments to the Python interpreter
    env: Mapping[str, str] | None = None  # None means this process's environment
    is_isolated: bool = False  # whether to use only default settings and ignore Ctrl-C
    _last_pid: str = field(default="", init=False)
    _port_holder: socket.socket = field(default_factory=_hold_port, init=False, repr=False)

    def __post_init__(self) -> None:
        """Register a finalizer that releases the port when this object is garbage-collected."""
        weakref.finalize(self, self._port_holder.close)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        until_s = time.monotonic() + _STOP_S
        # The writer process first finishes the batch that it is storing.
        while locking_pid(self.data) == self._last_pid and time.monotonic() < until_s:
            time.sleep(_POLL_S)

    def start(self) -> float:
        """Start the broker; return the number of seconds until all its listeners were open.

        Raises:
            StartFailedError: the broker exited or was too slow; the message shows its last output.
        """
        began_s = time.monotonic()
        # If Ctrl-C arrived before self.process is assigned, the process would keep running.
        # A broker that is not isolated must receive Ctrl-C, so SIGINT must not be blocked for it.
        blocked = [signal.SIGINT] if self.is_isolated else []
        with signals_blocked(*blocked), self.log.open("a", encoding="utf-8") as log:
            self.process = process = self._open(log)
        self._last_pid = str(process.pid)
        self.phpmq, self.admin = [], []
        timer = threading.Timer(_START_S, process.kill)
        timer.start()
        try:
            for line in process.stdout or ():
                word, kind, address, *_ = line.split()
                if word == "listening":
                    (self.phpmq if kind == "phpmq" else self.admin).append(address)
                if len(self.phpmq) == self.listeners:
                    return time.monotonic() - began_s
        finally:
            timer.cancel()
        code = self._end(signal.SIGKILL)
        raise StartFailedError(code, self.log.read_text(encoding="utf-8")[-2_000:])

    def _open(self, log: TextIO) -> "subprocess.Popen[str]":
        """Start the process; tests start it in other ways, such as from a fork server."""
        environment = os.environ if self.env is None else self.env
        if self.is_isolated:
            environment = {n: v for n, v in environment.items() if not n.startswith("PHPMQ_")}
        return subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL if self.is_isolated else None,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=self.is_isolated,
        )

    @property
    def command(self) -> list[str]:
        """The command line, which always contains the same address; the admin is off by default."""
        admin = [] if "--admin" in self.flags else ["--admin", "none"]
        listen = "{}:{}".format(*self._port_holder.getsockname())
        settings = (
            ["--config", os.devnull] if self.is_isolated else ["--set", "storage.ballast_bytes=0"]
        )
        return [
            sys.executable,
            *self.program,
            "serve",
            "--data",
            str(self.data),
            "--listen",
            listen,
            "--legacy-listen",
            "none",
            *admin,
            *settings,
            *self.flags,
        ]

    @property
    def log(self) -> Path:
        """The file that collects the broker's standard error output across restarts."""
        return self.data.with_name(self.data.name + ".log")

    @property
    def address(self) -> tuple[str, int]:
        """The host and port of the broker's first PHPMQ listener."""
        host, _, port = self.phpmq[0].rpartition(":")
        return host, int(port)

    @property
    def port(self) -> int:
        """The port of the broker's first PHPMQ listener."""
        return self.address[1]

    @property
    def pid(self) -> int:
        """The broker's process id, or 0 if it is not running."""
        return 0 if self.process is None else self.process.pid

    def kill(self) -> None:
        """Kill the broker with SIGKILL, as if it had crashed."""
        with signals_blocked(signal.SIGINT, signal.SIGTERM):
            self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """Stop the broker with SIGTERM, which lets it drain first; return its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.communicate(timeout=_STOP_S)
        code = self.process.returncode
        self.process = None
        return code


def broker_process(data: Path, *flags: str, listeners: int = 1) -> BrokerProcess:
    """Return a broker that runs in its own process; use it in a ``with`` block.

    Its first listener uses a free loopback port; if ``flags`` add listeners, set ``listeners``.
    """
    return BrokerProcess(data, list(flags), listeners)


def isolated_broker(data: Path, *flags: str) -> BrokerProcess:
    """Return a broker that uses default settings and ignores the environment and settings files."""
    return BrokerProcess(data, list(flags), is_isolated=True)
