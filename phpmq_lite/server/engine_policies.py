"""Engine policies: when to delay a commit, when to yield, what to run in the background."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from phpmq_lite.model import ACKED_KEY, Batch

_ACK_DELAY_S: Final = 0.0009  # uvloop's timers are set in whole ms, so they fire after this delay
_ACK_COMMANDS: Final = 500  # this many acknowledgements are committed without delay
_MAX_DEFER_S: Final = 0.01  # deferred work waits at most this long for a commit; the disk may hang


class AckCommitDelay:
    """Delays the commit of a batch that contains only acknowledgements.

    No client waits for an acknowledgement, but its commit would block the publish that follows.
    With one message in flight, the delay reduces two commits to one.
    """

    __slots__ = ("ends_at",)

    def __init__(self) -> None:
        self.ends_at = 0.0  # event-loop time in seconds

    def start(self, now_s: float) -> None:
        """Start the commit delay of a newly opened batch."""
        self.ends_at = now_s + _ACK_DELAY_S

    def applies(self, batch: Batch, now_s: float) -> bool:
        """Return whether the commit of an open batch should still wait for more commands."""
        return (
            0 < batch.commands < _ACK_COMMANDS
            and len(batch.settled.get(ACKED_KEY, ())) == batch.commands
            and not (batch.loads or batch.replies or batch.to_resume or batch.background)
            and not any(d or r for d, r in batch.sends.values())
            and now_s < self.ends_at
        )


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
