"""Watches the database server while this broker is active, for pages, metrics and health checks."""

import asyncio
import os
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
        if oldest:
            server = replace(
                server, oldest_transaction=oldest[0][0], oldest_transaction_s=oldest[0][1]
            )
        if server.folder is not None:
            with suppress(OSError):
                disk = os.statvfs(server.folder)
                server = replace(
                    server,
                    disk_free=disk.f_bavail * disk.f_frsize,
                    disk_bytes=disk.f_blocks * disk.f_frsize,
                )
        self.server, self.problem = server, None

    async def explain_delay(self) -> None:
        """Show what a batch waits for: without a quorum, PostgreSQL does not answer at all."""
        writer = self._writer
        if writer.waited_s < _SLOW_S or writer.space.write_problem is not None:
            return
        number = writer.work_number
        try:
            waits = await self._readers.read("server", "waits", pid=writer.backend_pid)
            problem = _explain(waits[0][0] if waits else None, writer)
        except StorageError as error:
            problem = str(error)
        if problem and number == writer.work_number:
            writer.show(problem)


def _explain(wait_event: str | None, writer: PostgresWriter) -> str | None:
    if wait_event == "SyncRep":
        required = writer.quorum.replicas if writer.quorum else 1
        which = "a replica" if required == 1 else f"{required} replicas"
        return f"there is no quorum; the database waits for {which} to confirm the last batch"
    if wait_event == "Lock":
        return "another session of the database holds a lock"
    return None
