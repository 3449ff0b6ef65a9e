"""The backups of a running broker: one at a time, in a thread, on demand and by the clock."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from phpmq_lite.errors import RefusedError, StorageError
from phpmq_lite.storage.backup import Backup, Making, Manifest, listed, remove_old

AGAIN_S: Final = 600.0  # after one that failed


class Backups:
    """Makes backups and remembers how the last one went.

    ``keep`` gives how many stay; the oldest above it go when a new one is there.  ``reserve`` gives
    how many bytes each leaves free on the disk of the database, or publishing would stop.
    """

    def __init__(
        self,
        database: Path,
        folder: Path,
        *,
        keep: Callable[[], int],
        reserve: Callable[[], int] = lambda: 0,
        every_h: float = 0,
        version: str = "",
        tell: Callable[[Backup | StorageError], None] = lambda result: None,
        check_files: Callable[[], None] = lambda: None,
    ) -> None:
        self._check_files = check_files
        self.folder = folder
        self.newest: Manifest | None = None
        self.made: str | None = None  # id of the last one made since the start
        self.error: str | None = None  # of the last one, where it failed
        self._keep = keep
        self._reserve = reserve
        self._is_claimed = False  # by one whose audit row is being written
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
        self._check_idle()
        self._task = asyncio.create_task(self._make())
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._task

    async def start_after(self, ahead: Callable[[], Awaitable[None]]) -> None:
        """Begin one once ``ahead`` was done; where that raises, none is begun.

        Raises:
            RefusedError: one is under way, or about to be; ``ahead`` is not called.
        """
        self._check_idle()
        self._is_claimed = True
        try:
            await ahead()
        finally:
            self._is_claimed = False
        self.start()

    def _check_idle(self) -> None:
        if self.is_making or self._is_claimed:
            raise RefusedError("backup_running", "a backup is under way; there is one at a time")

    async def _make(self) -> Backup:
        self._making = making = Making(
            self._database, self.folder, self._version, reserve=self._reserve(),
            check_files=self._check_files,
        )  # fmt: skip
        try:
            backup = await asyncio.to_thread(making.run)
            self.newest = backup.manifest
            self.made = backup.manifest.id
            await asyncio.to_thread(_remove_old, self.folder, self._keep(), backup.manifest.id)
        except Exception as error:  # whatever it is: the broker goes on, and the next one may do
            failure = error if isinstance(error, StorageError) else _unexpected(error)
            self.error = str(failure)
            self._tell(failure)
            raise failure from failure.__cause__
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
                self.newest = _newest(await self.all())
            while self._every_s:
                await asyncio.sleep(self._wait_s())
                try:
                    if not self.is_making:
                        self.start()
                    await self.ended()
                except (StorageError, RefusedError):  # refused: somebody is about to make one
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


def _newest(there: list[Backup]) -> Manifest | None:
    """Give the newest whose time is over: that of others is of a clock that was ahead."""
    now_ms = time.time_ns() // 1_000_000
    return next((one.manifest for one in there if one.manifest.made_at <= now_ms), None)


def _unexpected(error: Exception) -> StorageError:
    failure = StorageError(f"the backup failed: {error!r}")
    failure.__cause__ = error
    return failure


def _remove_old(folder: Path, keep: int, made: str) -> None:
    try:
        remove_old(folder, keep, made)
    except OSError as error:
        raise StorageError(f"cannot remove old backups in {folder}: {error.strerror}") from error
