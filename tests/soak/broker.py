"""The broker of a soak: started, ended and looked at; each life of its process has its readings."""

import asyncio
import os
import re
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final

import aiohttp

from phpmq_lite.broker_process import BrokerProcess
from phpmq_lite.process_memory import resident_bytes
from phpmq_lite.storage.data_folder import DATABASE
from tests.faults.shim import Shim
from tests.soak.link import Link
from tests.soak.slopes import Sample
from tests.support.latency_probe import MIB

FLAGS: Final = (
    "--admin", "127.0.0.1:0", "--set", "storage.ballast_bytes=32MiB", "--set", "backups.keep=2",
)  # fmt: skip
FAIL_STOP: Final = 74
READING_S: Final = 1.0
SOCKETS, DATABASES, OTHERS = "sockets", "files of the database", "others"  # descriptors
_LAG: Final = re.compile(rb"^phpmq_event_loop_lag_seconds (\S+)$", re.MULTILINE)
_RESTING: Final = frozenset((502, 503, 507))  # answers of who starts, stops or has no room


@dataclass
class ProcessRun:
    """One life of the process: what was read of it, by seconds of its own."""

    began_at: float
    memory: list[Sample] = field(default_factory=list)  # MiB
    descriptors: dict[str, list[Sample]] = field(default_factory=dict)  # by kind


def descriptors_of(pid: int) -> dict[str, int]:
    """Count the open descriptors of a process by kind."""
    counts = dict.fromkeys((SOCKETS, DATABASES, OTHERS), 0)
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed just now
            name = os.readlink(link)
            is_socket, is_database = name.startswith("socket:"), DATABASE in name
            counts[SOCKETS if is_socket else DATABASES if is_database else OTHERS] += 1
    return counts


class SoakBroker:
    """A broker with the shim below it and the link in front of it."""

    def __init__(self, folder: Path, program: tuple[str, ...] = ("-m", "phpmq_lite")) -> None:
        self.shim = Shim(folder)
        self.link = Link()
        self.broker = BrokerProcess(
            self.shim.data, list(FLAGS), program=program, env=self.shim.env()
        )
        self.lives: list[ProcessRun] = []
        self.starts_ms: list[float] = []
        self.lags_ms: list[float] = []
        self.largest_wal = 0
        self.answers: Counter[int] = Counter()  # by HTTP status
        self.failures: Counter[str] = Counter()  # 5xx that tell of a defect, with their paths
        self.is_up = False  # and nobody is about to end it
        self.is_held = False  # stopped: what it says of its lag is about that
        self.http: aiohttp.ClientSession

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.shim.data

    @property
    def code(self) -> int | None:
        """The exit code, None while it runs."""
        return None if self.broker.process is None else self.broker.process.poll()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["SoakBroker"]:
        """Have it run, and killed at the end."""
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(timeout=timeout) as self.http:
            await self.link.start()
            await self.start()
            try:
                yield self
            finally:
                self.broker.kill()
                await self.link.stop()

    async def start(self) -> None:
        """Start it again, or first; its port stays."""
        began = monotonic()
        await asyncio.to_thread(self.broker.start)
        self.starts_ms.append((monotonic() - began) * 1_000)
        self.lives.append(ProcessRun(monotonic()))
        self.link.target = self.broker.port
        self.is_up = True

    def kill(self) -> None:
        """End it as a crash does."""
        self.is_up = False
        self.broker.kill()

    async def terminate(self) -> int:
        """Have it drain; gives the exit code."""
        self.is_up = False
        return await asyncio.to_thread(self.broker.terminate)

    async def exit_code(self, within_s: float) -> int | None:
        """Wait for an end of its own; None: it did not come."""
        assert self.broker.process is not None
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self.broker.process.wait, within_s)
        return self.code

    async def ask(self, path: str, method: str = "GET") -> int:
        """Ask the admin; gives the status, 0 where there is nobody."""
        with suppress(aiohttp.ClientError, TimeoutError):
            url = self.broker.admin[0].rstrip("/")
            headers = {"Origin": url, "Content-Type": "application/json"}
            body = None if method == "GET" else b"{}"
            async with self.http.request(method, url + path, headers=headers, data=body) as answer:
                text = await answer.read()
            self.answers[answer.status] += 1
            if answer.status >= 500 and answer.status not in _RESTING:
                self.failures[f"{answer.status} {method} {path}"] += 1
            if path == "/metrics" and not self.is_held and (lag := _LAG.search(text)):
                self.lags_ms.append(float(lag[1]) * 1_000)
            return answer.status
        return 0

    async def read(self) -> None:
        """Read its figures once a second, for ever."""
        while True:
            await asyncio.sleep(READING_S)
            with suppress(OSError):
                self.largest_wal = max(
                    self.largest_wal, (self.data / f"{DATABASE}-wal").stat().st_size
                )
            if not self.is_up:
                continue
            life, pid = self.lives[-1], self.broker.pid
            at = monotonic() - life.began_at
            with suppress(OSError, AssertionError):  # it has just ended
                mib, counts = resident_bytes(pid) / MIB, descriptors_of(pid)
                life.memory.append((at, mib))
                for kind, count in counts.items():
                    life.descriptors.setdefault(kind, []).append((at, count))
            await self.ask("/metrics")
