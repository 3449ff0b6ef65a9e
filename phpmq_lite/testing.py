"""Test helpers for us and our users: a fake clock, and brokers in this or another process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from phpmq_lite.broker_process import BrokerProcess, StartFailedError, broker_process
from phpmq_lite.clock import Clock
from phpmq_lite.model import ClockReading
from phpmq_lite.service.lifecycle import Service
from phpmq_lite.settings import Settings

__all__ = [
    "BrokerProcess",
    "FakeClock",
    "RunningBroker",
    "StartFailedError",
    "broker_process",
    "running_service",
    "settings_for",
]

_NO_LIMIT: Final = 1 << 40  # bytes, the largest size that a setting can have


class FakeClock(Clock):
    """A clock whose time changes only when a test advances it."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        super().__init__()
        self.wall_ms = self.steady_ms = start_ms

    def now(self) -> ClockReading:
        """Return the current fake time."""
        return ClockReading(self.wall_ms, self.steady_ms)

    def advance(self, seconds: float) -> None:
        """Advance the wall clock and the steady clock."""
        self.wall_ms += round(seconds * 1_000)
        self.steady_ms += round(seconds * 1_000)


@dataclass
class RunningBroker:
    """A broker running in this process, with its service, addresses and data folder."""

    service: Service
    host: str
    port: int
    legacy_port: int
    admin_url: str
    data: Path


def settings_for(data: Path, **sections: Any) -> Settings:
    """Return settings for a broker on free loopback ports; ``sections`` override the defaults."""
    tcp = {"listen": ["127.0.0.1:0"], "legacy_listen": ["127.0.0.1:0"]} | sections.pop("tcp", {})
    admin = {"listen": ["127.0.0.1:0"]} | sections.pop("admin", {})
    storage = {"ballast_bytes": 0} | sections.pop("storage", {})  # no reserve: tests share one disk
    limits = {"memory": _NO_LIMIT} | sections.pop("limits", {})  # the process is that of the tests
    return Settings(data=data, tcp=tcp, admin=admin, storage=storage, limits=limits, **sections)


@asynccontextmanager
async def running_service(data: Path, **sections: Any) -> AsyncIterator[RunningBroker]:
    """Run a broker in this process on free ports, and drain it at the end of the block."""
    service = Service(settings_for(data, **sections), lambda _line: None)
    task = asyncio.create_task(service.run())
    ready = asyncio.create_task(service.state.ready.wait())
    await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        ready.cancel()
        await task
    ports = [
        int(address.rpartition(":")[2])
        for address in service.state.phpmq
        if not address.startswith("unix:")
    ]
    try:
        yield RunningBroker(
            service,
            "127.0.0.1",
            ports[0] if ports else 0,
            ports[1] if len(ports) > 1 else 0,
            service.state.admin[0] if service.state.admin else "",
            data,
        )
    finally:
        service.stop()
        await task
