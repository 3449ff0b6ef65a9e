"""Starts and ends export processes, slows them down under load, and relays their data."""

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

LATE_WAKE_S: Final = 0.001  # a longer delay means that the event loop waited for a CPU
MIN_PAUSE_S: Final = 0.001  # pauses shorter than this cannot be measured
MAX_PAUSE_S: Final = 0.05  # exports are never slowed below 1 MiB per 50 ms
_DECAY: Final = 0.98  # pauses shrink slowly, because busy readers stay busy for long


class ExportPacer:
    """Slows down all exports together, because they share the CPUs.

    ``passed`` returns a number that grows while messages are processed.
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
        self._last_passed = passed()
        self._pause_s = MIN_PAUSE_S
        self._lock = asyncio.Lock()

    async def pause(self) -> float:
        """Pause before the next piece if messages were processed; return how long the call took."""
        began_s = self._now()
        async with self._lock:
            before, self._last_passed = self._last_passed, self._passed()
            if before != self._last_passed:
                pause_began_s = self._now()
                await self._sleep(self._pause_s)
                if self._now() - pause_began_s - self._pause_s > LATE_WAKE_S:
                    self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
                else:
                    self._pause_s = max(_DECAY * self._pause_s, MIN_PAUSE_S)
        return self._now() - began_s


EXPORT_LIMIT: Final = 2  # maximum number of concurrent exports
STALLED_S: Final = 30.0  # an export that sends no frame for this long is considered stalled
IDLE_S: Final = 60.0  # export processes that stay idle this long are killed
PROGRAM: Final = (  # our folder comes last in sys.path so that it shadows no other modules
    sys.executable,
    "-P",
    "-c",
    "import sys; sys.path.append(sys.argv[1]);"
    " from phpmq_lite.export.child_process import main; sys.exit(main(*sys.argv[2:]))",
    str(Path(__file__).parents[2]),
)

_log = get_logger(__name__)


class ExportError(StorageError):
    """An export was interrupted; its incomplete data must not appear to be complete."""


@dataclass(slots=True, frozen=True)
class ExportHeader:
    """Facts about an export that are known before the first byte is sent."""

    rows: int  # exact number of rows in the export
    lo: int  # bounds of the range (lo and hi), as requested or clipped
    hi: int
    history_id: str
    queue: str  # the subscription's queue; empty for history


class RunningExport:
    """An export in progress."""

    def __init__(self, process: "_ExportProcess", header: ExportHeader, pacer: ExportPacer) -> None:
        self.header = header
        self.paused_s = 0.0  # time spent pausing while messages were processed
        self._child = process
        self._pacer = pacer

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the Arrow stream in pieces of up to 1 MiB; raise ExportError if it ends early."""
        while True:
            kind, payload = await self._child.frame()
            if kind == child_process.DATA:
                yield payload
                self.paused_s += await self._pacer.pause()
                continue
            reply = json.loads(payload)
            if kind != child_process.END:
                unexpected = f"the export process sent an unexpected {kind!r} frame"
                raise ExportError(str(reply.get("detail", unexpected)))
            if reply["rows"] != self.header.rows:
                raise ExportError(
                    f"the export should contain {self.header.rows} rows, but has {reply['rows']}"
                )
            self._child.is_clean = True
            return

    async def finish(self) -> None:
        """Receive the last frame of an export for which only the header was requested."""
        kind, _ = await self._child.frame()
        self._child.is_clean = kind == child_process.END


class ExportProcesses:
    """The export processes of a broker, to be used only from the broker's event loop."""

    def __init__(
        self,
        database: Path | str,
        claims_database: Path | str,
        *,
        program: Sequence[str] = PROGRAM,
        stalled_s: float = STALLED_S,
        idle_s: float = IDLE_S,
        passed: Callable[[], int] = lambda: 0,
    ) -> None:
        self.program = program
        self.stalled_s = stalled_s
        self._databases = str(database), str(claims_database)
        self.ends: Counter[str] = Counter()  # number of ended exports by outcome, for metrics
        self._idle_s = idle_s
        self._pacer = ExportPacer(passed)
        self.running = 0  # number of running exports, at most ``EXPORT_LIMIT``
        self._idle: list[_ExportProcess] = []
        self._processes: set[_ExportProcess] = set()
        self._end_tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def pids(self) -> list[int]:
        return sorted(process.process.pid for process in self._processes)

    @asynccontextmanager
    async def open(self, request: Mapping[str, Any]) -> AsyncIterator[RunningExport]:
        """Start an export; leaving the block before the end of the stream kills its process.

        Raises:
            RefusedError: two exports are already running (``busy``), or as for ``HistoryRanges``.
            StorageError: the database cannot be read.
            ExportError: the process died or stalled.
        """
        if self._is_closed:
            raise RefusedError("draining", "the broker is stopping")
        if self.running >= EXPORT_LIMIT:
            raise RefusedError("busy", f"{EXPORT_LIMIT} exports are already running; retry later")
        self.running += 1
        process: _ExportProcess | None = None
        try:
            while self._idle and process is None:
                process = self._idle.pop()
                if process.process.returncode is not None:
                    self._end_process(process)
                    process = None
            process = process or await self._start()
            try:
                header = await process.ask(request)
            except _LostError:
                if not process.was_used:
                    raise
                self._release(process)  # the process ended while it was idle
                process = await self._start()
                header = await process.ask(request)
            yield RunningExport(process, header, self._pacer)
        finally:
            self.running -= 1
            if process is not None:
                self._release(process)

    async def close(self) -> None:
        """End all export processes, which interrupts running exports."""
        self._is_closed = True
        self._end_idle()
        for process in list(self._processes):
            self._end_process(process)
        await asyncio.gather(*self._end_tasks)

    # -- processes

    async def _start(self) -> "_ExportProcess":
        try:
            started = await asyncio.create_subprocess_exec(
                *self.program,
                *self._databases,
                stdin=PIPE,
                stdout=PIPE,
                limit=child_process.PIECE_BYTES,
                start_new_session=True,  # shield it from Ctrl-C, because the broker ends it
            )
        except OSError as error:
            raise ExportError(f"the export process did not start: {os_reason(error)}") from error
        process = _ExportProcess(started, self.stalled_s)
        self._processes.add(process)
        if self._is_closed:
            self._end_process(process)
            raise RefusedError("draining", "the broker is stopping")
        _log.info("export_process_started", pid=started.pid)
        return process

    def _release(self, process: "_ExportProcess") -> None:
        """Keep a process for the next export if it has finished its last one; otherwise kill it."""
        if not process.is_clean or self._is_closed or process not in self._processes:
            self._end_process(process)
            return
        process.was_used = True
        self._idle.append(process)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._idle_s, self._end_idle)

    def _end_idle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        while self._idle:
            self._end_process(self._idle.pop())

    def _end_process(self, process: "_ExportProcess") -> None:
        if process not in self._processes:
            return
        self._processes.discard(process)
        if not process.is_clean and not is_quiet("export_process_killed"):
            _log.warning("export_process_killed", pid=process.process.pid)
        task = asyncio.get_running_loop().create_task(process.end())
        self._end_tasks.add(task)
        task.add_done_callback(self._end_tasks.discard)


class _LostError(ExportError):
    """The export process ended."""


class _ExportProcess:
    def __init__(self, process: Process, stalled_s: float) -> None:
        self.process = process
        self.is_clean = True  # whether all replies to requests have been read
        self.was_used = False
        self._stalled_s = stalled_s
        self._is_read = False  # whether a call is waiting for a frame

    async def ask(self, request: Mapping[str, Any]) -> ExportHeader:
        if self.process.stdin is None:
            raise _LostError("the export process has no standard input")
        self.is_clean = False
        with suppress(ConnectionError):  # if the process has ended, the read below fails
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            await self.process.stdin.drain()
        kind, payload = await self.frame()
        reply = json.loads(payload)
        if kind == child_process.HEADER:
            return ExportHeader(**reply)
        if kind != child_process.ERROR:
            raise ExportError(f"the export process sent a {kind!r} frame instead of a header")
        self.is_clean = True
        if reply["code"]:
            raise RefusedError(reply["code"], reply["detail"])
        raise StorageError(reply["detail"])

    async def frame(self) -> tuple[bytes, bytes]:
        """Wait for the next frame, skipping heartbeats; raise ExportError if the process fails."""
        kind = child_process.BEAT
        payload = b""
        while kind == child_process.BEAT:
            try:
                async with asyncio.timeout(self._stalled_s):
                    kind, payload = await self._read()
            except TimeoutError:
                detail = f"the export process sent nothing for {self._stalled_s:g} s"
                raise ExportError(detail) from None
        return kind, payload

    async def _read(self) -> tuple[bytes, bytes]:
        stdout = self.process.stdout
        if stdout is None:
            raise _LostError("the export process has no standard output")
        self._is_read = True
        try:
            kind, size = child_process.PREFIX.unpack(
                await stdout.readexactly(child_process.PREFIX.size)
            )
            if size > child_process.PIECE_BYTES:
                limit = child_process.PIECE_BYTES
                raise ExportError(
                    f"the export process sent a frame of {size} bytes; the limit is {limit}"
                )
            return kind, await stdout.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise _LostError("the export process exited unexpectedly") from None
        finally:
            self._is_read = False

    async def end(self) -> None:
        """Kill the process and wait until it has ended."""
        with suppress(ProcessLookupError):
            self.process.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()
        # Unread data would keep the pipe open, so read the rest, unless another call is reading it.
        while self.process.stdout is not None and not self._is_read:
            if not await self.process.stdout.read(child_process.PIECE_BYTES):
                break
        await self.process.wait()
