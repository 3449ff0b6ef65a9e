"""The broker of a soak, with readings of each run of its process."""

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
from phpmq_lite.os_process import resident_bytes
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
_UNAVAILABLE: Final = frozenset((502, 503, 507))  # starting, stopping, or no disk space


@dataclass
class ProcessRun:
    """Readings of one run of the process; times are seconds since its start."""

    began_at: float
    memory: list[Sample] = field(default_factory=list)  # MiB
    descriptors: dict[str, list[Sample]] = field(default_factory=dict)  # by kind


def descriptors_of(pid: int) -> dict[str, int]:
    counts = dict.fromkeys((SOCKETS, DATABASES, OTHERS), 0)
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed in the meantime
            name = os.readlink(link)
            is_socket, is_database = name.startswith("socket:"), DATABASE in name
            counts[SOCKETS if is_socket else DATABASES if is_database else OTHERS] += 1
    return counts


class SoakBroker:
    """A broker on the file system shim, behind the network link."""

    def __init__(self, folder: Path, program: tuple[str, ...] = ("-m", "phpmq_lite")) -> None:
        self.shim = Shim(folder)
        self.link = Link()
        self.child = BrokerProcess(
            self.shim.data, list(FLAGS), program=program, env=self.shim.env()
        )
        self.runs: list[ProcessRun] = []
        self.starts_ms: list[float] = []
        self.lags_ms: list[float] = []
        self.largest_wal = 0
        self.answers: Counter[int] = Counter()  # by HTTP status
        self.failures: Counter[str] = Counter()  # 5xx that indicate a defect, with their paths
        self.is_up = False  # and no fault is about to end it
        self.is_suspended = False  # by SIGSTOP, which its lag then reflects
        self.http: aiohttp.ClientSession

    @property
    def data(self) -> Path:
        return self.shim.data

    @property
    def code(self) -> int | None:
        return None if self.child.process is None else self.child.process.poll()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["SoakBroker"]:
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(timeout=timeout) as self.http:
            await self.link.start()
            await self.start()
            try:
                yield self
            finally:
                self.child.kill()
                await self.link.stop()

    async def start(self) -> None:
        """Start or restart the broker; it keeps its port."""
        began = monotonic()
        await asyncio.to_thread(self.child.start)
        self.starts_ms.append((monotonic() - began) * 1_000)
        self.runs.append(ProcessRun(monotonic()))
        self.link.target = self.child.port
        self.is_up = True

    def kill(self) -> None:
        """Kill the process as a crash would."""
        self.is_up = False
        self.child.kill()

    async def terminate(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.is_up = False
        return await asyncio.to_thread(self.child.terminate)

    async def exit_code(self, within_s: float) -> int | None:
        """Wait for the process to exit; return None if it is still running."""
        assert self.child.process is not None
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self.child.process.wait, within_s)
        return self.code

    async def request(self, path: str, method: str = "GET") -> None:
        """Send a request to the admin interface and count its status."""
        with suppress(aiohttp.ClientError, TimeoutError):
            url = self.child.admin[0].rstrip("/")
            headers = {"Origin": url, "Content-Type": "application/json"}
            body = None if method == "GET" else b"{}"
            async with self.http.request(method, url + path, headers=headers, data=body) as answer:
                text = await answer.read()
            self.answers[answer.status] += 1
            if answer.status >= 500 and answer.status not in _UNAVAILABLE:
                self.failures[f"{answer.status} {method} {path}"] += 1
            if path == "/metrics" and not self.is_suspended and (lag := _LAG.search(text)):
                self.lags_ms.append(float(lag[1]) * 1_000)

    async def read(self) -> None:
        """Read memory, descriptors and metrics once a second, until cancelled."""
        while True:
            await asyncio.sleep(READING_S)
            with suppress(OSError):
                self.largest_wal = max(
                    self.largest_wal, (self.data / f"{DATABASE}-wal").stat().st_size
                )
            if not self.is_up:
                continue
            run, pid = self.runs[-1], self.child.pid
            at = monotonic() - run.began_at
            with suppress(OSError, AssertionError):  # it has just exited
                mib, counts = resident_bytes(pid) / MIB, descriptors_of(pid)
                run.memory.append((at, mib))
                for kind, count in counts.items():
                    run.descriptors.setdefault(kind, []).append((at, count))
            await self.request("/metrics")
