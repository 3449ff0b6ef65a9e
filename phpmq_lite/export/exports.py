"""Starts, paces, relays and ends export processes."""

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from phpmq_lite.errors import RefusedError, StorageError, os_reason
from phpmq_lite.export import child_process
from phpmq_lite.logs import get_logger, is_quiet

LATE_S: Final = 0.001  # woken later than that, the loop had to wait for a processor
LEAST_S: Final = 0.001  # a pause has to be one, else it tells nothing
MOST_S: Final = 0.05  # so a piece of 1 MiB each 50 ms is the slowest
_FASTER: Final = 0.98  # slowly: a reader that is woken works for long


class ExportPacer:
    """The pauses of all exports together, which share the processors too.

    Args:
        passed: gives a number that grows while messages pass.
        now: seconds, monotonic.
        sleep: waits that many seconds.
    """

    def __init__(
        self,
        passed: Callable[[], int],
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._passed = passed
        self._now = now
        self._sleep = sleep
        self._seen = passed()
        self._pause_s = LEAST_S
        self._turn = asyncio.Lock()

    async def pause(self) -> float:
        """Wait before the next piece, one export at a time; not where no message passed.

        Returns:
            How long it was, in seconds.
        """
        began_s = self._now()
        async with self._turn:
            seen, self._seen = self._seen, self._passed()
            if seen != self._seen:
                await self._rest()
        return self._now() - began_s

    async def _rest(self) -> None:
        began_s = self._now()
        await self._sleep(self._pause_s)
        late_s = self._now() - began_s - self._pause_s
        if late_s > LATE_S:
            self._pause_s = min(2 * self._pause_s, MOST_S)
        else:
            self._pause_s = max(_FASTER * self._pause_s, LEAST_S)


EXPORT_LIMIT: Final = 2  # exports at once
STALLED_S: Final = 30.0  # without a frame
IDLE_S: Final = 60.0  # then a process without work ends
PROGRAM: Final = (  # found where this is, without anything else of that folder going first
    sys.executable, "-P", "-c",
    "import sys; sys.path.append(sys.argv[1]);"
    " from phpmq_lite.export.child_process import main; sys.exit(main(sys.argv[2]))",
    str(Path(__file__).parents[2]),
)  # fmt: skip

_log = get_logger(__name__)


class ExportError(StorageError):
    """An export broke off: what was given is not all of it, and must not look so."""


@dataclass(slots=True, frozen=True)
class ExportHeader:
    """What is known before the first byte."""

    rows: int  # exact
    lo: int  # as asked, or clipped
    hi: int
    history_id: str
    queue: str  # of a subscription; else empty


class RunningExport:
    """One export that runs."""

    def __init__(self, child: "_ExportProcess", head: ExportHeader, pace: ExportPacer) -> None:
        self.head = head
        self.paused_s = 0.0  # so long it stood behind messages
        self._child = child
        self._pace = pace

    async def pieces(self) -> AsyncIterator[bytes]:
        """Give the Arrow stream, at most 1 MiB at a time; returns only where it is all of it.

        Raises:
            ExportError: it is not.
        """
        while True:
            kind, payload = await self._child.frame()
            if kind == child_process.DATA:
                yield payload
                self.paused_s += await self._pace.pause()
                continue
            told = _object(payload)
            if kind != child_process.END:
                raise ExportError(str(told.get("detail", f"the process sent {kind!r}")))
            if told["rows"] != self.head.rows:
                raise ExportError(f"{told['rows']} rows came, {self.head.rows} were announced")
            self._child.is_clean = True
            return

    async def finish(self) -> None:
        """Take the end of an export of which only the head was asked."""
        kind, _ = await self._child.frame()
        self._child.is_clean = kind == child_process.END


class ExportProcesses:
    """The exports of one broker; all calls from its loop.

    ``passed`` gives a number that grows while messages pass; exports then go on more slowly.
    """

    def __init__(
        self,
        database: Path,
        *,
        program: Sequence[str] = PROGRAM,
        stalled_s: float = STALLED_S,
        idle_s: float = IDLE_S,
        passed: Callable[[], int] = lambda: 0,
    ) -> None:
        self.program = program
        self.stalled_s = stalled_s
        self._database = database
        self.ends: Counter[str] = Counter()  # exports by how they ended, for the metrics
        self._idle_s = idle_s
        self._pace = ExportPacer(passed)
        self._running = 0
        self._free: list[_ExportProcess] = []
        self._all: set[_ExportProcess] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def running(self) -> int:
        """Count the exports that run; at most ``EXPORT_LIMIT``."""
        return self._running

    @property
    def pids(self) -> list[int]:
        """Give the processes that there are."""
        return sorted(child.process.pid for child in self._all)

    @asynccontextmanager
    async def open(self, asked: Mapping[str, Any]) -> AsyncIterator[RunningExport]:
        """Begin an export; where it is left before its end, its process is killed.

        Raises:
            RefusedError: ``busy``: two run already; or what ``storage.ranges`` refuses.
            StorageError: the database cannot be read.
            ExportError: the process died or stalled.
        """
        if self._is_closed:
            raise RefusedError("draining", "the broker stops")
        if self._running >= EXPORT_LIMIT:
            raise RefusedError("busy", f"{EXPORT_LIMIT} exports are running, and no more at once")
        self._running += 1
        child: _ExportProcess | None = None
        try:
            child = await self._take()
            try:
                head = await child.ask(asked)
            except _LostError:
                if not child.was_used:
                    raise
                self._release(child)  # it ended while it had no work
                child = await self._start()
                head = await child.ask(asked)
            yield RunningExport(child, head, self._pace)
        finally:
            self._running -= 1
            if child is not None:
                self._release(child)

    async def close(self) -> None:
        """End all processes; exports that run break off."""
        self._is_closed = True
        self._end_idle()
        for child in list(self._all):
            self._end(child)
        await asyncio.gather(*self._ending)

    # -- processes

    async def _take(self) -> "_ExportProcess":
        while self._free:
            child = self._free.pop()
            if child.process.returncode is None:
                return child
            self._end(child)
        return await self._start()

    async def _start(self) -> "_ExportProcess":
        try:
            process = await asyncio.create_subprocess_exec(
                *self.program, str(self._database), stdin=PIPE, stdout=PIPE,
                limit=child_process.PIECE,
                start_new_session=True,  # Ctrl-C is for the broker, which ends it
            )  # fmt: skip
        except OSError as error:
            raise ExportError(f"the export process does not start: {os_reason(error)}") from error
        child = _ExportProcess(process, self.stalled_s)
        self._all.add(child)
        if self._is_closed:
            self._end(child)
            raise RefusedError("draining", "the broker stops")
        _log.info("export_process_started", pid=process.pid)
        return child

    def _release(self, child: "_ExportProcess") -> None:
        """Keep a process that came to its end for the next export; any other is killed."""
        if not child.is_clean or self._is_closed or child not in self._all:
            self._end(child)
            return
        child.was_used = True
        self._free.append(child)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._idle_s, self._end_idle)

    def _end_idle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        while self._free:
            self._end(self._free.pop())

    def _end(self, child: "_ExportProcess") -> None:
        if child not in self._all:
            return
        self._all.discard(child)
        if not child.is_clean and not is_quiet("export_process_killed"):
            _log.warning("export_process_killed", pid=child.process.pid)
        task = asyncio.get_running_loop().create_task(child.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


class _LostError(ExportError):
    """The process ended."""


class _ExportProcess:
    """One process, between two frames."""

    def __init__(self, process: Process, stalled_s: float) -> None:
        self.process = process
        self.is_clean = True  # nothing of an answer is on its way
        self.was_used = False
        self._stalled_s = stalled_s
        self._is_read = False  # somebody waits for a frame

    async def ask(self, asked: Mapping[str, Any]) -> ExportHeader:
        """Send a request and wait for the head of its answer."""
        if self.process.stdin is None:
            raise _LostError("the export process has no input")
        self.is_clean = False
        with suppress(ConnectionError):  # it is gone: then it says nothing either
            self.process.stdin.write(json.dumps(asked).encode() + b"\n")
            await self.process.stdin.drain()
        kind, payload = await self.frame()
        told = _object(payload)
        if kind == child_process.HEAD:
            return ExportHeader(**told)
        if kind != child_process.ERROR:
            raise ExportError(f"the export process sent {kind!r} first")
        self.is_clean = True
        if told["code"]:
            raise RefusedError(told["code"], told["detail"])
        raise StorageError(told["detail"])

    async def frame(self) -> tuple[bytes, bytes]:
        """Wait for the next frame, but for beats.

        Raises:
            _LostError: the process ended.
            ExportError: nothing came for too long, or nothing that is a frame.
        """
        kind = child_process.BEAT
        payload = b""
        while kind == child_process.BEAT:
            try:
                async with asyncio.timeout(self._stalled_s):
                    kind, payload = await self._read()
            except TimeoutError:
                detail = f"the export process gave nothing for {self._stalled_s:g} s"
                raise ExportError(detail) from None
        return kind, payload

    async def _read(self) -> tuple[bytes, bytes]:
        stdout = self.process.stdout
        if stdout is None:
            raise _LostError("the export process has no output")
        self._is_read = True
        try:
            kind, size = child_process.PREFIX.unpack(
                await stdout.readexactly(child_process.PREFIX.size)
            )
            if size > child_process.PIECE:
                raise ExportError(f"the export process sent a frame of {size} bytes")
            return kind, await stdout.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise _LostError("the export process ended") from None
        finally:
            self._is_read = False

    async def end(self) -> None:
        """Kill it, and wait until it is gone."""
        with suppress(ProcessLookupError):
            self.process.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()
        # What is left in the pipe would keep it open, unless somebody reads to its end anyway.
        while self.process.stdout is not None and not self._is_read:
            if not await self.process.stdout.read(child_process.PIECE):
                break
        await self.process.wait()


def _object(payload: bytes) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(payload)
    return told
