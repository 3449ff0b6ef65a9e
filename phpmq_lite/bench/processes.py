"""Runs load generators in separate processes, and measures the CPU time of processes."""

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import Any, Final

from phpmq_lite.broker_process import signals_blocked
from phpmq_lite.errors import ClientError, PhpmqError, os_reason

BenchFunction = Callable[..., Generator[None, None, Any]]

_START_S: Final = 60.0  # maximum number of seconds for a process to import modules and prepare
_TICK_S: Final = 0.25
_spawn = multiprocessing.get_context("spawn")  # processes without the parent's threads or memory


@dataclass(slots=True, frozen=True)
class BenchJob:
    """A generator function to run in a separate process, with arguments that can be pickled.

    The function prepares, yields once, and measures when it is resumed.
    """

    function: BenchFunction
    arguments: tuple[Any, ...] = ()


@dataclass(slots=True, frozen=True)
class BenchTiming:
    """The result of a benchmark job; times are from a monotonic clock that all processes share."""

    value: Any
    began_s: float
    ended_s: float
    cpu_s: float  # CPU time that the job's process used during the measurement


@contextmanager
def unwind_on_signals() -> Iterator[None]:
    """Raise SystemExit on SIGTERM and SIGHUP within the block, so that child processes stop."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    previous = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def run_together(
    jobs: dict[str, BenchJob],
    limit_s: float,
    on_start: Callable[[], None] = lambda: None,
    on_tick: Callable[[], None] = lambda: None,
) -> dict[str, BenchTiming]:
    """Prepare all jobs, start their measurements at the same time, and return the results.

    ``limit_s`` is counted from the start of the measurements, right before which ``on_start`` is
    called; ``on_tick`` is called a few times per second.  Errors name the jobs.

    Raises:
        ClientError: a job failed or timed out; all processes have ended.
    """
    running: list[tuple[str, SpawnProcess, Connection]] = []
    try:
        for name, job in jobs.items():
            with signals_blocked(signal.SIGINT):  # on Ctrl-C, the parent ends the jobs
                pipe, child_end = _spawn.Pipe()
                process = _spawn.Process(target=_work, args=(child_end, job), daemon=True)
                process.start()
                child_end.close()
                running.append((name, process, pipe))
        pipes = {pipe: name for name, _, pipe in running}
        _gather(pipes, _START_S, on_tick)
        on_start()
        for pipe in pipes:
            pipe.send(None)
        return _gather(pipes, limit_s, on_tick)
    finally:
        with signals_blocked(signal.SIGINT, signal.SIGTERM):
            for _, process, pipe in running:
                process.kill()  # has no effect if the process has already ended
                process.join()
                pipe.close()


def _gather(
    pipes: dict[Connection, str], limit_s: float, on_tick: Callable[[], None]
) -> dict[str, Any]:
    replies: dict[str, Any] = {}
    end_s = time.monotonic() + limit_s
    while len(replies) < len(pipes):
        pending = [pipe for pipe, name in pipes.items() if name not in replies]
        readable = wait(pending, _TICK_S)
        for pipe in pending:
            if pipe in readable:
                replies[pipes[pipe]] = _receive(pipe, pipes[pipe])
        on_tick()
        if time.monotonic() > end_s and len(replies) < len(pipes):
            unfinished = ", ".join(pipes[pipe] for pipe in pending)
            raise ClientError(f"{unfinished}: did not finish within {limit_s:.0f} s")
    return {name: replies[name] for name in pipes.values()}


def _receive(pipe: Connection, name: str) -> Any:
    try:
        reply = pipe.recv()
    except EOFError:
        raise ClientError(f"{name}: the process ended without a result") from None
    if isinstance(reply, str):
        raise ClientError(f"{name}: {reply}")
    return reply


def _work(pipe: Connection, job: BenchJob) -> None:
    """Run a job in this process; send one reply once it is prepared and another once it is done."""
    try:
        generator = job.function(*job.arguments)
        next(generator)
        pipe.send(None)
        pipe.recv()
        began_s, cpu_s = time.monotonic(), time.process_time()
        try:
            next(generator)
            raise RuntimeError("a benchmark job must yield exactly once")
        except StopIteration as stop:
            value = stop.value
        ended_s = time.monotonic()
        pipe.send(BenchTiming(value, began_s, ended_s, time.process_time() - cpu_s))
    except (PhpmqError, OSError) as error:
        pipe.send(os_reason(error) if isinstance(error, OSError) else str(error))
    except Exception:
        pipe.send(traceback.format_exc())


_PROC: Final = Path("/proc")


def cpu_seconds(pid: int) -> float | None:
    """Return the CPU time of a process and its children, such as a writer; None if unknown."""
    folder = _PROC / str(pid)
    try:
        text = (folder / "stat").read_text()
        children = [file.read_text() for file in folder.glob("task/*/children")]
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the process name before ")" may contain spaces
    own_s = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # with children that have ended
    return own_s + sum(cpu_seconds(int(child)) or 0.0 for child in " ".join(children).split())


def busy_seconds() -> float | None:
    """Return the total CPU time used on all cores since boot, or None if unknown."""
    try:
        line = (_PROC / "stat").read_text().partition("\n")[0]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq = map(int, line.split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
