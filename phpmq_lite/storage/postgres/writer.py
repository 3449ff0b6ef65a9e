"""Stores batches in PostgreSQL, in order, and finds out what became of those without an answer.

Batches are sent by the event loop (``pipeline.py``); all other work blocks, in a thread.  At most
one of the two uses the connection at any time, in the order of the calls.

A batch without a trustworthy answer is *unknown*: the connection broke, or its COMMIT may not be
replicated.  Then the row of the epoch is read and written again on a new connection, which waits
for a server process that still holds it.  If the row's number shows that the batch is stored, and
this write is replicated, so is the batch.  If the number is older, the batch is sent again.

A batch that the server refuses is sent without its optional rows, or else not at all; so is one
with which the connection broke five times, although the server works: it cannot be sent.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any, Final, NamedTuple, TypeVar

from phpmq_lite.clock import read_clocks
from phpmq_lite.errors import (
    BatchRefusedError,
    EpochEndedError,
    NotWritableError,
    OutcomeUnknownError,
    StorageError,
)
from phpmq_lite.model import Batch, LoadedRows
from phpmq_lite.storage.backend import StoreWriter, essential_steps
from phpmq_lite.storage.batch_sql import batch_statements
from phpmq_lite.storage.disk_space import DiskSpace
from phpmq_lite.storage.postgres.pipeline import EncodedStep, Pipeline, encode_steps, is_optional
from phpmq_lite.storage.postgres.store import (
    SHARD,
    STUCK_S,
    ConnectionBrokenError,
    PostgresStore,
    Quorum,
    connect,
    disconnect_if_lost,
    quorum_problem,
)

T = TypeVar("T")
BEAT_S: Final = 0.3  # an idle broker writes this often, so that standbys see that it is alive
UNREACHABLE_S: Final = 30.0  # without an answer for this long, the broker stops
_RETRY_S: Final = 0.2
_SENDS: Final = 5  # as often, a batch is sent on connections that then break
_LEASE_MS: Final = 600  # shorter than the silence after which a standby takes over


class _Work(NamedTuple):
    """A batch to send, or else a function to call in the thread."""

    future: asyncio.Future[Any]
    steps: Sequence[EncodedStep] = ()
    batch: Batch | None = None
    call: Callable[[PostgresStore], Any] | None = None


class PostgresWriter(StoreWriter):
    """The broker's connection to the database; calls ``on_fatal`` once nothing can be written."""

    def __init__(
        self,
        conninfo: str,
        space: DiskSpace,
        on_fatal: Callable[[BaseException], None],
        *,
        allow_asynchronous: bool = False,
    ) -> None:
        self.space = space
        self.quorum: Quorum | None = None  # at the last commit
        self.asynchronous: str | None = None  # why the last commit may not be replicated
        self.asynchronous_commits = 0
        self.reconnects = 0
        self.unknown_batches = 0  # whose outcome was unknown until the row of the epoch was read
        self._began_at = 0.0  # when the current work began
        self._sends = 0  # how often the connection broke with the current batch
        self._trusted: Quorum | None = None  # at the last commit, if it had no problem
        self._conninfo = conninfo
        self._allow_asynchronous = allow_asynchronous
        self._on_fatal = on_fatal
        self._failed: BaseException | None = None
        self._store: PostgresStore  # set by ``open``
        self._pipeline: Pipeline
        self._loop: asyncio.AbstractEventLoop
        self._is_open = False
        self._thread = ThreadPoolExecutor(1, "phpmq-writer")
        self._waiting: deque[_Work] = deque()
        self._current: _Work | None = None
        self._looked_at = 0.0  # when the server was last looked at because it did not answer
        self._offset_ms = 0  # the server's clock less this machine's running clock
        self._checked_ms = 0  # running clock when the answer to the last commit arrived
        self._written_ms = 0  # running clock when the server had stored it

    def open(self, store: PostgresStore) -> None:
        self._loop = asyncio.get_running_loop()
        self._use(store)
        self._is_open = True
        self._beat(store.batch)

    def _use(self, store: PostgresStore) -> None:
        self._store = store
        self._pipeline = Pipeline(store, self._loop)
        self._answered_at = time.monotonic()  # when the server last answered

    def check(self, before: Quorum, after: Quorum, notices: list[str]) -> str | None:
        """Record the quorum at a commit; return why the commit cannot be relied on, or None."""
        self.quorum = after
        # The server read its clock after the previous commit and before now.  A difference of the
        # clocks that fits is kept: the answer, or this process, may have been held up.
        running_ms = read_clocks()[1]
        least_ms, most_ms = after.server_ms - running_ms, before.server_ms - self._checked_ms
        self._offset_ms = max(least_ms, min(self._offset_ms, most_ms))
        self._checked_ms = running_ms
        self._written_ms = after.server_ms - self._offset_ms
        problem = quorum_problem(before, after, notices, self._trusted)
        self._trusted = after if problem is None else None
        if not self._allow_asynchronous:
            return problem
        self.asynchronous = problem
        self.asynchronous_commits += problem is not None
        return None

    def read_clocks(self) -> tuple[int, int]:
        """Return the server's time and a clock that cannot be set, in milliseconds, for Clock."""
        running_ms = read_clocks()[1]
        return running_ms + self._offset_ms, running_ms

    @property
    def epoch(self) -> int | None:
        return self._store.epoch if self._is_open else None

    def delay(self) -> tuple[float, float, int]:
        """Return when the current work began, its age in s, and the pid of the server process."""
        age_s = 0.0 if self._current is None else time.monotonic() - self._began_at
        return self._began_at, age_s, self._store.pid

    # -- the engine's interface (BatchStore)

    @property
    def is_exclusive(self) -> bool:
        """Return whether the row of the epoch was written so recently that no standby counts."""
        return read_clocks()[1] < self._written_ms + _LEASE_MS

    needs_maintenance = False  # it runs as scheduled

    def poll(self) -> None:
        """Do nothing: results are read when they arrive."""

    def check_files(self) -> None:
        """Do nothing: the database is not a file of this machine."""

    def commit(self, batch: Batch) -> asyncio.Future[LoadedRows | None]:
        """Store the current state of a batch and load what it requests; the batch may then change.

        The future raises OutcomeUnknownError if no client may be answered, and BatchRefusedError
        if nothing is stored.
        """
        steps = batch_statements(batch) if batch.stores else []
        if steps:
            return self._enqueue(encode_steps(steps), batch)
        return self._enqueue(call=lambda store: store.load(batch))

    def start(self, work: Callable[[PostgresStore], T]) -> asyncio.Future[T]:
        """Run a function on the store after all earlier work; again if the connection breaks."""
        return asyncio.shield(self._enqueue(call=work))

    def _enqueue(
        self,
        steps: Sequence[EncodedStep] = (),
        batch: Batch | None = None,
        call: Callable[[PostgresStore], Any] | None = None,
    ) -> asyncio.Future[Any]:
        if self._failed is not None:
            raise self._failed
        if not self._is_open:
            raise StorageError("the writer is not open")
        work = _Work(self._loop.create_future(), steps, batch, call)
        self._waiting.append(work)
        self._next()
        return work.future

    def _next(self) -> None:
        if self._current is not None or not self._waiting:
            return
        work = self._current = self._waiting.popleft()
        self._began_at, self._sends = time.monotonic(), 0
        if work.call is not None:
            self._in_thread(work.call)
        else:
            self._pipeline.send(work.steps, self._on_batch)

    def _finish(self, result: Any) -> None:
        work, self._current = self._current, None
        if work is not None:
            self.space.note_stored()
            if work.batch is not None and not self.is_exclusive:
                # This process was held up, and may be replaced: wait for a heartbeat.
                proof: asyncio.Future[None] = self._loop.create_future()
                future = work.future
                proof.add_done_callback(lambda proof: _set(future, proof.exception() or result))
                self._waiting.appendleft(_Work(proof))
            else:
                _set(work.future, result)
        self._next()

    def _on_batch(self, failure: Exception | None) -> None:
        if failure is None:
            self._answered_at = time.monotonic()
            self.space.note_stored()
            self._on_outcome(None, is_stored=True)
        elif isinstance(failure, ConnectionBrokenError | NotWritableError | BatchRefusedError):
            self.unknown_batches += isinstance(failure, ConnectionBrokenError)
            self._in_thread(
                lambda _: self._recover(failure),
                lambda is_stored: self._on_outcome(failure, is_stored=is_stored),
            )
        else:
            self._fail(failure)

    def _on_outcome(self, failure: Exception | None, *, is_stored: bool) -> None:
        """Load what the current batch requests, or send the batch again if it is not stored."""
        work = self._current
        if work is None:
            return
        batch = work.batch
        if not is_stored:
            self._send_again(work, failure)
        elif batch is not None and batch.loads:
            self._in_thread(lambda store: store.load(batch))
        else:
            self._finish(None)

    def _send_again(self, work: _Work, failure: Exception | None) -> None:
        """Send the current batch again: whole, without its optional rows, or not at all."""
        self._sends += isinstance(failure, ConnectionBrokenError)
        if self._sends >= _SENDS:
            failure = BatchRefusedError(f"the batch cannot be sent: {failure}")
        if isinstance(failure, BatchRefusedError):
            try:
                steps = essential_steps(work.steps, is_optional, failure)
            except BatchRefusedError as error:
                self._refuse(error)
                return
            self._current, self._sends = work._replace(steps=steps), 0
        self._pipeline.send((self._current or work).steps, self._on_batch)

    def _refuse(self, error: BatchRefusedError) -> None:
        work, self._current = self._current, None
        if work is not None:
            _set(work.future, error)
        self._next()

    def _in_thread(
        self, call: Callable[[PostgresStore], T], then: Callable[[T], None] | None = None
    ) -> None:
        def work() -> T:
            while True:
                try:
                    return call(self._store)
                except (ConnectionBrokenError, NotWritableError) as error:
                    self._recover(error)
                except BatchRefusedError as error:
                    self._recover(error)  # the driver forgets what is prepared
                    raise

        def on_done(future: asyncio.Future[T]) -> None:
            if isinstance(error := future.exception(), BatchRefusedError):
                self._refuse(error)
            elif error is not None:
                self._fail(error)
            else:
                (then or self._finish)(future.result())

        self._loop.run_in_executor(self._thread, work).add_done_callback(on_done)

    def _recover(self, problem: Exception) -> bool:
        """Reconnect until the epoch's row is replicated; return whether the last batch is stored.

        Raises:
            EpochEndedError: another broker has taken over.
            OutcomeUnknownError: the server has not answered for 30 s, or has lost earlier batches.
        """
        before = self._store
        before.connection.close()
        if not isinstance(problem, BatchRefusedError):
            self.space.note_trouble(str(problem))
        if isinstance(problem, NotWritableError):
            time.sleep(_RETRY_S)
        while True:
            try:
                store = PostgresStore(connect(self._conninfo), self.check)
                store.epoch = before.epoch
                self._use(store)
                store.batch = _rewrite_row(store)
                if store.batch < before.batch:
                    raise OutcomeUnknownError(
                        f"the database has lost batches: number {before.batch} was stored, and "
                        f"{store.batch} is its last. The broker must load it again"
                    )
            except (ConnectionBrokenError, NotWritableError) as error:
                self._store.connection.close()
                self.space.note_trouble(str(error))
                if time.monotonic() > self._answered_at + UNREACHABLE_S:
                    raise OutcomeUnknownError(
                        f"the database has not answered for {UNREACHABLE_S:g} s: {error}"
                    ) from error
                time.sleep(_RETRY_S)
            else:
                self.reconnects += 1
                return store.batch > before.batch

    def _beat(self, number: int) -> None:
        """Store an empty batch if none has been stored since the last call."""
        if self._is_open and self._failed is None:
            if self._current is not None:
                self._look()
            elif self._store.batch == number:
                self._enqueue()
            self._loop.call_later(BEAT_S, self._beat, self._store.batch)

    def _look(self) -> None:
        """Look at the server in another thread if it has not answered for a while."""

        def on_done(future: asyncio.Future[bool]) -> None:
            self._looked_at = time.monotonic()
            if future.result():  # it works, or waits for replicas
                self._answered_at = self._looked_at

        if time.monotonic() > max(self._began_at, self._looked_at) + STUCK_S:
            self._looked_at = inf  # until then
            self._loop.run_in_executor(
                None, disconnect_if_lost, self._store, self._conninfo
            ).add_done_callback(on_done)

    def _fail(self, error: BaseException) -> None:
        self._failed = error
        self._on_fatal(error)
        if self._current is not None:
            self._waiting.appendleft(self._current)
            self._current = None
        while self._waiting:
            _set(self._waiting.popleft().future, error)

    async def close(self) -> None:
        """Release the epoch, so that a standby takes over at once, and disconnect."""
        if self._is_open:
            if self._failed is None:
                await self.run(release)
            self._is_open = False
            self._store.connection.close()
        self._thread.shutdown(wait=False)


def _set(future: asyncio.Future[Any], result: Any) -> None:
    """Complete a future with a result or an error, which nobody has to read."""
    if future.done():  # cancelled
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
        future.exception()
    else:
        future.set_result(result)


def release(store: PostgresStore) -> None:
    with store.transaction():
        store.execute(store.sql("epoch")["release"], (SHARD, store.epoch))


def _rewrite_row(store: PostgresStore) -> int:
    """Write the row of the epoch again, and return the number of the last stored batch."""
    sql = store.sql("epoch")
    store.execute(sql["call_writer"])
    store.execute("BEGIN")
    [(epoch, number)] = store.execute(sql["lock"], (SHARD,))
    if epoch != store.epoch:
        raise EpochEndedError(f"another broker has taken over from epoch {store.epoch}")
    [(store.place,)] = store.execute(sql["touch"], (SHARD,))
    store.commit()
    return int(number)
