"""The backups of a running broker: one at a time, in a thread, on demand and by the clock."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from phpmq_lite.errors import RefusedError, StorageError
from phpmq_lite.storage.backup import Backup, Making, Manifest, listed, remove_old

AGAIN_S: Final = 600.0  # after one that failed


class Backups:
    """Makes backups and remembers how the last one went.

    ``keep`` gives how many stay; the oldest above it go when a new one is there.
    """

    def __init__(
        self,
        database: Path,
        folder: Path,
        *,
        keep: Callable[[], int],
        every_h: float = 0,
        version: str = "",
        tell: Callable[[Backup | StorageError], None] = lambda result: None,
    ) -> None:
        self.folder = folder
        self.newest: Manifest | None = None
        self.error: str | None = None  # of the last one, where it failed
        self._keep = keep
        self._database = database
        self._every_s = every_h * 3_600
        self._version = version
        self._tell = tell
        self._making: Making | None = None
        self._task: asyncio.Task[Backup] | None = None

    @property
    def every_s(self) -> float:
        """Seconds from one to the next; 0: on demand only."""
        return self._every_s

    @property
    def is_making(self) -> bool:
        """Tell whether one is under way."""
        return self._task is not None and not self._task.done()

    async def all(self) -> list[Backup]:
        """Give what is there, the newest first.

        Raises:
            StorageError: the folder cannot be read.
        """
        try:
            return await asyncio.to_thread(listed, self.folder)
        except OSError as error:
            raise StorageError(f"cannot read {self.folder}: {error.strerror}") from error

    def start(self) -> "asyncio.Task[Backup]":
        """Begin one; the task gives it, or raises StorageError.

        Raises:
            RefusedError: one is under way.
        """
        if self.is_making:
            raise RefusedError("backup_running", "a backup is under way; there is one at a time")
        self._task = asyncio.create_task(self._make())
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._task

    async def _make(self) -> Backup:
        self._making = making = Making(self._database, self.folder, self._version)
        try:
            backup = await asyncio.to_thread(making.run)
            self.newest = backup.manifest
            await asyncio.to_thread(_remove_old, self.folder, self._keep(), backup.manifest.id)
        except StorageError as error:
            self.error = str(error)
            self._tell(error)
            raise
        self.error = None
        self._tell(backup)
        return backup

    async def ended(self) -> None:
        """Wait for the end of the one under way, if there is one.

        Raises:
            StorageError: it failed.
        """
        if self._task is not None:
            await asyncio.shield(self._task)

    async def run(self) -> None:
        """Make one whenever it is due; ends only when it is cancelled, and its thread with it."""
        try:
            with suppress(StorageError):  # the next one says so
                there = await self.all()
                self.newest = there[0].manifest if there else None
            while self._every_s:
                await asyncio.sleep(self._wait_s())
                try:
                    if not self.is_making:
                        self.start()
                    await self.ended()
                except StorageError:
                    await asyncio.sleep(min(AGAIN_S, self._every_s))
            await asyncio.Event().wait()
        finally:
            await self._end()

    def _wait_s(self) -> float:
        made_s = self.newest.made_at / 1_000 if self.newest is not None else 0.0
        return min(max(0.0, made_s + self._every_s - time.time()), self._every_s)

    async def _end(self) -> None:
        if self._making is not None and self._task is not None:
            self._making.stop()
            await asyncio.wait({self._task})


def _remove_old(folder: Path, keep: int, made: str) -> None:
    try:
        remove_old(folder, keep, made)
    except OSError as error:
        raise StorageError(f"cannot remove old backups in {folder}: {error.strerror}") from error
