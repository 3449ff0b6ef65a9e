"""The two ways in which a broker stops: a clean stop and a fail-stop.

If the outcome of a commit is unknown or the engine fails, the process exits here with code 74 and
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
from phpmq_lite.storage.sqlite.integrity.seal import seal
from phpmq_lite.storage.sqlite.standby.litestream import is_configured, is_running
from phpmq_lite.storage.sqlite.writer import Writer

EX_IOERR: Final = 74
LOG_REASON_S: Final = 0.5  # maximum number of seconds that a fail-stop spends on logging its reason
_LAST_WORDS: Final = b"stopped immediately: not enough memory to write the reason\n"
_log = logs.get_logger(__name__)


async def run_engine(engine: Engine, folder: DataFolder) -> None:
    """Run the engine; if it fails, stop the process, whose in-memory state cannot be trusted.

    A failure is a defect or a lack of memory.  No client has been notified of the open batch, and
    the next start reads the database.
    """
    try:
        await engine.run()
    except Exception as error:
        fail_stop(folder, error)


def record_stop(
    folder: DataFolder, writer: Writer, _kind: object, failure: BaseException | None, _trace: object
) -> None:
    """Record a clean stop; if that is impossible, exit and keep the WAL.

    Only a running Litestream keeps the WAL after a clean stop.

    ``failure`` is the error that ended the broker, or None if it was asked to stop.  If another
    database has replaced this one, the process exits here: closing would remove the other's log.
    """
    writer.check_files()
    writer.space.release_ballast_if_full()
    try:
        folder.record(is_running=False, leaves_wal=is_running(folder.path))
    except OSError as error:
        if failure is not None:
            _log.error("stopped immediately", reason=str(failure))
        _log.warning("stopped as if killed: a clean stop could not be recorded", reason=str(error))
        sys.stderr.flush()
        # Everything is stored. Exit here, because closing the database would remove the WAL.
        os._exit(0 if failure is None else EX_IOERR)


def seal_at_end(folder: DataFolder, files: OpenedFiles) -> None:
    """Seal the closed database; without a seal, the next start would check its structure.

    A database with a standby is not sealed.
    """
    if is_configured(folder.path):
        _log.info("not_sealed", reason="Litestream may change the database after this stop")
        return
    try:
        seal(folder, files)
    except DatabaseReplacedError as error:
        fail_stop(folder, error)
    except OSError as error:
        _log.warning("not_sealed", reason=str(error))


def fail_stop(folder: DataFolder, error: BaseException) -> None:
    """Exit immediately, without notifying clients, because nothing can be stored safely.

    Callable from any thread.  The database stays open, because closing runs a checkpoint; the next
    start reads what is stored.  The exit does not wait for a disk that cannot even store the
    reason.
    """
    try:
        threading.Thread(target=_exit_after_timeout, daemon=True).start()
        trace = {} if isinstance(error, PhpmqError) else {"exc_info": error}  # to find the bug
        reason = str(error) or type(error).__name__
        _log.error("stopped immediately: nothing can be stored safely", reason=reason, **trace)
        folder.write_last_error(error, time.time_ns() // 1_000_000)
        sys.stderr.flush()
    except MemoryError:
        os.write(sys.stderr.fileno(), _LAST_WORDS)
    finally:
        os._exit(EX_IOERR)


def _exit_after_timeout() -> None:
    time.sleep(LOG_REASON_S)
    os._exit(EX_IOERR)
