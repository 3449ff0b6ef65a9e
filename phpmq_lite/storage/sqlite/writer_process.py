"""A second process that stores large batches while the event loop prepares the next ones.

Each of the two processes has one write connection, and the loop decides which of them writes: this
process writes only between a request and its last reply.  Maintenance and checkpoints run in the
broker process, never in this one.

A request consists of the steps of a batch in shared memory, and a message with their length.  If
it gives bounds of the history and the batch is stored, a second reply follows once old rows are
removed; the next request need not wait for it.

The process ends without closing SQLite, which would checkpoint or remove the WAL, as soon as the
broker's end of the socket is closed.  It shares the folder's lock, so that no other broker starts
before it has ended.
"""

import gc
import marshal
import mmap
import os
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from enum import IntEnum
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, NoReturn, cast

from phpmq_lite.errors import BatchRefusedError, NotWritableError, StorageFullError
from phpmq_lite.storage.batch_sql import Step
from phpmq_lite.storage.retention import RetentionBounds
from phpmq_lite.storage.sqlite.store import SqliteStore

MEMORY_BYTES: Final = 32 << 20  # larger batches are stored in the thread
# Length of the steps; settled messages to index, or 0; whether to remove old rows; bounds of the
# history: steady time before which rows are too old, rows, bytes, share of deleted messages.
_REQUEST: Final = struct.Struct("<QQ?qQQd")
_REPLY: Final = struct.Struct("<BdQ160s")  # the fields of Reply
_READY: Final = b"r"
_END_S: Final = 5.0  # maximum wait for the end of the process, which has nothing left to do


class Outcome(IntEnum):
    """What has become of a batch."""

    STORED = 0
    NOT_STORED = 1  # the disk is full, or the database is not writable or refused the batch
    UNKNOWN = 2
    REMOVED = 3  # not of a batch: old rows are removed, or will be later


class Reply(NamedTuple):
    """The reply to a request."""

    outcome: Outcome
    commit_s: float = 0.0  # duration of COMMIT
    index_bytes: int = 0  # estimated bytes that indexing the history has added to the WAL
    error: str = ""  # shortened to 160 bytes


class WriterProcess:
    """The broker's side of the writer process.  At most one request is sent at a time."""

    def __init__(self, database: Path, cache_bytes: int, lock: int) -> None:
        """Start the process, which shares ``lock``, a descriptor; or raise OSError."""
        self.is_ready = False
        with ExitStack() as inherited, ExitStack() as own:
            file = inherited.enter_context(_shared_file())
            self._memory = own.enter_context(mmap.mmap(file.fileno(), MEMORY_BYTES))
            ours, theirs = socket.socketpair()
            self.socket = own.enter_context(ours)
            self.socket.setblocking(False)
            inherited.enter_context(theirs)
            descriptors = lock, theirs.fileno(), file.fileno()
            self._process = subprocess.Popen(
                [sys.executable, *PROGRAM, str(database), str(cache_bytes), *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C is for the broker
            )
            own.pop_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(
        self, steps: bytes, index_rows: int, retention: tuple[RetentionBounds, int] | None
    ) -> None:
        """Send encoded steps; if the process has ended, ``receive`` then returns None."""
        self._memory[: len(steps)] = steps
        bounds, now_ms = retention or (RetentionBounds(), 0)
        share = now_ms - bounds.age_ms, bounds.rows, bounds.bytes, bounds.deleted_share
        with suppress(OSError):
            self.socket.send(_REQUEST.pack(len(steps), index_rows, retention is not None, *share))

    def receive(self) -> Reply | None:
        """Receive a reply without waiting, or return None if the process has ended.

        The first message, without a request, only reports that the process is ready.

        Raises:
            BlockingIOError: there is no message yet.
        """
        try:
            data = self.socket.recv(_REPLY.size)
        except ConnectionError:
            return None
        if data == _READY:
            self.is_ready = True
            return Reply(Outcome.STORED)
        if len(data) != _REPLY.size:
            return None
        outcome, commit_s, index_bytes, error = _REPLY.unpack(data)
        text = error.rstrip(b"\0").decode("utf-8", "replace")
        return Reply(Outcome(outcome), commit_s, index_bytes, text)

    def wait(self) -> str:
        """Wait until the process has ended, and describe how; kill it if it takes too long."""
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def close(self) -> None:
        """End the process, which has no transaction between two requests, and wait for its end."""
        self.socket.close()
        self.wait()
        self._memory.close()


def encode(steps: Sequence[Step]) -> bytes | None:
    """Encode the steps of a batch; return None if they do not fit or cannot be encoded."""
    try:
        data = marshal.dumps(cast(Any, steps))
    except (ValueError, MemoryError):
        return None
    return data if len(data) <= MEMORY_BYTES else None


def _shared_file() -> IO[bytes]:
    """Return an empty file in memory, or a temporary file where that is not supported."""
    file: IO[bytes]
    if hasattr(os, "memfd_create"):
        file = os.fdopen(os.memfd_create("batch"), "w+b")
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    os.ftruncate(file.fileno(), MEMORY_BYTES)
    return file


PROGRAM: Final = (  # -m would import from the working directory first
    "-P",
    "-c",
    "import sys; sys.path.append(sys.argv[1]);"
    " from phpmq_lite.storage.sqlite.writer_process import run; run(sys.argv[2:])",
    str(Path(__file__).parents[3]),
)


# -- the program


def run(arguments: Sequence[str]) -> NoReturn:
    """Store batches, and exit without closing anything."""
    try:
        main(arguments)
    finally:
        os._exit(1)


def main(arguments: Sequence[str]) -> None:
    """Store batches until the broker closes its end of the socket; never returns."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # may be sent to all processes
        signal.signal(number, signal.SIG_IGN)
    database, cache_bytes, _lock, connected, memory = arguments
    batches = socket.socket(fileno=int(connected))
    steps = memoryview(mmap.mmap(int(memory), MEMORY_BYTES, access=mmap.ACCESS_READ))
    store = SqliteStore(sqlite3.connect(database, isolation_level=None, cached_statements=256))
    store.configure(int(cache_bytes))
    gc.disable()  # a batch creates no cycles
    batches.send(_READY)
    while True:
        request = batches.recv(_REQUEST.size)
        if len(request) < _REQUEST.size:
            os._exit(0)
        length, rows, removes, cutoff_ms, *share = _REQUEST.unpack(request)
        store.indexer.batch_rows = rows
        reply = _store(store, steps[:length], with_index=rows > 0)
        _answer(batches, reply)
        if removes and reply.outcome is Outcome.STORED:
            _answer(batches, _remove(store, RetentionBounds(0, *share), cutoff_ms))


def _answer(batches: socket.socket, reply: Reply) -> None:
    """Send a reply, and end the process if the state of the disk is unknown."""
    batches.send(_REPLY.pack(*reply[:3], reply.error.encode()))
    if reply.outcome is Outcome.UNKNOWN:
        os._exit(1)


def _store(store: SqliteStore, steps: memoryview, *, with_index: bool) -> Reply:
    try:
        decoded = marshal.loads(steps)  # noqa: S302 - written by the broker
        store.begin(decoded, at_once=True)
        commit_s = store.finish(with_index=with_index)
    except (StorageFullError, NotWritableError, BatchRefusedError):
        return Reply(Outcome.NOT_STORED)
    except Exception as error:
        return Reply(Outcome.UNKNOWN, error=str(error) or type(error).__name__)
    return Reply(Outcome.STORED, commit_s, store.indexer.wal_bytes if with_index else 0)


def _remove(store: SqliteStore, bounds: RetentionBounds, cutoff_ms: int) -> Reply:
    try:
        store.remove_after_batch(bounds, cutoff_ms)
    except (StorageFullError, NotWritableError):  # the next batch, or maintenance, tries again
        return Reply(Outcome.REMOVED)
    except Exception as error:
        return Reply(Outcome.UNKNOWN, error=str(error) or type(error).__name__)
    return Reply(Outcome.REMOVED)
