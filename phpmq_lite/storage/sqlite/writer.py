"""The asyncio interface of the store, which decides where a batch is committed.

A batch whose clients all wait is committed in the event loop if the disk is fast.  Under load,
batches are committed in the writer process; until it has started, and if there is only one
processor, in the writer's thread.  All other work is done in the thread.  At most one of the three
works at any time, in the order of the calls.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import aiosqlite

from phpmq_lite.errors import (
    BatchRefusedError,
    DatabaseReplacedError,
    NotWritableError,
    OutcomeUnknownError,
    StorageError,
    StorageFullError,
)
from phpmq_lite.logs import get_logger
from phpmq_lite.model import Batch, ClockReading, LoadedRows
from phpmq_lite.storage.backend import StoreWriter, essential_steps
from phpmq_lite.storage.batch_sql import OPTIONAL, Step, batch_statements
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.disk_space import DiskSpace
from phpmq_lite.storage.sqlite.database_file import OpenedFiles
from phpmq_lite.storage.sqlite.errors import translate_errors
from phpmq_lite.storage.sqlite.litestream import CheckpointRight
from phpmq_lite.storage.sqlite.store import LONG_WAL_BYTES, SqliteStore
from phpmq_lite.storage.sqlite.writer_process import Outcome, Reply, WriterProcess, encode

_log = get_logger(__name__)
T = TypeVar("T")
Fatal = NotWritableError | OutcomeUnknownError

_SHORT_COMMANDS: Final = 5_000
# Reached with 5,000 commands, or when clients that hold many messages disconnect.
_SHORT_ROWS: Final = 15_000
_SHORT_BYTES: Final = 1 << 20
FEW_COMMANDS: Final = 50  # up to this number, all senders may be waiting for replies
_FEW_ROWS: Final = 4 * FEW_COMMANDS
_FEW_BYTES: Final = 64 << 10
_FAST_S: Final = 0.001  # if commits take longer, they run in the writer's thread
START_BATCHES: Final = 20  # large batches without a pause, after which the process is started
# Per command; bodies of 64 KiB were stored at 0.82 of the rate that the thread reached.
_PROCESS_BYTES: Final = 2 << 10
_IDLE_MS: Final = 60_000  # after this time without a large batch, the process is ended


class Writer(StoreWriter):
    """Stores batches, each with one call to the writer's thread or process.

    A write that is known to have failed is retried (``DiskSpace.wait_after``).  ``on_fatal`` is
    called, in any thread, once nothing more can be written, and should end the process.
    """

    is_exclusive = True  # the data folder is locked

    def __init__(
        self,
        path: Path,
        space: DiskSpace | None = None,
        on_fatal: Callable[[Fatal], None] = lambda _error: None,
        folder: DataFolder | None = None,
    ) -> None:
        self.path = path
        self._folder = folder
        self._may_start_process = folder is not None and _has_processors()
        self.space = space or DiskSpace(path.parent)
        self.files = OpenedFiles(path)
        self.checkpoint_right = CheckpointRight(path.parent)
        self._on_fatal = on_fatal
        self._failed: Fatal | None = None  # once set, nothing more is written or synced
        self._connection: _DirectConnection | None = None
        self._store: SqliteStore | None = None
        self._last: asyncio.Future[Any] | None = None  # result of the most recent work
        self._cache_bytes = 0
        self._process: WriterProcess | None = None
        self._large_batches = 0  # since the last pause
        self._used_ms = 0  # when the engine last paused after large batches, in steady ms
        self._turn = _ProcessTurn()

    async def open(self, cache_bytes: int) -> None:
        self.files.note_database()
        self._cache_bytes = cache_bytes
        self._connection = connection = _DirectConnection(
            lambda: sqlite3.connect(
                self.path, isolation_level=None, cached_statements=256, check_same_thread=False
            ),
            iter_chunk_size=64,
        )
        await connection
        self._store = SqliteStore(connection.raw)
        await self.run(lambda store: store.configure(cache_bytes))
        # Truncate the WAL before the first write, so that it is empty after a power cut in startup.
        with self.checkpoint_right.hold() as may_checkpoint:
            if may_checkpoint:
                await self.run(lambda store: store.checkpoint("TRUNCATE"))
        self.files.note_log()

    @property
    def needs_maintenance(self) -> bool:
        return self._store is not None and self._store.wal_bytes >= LONG_WAL_BYTES

    def commit(self, batch: Batch) -> asyncio.Future[LoadedRows | None]:
        """Store the current state of a batch and load what it requests; the batch may then change.

        Without the process, the statements of a short batch are executed here; only its COMMIT,
        which waits for the disk, runs in the thread.  Each statement in the thread hands the GIL
        over twice while the loop has work; avoiding that raised end-to-end throughput from 46,000
        to 57,000 messages/s.

        Raises:
            StorageError: the writer is not open.
            OutcomeUnknownError: also raised by the future; send no replies.
            BatchRefusedError: raised by the future; nothing is stored.
        """
        steps = batch_statements(batch) if batch.stores else []
        self._check(self.files.check_log)
        store = self._store
        is_large = _is_large(batch)
        # For the process, large bodies would have to be copied, which takes too long.
        is_light = batch.created_bytes <= _PROCESS_BYTES * batch.commands
        if steps and is_large and is_light and not batch.has_special_rows:
            future = self._commit_in_process(steps, batch)
            if future is not None:
                return future
        # Whether all clients wait for a small batch, so that few new commands arrive.
        is_awaited = not (is_large or batch.is_partly_sent or batch.has_special_rows or batch.loads)
        if (
            store is not None
            and (self._last is None or self._last.done())
            and (is_awaited or _is_short(batch))
            and self._begin_in_loop(store, steps)
        ):
            if is_awaited and store.commit_s < _FAST_S:
                return self._commit_in_loop(store, steps, batch)
            end = partial(self._store_with_retry, steps=steps, batch=batch, has_begun=True)
            return self._run_in_thread(end)
        return self._run_in_thread(lambda store: self._store_with_retry(store, steps, batch))

    def _begin_in_loop(self, store: SqliteStore, steps: Sequence[Step]) -> bool:
        """Execute a batch's statements; return False if nothing can be written at the moment."""
        if self._failed is not None:
            raise self._failed
        try:
            store.begin(steps, at_once=True)
        except (StorageFullError, NotWritableError, BatchRefusedError):
            return False
        except OutcomeUnknownError as error:
            self._fail(error)
            raise
        return True

    def _store_with_retry(
        self, store: SqliteStore, steps: Sequence[Step], batch: Batch, *, has_begun: bool = False
    ) -> LoadedRows | None:
        """Store a batch; retry if no part of it is stored, at last without optional rows."""
        while True:
            try:
                if not has_begun:
                    store.begin(steps)
                loaded = store.end(batch, with_index=True)
            except (StorageFullError, NotWritableError) as error:
                has_begun = False
                self.space.wait_after(error)
            except BatchRefusedError as error:
                has_begun = False
                steps = essential_steps(steps, lambda step: step[0] in OPTIONAL, error)
            else:
                self.space.note_stored()
                return loaded

    def _commit_in_loop(
        self, store: SqliteStore, steps: Sequence[Step], batch: Batch
    ) -> asyncio.Future[LoadedRows | None]:
        """Commit in the idle event loop's thread: eight lone publishers are 1.2 times as fast."""
        try:
            loaded = store.end(batch)
            self.files.check()
        except (StorageFullError, NotWritableError, BatchRefusedError):
            return self._run_in_thread(lambda store: self._store_with_retry(store, steps, batch))
        except OutcomeUnknownError as error:
            self._fail(error)
            raise
        future: asyncio.Future[LoadedRows | None] = asyncio.get_running_loop().create_future()
        future.set_result(loaded)
        return future

    def start(self, work: Callable[[SqliteStore], T]) -> asyncio.Future[T]:
        """Run a function on the store in the writer's thread after all earlier work.

        The function must be one transaction, because it is called again if it fails with nothing
        stored.  Cancelling the future does not stop it.

        Raises:
            StorageError: the writer is not open.
        """

        def retried(store: SqliteStore) -> T:
            while True:
                try:
                    with translate_errors(store.connection):
                        store.set_lock_wait(True)
                        return work(store)
                except (StorageFullError, NotWritableError) as error:
                    self.space.wait_after(error)

        return asyncio.shield(self._run_in_thread(retried))

    def _run_in_thread(self, work: Callable[[SqliteStore], T]) -> asyncio.Future[T]:
        if self._connection is None or self._store is None:
            raise StorageError("the writer is not open")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._last = future
        start = partial(self._connection.hop, partial(self._run_checked, work), self._store, future)
        self._turn.start_after(start)
        return future

    def _run_checked(self, work: Callable[[SqliteStore], T], store: SqliteStore) -> T:
        if self._failed is not None:
            raise self._failed
        try:
            result = work(store)
            self.files.check()  # must precede any reply
            return result  # noqa: TRY300 - the result that was checked
        except (NotWritableError, OutcomeUnknownError) as error:
            self._fail(error)
            raise

    def _commit_in_process(
        self, steps: Sequence[Step], batch: Batch
    ) -> asyncio.Future[LoadedRows | None] | None:
        """Pass a batch to the writer process; return None if the process cannot store it."""
        process = self._process
        if process is None or not process.is_ready:
            self._large_batches += 1
            if process is None and self._large_batches >= START_BATCHES:
                self._start_process()
            return None
        encoded = encode(steps)
        if encoded is None:
            return None
        self._large_batches += 1
        future: asyncio.Future[LoadedRows | None] = asyncio.get_running_loop().create_future()
        last, self._last = self._last, future
        self._turn.request = request = _ProcessRequest(encoded, steps, batch, future)
        if last is None or last.done() or last is self._turn.removal:
            self._send(request)
        else:
            last.add_done_callback(lambda _: self._send(request))
        return future

    def _start_process(self) -> None:
        folder = self._folder
        if folder is None or not self._may_start_process:
            return
        self._may_start_process = False  # unless it succeeds
        try:
            process = WriterProcess(self.path, self._cache_bytes, folder.lock)
        except (OSError, MemoryError) as error:
            _log.warning("writer_process_not_started", reason=str(error))
            return
        folder.record_writer(process.pid)
        asyncio.get_running_loop().add_reader(process.socket, self._on_message)
        self._may_start_process, self._process = True, process

    def _send(self, request: "_ProcessRequest") -> None:
        if self._process is None or self._store is None or self._failed is not None:
            request.future.set_exception(self._failed or StorageError("the writer is not open"))
            self._turn.end_request()
            return
        store = self._store
        rows = store.indexer.batch_rows if store.needs_index(request.batch) else 0
        retention = store.retention if rows else None
        self._turn.removes_rows = retention is not None
        self._process.send(request.encoded, rows, retention)

    def poll(self) -> None:
        """Handle the process's reply to a batch now if it has arrived.

        Otherwise, the process would be idle until the event loop has called everything that was due
        when the reply arrived.
        """
        if self._turn.request is not None:
            self._on_message()

    def _on_message(self) -> None:
        """Handle the process's reply to a batch, or its end, which is a fail-stop."""
        process = self._process
        if process is None:
            return
        was_ready = process.is_ready
        try:
            reply = process.receive()
        except BlockingIOError:  # there is none yet
            return
        if reply is None:
            asyncio.get_running_loop().remove_reader(process.socket)
            end = f"the writer process (pid {process.pid}) ended with {process.wait()}"
            if not was_ready:
                self._process, self._may_start_process = None, False
                process.close()
                _log.warning("writer_process_not_started", reason=end)
                return
            reply = Reply(Outcome.UNKNOWN, error=end)
        if reply.outcome is Outcome.REMOVED:
            self._turn.end_removal()
        elif self._turn.request is not None:
            self._finish_request(reply, self._turn.request)
            self._turn.end_request()
        elif reply.outcome is Outcome.UNKNOWN:
            self._fail(OutcomeUnknownError(reply.error))
        else:
            _log.info("writer_process_started", pid=process.pid)

    def _finish_request(self, reply: Reply, request: "_ProcessRequest") -> None:
        """Complete a batch: load its rows in the thread, or store it there if it is not stored."""
        _, steps, batch, future = request
        store, connection = self._store, self._connection
        if reply.outcome is Outcome.UNKNOWN or store is None or connection is None:
            error = OutcomeUnknownError(reply.error)
            self._fail(error)
            future.set_exception(error)
            return
        if reply.outcome is Outcome.NOT_STORED:
            retry = partial(self._store_with_retry, steps=steps, batch=batch)
            connection.hop(partial(self._run_checked, retry), store, future)
            return
        if self._turn.removes_rows:
            removal = self._turn.removal = asyncio.get_running_loop().create_future()
            self._last = removal if self._last is future else self._last
        store.count(batch, reply.commit_s, reply.index_bytes)
        self.space.note_stored()
        if batch.loads:
            connection.hop(
                partial(self._run_checked, lambda store: store.load(batch)), store, future
            )
            return
        try:
            self.files.check()
        except OutcomeUnknownError as error:
            self._fail(error)
            future.set_exception(error)
        else:
            future.set_result(None)

    async def _end_process(self) -> None:
        """End the writer process, which is not storing a batch."""
        process, self._process = self._process, None
        if process is not None:
            asyncio.get_running_loop().remove_reader(process.socket)
            await asyncio.to_thread(process.close)
            self._turn.end_removal()

    def _fail(self, error: Fatal) -> None:
        self._failed = error
        self._on_fatal(error)

    async def maintain(self, now: ClockReading, *, is_idle: bool) -> bool:
        """Run ``maintenance`` in the thread, and end a process that was idle for a minute."""
        self._check(self.files.check_log)  # before a checkpoint copies what is left
        if is_idle:
            if self._large_batches:
                self._large_batches, self._used_ms = 0, now.steady_ms
            elif now.steady_ms > self._used_ms + _IDLE_MS:
                await self._end_process()
        return await super().maintain(now, is_idle=is_idle)

    def check_files(self) -> None:
        """Raise DatabaseReplacedError if the next startup would not find what is stored."""
        self._check(self.files.check)

    def _check(self, check: Callable[[], None]) -> None:
        try:
            check()
        except DatabaseReplacedError as error:
            self._fail(error)
            raise

    async def close(self) -> None:
        """End the process, checkpoint, close the database and end the thread.

        Raises:
            DatabaseReplacedError: nothing was closed; SQLite would remove another file's WAL.
        """
        if isinstance(self._failed, DatabaseReplacedError):
            raise self._failed
        await self._end_process()
        if self._connection is not None:
            with self.checkpoint_right.hold() as may_checkpoint:
                if may_checkpoint and self._store is not None and self._failed is None:
                    await self._run_in_thread(_truncate_wal)
                # A running Litestream has the database open, so closing does not checkpoint.
                await self._connection.close()
            self._connection = self._store = None
            self.files.close()


class _ProcessRequest(NamedTuple):
    """A batch that the writer process stores."""

    encoded: bytes
    steps: Sequence[Step]
    batch: Batch
    future: asyncio.Future[LoadedRows | None]


class _ProcessTurn:
    """What the writer process does at the moment, and the thread's work that waits for its end.

    The process stores a batch (``request``), then it may remove old rows (``removal``), or it does
    nothing.  The next batch does not wait for a removal: the process stores it afterwards.
    """

    def __init__(self) -> None:
        self.request: _ProcessRequest | None = None
        self.removes_rows = False  # whether the process removes old rows after this request
        self.removal: asyncio.Future[None] | None = None
        self._after_request: list[Callable[[], None]] = []
        self._after_removal: list[Callable[[], None]] = []

    def start_after(self, work: Callable[[], None]) -> None:
        """Start the thread's work, if necessary at the end of what the process does."""
        if self.request is not None:
            self._after_request.append(work)
        elif self.removal is not None:
            self._after_removal.append(work)
        else:
            work()

    def end_request(self) -> None:
        self.request = None
        waiting, self._after_request = self._after_request, []
        if self.removal is not None:
            self._after_removal, waiting = waiting, []
        for start in waiting:
            start()

    def end_removal(self) -> None:
        removal, self.removal = self.removal, None
        waiting, self._after_removal = self._after_removal, []
        if removal is not None:
            removal.set_result(None)
        for start in waiting:
            start()


class _DirectConnection(aiosqlite.Connection):
    """An aiosqlite connection that executes a complete batch in one call.

    A call to the thread takes about 45 µs; one call per statement cost a fifth of the throughput.
    """

    @property
    def raw(self) -> sqlite3.Connection:
        return self._conn

    def hop(
        self, work: Callable[[SqliteStore], T], store: SqliteStore, future: asyncio.Future[T]
    ) -> None:
        """Pass work to the thread immediately, unlike ``_execute``, which starts when awaited."""
        self._tx.put_nowait((future, lambda: work(store)))


def _has_processors() -> bool:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) > 1
    return (os.cpu_count() or 1) > 1


def _truncate_wal(store: SqliteStore) -> None:
    """Copy the WAL into the database one last time and truncate the WAL, ignoring failures."""
    with suppress(StorageFullError, NotWritableError), translate_errors(store.connection):
        store.set_lock_wait(True)
        store.checkpoint("TRUNCATE")


def _is_large(batch: Batch) -> bool:
    """Return whether a batch has too many commands, bytes or rows to be committed in the loop."""
    return (
        batch.commands > FEW_COMMANDS
        or batch.created_bytes > _FEW_BYTES
        or _row_count(batch) > _FEW_ROWS
    )


def _is_short(batch: Batch) -> bool:
    return not (
        batch.has_special_rows
        or batch.commands > _SHORT_COMMANDS
        or batch.created_bytes > _SHORT_BYTES
        or _row_count(batch) > _SHORT_ROWS
    )


def _row_count(batch: Batch) -> int:
    return (
        len(batch.created)
        + len(batch.dispatched)
        + len(batch.changed)
        + batch.event_count
        + batch.settled_count
    )
