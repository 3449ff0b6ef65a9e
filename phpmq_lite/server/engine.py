"""The loop that everything goes through: gather, decide, record, act.

While one batch is with the writer, the next one is open: the clock is read once, and the core
decides on what arrives.  When the writer is free again one transaction stores it, and only then is
anybody told.  A message that was stored before may leave earlier: a consumer never sees one that is
not stored, and after a crash it would come again in any case.

A batch that loads something is waited for: the core takes in what was loaded before it decides on
anything else, so that no row is older than what it knows.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.flow_control import FlowControl
from phpmq_lite.broker.queue import Connection
from phpmq_lite.broker.state import ACKED_KEY
from phpmq_lite.clock import Clock
from phpmq_lite.errors import RefusedError
from phpmq_lite.logs import get_logger, is_quiet
from phpmq_lite.model import Batch, Loaded, Message, Now, Receipt, Reply
from phpmq_lite.server.counters import CommitCounters
from phpmq_lite.storage.write.store import LONG_WAL_BYTES, Store, jump_noted
from phpmq_lite.storage.write.writer import Writer

_log = get_logger(__name__)
Command = Callable[[Broker], None]
Tap = Callable[[Batch], None]

_UPKEEP_S = 1.0
_NOTHING: Final[tuple[list[Message], list[Receipt]]] = ([], [])
_LINGER_S = 0.0009  # a timer of 1 ms, in the whole ones of uvloop, is sure to come after it
_LINGER_COMMANDS = 500  # they are worth a commit of their own
_PATIENCE_S = 0.01  # what may wait for the end of a batch waits no longer: a disk may hang


class _Recording(NamedTuple):
    """A batch that is with the writer."""

    batch: Batch
    done: asyncio.Future[Loaded | None]
    began_at: float  # of time.perf_counter


class Engine:
    """Owns the core; the only one that calls it.  ``run`` ends when ``stop`` was called.

    ``upkeep`` is called in the writer's thread between batches: when the WAL has grown, and once
    a second.  It returns True where it wants to be called again soon.
    """

    def __init__(
        self,
        core: Broker,
        writer: Writer,
        clock: Clock,
        upkeep: Callable[[Store, Now, bool], bool] = lambda _store, _now, _is_idle: False,
    ) -> None:
        self.core = core
        self.clock = clock
        self.flow_control = FlowControl(core)
        self.commits = CommitCounters()
        self.is_stopping = False
        self.taps: set[Tap] = set()  # called with each batch that was stored, before it is told
        self._writer = writer
        self._upkeep = upkeep
        self._upkeep_task: asyncio.Task[None] | None = None
        self._upkeep_at = 0.0  # when it began last, on the loop's clock
        self._inbox: deque[Command] = deque()
        self._first: list[Command] = []  # go on where the last batch had to wait
        self._loop: asyncio.AbstractEventLoop  # from ``run`` on
        self._ended: asyncio.Future[None] | None = None  # while it runs
        self._is_coming = False  # a turn is, or it is under way
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # on the loop's clock
        self._open: Batch | None = None  # what the core decides on
        self._lingers_until = 0.0  # on the loop's clock
        self._recording: _Recording | None = None  # what the writer has
        self._took_s = 0.0  # the last commit that ended
        self._patient: deque[asyncio.Future[None]] = deque()  # what goes on between two batches
        self._loaded: Loaded | None = None
        self._asides = 0  # pieces of work in their thread, whose results a batch waits for
        self._aside_thread = ThreadPoolExecutor(1, "aside")  # more only share the interpreter

    @property
    def waiting(self) -> int:
        """Commands that no batch has taken yet."""
        return len(self._inbox) + len(self._first) + self.flow_control.waiting

    # -- giving commands

    def submit(self, command: Command) -> None:
        """Have ``command(core)`` called in the next batch, in order of arrival."""
        self._inbox.append(command)
        self.wake()

    def submit_first(self, command: Command) -> None:
        """As ``submit``, ahead of all others: for what waits one batch for something loaded."""
        self._first.append(command)

    def check_files(self) -> None:
        """See that the database is the file that was opened; may be called in any thread.

        Raises:
            DatabaseReplacedError: it is not; the process is about to end.
        """
        self._writer.check_files()

    def wake(self) -> None:
        """Have it looked soon at what there is to do; for who changes what is due, too."""
        if not self._is_coming and self._ended is not None:
            self._is_coming = True
            self._loop.call_soon(self._turn)

    async def call(self, command: Callable[[Broker, Reply], None]) -> Any:
        """Run ``command(core, answer)`` and return its answer, after the commit.

        Raises:
            RefusedError: the core does not take it; nothing has changed.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answer(result: Any) -> None:
            if future.done():
                return
            if isinstance(result, RefusedError):  # it was refused only after it had waited
                future.set_exception(result)
            else:
                future.set_result(result)

        def run(core: Broker) -> None:
            try:
                command(core, answer)
            except RefusedError as error:
                if not future.done():
                    future.set_exception(error)

        self.submit(run)
        return await future

    # -- the loop

    async def run(self) -> None:
        """Work until ``stop`` and until nothing waits any more.

        The work is done in turns that the loop calls, not in this task.  With a future, a timer and
        a step of the task for each wait, and a pragma around each BEGIN, one message in flight took
        310 instead of 280 µs of processor time.

        Raises:
            OutcomeUnknownError: a commit failed; memory is worth nothing now, stop the process.
        """
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self.wake()
        try:
            await self._ended
        except BaseException:
            self._end_asides()
            raise
        finally:
            self._ended = None
            if self._timer is not None:
                self._timer.cancel()

    def _turn(self, stored: Batch | None = None, *, has_waited: bool = False) -> None:
        """Do all that can be done without waiting; ``stored`` is where it has given way."""
        ended = self._ended
        if ended is None or ended.done():
            return
        self._is_coming = True  # what is given meanwhile needs no other turn
        try:
            if has_waited and not (self._recording or self._open or self.waiting):
                self._look_after(is_idle=True)
            if stored is not None:
                self._follow(stored)
            while self._has_work or (delay_s := self._delay_s) <= 0:
                stored = self._take_stored()
                if stored is not None:
                    if self._gives_way():
                        self._loop.call_soon(self._turn, stored)  # behind what it has woken
                        return
                    self._follow(stored)
                    if not self._has_work:
                        continue
                if self._may_decide:
                    self._decide()
                    if self._recording is None and not self._lingers:
                        self._act(self._record())
            if self._recording is None:  # its end is a turn
                if self.is_stopping and self._is_done:
                    ended.set_result(None)
                self._set_timer(delay_s)
        except (Exception, asyncio.CancelledError) as error:
            failure = error
            if isinstance(error, StopIteration | asyncio.CancelledError):
                failure = RuntimeError(f"the engine has stopped: {error!r}")  # these end no future
                failure.__cause__ = error
            ended.set_exception(failure)
        self._is_coming = False

    def _follow(self, stored: Batch) -> None:
        """Give the writer the next batch, and tell of the one that it has stored."""
        done = self._record()  # ahead of the answers: the writer is free
        self._act(stored)
        if self._recording is not None:  # it may dispatch what has just been stored
            self._send_stored(self._recording.batch)
        self._act(done)
        self.commits.note(stored, self._took_s)  # behind the answers: nobody waits for it

    @property
    def _is_done(self) -> bool:
        """Tell whether nothing is to be decided, stored or waited for."""
        return not (self.waiting or self._asides or self._loaded or self._open or self._recording)

    async def pause(self) -> None:
        """Leave the loop to others, and come back between two batches.

        For work that may wait, a fraction of a millisecond at a time.  Beside a batch it would cost
        more than its own time: the writer's thread needs the interpreter some ten times a commit,
        and each time it would wait its turn (commits of 0.6 ms took 7 to 13).
        """
        await asyncio.sleep(0)
        if self._recording is None:
            return
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._patient.append(turn)
        timer = loop.call_later(_PATIENCE_S, _go_on, turn)
        try:
            await turn
        finally:
            timer.cancel()

    def _gives_way(self) -> bool:
        """Give one piece of patient work its turn before the next batch, if there is one."""
        while self._patient:
            turn = self._patient.popleft()
            if not turn.done():
                turn.set_result(None)
                return True
        return False

    def stop(self) -> None:
        """End ``run`` once all commands that were given are stored and answered."""
        self.is_stopping = True
        self.wake()

    @property
    def _delay_s(self) -> float:
        """Tell how long there is nothing to do but what is given; 0 or less: something is due."""
        delay_s = _UPKEEP_S
        if self._recording is not None:
            return delay_s  # it could not be stored
        if self._open is not None:
            return self._lingers_until - self._loop.time()
        if (wake_ms := self.core.next_wake_ms) is not None:
            return min(delay_s, (wake_ms - self.clock.now().steady_ms) / 1_000)
        return delay_s

    def _set_timer(self, delay_s: float) -> None:
        """Have a turn after this time at the latest: an earlier timer stays as it is."""
        at = self._loop.time() + delay_s
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._end_timer)

    def _end_timer(self) -> None:
        self._timer = None
        if not self._is_coming:
            self._turn(has_waited=True)

    def _end_commit(self, _: object) -> None:
        if not self._is_coming:
            self._turn()

    @property
    def _has_work(self) -> bool:
        """Tell whether something can be done without waiting."""
        recording = self._recording
        if recording is None:
            return bool(
                self.waiting or self._loaded is not None or self.core.needs_batch
                or (self._open is not None and not self._lingers)
            )  # fmt: skip
        if recording.done.done():
            return True
        if not self._may_decide:
            return False
        return bool(self._inbox or (self._open is None and (self.waiting or self.core.needs_batch)))

    @property
    def _may_decide(self) -> bool:
        """Tell whether the core may go on: it has all that was loaded, and the batch has room."""
        recording, batch = self._recording, self._open
        if recording is None:
            return True
        if recording.batch.loads:
            return False
        if batch is None:
            return True
        limits = self.core.limits
        return batch.commands < limits.batch_commands and batch.created_bytes < limits.batch_bytes

    @property
    def _lingers(self) -> bool:
        """Tell whether an open batch, of which nobody awaits anything, is left open for more.

        An acknowledgement has no answer.  Alone it would keep the writer from the publish that
        follows on it: with one message in flight this is one commit instead of two.
        """
        batch = self._open
        return (
            batch is not None
            and self._recording is None
            and not (self.is_stopping or self.waiting)
            and 0 < batch.commands < _LINGER_COMMANDS
            and len(batch.settled.get(ACKED_KEY, ())) == batch.commands
            and not (batch.loads or batch.replies or batch.wakes or batch.background)
            and not any(d or r for d, r in batch.sends.values())
            and not self.core.needs_batch
            and self._loop.time() < self._lingers_until
        )

    def _decide(self) -> None:
        """Open a batch, if there is none, and decide on what waits; what is stored leaves."""
        core, inbox = self.core, self._inbox
        now = self.clock.now()
        if self.clock.is_disturbed:
            self._heed_clock(now)
        batch = self._open
        if batch is None:
            batch = self._open = core.begin(now, self._loaded)
            self._loaded = None
            self._lingers_until = self._loop.time() + _LINGER_S
            first, self._first = self._first, []
            for command in first:
                command(core)
        else:
            core.update_clock(now)
        limits = core.limits
        for _ in range(len(inbox)):  # what gives itself again comes after the others
            if batch.commands >= limits.batch_commands or batch.created_bytes >= limits.batch_bytes:
                break
            inbox.popleft()(core)
        core.dispatch()
        inbox += self.flow_control.take_ready()
        if batch.sends:
            self._send_stored(batch)

    def _heed_clock(self, now: Now) -> None:
        """Have a jump stored ahead of what is decided after it; count no time that stood still."""
        gap_ms, jump_ms = self.clock.take_disturbance()
        if gap_ms:
            self.core.ack_timeouts.postpone(self.core.connections.values(), gap_ms)
        if jump_ms:
            noting = self._writer.start(jump_noted(self.clock.counters(now)))
            noting.add_done_callback(self._end_noting)
        if not is_quiet("clock_disturbed"):
            _log.warning("clock_disturbed", stood_still_ms=gap_ms, jumped_ms=jump_ms)

    def _end_noting(self, done: asyncio.Future[None]) -> None:
        failure = None if done.cancelled() else done.exception()
        if failure is not None and self._ended is not None and not self._ended.done():
            self._ended.set_exception(failure)

    def _send_stored(self, batch: Batch) -> None:
        """Send what was stored before: of each connection the first ones, up to one that was not.

        While consumers work on these the batch is stored: with a credit of 100 a third more
        messages a second than where they waited for it (``benchmarks/profile.md``).
        """
        recording = self._recording
        first = batch.first_number if recording is None else recording.batch.first_number
        before = {} if recording is None or recording.batch is batch else recording.batch.sends
        for connection, (dispatches, _) in batch.sends.items():
            if before and before.get(connection, _NOTHING)[0]:
                continue  # what it has not got yet comes first
            if dispatches and dispatches[0].seq < first:
                count = next((at for at, m in enumerate(dispatches) if m.seq >= first), None)
                stored = dispatches[:count]
                del dispatches[:count]
                self._send(connection, stored, [], self.clock.now().steady_ms)
                batch.has_left = True

    def _record(self) -> Batch | None:
        """Close the open batch and give it to the writer; give it back if it has nothing to do."""
        if self._open is None:
            return None
        batch = self.core.finish()
        self._open = None
        if not (batch.stores or batch.loads):
            if batch.sends:  # receipts of what was stored before
                self._writer.check_files()
            return batch
        began_at = time.perf_counter()
        done = self._writer.commit(batch)
        if not done.done():  # else the turn that is under way goes on with it
            done.add_done_callback(self._end_commit)
        self._recording = _Recording(batch, done, began_at)
        return None

    def _take_stored(self) -> Batch | None:
        """Give the batch that the writer has stored, if it has, and keep what was loaded.

        Raises:
            OutcomeUnknownError: the commit failed.
        """
        recording = self._recording
        if recording is None or not recording.done.done():
            return None
        self._recording = None
        self._loaded = recording.done.result()
        self._took_s = time.perf_counter() - recording.began_at
        return recording.batch

    def _act(self, batch: Batch | None) -> None:
        if batch is None:
            return
        if self.taps and batch.stores:
            self._show(batch)
        if batch.sends:
            now_ms = self.clock.now().steady_ms
            for connection, (dispatches, receipts) in batch.sends.items():
                if dispatches or receipts:
                    self._send(connection, dispatches, receipts, now_ms)
        for answer, value in batch.replies:
            answer(value)
        for connection in batch.wakes:
            connection.peer.resume()
        for work, give in batch.background:
            self._set_aside(work, give)
        self._look_after(is_idle=False)  # also where nothing was stored: all may be refused

    def _send(
        self,
        connection: Connection,
        dispatches: list[Message],
        receipts: list[Receipt],
        now_ms: int,
    ) -> None:
        late = connection.peer.send(dispatches, receipts, now_ms)
        if late:
            self.submit_first(lambda core: core.take_back(connection, late))

    def _set_aside(self, work: Callable[[], Any], give: Callable[[Any], None]) -> None:
        """Do work in its thread; a later batch begins with giving its result to the core."""
        self._asides += 1
        future = asyncio.get_running_loop().run_in_executor(self._aside_thread, work)

        def take(_core: Broker) -> None:
            self._asides -= 1
            give(future.result())  # a failure ends the loop

        future.add_done_callback(lambda _: self.submit(take))

    def _show(self, batch: Batch) -> None:
        """Let others look at a batch; whoever fails at it looks at no more of them."""
        for tap in tuple(self.taps):
            try:
                tap(batch)
            except Exception:
                self.taps.discard(tap)
                _log.exception("tap_failed")

    def _look_after(self, *, is_idle: bool) -> None:
        """Start upkeep if it is time; the next batch queues up behind it in the thread."""
        at = self._loop.time()
        if self._writer.wal_bytes < LONG_WAL_BYTES and at - self._upkeep_at < _UPKEEP_S:
            return
        task = self._upkeep_task
        if task is not None:
            if not task.done():
                return
            task.result()  # a failure ends the loop
        self._upkeep_at = at
        now = self.clock.now()
        if self.clock.is_disturbed:
            self._heed_clock(now)
        self._upkeep_task = asyncio.create_task(self._keep(now, is_idle=is_idle))

    async def _keep(self, now: Now, *, is_idle: bool) -> None:
        while await self._writer.run(lambda store: self._upkeep(store, now, is_idle)):
            if self.is_stopping:
                return

    def _end_asides(self) -> None:
        """Begin no further piece of work: the process would wait for all of them at its end."""
        self._aside_thread.shutdown(wait=False, cancel_futures=True)

    async def end(self) -> None:
        """Wait for upkeep under way; call after ``run`` has ended, before closing the writer."""
        self._end_asides()
        if self._upkeep_task is not None:
            await self._upkeep_task


def _go_on(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
