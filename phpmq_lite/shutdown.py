"""The fail-stop: if the outcome of a commit is unknown or the engine fails, the process exits.

It exits with code 74 and closes nothing.
"""

import os
import sys
import threading
import time
from typing import Final

from phpmq_lite import logs
from phpmq_lite.errors import EpochEndedError, PhpmqError
from phpmq_lite.server.engine import Engine
from phpmq_lite.storage.data_folder import DataFolder

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


def fail_stop(folder: DataFolder, error: BaseException) -> None:
    """Exit immediately, without notifying clients, because nothing can be stored safely.

    Callable from any thread.  The database stays open, because closing runs a checkpoint; the next
    start reads what is stored.  The exit does not wait for a disk that cannot even store the
    reason.
    """
    try:
        limit = threading.Timer(LOG_REASON_S, _exit, (folder,), {"waits": False})
        limit.daemon = True
        limit.start()
        if isinstance(
            error, EpochEndedError
        ):  # nothing is wrong, so the next start reports nothing
            _log.warning(
                "another broker is active now; this one has stopped and will be started "
                "again as a standby",
                reason=str(error),
            )
        else:
            trace = {} if isinstance(error, PhpmqError) else {"exc_info": error}  # to find the bug
            reason = str(error) or type(error).__name__
            _log.error("stopped immediately: nothing can be stored safely", reason=reason, **trace)
            folder.write_last_error(error, time.time_ns() // 1_000_000)
        sys.stderr.flush()
    except MemoryError:
        os.write(sys.stderr.fileno(), _LAST_WORDS)
    finally:
        _exit(folder)


def _exit(folder: DataFolder, *, waits: bool = True) -> None:
    """Exit after killing the writer process, which would keep the lock while it is stopped.

    Its end would be another reason to fail, so the first one is written before.
    """
    try:
        folder.kill_writer(waits=waits)
    finally:
        os._exit(os.EX_IOERR)
