"""Load generators in processes of their own; CPU time and memory of processes."""

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

from phpmq_lite.errors import ClientError, PhpmqError, os_reason

BenchPiece = Callable[..., Generator[None, None, Any]]

_START_S: Final = 60.0  # for a process to import and prepare
_TICK_S: Final = 0.25
_spawn = multiprocessing.get_context("spawn")  # no copy of the parent's threads and memory


@dataclass(slots=True, frozen=True)
class BenchJob:
    """A piece and its arguments, which are pickled."""

    piece: BenchPiece
    arguments: tuple[Any, ...] = ()


@dataclass(slots=True, frozen=True)
class BenchTiming:
    """What one job did; the times are on the monotonic clock, which all processes share."""

    value: Any
    began_s: float
    ended_s: float
    cpu_s: float  # of its process, while it was measured


@contextmanager
def signals_blocked(*signals: signal.Signals) -> Iterator[None]:
    """Put these signals off; a process that is started meanwhile never gets them."""
    former = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


@contextmanager
def unwound_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind as Ctrl-C does: no process must be left behind."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    former = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def run_together(
    jobs: dict[str, BenchJob],
    limit_s: float,
    on_start: Callable[[], None] = lambda: None,
    on_tick: Callable[[], None] = lambda: None,
) -> dict[str, BenchTiming]:
    """Prepare all jobs, release them at once, and return what each of them did.

    Args:
        jobs: by name; the names appear in errors.
        limit_s: they must be done by then, counted from the release.
        on_start: called when all are prepared, right before the release.
        on_tick: called a few times a second while they work.

    Raises:
        ClientError: a job failed or was too slow; all of them have ended.
    """
    running: list[tuple[str, SpawnProcess, Connection]] = []
    try:
        for name, job in jobs.items():
            with signals_blocked(signal.SIGINT):  # of Ctrl-C: it is for us to end them
                running.append((name, *_start(job)))
        pipes = {pipe: name for name, _, pipe in running}
        _gather(pipes, _START_S, on_tick)
        on_start()
        for pipe in pipes:
            pipe.send(None)
        return _gather(pipes, limit_s, on_tick)
    finally:
        with signals_blocked(signal.SIGINT, signal.SIGTERM):
            for _, process, pipe in running:
                process.kill()  # does nothing where it has ended
                process.join()
                pipe.close()


def _start(job: BenchJob) -> tuple[SpawnProcess, Connection]:
    here, there = _spawn.Pipe()
    process = _spawn.Process(target=_work, args=(there, job), daemon=True)
    process.start()
    there.close()
    return process, here


def _gather(
    pipes: dict[Connection, str], limit_s: float, on_tick: Callable[[], None]
) -> dict[str, Any]:
    """Return one answer per pipe, in the order of the pipes."""
    answers: dict[str, Any] = {}
    end_s = time.monotonic() + limit_s
    while len(answers) < len(pipes):
        silent = [pipe for pipe, name in pipes.items() if name not in answers]
        spoken = wait(silent, _TICK_S)
        for pipe in silent:
            if pipe in spoken:
                answers[pipes[pipe]] = _receive(pipe, pipes[pipe])
        on_tick()
        if time.monotonic() > end_s and len(answers) < len(pipes):
            late = ", ".join(pipes[pipe] for pipe in silent)
            raise ClientError(f"{late}: not done within {limit_s:.0f} s")
    return {name: answers[name] for name in pipes.values()}


def _receive(pipe: Connection, name: str) -> Any:
    try:
        answer = pipe.recv()
    except EOFError:
        raise ClientError(f"{name}: its process ended without a word") from None
    if isinstance(answer, str):
        raise ClientError(f"{name}: {answer}")
    return answer


def _work(pipe: Connection, job: BenchJob) -> None:
    """Run one job, in its process: an answer when prepared, an answer when done."""
    try:
        piece = job.piece(*job.arguments)
        next(piece)
        pipe.send(None)
        pipe.recv()
        began_s, cpu_s = time.monotonic(), time.process_time()
        value = _finish(piece)
        ended_s = time.monotonic()
        pipe.send(BenchTiming(value, began_s, ended_s, time.process_time() - cpu_s))
    except (PhpmqError, OSError) as error:
        pipe.send(os_reason(error) if isinstance(error, OSError) else str(error))
    except Exception:
        pipe.send(traceback.format_exc())


def _finish(piece: Generator[None, None, Any]) -> Any:
    try:
        next(piece)
    except StopIteration as stop:
        return stop.value
    raise RuntimeError("a piece yields once")


_PROC: Final = Path("/proc")


def cpu_seconds(pid: int) -> float | None:
    """Return user and system time of all threads of a process so far."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may contain anything
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float | None:
    """Return what all processes of the machine have used so far, over all cores."""
    try:
        line = (_PROC / "stat").read_text().partition("\n")[0]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq = map(int, line.split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int | None:
    """Return the memory of a process that is in RAM (VmRSS)."""
    return _memory(pid, "VmRSS:")


def peak_resident_bytes(pid: int) -> int | None:
    """Return the most memory of a process that was in RAM at any time (VmHWM)."""
    return _memory(pid, "VmHWM:")


def _memory(pid: int, name: str) -> int | None:
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(name):
            return int(line.split()[1]) << 10
    return None
