"""Watches the database server while this broker is active, for pages, metrics and health checks."""

import asyncio
import shutil
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Final

from phpmq_lite.errors import StorageError
from phpmq_lite.storage.postgres.writer import PostgresWriter
from phpmq_lite.storage.read.read_pool import Readers
from phpmq_lite.storage.store_status import Replica, ServerStatus

_TICK_S: Final = 1.0
_READ_EVERY: Final = 5  # ticks between two reads of the server's state
_SLOW_S: Final = 1.5  # a batch that takes longer has a problem, which is shown
_NO_QUORUM: Final = "there is no quorum; the database waits for replicas to confirm the last batch"


class ServerMonitor:
    """Reads the server's state every 5 s; ``run`` continues until it is cancelled."""

    def __init__(self, readers: Readers, writer: PostgresWriter) -> None:
        self.server: ServerStatus | None = None  # as last read
        self.problem: str | None = None  # why the last read failed
        self._readers = readers
        self._writer = writer

    async def run(self) -> None:
        """Read the state at intervals, and explain why a batch takes long."""
        try:
            for number in count():
                await self.explain_delay()
                if number % _READ_EVERY == 0:
                    await self.read()
                await asyncio.sleep(_TICK_S)
        finally:
            await self._readers.close()

    async def read(self) -> None:
        """Read the server's state."""
        try:
            status = (await self._readers.read("server", "status"))[0]
            replicas = await self._readers.read("server", "replicas")
            oldest = await self._readers.read("server", "oldest_transaction")
        except StorageError as error:
            self.problem = str(error)
            return
        server = replace(ServerStatus(*status), replicas=tuple(Replica(*row) for row in replicas))
        for name, age_s in oldest:
            server = replace(server, oldest_transaction=name, oldest_transaction_s=age_s)
        if server.folder is not None:
            with suppress(OSError):
                disk = shutil.disk_usage(server.folder)
                server = replace(server, disk_free=disk.free, disk_bytes=disk.total)
        self.server, self.problem = server, None

    async def explain_delay(self) -> None:
        """Show what a batch waits for: without a quorum, PostgreSQL does not answer at all."""
        writer = self._writer
        began_at, age_s, pid = writer.delay()
        if age_s < _SLOW_S or writer.space.write_problem is not None:
            return
        try:
            waits = await self._readers.read("server", "waits", pid=pid)
            problem = _NO_QUORUM if ("SyncRep",) in waits else ""
        except StorageError as error:
            problem = str(error)
        if problem and began_at == writer.delay()[0]:
            writer.space.note_trouble(problem)
