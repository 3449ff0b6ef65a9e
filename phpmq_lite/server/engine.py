"""The loop that everything goes through: gather, decide, record, act.

While one batch is stored, what arrives gathers in the inbox.  Then the clock is read once, the
core decides on all of it, one transaction stores the result, and only then is anybody told.
"""

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from phpmq_lite.broker.core import Broker
from phpmq_lite.broker.sweeps import Answer
from phpmq_lite.clock import Clock
from phpmq_lite.errors import RefusedError
from phpmq_lite.logs import get_logger
from phpmq_lite.model import Batch, Loaded, Now
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
_PATIENCE_S = 0.01  # what may wait for the end of a batch waits no longer: a disk may hang


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
        self._is_recording = False
        self._patient: deque[asyncio.Future[None]] = deque()  # what goes on between two batches
        self._loaded: Loaded | None = None
        self._asides = 0  # pieces of work in their thread, whose results a batch waits for
        self._thread = ThreadPoolExecutor(1, "aside")  # one: more would only share the interpreter

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
            while not (
                self.is_stopping and not self.waiting and not self._asides and self._loaded is None
            ):
                await self._wait()
                batch = self._decide()
                self._loaded = await self._record(batch)
                self._act(batch)
                self._look_after(is_idle=False)
                if self._patient:
                    await self._let_patient_go_on()
        except BaseException:
            self._end_asides()
            raise

    async def pause(self) -> None:
        """Leave the loop to others, and come back between two batches.

        For work that may wait, a fraction of a millisecond at a time.  Beside a batch it would cost
        more than its own time: the writer's thread needs the interpreter some ten times a commit,
        and each time it would wait its turn (commits of 0.6 ms took 7 to 13).
        """
        await asyncio.sleep(0)
        if not self._is_recording:
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
        """Wait for a command, a deadline, or the time for upkeep."""
        loop = asyncio.get_running_loop()
        while not (self.waiting or self._loaded is not None or self.core.wants_batch
                   or (self.is_stopping and not self._asides)):  # fmt: skip
            wake_ms = self.core.next_wake_ms
            delay_s = _UPKEEP_S
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
            if not self.waiting:
                self._look_after(is_idle=True)

    def _decide(self) -> Batch:
        core, inbox = self.core, self._inbox
        batch = core.begin(self.clock.now(), self._loaded)
        limits = core.limits
        first, self._first = self._first, []
        for command in first:
            command(core)
        for _ in range(len(inbox)):  # what gives itself again waits for the next batch
            if batch.commands >= limits.batch_commands or batch.born_bytes >= limits.batch_bytes:
                break
            inbox.popleft()(core)
        return core.finish()

    async def _record(self, batch: Batch) -> Loaded | None:
        if not (batch.stores or batch.loads):
            return None
        started = time.perf_counter()
        self._is_recording = True
        try:
            loaded = await self._writer.run(lambda store: store.commit(batch))
        finally:
            self._is_recording = False
        seconds = time.perf_counter() - started
        self.last_commit_ms = seconds * 1_000
        self.last_batch_rows = len(batch.born) + sum(map(len, batch.settled.values()))
        self.commits += 1
        if batch.stores:
            self.commit_counts[bisect_left(COMMIT_BOUNDS_S, seconds)] += 1
            self.commit_s_sum += seconds
            messages = self.last_batch_rows + len(batch.dispatched)
            self.batch_counts[bisect_left(BATCH_BOUNDS, messages)] += 1
            self.batch_sum += messages
        return loaded

    def _act(self, batch: Batch) -> None:
        if self.taps and batch.stores:
            self._show(batch)
        if batch.sends:
            now_ms = self.clock.now().steady_ms
            for connection, (dispatches, receipts) in batch.sends.items():
                late = connection.peer.send(dispatches, receipts, now_ms)
                if late:
                    self.submit_first(lambda core, late=late: core.take_back(late))  # type: ignore[misc]
        for answer, value in batch.answers:
            answer(value)
        for connection in batch.wakes:
            connection.peer.resume()
        for work, give in batch.aside:
            self._set_aside(work, give)

    def _set_aside(self, work: Callable[[], Any], give: Callable[[Any], None]) -> None:
        """Do work in its thread; a later batch begins with giving its result to the core."""
        self._asides += 1
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)

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
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def end(self) -> None:
        """Wait for upkeep under way; call after ``run`` has ended, before closing the writer."""
        self._end_asides()
        if self._upkeep_task is not None:
            await self._upkeep_task


def _go_on(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
