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
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from phpmq_lite.broker.core import Broker
from phpmq_lite.broker.queue import Connection
from phpmq_lite.broker.runs import ACKED_KEY
from phpmq_lite.broker.sweeps import Answer
from phpmq_lite.clock import Clock
from phpmq_lite.errors import RefusedError
from phpmq_lite.logs import get_logger
from phpmq_lite.model import Batch, Loaded, Message, Now, Receipt
from phpmq_lite.storage.writer import LONG_WAL_BYTES, Store, Writer

_log = get_logger(__name__)
Command = Callable[[Broker], None]
Tap = Callable[[Batch], None]

# Upper bounds of the histograms; each has one more bucket, for what lies above.
COMMIT_BOUNDS_S: Final = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
BATCH_BOUNDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)
_UPKEEP_S = 1.0
_NOTHING: Final[tuple[list[Message], list[Receipt]]] = ([], [])
_LINGER_S = 0.001
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
        self.commits = 0
        self.last_commit_ms = 0.0
        self.last_batch_rows = 0
        self.commit_counts = [0] * (len(COMMIT_BOUNDS_S) + 1)
        self.commit_s_sum = 0.0
        self.batch_counts = [0] * (len(BATCH_BOUNDS) + 1)
        self.batch_sum = 0  # messages born, dispatched or settled
        self.is_stopping = False
        self.taps: set[Tap] = set()  # called with each batch that was stored, before it is told
        self._writer = writer
        self._upkeep = upkeep
        self._upkeep_task: asyncio.Task[None] | None = None
        self._upkeep_at = 0.0  # when it began last, on the loop's clock
        self._inbox: deque[Command] = deque()
        self._first: list[Command] = []  # go on where the last batch had to wait
        self._waker: asyncio.Future[None] | None = None
        self._open: Batch | None = None  # what the core decides on
        self._lingers_until = 0.0  # on the loop's clock
        self._recording: _Recording | None = None  # what the writer has
        self._patient: deque[asyncio.Future[None]] = deque()  # what goes on between two batches
        self._loaded: Loaded | None = None
        self._asides = 0  # pieces of work in their thread, whose results a batch waits for
        self._aside_thread = ThreadPoolExecutor(1, "aside")  # more only share the interpreter

    @property
    def waiting(self) -> int:
        """Commands that no batch has taken yet."""
        return len(self._inbox) + len(self._first)

    # -- giving commands

    def submit(self, command: Command) -> None:
        """Have ``command(core)`` called in the next batch, in order of arrival."""
        self._inbox.append(command)
        self.wake()

    def submit_first(self, command: Command) -> None:
        """As ``submit``, ahead of all others: for what waits one batch for something loaded."""
        self._first.append(command)

    def wake(self) -> None:
        """End the wait for a command or deadline."""
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)

    async def call(self, command: Callable[[Broker, Answer], None]) -> Any:
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

        Raises:
            OutcomeUnknownError: a commit failed; memory is worth nothing now, stop the process.
        """
        try:
            while not (self.is_stopping and self._is_done):
                await self._wait()
                stored = self._take_stored()
                if stored is not None:
                    if self._patient:
                        await self._let_patient_go_on()
                    done = self._record()  # the next one, ahead of the answers: the writer is free
                    self._act(stored)
                    if self._recording is not None:  # it may dispatch what has just been stored
                        self._send_stored(self._recording.batch)
                    self._act(done)
                    self._look_after(is_idle=False)
                if self._may_decide:
                    self._decide()
                    if self._recording is None and not self._lingers:
                        self._act(self._record())
        except BaseException:
            self._end_asides()
            raise

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

    async def _let_patient_go_on(self) -> None:
        """Give one piece of patient work its turn before the next batch."""
        while self._patient:
            turn = self._patient.popleft()
            if not turn.done():
                turn.set_result(None)
                await asyncio.sleep(0)  # what waits for it comes first, then this
                return

    def stop(self) -> None:
        """End ``run`` once all commands that were given are stored and answered."""
        self.is_stopping = True
        self.wake()

    async def _wait(self) -> None:
        """Wait for the writer, a command, a deadline, or the time for upkeep."""
        loop = asyncio.get_running_loop()
        while not self._has_work:
            delay_s = _UPKEEP_S
            if self._lingers:
                delay_s = self._lingers_until - loop.time()
            if self._may_decide and self._open is None:
                wake_ms = self.core.next_wake_ms
                if wake_ms is not None:
                    delay_s = min(delay_s, (wake_ms - self.clock.now().steady_ms) / 1_000)
                    if delay_s <= 0:
                        return
            self._waker = loop.create_future()
            timer = loop.call_later(delay_s, self.wake)
            try:
                await self._waker
            finally:
                timer.cancel()
                self._waker = None
            if self._recording is None and self._open is None and not self.waiting:
                self._look_after(is_idle=True)

    @property
    def _has_work(self) -> bool:
        """Tell whether something can be done without waiting."""
        recording = self._recording
        if recording is None:
            return bool(
                self.waiting or self._loaded is not None or self.core.wants_batch
                or (self.is_stopping and not self._asides)
                or (self._open is not None and not self._lingers)
            )  # fmt: skip
        if recording.done.done():
            return True
        if not self._may_decide:
            return False
        if self._open is None:
            return bool(self.waiting or self.core.wants_batch)
        return bool(self._inbox)

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
        return batch.commands < limits.batch_commands and batch.born_bytes < limits.batch_bytes

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
            and not (batch.loads or batch.answers or batch.wakes or batch.aside)
            and not any(d or r for d, r in batch.sends.values())
            and not self.core.wants_batch
            and asyncio.get_running_loop().time() < self._lingers_until
        )

    def _decide(self) -> None:
        """Open a batch, if there is none, and decide on what waits; what is stored leaves."""
        core, inbox = self.core, self._inbox
        batch = self._open
        if batch is None:
            batch = self._open = core.begin(self.clock.now(), self._loaded)
            self._loaded = None
            self._lingers_until = asyncio.get_running_loop().time() + _LINGER_S
            first, self._first = self._first, []
            for command in first:
                command(core)
        else:
            core.go_on(self.clock.now())
        limits = core.limits
        for _ in range(len(inbox)):  # what gives itself again comes after the others
            if batch.commands >= limits.batch_commands or batch.born_bytes >= limits.batch_bytes:
                break
            inbox.popleft()(core)
        core.dispatch()
        if batch.sends:
            self._send_stored(batch)

    def _send_stored(self, batch: Batch) -> None:
        """Send what was stored before: of each connection the first ones, up to one that was not.

        While consumers work on these the batch is stored: with a credit of 100 a third more
        messages a second than where they waited for it (``benchmarks/profile.md``).
        """
        recording = self._recording
        first = batch.first_number if recording is None else recording.batch.first_number
        before = {} if recording is None or recording.batch is batch else recording.batch.sends
        now_ms = self.clock.now().steady_ms
        for connection, (dispatches, _) in batch.sends.items():
            if before and before.get(connection, _NOTHING)[0]:
                continue  # what it has not got yet comes first
            if dispatches and dispatches[0].seq < first:
                count = next((at for at, m in enumerate(dispatches) if m.seq >= first), None)
                stored = dispatches[:count]
                del dispatches[:count]
                self._send(connection, stored, [], now_ms)

    def _record(self) -> Batch | None:
        """Close the open batch and give it to the writer; give it back if it has nothing to do."""
        if self._open is None:
            return None
        batch = self.core.finish()
        self._open = None
        if not (batch.stores or batch.loads):
            return batch
        began_at = time.perf_counter()
        done = self._writer.commit(batch)
        done.add_done_callback(lambda _: self.wake())
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
        self._count(recording.batch, time.perf_counter() - recording.began_at)
        return recording.batch

    def _count(self, batch: Batch, seconds: float) -> None:
        self.last_commit_ms = seconds * 1_000
        self.last_batch_rows = len(batch.born) + sum(map(len, batch.settled.values()))
        self.commits += 1
        if batch.stores:
            self.commit_counts[bisect_left(COMMIT_BOUNDS_S, seconds)] += 1
            self.commit_s_sum += seconds
            messages = self.last_batch_rows + len(batch.dispatched)
            self.batch_counts[bisect_left(BATCH_BOUNDS, messages)] += 1
            self.batch_sum += messages

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
        for answer, value in batch.answers:
            answer(value)
        for connection in batch.wakes:
            connection.peer.resume()
        for work, give in batch.aside:
            self._set_aside(work, give)

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
        at = asyncio.get_running_loop().time()
        if self._writer.wal_bytes < LONG_WAL_BYTES and at - self._upkeep_at < _UPKEEP_S:
            return
        task = self._upkeep_task
        if task is not None:
            if not task.done():
                return
            task.result()  # a failure ends the loop
        self._upkeep_at = at
        now = self.clock.now()
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
