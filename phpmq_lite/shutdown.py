"""How a broker ends: a clean stop, and the fail-stop.

If the outcome of a commit is unknown, or the engine fails, the process exits here with code 74 and
closes nothing.
"""

import os
import sys
import threading
import time
from typing import Final

from phpmq_lite import logs
from phpmq_lite.errors import DatabaseReplacedError, PhpmqError
from phpmq_lite.server.engine import Engine
from phpmq_lite.storage.data_folder import DataFolder, OpenedFiles
from phpmq_lite.storage.integrity.seal import seal
from phpmq_lite.storage.write.writer import Writer

EX_IOERR: Final = 74
LOG_REASON_S: Final = 0.5  # for the reason of a fail-stop to be written
_LAST_WORDS: Final = b"stopped at once, there is no memory left for the reason\n"
_log = logs.get_logger(__name__)


async def run_engine(engine: Engine, folder: DataFolder) -> None:
    """Run the engine; after an unexpected failure its memory cannot be trusted.

    That is a defect, or no memory is left.  No client was notified of the open batch, and the next
    start reads the database.
    """
    try:
        await engine.run()
    except Exception as error:
        fail_stop(folder, error)


def record_stop(
    folder: DataFolder, writer: Writer, _kind: object, failure: BaseException | None, _trace: object
) -> None:
    """Record that no WAL will remain; if that fails, keep the WAL.

    ``failure`` is what ended the broker, if it was not asked to stop.  If the database was
    replaced, the process exits here: closing it would remove a log that belongs to another one.
    """
    writer.check_files()
    writer.space.release_ballast_if_full()
    try:
        folder.record(is_running=False)
    except OSError as error:
        if failure is not None:
            _log.error("stopped at once", reason=str(failure))
        _log.warning("stopped as if killed: the stop cannot be recorded", reason=str(error))
        sys.stderr.flush()
        # Everything is stored; closing the database would remove the WAL.
        os._exit(0 if failure is None else EX_IOERR)


def seal_at_end(folder: DataFolder, files: OpenedFiles) -> None:
    """Seal the closed database; without a seal the next start checks its structure."""
    try:
        seal(folder, files)
    except DatabaseReplacedError as error:
        fail_stop(folder, error)
    except OSError as error:
        _log.warning("not_sealed", reason=str(error))


def fail_stop(folder: DataFolder, error: BaseException) -> None:
    """Exit immediately without notifying clients: nothing may be written from now on.

    It can be called in any thread.  Closing the database would checkpoint; instead, the next start
    reads what is stored.  If the disk does not even accept the reason, the exit does not wait for
    it.
    """
    try:
        threading.Thread(target=_exit_after_timeout, daemon=True).start()
        trace = {} if isinstance(error, PhpmqError) else {"exc_info": error}  # a defect: log where
        reason = str(error) or type(error).__name__
        _log.error("stopped at once: nothing can be stored safely", reason=reason, **trace)
        folder.write_last_error(error, time.time_ns() // 1_000_000)
        sys.stderr.flush()
    except MemoryError:
        os.write(sys.stderr.fileno(), _LAST_WORDS)
    finally:
        os._exit(EX_IOERR)


def _exit_after_timeout() -> None:
    time.sleep(LOG_REASON_S)
    os._exit(EX_IOERR)
