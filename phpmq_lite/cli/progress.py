"""Shows the progress of long commands, and on a terminal how long they have been silent."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.progress import Progress, Task

EVERY_S: Final = 10.0  # seconds between lines about the same phase
_SPEED_OVER_S: Final = 30.0  # a rate needs a period longer than a Spark batch, which takes seconds
_MIN_TOTAL: Final = 1_000  # a bar with a smaller total appears only after a delay
_DELAY_S: Final = 0.5


class JobProgress:
    """Shows the progress of a job. Its methods can be called from any thread.

    ``bars`` estimates rate and remaining time; ``write`` prints a line, which is JSON unless
    ``bars`` are visible.
    """

    def __init__(self, bars: "Progress", write: Callable[[str], None]) -> None:
        self._bars = bars
        self._write = write
        self._id = bars.add_task("", total=None)
        self._lock = threading.Lock()
        self._written_s = -EVERY_S

    def __call__(self, phase: str, count: int = 0, total: int | None = None) -> None:
        """Report the phase, the number of rows or offsets so far, and the total if known."""
        with self._lock:
            task = self._bars.tasks[0]
            is_new = phase != task.description
            if is_new or count < task.completed:  # a new phase or round has begun
                self._bars.reset(self._id, description=phase, completed=count)
            elif count > task.completed:
                self._bars.update(self._id, completed=count)
            task.total = total  # set directly, because update() would reset the rate
            self._write_line(task, is_due=is_new)

    def tick(self) -> None:
        """Write a line if none was written recently, because a batch may be silent for a minute."""
        with self._lock:
            self._write_line(self._bars.tasks[0], is_due=False)

    def note(self, text: str) -> None:
        """Print a message above the progress display."""
        with self._lock:
            self._write(json.dumps({"note": text}) if self._bars.disable else text)

    def _write_line(self, task: "Task", *, is_due: bool) -> None:
        now_s = time.monotonic()
        if not self._bars.disable or not task.description:
            return
        if is_due or now_s - self._written_s >= EVERY_S:
            self._written_s = now_s
            self._write(progress_line(task))


def progress_line(task: "Task") -> str:
    """Return a phase's progress as a line of JSON, with null for unknown values."""
    return json.dumps(
        {
            "phase": task.description,
            "done": int(task.completed),
            "total": None if task.total is None else int(task.total),
            "per_s": None if task.speed is None else round(task.speed, 1),
            "remaining_s": None if task.total is None else task.time_remaining,
            "elapsed_s": round(task.elapsed or 0.0, 1),
        }
    )


def progress_text(task: "Task") -> str:
    """Return the progress of a phase as text, such as ``1,200 of 5,000  300/s``."""
    total = "" if task.total is None else f" of {task.total:,.0f}"
    speed = task.speed
    rate = "" if speed is None else f"  {speed:,.{1 if speed < 10 else 0}f}/s"
    return f"{task.completed:,.0f}{total}{rate}" if total or task.completed else ""


@contextmanager
def show_progress(stream: IO[str]) -> Iterator[JobProgress]:
    """Show the progress of a job on a stream until the ``with`` block ends."""
    from rich import progress as parts
    from rich.console import Console
    from rich.text import Text

    class Figures(parts.ProgressColumn):
        def render(self, task: "Task") -> Text:
            return Text(progress_text(task))

    def write(text: str) -> None:
        if stream.isatty():
            console.print(text, markup=False, highlight=False)
        else:
            print(text, file=stream, flush=True)

    def tick() -> None:
        while not is_over.wait(1.0):
            progress.tick()

    is_over = threading.Event()
    console = Console(file=stream)
    with parts.Progress(
        parts.SpinnerColumn(),
        parts.TextColumn("{task.description}", markup=False),
        parts.BarColumn(24),
        Figures(),
        parts.TimeElapsedColumn(),
        parts.TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not stream.isatty(),
        speed_estimate_period=_SPEED_OVER_S,
    ) as bars:
        progress = JobProgress(bars, write)
        thread = threading.Thread(target=tick, name="progress", daemon=True)
        thread.start()
        try:
            yield progress
        finally:
            is_over.set()
            thread.join()


@contextmanager
def progress_bar(action: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal unless the job is short; yield a function that advances it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    description = TextColumn("{task.description}")
    progress = Progress(description, *columns, console=Console(stderr=True), transient=True)
    task = progress.add_task(action, total=total)
    is_short = total is not None and total < _MIN_TOTAL
    showing = threading.Timer(_DELAY_S if is_short else 0.0, progress.start)
    showing.daemon = True
    showing.start()
    if not is_short:
        showing.join()
    try:
        yield lambda count: progress.advance(task, count)
    finally:
        showing.cancel()
        showing.join()
        progress.stop()


# These wait for messages or for the user, or print what the shell reads.
_QUIET: Final = {"completion", "consume", "docs", "outbox", "publish", "serve", "user", "worker"}
_SILENT_S: Final = 0.8
_EVERY_S: Final = 0.2


@contextmanager
def shown_silence(words: Sequence[str]) -> Iterator[None]:
    """Show the silence of the command with these arguments, if it may be long."""
    name = " ".join(word for word in words[:2] if not word.startswith("-"))
    if name and words[0] not in _QUIET and sys.stderr.isatty():
        line = _SilenceLine(name)
        try:
            yield
        finally:
            line.end()
    else:
        yield


class _SilenceLine:
    def __init__(self, name: str) -> None:
        self._name = name
        self._output: Any = sys.stderr.buffer  # bypasses ``on_write``
        self._began_s = self._written_s = time.monotonic()
        self._lock = threading.RLock()
        self._line = b""  # as it is on the terminal; empty if it is not there
        self._is_new_line = True  # False within a line, such as a prompt or a progress bar
        for stream in sys.stdout, sys.stderr:
            if stream.isatty():
                setattr(stream, "on_write", self._on_write)  # noqa: B010 - only prepared streams
        threading.Thread(target=self._run, name="silence", daemon=True).start()

    def end(self) -> None:
        """Remove the line, and show it no more."""
        with self._lock:
            self._remove()
            self._is_new_line = False

    def _on_write(self, text: str) -> None:
        with self._lock:
            self._remove()
            self._written_s = time.monotonic()
            self._is_new_line = text.endswith("\n") if text else self._is_new_line

    def _remove(self) -> None:
        if self._line:
            self._output.write(b"\r\x1b[K")
            self._output.flush()
            self._line = b""

    def _run(self) -> None:
        while True:
            time.sleep(_EVERY_S)
            with self._lock:
                now_s = time.monotonic()
                line = f"\r\x1b[K{self._name}: {now_s - self._began_s:.0f} s".encode()
                is_silent = self._is_new_line and now_s - self._written_s >= _SILENT_S
                if is_silent and line != self._line:
                    self._output.write(line)
                    self._line = line
