"""The engine, whose loop carries out every command: it decides, records, then acts.

While the writer stores one batch, the next one is open: the clock is read once, and the core
decides on the commands that arrive.  When the writer is free again, one transaction stores the
open batch, and only then are clients notified.  Messages that were stored earlier may be sent
before the commit: consumers still see only stored messages, and after a crash these would be
redelivered in any case.

If a batch loads rows, the core waits for them before it decides on anything else, so that no row
is older than the state in memory.

If the database refuses a batch, nothing of it is stored, and the state in memory is wrong.  Then
all clients are disconnected without replies, and the core starts again from the database.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from phpmq_lite.broker import batches, commands
from phpmq_lite.broker.broker import Broker, Operation, P, T
from phpmq_lite.broker.flow_control import FlowControl
from phpmq_lite.broker.queue import Connection
from phpmq_lite.clock import Clock
from phpmq_lite.errors import BatchRefusedError, RefusedError
from phpmq_lite.logs import get_logger, is_quiet
from phpmq_lite.model import ACKED_KEY, Batch, BatchStore, ClockReading, LoadedRows, Outbox
from phpmq_lite.server.counters import CommitCounters

_log = get_logger(__name__)
Command = Callable[[Broker], None]
Tap = Callable[[Batch], None]
REPLY_S: Final = 30.0  # maximum wait for the result of an operator's request
_MAINTENANCE_S = 1.0
_LOOK_S: Final = 0.4  # how often a date is compared with the clock, which may have been set
_ACK_DELAY_S: Final = 0.0009  # uvloop's timers are set in whole ms, so they fire after this delay
_ACK_COMMANDS: Final = 500  # this many acknowledgements are committed without delay
_MAX_DEFER_S: Final = 0.01  # deferred work waits at most this long for a commit; the disk may hang
_REFUSED: Final = "the database refused the batch with this change, so nothing of it was stored"


class CooperativeTasks:
    """Tasks that run between batches, for a fraction of a millisecond at a time.

    During a commit they would cost more than their own time: the writer's thread needs the
    interpreter about ten times per commit and would wait each time (commits of 0.6 ms took 7 to
    13 ms).
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait at most 10 ms for the next batch to be stored."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        timer = loop.call_later(_MAX_DEFER_S, _resolve, turn)
        try:
            await turn
        finally:
            timer.cancel()

    def resume_next(self) -> bool:
        """Resume one waiting task; return False if no task is waiting."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return True
        return False


class BackgroundThread:
    """One thread for long-running work; the core receives the results in a later batch."""

    def __init__(self, submit: Callable[[Callable[[Any], None]], None]) -> None:
        self.pending = 0  # number of calls whose results have not been added to a batch yet
        self._submit = submit
        self._executor = ThreadPoolExecutor(1, "background")  # threads compete for the GIL

    def run(self, work: Callable[[], Any], on_result: Callable[[Any], None]) -> None:
        """Call ``work`` in the thread, then ``on_result`` with the result in a later batch."""
        self.pending += 1
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)

        def finish(_core: Any) -> None:
            self.pending -= 1
            on_result(future.result())  # a failure ends the engine

        future.add_done_callback(lambda _: self._submit(finish))

    def close(self) -> None:
        """Cancel work that has not started, because the process would wait for it at exit."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _resolve(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


class _Commit(NamedTuple):
    batch: Batch
    future: asyncio.Future[LoadedRows | None]
    began_at: float  # time.perf_counter() when the commit began


class Engine:
    """Owns the core and is its only caller.  ``run`` returns after ``stop``."""

    def __init__(
        self,
        core: Broker,
        writer: BatchStore,
        clock: Clock,
        load: Callable[[], Awaitable[Broker]] | None = None,
    ) -> None:
        self.core = core
        self._load = load  # creates the core again from the database
        self._loading: asyncio.Task[None] | None = None
        self._unanswered: set[asyncio.Future[Any]] = set()  # results of operations that have begun
        self.clock = clock
        self.flow_control = FlowControl(core)
        self.commits = CommitCounters()
        self.is_stopping = False
        self.taps: set[Tap] = set()  # called with each stored batch, before clients are notified
        self.yielded = CooperativeTasks()
        self._writer = writer
        self._maintenance: asyncio.Task[None] | None = None
        self._maintained_at = 0.0  # event-loop time when maintenance last began
        self._inbox: deque[Command] = deque()
        self._retried: list[Command] = []  # commands that waited for rows; run before the inbox
        self._loop: asyncio.AbstractEventLoop  # set by ``run``
        self._ended: asyncio.Future[None] | None = None  # set while ``run`` is running
        self._is_scheduled = False  # True while a run of the loop is scheduled or active
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # event-loop time at which the timer fires
        self._open: Batch | None = None  # the batch that the core is filling
        self._delay_ends_at = 0.0  # event-loop time when ``_delays_commit`` becomes false
        self._commit: _Commit | None = None  # the batch that the writer is storing
        self._took_s = 0.0  # duration of the last completed commit
        self._loaded: LoadedRows | None = None
        self._background = BackgroundThread(self.submit)

    @property
    def waiting(self) -> int:
        """Number of commands that are not yet in a batch."""
        return len(self._inbox) + len(self._retried) + self.flow_control.waiting_publishers

    @property
    def oldest_batch_s(self) -> float:
        """Age of the batch that the writer has not answered yet, or 0."""
        return 0.0 if self._commit is None else time.perf_counter() - self._commit.began_at

    # -- commands

    def submit(self, command: Command) -> None:
        """Queue ``command`` for the next batch, in arrival order."""
        self._inbox.append(command)
        self.wake()

    def submit_first(self, command: Command) -> None:
        """Queue ``command`` ahead of the inbox; for commands that waited for loaded rows."""
        self._retried.append(command)

    def check_files(self) -> None:
        """Check that the database is still the file that was opened; callable from any thread.

        Raises DatabaseReplacedError: it was removed or replaced; the process is about to exit.
        """
        self._writer.check_files()

    def wake(self) -> None:
        """Schedule a run of the loop; also call this after changing a deadline."""
        if not self._is_scheduled and self._ended is not None:
            self._is_scheduled = True
            self._loop.call_soon(self._run_once)

    async def call(self, operation: Operation[T, P], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``operation(core, reply, *args)`` and return its reply after the commit.

        Raises:
            RefusedError: the core refuses the operation; nothing has changed.
            BatchRefusedError: the database refuses the change, and the core loads its state again.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def reply(result: Any) -> None:
            if future.done():
                return
            if isinstance(result, RefusedError):  # at once, or after the operation had waited
                future.set_exception(result)
            else:
                future.set_result(result)

        def run(core: Broker) -> None:
            self._unanswered.add(future)
            future.add_done_callback(self._unanswered.discard)
            try:
                operation(core, reply, *args, **kwargs)
            except RefusedError as error:
                reply(error)

        self.submit(run)
        return await future

    async def run_operation(
        self, operation: Operation[T, P], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an admin operation like ``call``, but wait at most 30 s.

        Raises:
            RefusedError: the core refuses the operation; nothing has changed.
            TimeoutError: there was no reply in time; the operation may still be carried out.
        """
        async with asyncio.timeout(REPLY_S):
            return await self.call(operation, *args, **kwargs)

    # -- the loop

    async def run(self) -> None:
        """Run until ``stop`` has been called and all work is done.

        The work is done in event loop callbacks, not in this task.  With a future, a timer and a
        task step for each wait, and a pragma around each BEGIN, one message in flight took 310 µs
        of CPU time instead of 280 µs.  Raises OutcomeUnknownError: a commit failed; the in-memory
        state is invalid, so stop.
        """
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self.wake()
        try:
            await self._ended
        except BaseException:
            self._background.close()
            raise
        finally:
            self._ended = None
            if self._timer is not None:
                self._timer.cancel()

    def _run_once(self, stored: Batch | None = None, *, has_waited: bool = False) -> None:
        """Do all work that can be done without waiting.

        ``stored`` is the batch to resume with after yielding to the event loop.
        """
        ended = self._ended
        if ended is None or ended.done():
            return
        self._is_scheduled = True  # commands that arrive during this run do not start another
        has_successor = False  # whether a callback continues this run
        try:
            if has_waited and not (self._commit or self._open or self.waiting):
                self._run_maintenance(is_idle=True)
            if stored is not None:
                self._finish_commit(stored)
            while self._has_work or (delay_s := self._delay_s) <= 0:
                stored = self._take_stored()
                if stored is not None:
                    if self.yielded.resume_next():
                        self._loop.call_soon(self._run_once, stored)  # runs after the resumed task
                        has_successor = True
                        return
                    self._finish_commit(stored)
                    if not self._has_work:
                        continue
                if self._may_decide:
                    self._decide()
                    if self._commit is None and not self._delays_commit:
                        self._send_results(self._record())
            if self._commit is None:  # the end of a commit runs the loop again
                if self.is_stopping and self._is_done:
                    ended.set_result(None)
                self._set_timer(delay_s)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, BatchRefusedError) and self._load is not None:
                self._loading = asyncio.create_task(self._start_again(error, self._load))
                has_successor = True  # once the state is loaded
                return
            failure = error
            if isinstance(error, StopIteration | asyncio.CancelledError):
                failure = RuntimeError(f"the engine has stopped: {error!r}")  # not valid in futures
                failure.__cause__ = error
            ended.set_exception(failure)
        finally:
            self._is_scheduled = has_successor

    async def _start_again(
        self, error: BatchRefusedError, load: Callable[[], Awaitable[Broker]]
    ) -> None:
        """Disconnect all clients without replies, and replace the core by the stored state."""
        clients = len(self.core.connections)
        _log.log(logging.ERROR, "batch_refused", reason=str(error), clients=clients)
        self._open = self._commit = self._loaded = None
        try:
            self._retried += self.flow_control.take_all()
            self._inbox.extendleft(reversed(self._retried))  # these find their connections closed
            self._retried.clear()
            for connection in self.core.connections.values():
                connection.is_open = False
                connection.peer.end("the database refused a batch")
            for future in self._unanswered.copy():
                if not future.done():
                    future.set_exception(BatchRefusedError(_REFUSED))
            core = await load()
            core.continue_from(self.core)
            self.core, self.flow_control = core, FlowControl(core)
        except Exception as failure:
            if self._ended is not None and not self._ended.done():
                self._ended.set_exception(failure)
        self._is_scheduled = False
        self.wake()

    def _finish_commit(self, stored: Batch) -> None:
        """Send the receipts of the completed commit, start the next one, then send the rest.

        Publishers prepare their next messages while the statements of the next batch are executed:
        a twentieth more confirmed messages/s.  All other results wait, so that the writer is not
        idle.
        """
        self._send_receipts(stored)
        unstored = self._record()
        self._send_results(stored)
        if self._commit is not None:  # may dispatch messages that have just been stored
            self._send_stored(self._commit.batch)
        self._send_results(unstored)
        self.commits.record(stored, self._took_s)  # last, because no client waits for this

    @property
    def _is_done(self) -> bool:
        """Return whether there is nothing to decide, store or wait for."""
        return not (
            self.waiting or self._background.pending or self._loaded or self._open or self._commit
        )

    async def pause(self) -> None:
        """Yield to the event loop and resume between two batches; for work that can wait."""
        await asyncio.sleep(0)
        if self._commit is not None:
            await self.yielded.wait()

    def stop(self) -> None:
        """End ``run`` once all submitted commands are stored and answered."""
        self.is_stopping = True
        self.wake()

    @property
    def _delay_s(self) -> float:
        """Return how long to wait if no command arrives; 0 or less means that work is due."""
        delay_s = _MAINTENANCE_S
        if self._commit is not None:
            return delay_s  # the writer is busy and could not store anything
        if self._open is not None:
            return self._delay_ends_at - self._loop.time()
        wake_ms, date_ms = self.core.next_wake_ms, self.core.next_date_ms
        if wake_ms is not None or date_ms is not None:
            now = self.clock.now()
            if wake_ms is not None:
                delay_s = min(delay_s, (wake_ms - now.steady_ms) / 1_000)
            if date_ms is not None:
                delay_s = min(delay_s, _LOOK_S, (date_ms - now.wall_ms) / 1_000)
        return delay_s

    def _set_timer(self, delay_s: float) -> None:
        """Run the loop again within ``delay_s`` seconds; an earlier timer is kept."""
        at = self._loop.time() + delay_s
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._is_scheduled:
            self._run_once(has_waited=True)

    def _on_commit_done(self, _: object) -> None:
        if not self._is_scheduled:
            self._run_once()

    @property
    def _has_work(self) -> bool:
        commit = self._commit
        if commit is None:
            return bool(
                self.waiting
                or self._loaded is not None
                or self.core.batch_limited
                or (self._open is not None and not self._delays_commit)
            )
        if commit.future.done():
            return True
        if not self._may_decide:
            return False
        return bool(
            self._inbox or (self._open is None and (self.waiting or self.core.batch_limited))
        )

    @property
    def _may_decide(self) -> bool:
        """Return whether the core can decide now: all rows are loaded, and the batch has room."""
        commit, batch = self._commit, self._open
        if commit is None:
            return True
        if commit.batch.loads:
            return False
        return batch is None or not self._is_full(batch)

    def _is_full(self, batch: Batch) -> bool:
        if not batch.accepts_commands:
            return True
        limits = self.core.limits
        return batch.commands >= limits.batch_commands or batch.created_bytes >= limits.batch_bytes

    @property
    def _delays_commit(self) -> bool:
        """Return whether to delay the commit of an open batch that has only acknowledgements.

        No client waits for them, but their commit would block the publish that follows.  With one
        message in flight, the delay reduces two commits to one.
        """
        batch = self._open
        return (
            batch is not None
            and self._commit is None
            and not (self.is_stopping or self.waiting)
            and not self.core.batch_limited
            and 0 < batch.commands < _ACK_COMMANDS
            and len(batch.settled.get(ACKED_KEY, ())) == batch.commands
            and not (batch.loads or batch.replies or batch.to_resume or batch.background)
            and not any(outbox.dispatches or outbox.receipts for outbox in batch.sends.values())
            and self._loop.time() < self._delay_ends_at
        )

    def _decide(self) -> None:
        """Open a batch if none is open, run the inbox's commands, and send stored messages."""
        core, inbox = self.core, self._inbox
        now = self.clock.now()
        if self.clock.is_disturbed:
            self._handle_clock_change(now)
        batch = self._open
        if batch is None:
            batch = self._open = batches.begin(core, now, self._loaded)
            self._loaded = None
            self._delay_ends_at = self._loop.time() + _ACK_DELAY_S
            retried, self._retried = self._retried, []
            for command in retried:
                command(core)
        else:
            core.update_clock(now)
        for _ in range(len(inbox)):  # a command that resubmits itself runs after the others
            if self._is_full(batch):
                break
            inbox.popleft()(core)
        batches.dispatch(core)
        inbox += self.flow_control.take_ready()
        if batch.sends:
            self._send_stored(batch)

    def _handle_clock_change(self, now: ClockReading) -> None:
        """Store a clock jump before later decisions; exclude suspended time from timeouts."""
        gap_ms, jump_ms = self.clock.take_disturbance()
        if gap_ms:
            self.core.ack_timeouts.postpone(self.core.connections.values(), gap_ms)
        if jump_ms:
            self.core.schedules.look_again()
            noting = self._writer.store_clock_jump(self.clock.counters(now))
            noting.add_done_callback(self._on_clock_noted)
        if not is_quiet("clock_disturbed"):
            _log.warning("clock_disturbed", stood_still_ms=gap_ms, jumped_ms=jump_ms)

    def _on_clock_noted(self, future: asyncio.Future[None]) -> None:
        failure = None if future.cancelled() else future.exception()
        if isinstance(failure, BatchRefusedError):
            return  # the clocks are stored again within a minute
        if failure is not None and self._ended is not None and not self._ended.done():
            self._ended.set_exception(failure)

    def _send_stored(self, batch: Batch) -> None:
        """Send each connection its already stored messages, up to the first one not yet stored.

        Consumers process these messages while the batch is being stored.  With a credit of 100,
        throughput is a third higher than if they waited for the commit (``benchmarks/profile.md``).
        Only a commit proves that no other broker has sent them meanwhile.
        """
        if not self._writer.is_exclusive:
            return
        commit = self._commit
        first = batch.first_number if commit is None else commit.batch.first_number
        before = {} if commit is None or commit.batch is batch else commit.batch.sends
        for connection, outbox in batch.sends.items():
            if connection in before and before[connection].dispatches:
                continue  # the dispatches of the commit in progress come first
            dispatches = outbox.dispatches
            if dispatches and dispatches[0].seq < first:
                count = next((at for at, m in enumerate(dispatches) if m.seq >= first), None)
                stored = dispatches[:count]
                del dispatches[:count]
                self._send(connection, Outbox(stored), self.clock.now().steady_ms)
                batch.is_partly_sent = True

    def _record(self) -> Batch | None:
        """Pass the open batch to the writer, or return the batch if it has nothing to store."""
        if self._open is None:
            return None
        batch = batches.finish(self.core)
        self._open = None
        if not (batch.stores or batch.loads):
            if batch.sends:  # receipts for messages that were stored earlier
                self._writer.check_files()
            return batch
        began_at = time.perf_counter()
        future = self._writer.commit(batch)
        if not future.done():  # otherwise the current run continues with the result
            future.add_done_callback(self._on_commit_done)
        self._commit = _Commit(batch, future, began_at)
        return None

    def _take_stored(self) -> Batch | None:
        """Return the batch that the writer has stored, and keep the rows loaded for it.

        Raises:
            OutcomeUnknownError: the commit failed.
            BatchRefusedError: nothing of the batch was stored.
        """
        commit = self._commit
        if commit is None:
            return None
        if not commit.future.done():
            self._writer.poll()
            if not commit.future.done():
                return None
        self._commit = None
        self._loaded = commit.future.result()
        self._took_s = time.perf_counter() - commit.began_at
        return commit.batch

    def _send_receipts(self, batch: Batch) -> None:
        """Pass a stored batch to the taps, and send the output that consists of receipts only."""
        if self.taps and batch.stores:
            self._call_taps(batch)
        if batch.sends:
            now_ms = self.clock.now().steady_ms
            for connection, outbox in batch.sends.items():
                if outbox.receipts and not outbox.dispatches:
                    self._send(connection, outbox, now_ms)
                    outbox.receipts.clear()

    def _send_results(self, batch: Batch | None) -> None:
        """Notify clients of a stored batch, and start its follow-up work."""
        if batch is None:
            return
        if batch.sends:
            now_ms = self.clock.now().steady_ms
            for connection, outbox in batch.sends.items():
                if outbox.dispatches or outbox.receipts:
                    self._send(connection, outbox, now_ms)
        for reply, value in batch.replies:
            reply(value)
        for connection in batch.to_resume:
            connection.peer.resume()
        for work, on_result in batch.background:
            self._background.run(work, on_result)
        self._run_maintenance(is_idle=False)  # needed even if everything was refused

    def _send(self, connection: Connection, outbox: Outbox, now_ms: int) -> None:
        unsent = connection.peer.send(outbox, now_ms)
        if unsent:
            self.submit_first(lambda core: commands.undo_dispatches(core, connection, unsent))

    def _call_taps(self, batch: Batch) -> None:
        for tap in tuple(self.taps):
            try:
                tap(batch)
            except Exception:
                self.taps.discard(tap)
                _log.exception("tap_failed")

    def _run_maintenance(self, *, is_idle: bool) -> None:
        """Start maintenance if due; the next batch then waits for the writer's thread."""
        at = self._loop.time()
        is_due = at - self._maintained_at >= _MAINTENANCE_S
        if not (is_due or self._writer.needs_maintenance):
            return
        task = self._maintenance
        if task is not None:
            if not task.done():
                return
            task.result()  # a failure ends the engine
        self._maintained_at = at
        now = self.clock.now()
        if self.clock.is_disturbed:
            self._handle_clock_change(now)
        self._maintenance = asyncio.create_task(self._maintain_until_done(now, is_idle=is_idle))

    async def _maintain_until_done(self, now: ClockReading, *, is_idle: bool) -> None:
        while await self._writer.maintain(now, is_idle=is_idle):
            if self.is_stopping:
                return

    async def end(self) -> None:
        """Wait for any maintenance in progress; call this before closing the writer."""
        self._background.close()
        if self._maintenance is not None:
            await self._maintenance
