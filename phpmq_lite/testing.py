"""For tests, ours and those of users: a clock to turn, a broker in this process, one of its own."""

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TextIO

from phpmq_lite.clock import Clock
from phpmq_lite.model import Now
from phpmq_lite.service import Service
from phpmq_lite.settings import Settings


class FakeClock(Clock):
    """Time that passes only when told to."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        super().__init__()
        self.wall_ms = self.steady_ms = start_ms

    def now(self) -> Now:
        """Return the time that was set."""
        return Now(self.wall_ms, self.steady_ms)

    def advance(self, seconds: float) -> None:
        """Let both clocks go on."""
        self.wall_ms += round(seconds * 1_000)
        self.steady_ms += round(seconds * 1_000)


@dataclass
class Running:
    """A broker that runs in this process: where it listens, and the service itself."""

    service: Service
    host: str
    port: int
    legacy_port: int
    admin_url: str
    data: Path


def settings_for(data: Path, **sections: Any) -> Settings:
    """Return settings for a broker on free loopback ports; ``sections`` override, by section."""
    tcp = {"listen": ["127.0.0.1:0"], "legacy_listen": ["127.0.0.1:0"]} | sections.pop("tcp", {})
    admin = {"listen": ["127.0.0.1:0"]} | sections.pop("admin", {})
    storage = {"ballast_bytes": 0} | sections.pop("storage", {})  # many brokers, one disk
    return Settings(data=data, tcp=tcp, admin=admin, storage=storage, **sections)


@asynccontextmanager
async def running_service(data: Path, **sections: Any) -> AsyncIterator[Running]:
    """Run a broker in this process on free ports, and drain it at the end."""
    service = Service(settings_for(data, **sections), lambda _line: None)
    task = asyncio.create_task(service.run())
    ready = asyncio.create_task(service.wait_ready())
    await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        ready.cancel()
        await task
    ports = [
        int(address.rpartition(":")[2])
        for address in service.phpmq
        if not address.startswith("unix:")
    ]
    try:
        yield Running(
            service,
            "127.0.0.1",
            ports[0] if ports else 0,
            ports[1] if len(ports) > 1 else 0,
            service.admin[0] if service.admin else "",
            data,
        )
    finally:
        service.stop()
        await task


class StartFailedError(RuntimeError):
    """A broker ended in place of opening its listeners; ``code`` is its exit code."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"exit code {code}: {words}")
        self.code = code


def _held_port() -> socket.socket:
    """Hold a free port of loopback for a broker, over its restarts.

    It is held by UDP, so that the broker can listen on it by TCP and no other test is given it;
    and it is one that no outgoing connection gets while the broker is down.
    """
    while True:
        address = "127.0.0.1", 20_000 + secrets.randbelow(12_000)  # below what systems hand out
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
    """A broker in a process of its own, for what kills it.  Free ports are kept over restarts.

    ``with`` starts it, and kills it at the end.
    """

    data: Path
    flags: list[str] = field(default_factory=list)
    listeners: int = 1  # of PHPMQ that the flags ask for, the first one included
    phpmq: list[str] = field(default_factory=list)  # addresses, once started
    admin: list[str] = field(default_factory=list)
    process: subprocess.Popen[str] | None = None
    program: tuple[str, ...] = ("-m", "phpmq_lite")  # what Python runs
    env: Mapping[str, str] | None = None  # None: that of this process
    _holder: socket.socket = field(default_factory=_held_port, init=False, repr=False)

    def __post_init__(self) -> None:
        """Let go of the port when nobody can start the broker any more."""
        weakref.finalize(self, self._holder.close)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it and return when all its listeners are open.

        Raises:
            StartFailedError: it ended instead; the message has its last words.
        """
        with self.log.open("a", encoding="utf-8") as log:
            self.process = self._open(log)
        self.phpmq, self.admin = [], []
        for line in self.process.stdout or ():
            word, kind, address = line.split()
            if word == "listening":
                (self.phpmq if kind == "phpmq" else self.admin).append(address)
            if len(self.phpmq) == self.listeners:
                return
        code = self._end(signal.SIGKILL)
        raise StartFailedError(code, self.log.read_text(encoding="utf-8")[-2_000:])

    def _open(self, log: TextIO) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=log, text=True, env=self.env or os.environ
        )

    @property
    def command(self) -> list[str]:
        """What starts it, always on the same address; no admin unless a flag asks."""
        admin = [] if "--admin" in self.flags else ["--admin", "none"]
        listen = "{}:{}".format(*self._holder.getsockname())
        return [
            sys.executable, *self.program, "serve", "--data", str(self.data),
            "--listen", listen, "--legacy-listen", "none", *admin,
            "--set", "storage.ballast_bytes=0", *self.flags,
        ]  # fmt: skip

    @property
    def log(self) -> Path:
        """What it wrote to standard error, over all starts."""
        return self.data.with_name(self.data.name + ".log")

    @property
    def port(self) -> int:
        """Port of its PHPMQ listener."""
        return int(self.phpmq[0].rpartition(":")[2])

    @property
    def pid(self) -> int:
        """Its process id."""
        return 0 if self.process is None else self.process.pid

    def kill(self) -> None:
        """End it as a crash does, with SIGKILL."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """Have it drain, with SIGTERM; return its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.communicate(timeout=30)
        code = self.process.returncode
        self.process = None
        return code


def broker_process(data: Path, *flags: str, listeners: int = 1) -> BrokerProcess:
    """Give a broker in a process of its own, for ``with``.

    Its first listener is a free port of loopback; ``flags`` may ask for more ``listeners``.
    """
    return BrokerProcess(data, list(flags), listeners)
