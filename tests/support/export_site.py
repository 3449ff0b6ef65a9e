"""A broker with a history, and an HTTP client that reads it as Arrow."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from phpmq_lite.admin.messages.arrow_export import EXPORTS
from phpmq_lite.export.exports import PROGRAM, ExportProcesses
from phpmq_lite.testing import RunningBroker, running_service
from tests.support.settled_folder import move_to_engine, read_counted, settled_folder

BROKEN_EXPORT = Path(__file__).with_name("broken_export.py")
FOREVER = {"days": 36_500}
# The product's program without its low priority, which makes it wait for other tests.
FAST_PROGRAM = (
    *PROGRAM[:3],
    "import sys; sys.path.append(sys.argv[1]);"
    " from phpmq_lite.export import child_process; child_process.NICE = 0;"
    " sys.exit(child_process.main(*sys.argv[2:]))",
    *PROGRAM[4:],
)


@dataclass
class ExportSite:
    """A broker with a history, and an HTTP client that reads it."""

    broker: RunningBroker
    session: aiohttp.ClientSession

    @property
    def exports(self) -> ExportProcesses:
        context = self.broker.service.pages.context
        assert context is not None
        return context.app[EXPORTS]

    @property
    def database(self) -> Path:
        return self.broker.data / "phpmq.db"

    def url(self, query: str, of: str = "history/arrow") -> str:
        return f"{self.broker.admin_url.rstrip('/')}/api/v1/pipeline/{of}?{query}"

    async def read(self, query: str) -> Any:
        return await read_counted(self.session, self.url(query))

    async def get(self, query: str, of: str = "history/arrow", **headers: str) -> tuple[int, Any]:
        """Return the status and the JSON document of a response."""
        async with self.session.get(self.url(query, of), headers=headers) as response:
            return response.status, await response.json()

    async def report(self, reader: str, position: int, **headers: str) -> tuple[int, Any]:
        """Report a reader's position; return the status and the JSON document."""
        body, url = {"reader": reader, "position": position}, self.url("", "history/bounds")
        async with self.session.post(url, json=body, headers=headers) as response:
            return response.status, await response.json()

    async def refusal(self, query: str, of: str = "history/arrow") -> tuple[int, str]:
        """Return the status and the code of a problem."""
        status, problem = await self.get(query, of)
        return status, problem["code"]

    def break_exports(self, how: str) -> None:
        """Use ``broken_export.py`` for the next exports."""
        self.exports._end_idle()
        self.exports.program = (sys.executable, str(BROKEN_EXPORT), how)


@asynccontextmanager
async def site_on(data: Path, rows: int = 0, **sections: Any) -> AsyncIterator[ExportSite]:
    """Run a broker on a new history of ``rows`` rows, or on the existing one."""
    if rows:
        settled_folder(data, rows)
    move_to_engine(data)
    sections = {"history": FOREVER} | sections
    async with (
        running_service(data, **sections) as broker,
        aiohttp.ClientSession(read_bufsize=1 << 16) as session,
    ):
        await broker.service.pages.open()
        site = ExportSite(broker, session)
        site.exports.program = FAST_PROGRAM
        yield site
