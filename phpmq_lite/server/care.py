"""What looks after the database while it is served: backups and the scrub."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from phpmq_lite import logs
from phpmq_lite.errors import StorageError
from phpmq_lite.server.engine import Engine
from phpmq_lite.server.figures import Figures
from phpmq_lite.server.scrubbing import Scrubbing
from phpmq_lite.settings import Settings
from phpmq_lite.storage.backup import Backup
from phpmq_lite.storage.backups import AGAIN_S, Backups

_log = logs.get_logger(__name__)


class Care:
    """Both of one broker; ``run`` until it is cancelled.  ``settings`` gives those in force."""

    def __init__(
        self,
        engine: Engine,
        figures: Figures,
        database: Path,
        settings: Callable[[], Settings],
        version: str,
    ) -> None:
        self.backups = Backups(
            database,
            settings().backups_folder,
            keep=lambda: settings().backups.keep,
            reserve=lambda: settings().storage.free_bytes,
            every_h=settings().backups.every_h,
            version=version,
            tell=_tell,
            check_files=engine.check_files,
        )
        self.scrub = Scrubbing(engine, figures, database, settings)

    async def run(self, *, is_owed: bool = False) -> None:
        """Work by the clock and on demand; ``is_owed``: the start left the structure to this."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_kept_up("backups", self.backups.run))
            tasks.create_task(_kept_up("scrub", partial(self.scrub.run, is_owed=is_owed)))


async def _kept_up(name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run it again after what nobody thought of: no reason to end a broker that serves."""
    while True:
        try:
            await run()
        except Exception:
            _log.exception("care_failed", work=name, again_s=AGAIN_S)
        await asyncio.sleep(AGAIN_S)


def _tell(result: Backup | StorageError) -> None:
    if isinstance(result, Backup):
        made = result.manifest
        _log.info("backup_made", id=made.id, bytes=made.bytes, took_ms=made.took_ms)
    else:
        _log.error("backup_failed", reason=str(result), exc_info=_cause_of(result))


def _cause_of(failure: StorageError) -> BaseException | None:
    """Give what has a traceback worth reading: nothing that storage knows."""
    cause = failure.__cause__
    return None if isinstance(cause, OSError | sqlite3.Error) else cause
