"""Progress of long commands: bars on a terminal, JSON lines elsewhere."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, Final, NamedTuple

EVERY_S: Final = 10.0
_TICK_S: Final = 1.0
_RATE_OVER_S: Final = 30.0  # a batch of Spark's takes seconds: less would jump


class ProgressState(NamedTuple):
    """What is known of a phase: rows or offsets, a rate and the seconds left, None if unknown."""

    phase: str
    done: int
    total: int | None
    per_s: float | None
    remaining_s: float | None
    elapsed_s: float


class PhaseMeter:
    """The phase under way; turns what a job reports into rates.  Times are monotonic seconds."""

    def __init__(self) -> None:
        self._phase = ""
        self._began_s = 0.0
        self._total: int | None = None
        self._seen: list[tuple[float, int]] = []  # (when, done), the oldest first

    def report(self, phase: str, done: int, total: int | None, now_s: float) -> bool:
        """Take what a job says; tell whether another phase began."""
        is_new = phase != self._phase
        if is_new:
            self._phase, self._began_s, self._total, self._seen = phase, now_s, None, []
        is_begun = self._total is None and total is not None  # what was said before was no offset
        self._total = total
        if not self._seen or done < self._seen[-1][1] or is_begun:
            self._seen = [(now_s, done)]  # a round began, or began again
        elif done > self._seen[-1][1]:
            self._seen.append((now_s, done))
        while len(self._seen) > 2 and now_s - self._seen[0][0] > _RATE_OVER_S:
            del self._seen[0]
        return is_new

    def state(self, now_s: float) -> ProgressState:
        """Say how far the phase is."""
        done = self._seen[-1][1] if self._seen else 0
        per_s = self._per_s(now_s)
        left = None if self._total is None else max(self._total - done, 0)
        remaining_s = None if left is None or not per_s else left / per_s
        return ProgressState(
            self._phase, done, self._total, per_s, remaining_s, max(now_s - self._began_s, 0.0)
        )

    def _per_s(self, now_s: float) -> float | None:
        """Rate since the oldest figure; time without progress counts."""
        if len(self._seen) < 2:
            return None
        (since_s, before), (_, done) = self._seen[0], self._seen[-1]
        return (done - before) / (now_s - since_s) if now_s > since_s else None


def progress_line(state: ProgressState) -> str:
    """Write a state as one JSON line; figures that are not known are null."""
    return json.dumps(
        {
            "phase": state.phase,
            "done": state.done,
            "total": state.total,
            "per_s": None if state.per_s is None else round(state.per_s, 1),
            "remaining_s": None if state.remaining_s is None else round(state.remaining_s),
            "elapsed_s": round(state.elapsed_s, 1),
        }
    )


def progress_text(state: ProgressState) -> str:
    """Write the figures as a person reads them: ``1,200 of 5,000  300/s  0:13 left``."""
    if state.total is None and not state.done:
        return f"{_clock(state.elapsed_s)} gone"
    of = "" if state.total is None else f" of {state.total:,}"
    digits = 1 if state.per_s is not None and state.per_s < 10 else 0
    rate = "" if state.per_s is None else f"  {state.per_s:,.{digits}f}/s"
    left = "" if state.remaining_s is None else f"  {_clock(state.remaining_s)} left"
    return f"{state.done:,}{of}{rate}{left}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class JobProgress:
    """What a command reports to; thread-safe.  ``note`` writes a line beside it."""

    def __init__(
        self, show: Callable[[ProgressState, bool], None], write: Callable[[str], None]
    ) -> None:
        self._show = show
        self._write = write
        self._meter = PhaseMeter()
        self._lock = threading.Lock()

    def __call__(self, phase: str, done: int = 0, total: int | None = None) -> None:
        """Take what a job reports: its phase, rows or offsets done, and of how many."""
        now_s = time.monotonic()
        with self._lock:
            is_new = self._meter.report(phase, done, total, now_s)
            self._show(self._meter.state(now_s), is_new)

    def tick(self) -> None:
        """Show the phase again, for its time goes on."""
        with self._lock:
            self._show(self._meter.state(time.monotonic()), False)

    def note(self, text: str) -> None:
        """Say something to the person, or to the log where nobody sits."""
        with self._lock:
            self._write(text)


@contextmanager
def show_progress(stream: IO[str]) -> Iterator[JobProgress]:
    """Show progress on this stream until the block ends."""
    with (_on_terminal if stream.isatty() else _in_lines)(stream) as progress:
        yield progress


@contextmanager
def _in_lines(stream: IO[str]) -> Iterator[JobProgress]:
    last_s = -EVERY_S

    def write(line: str) -> None:
        stream.write(line + "\n")
        stream.flush()

    def show(state: ProgressState, is_new: bool) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if state.phase and (is_new or now_s - last_s >= EVERY_S):
            last_s = now_s
            write(progress_line(state))

    progress = JobProgress(show, lambda text: write(json.dumps({"note": text})))
    with _ticking(progress):
        yield progress


@contextmanager
def _on_terminal(stream: IO[str]) -> Iterator[JobProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Bars

    console = Console(file=stream)
    columns: tuple[Any, ...] = (
        SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(24),
        TextColumn("{task.fields[figures]}", markup=False),
    )  # fmt: skip
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=None, figures="")

        def show(state: ProgressState, is_new: bool) -> None:
            if is_new:
                bars.reset(task, total=state.total)
            bars.update(
                task, description=state.phase, completed=state.done, figures=progress_text(state)
            )
            bars.tasks[0].total = state.total  # None too: the bar then only moves

        progress = JobProgress(
            show, lambda text: console.print(text, markup=False, highlight=False)
        )
        with _ticking(progress):
            yield progress


@contextmanager
def _ticking(progress: JobProgress) -> Iterator[None]:
    """Show the state again and again: a batch of Spark's may report nothing for a minute."""
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(_TICK_S):
            progress.tick()

    thread = threading.Thread(target=tick, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


_WORTH_A_BAR: Final = 1_000


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error if that is a terminal; gives what advances it.

    ``total`` is None where it is not known; with less than a thousand there is nothing to see.
    """
    if not sys.stderr.isatty() or (total is not None and total < _WORTH_A_BAR):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Elapsed())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
