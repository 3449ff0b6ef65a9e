"""A broker with a history, and a program that reads it as Arrow."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from phpmq_lite.export.exports import ExportProcesses
from phpmq_lite.testing import RunningBroker, running_service
from tests.support.settled_folder import read_counted, settled_folder

ROWS = 100_000  # some 25 MiB: more than all pipes and sockets on the way hold
BROKEN_EXPORT = Path(__file__).with_name("broken_export.py")
FOREVER = {"days": 36_500}


@dataclass
class ExportSite:
    """A broker with a history, and a program that reads it."""

    broker: RunningBroker
    session: aiohttp.ClientSession

    @property
    def exports(self) -> ExportProcesses:
        context = self.broker.service._context
        assert context is not None
        return context.exports

    @property
    def database(self) -> Path:
        return self.broker.data / "phpmq.db"

    def url(self, query: str, of: str = "history/arrow") -> str:
        return f"{self.broker.admin_url.rstrip('/')}/api/v1/pipeline/{of}?{query}"

    async def read(self, query: str = f"lo=0&hi={ROWS}") -> Any:
        return await read_counted(self.session, self.url(query))

    async def get(self, query: str, of: str = "history/arrow", **headers: str) -> tuple[int, Any]:
        """Ask for what is answered with JSON."""
        async with self.session.get(self.url(query, of), headers=headers) as response:
            return response.status, await response.json()

    def odd(self, how: str) -> None:
        """Have another program in the place of the export process."""
        self.exports.program = (sys.executable, str(BROKEN_EXPORT), how)


@asynccontextmanager
async def site_on(data: Path, rows: int, **sections: Any) -> AsyncIterator[ExportSite]:
    settled_folder(data, rows)
    sections = {"history": FOREVER} | sections
    async with running_service(data, **sections) as broker, aiohttp.ClientSession() as session:
        yield ExportSite(broker, session)


@asynccontextmanager
async def large_site(data: Path) -> AsyncIterator[ExportSite]:
    async with (
        running_service(data, history=FOREVER) as broker,
        aiohttp.ClientSession(read_bufsize=1 << 16) as session,
    ):
        yield ExportSite(broker, session)
