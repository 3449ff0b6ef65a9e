"""Runs jobs in one Spark session, once or in rounds, and leaves the summary for Insights."""

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from phpmq_lite.cli.main import CommandError
from phpmq_lite.cli.output import Column, write
from phpmq_lite.cli.pipeline.progress import Progress, shown
from phpmq_lite.cli.pipeline.sessions import INTERRUPTED, explained, sentence_of, session
from phpmq_lite.cli.pipeline.stopping import Stopping
from phpmq_lite.cli.pipeline.target import Target
from phpmq_lite.errors import PhpmqError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from phpmq_lite.spark.jobs.options import Common, Result
    from phpmq_lite.spark.summary import JobRun

_COLUMNS: Final = (
    Column("job", "JOB"),
    Column("rows", "ROWS", is_number=True),
    Column("offset", "OFFSET", is_number=True),
    Column("batches", "BATCHES", is_number=True),
    Column("seconds", "SECONDS", is_number=True),
    Column("details", "DETAILS"),
)


class Job(NamedTuple):
    """A job by its module's name, and its options; ``is_noted``: the summary tells of it."""

    name: str
    options: "Common"
    is_noted: bool = True


class Done(NamedTuple):
    """What a job answered, and how long it took."""

    result: "Result"
    seconds: float


def execute(
    target: Target,
    jobs: Sequence[Job],
    *,
    every_s: float | None = None,
    output: str | None = None,
) -> None:
    """Run jobs one after another, once or in rounds, and write their results.

    Args:
        target: where to read and write, and which Spark.
        jobs: in their order; the first that fails ends the command.
        every_s: seconds from the end of a round to the next; None for one round.
        output: format of the results; rounds write JSON lines unless told otherwise.
    """
    finished: list[Done] = []
    with ExitStack() as stack:
        progress = stack.enter_context(shown(sys.stderr))
        stack.enter_context(explained(target))
        spark = stack.enter_context(session(target, progress))
        stopping = Stopping(progress.note)
        with stopping.heard():
            for done in _rounds(spark, jobs, progress, stopping, every_s):
                if every_s is None:
                    finished = done
                else:
                    _show(done, output or "jsonl")
    if every_s is None:
        _show(finished, output)
    if stopping.signal == signal.SIGINT:
        raise CommandError("stopped after the batch; run it again to go on", INTERRUPTED)


def _rounds(
    spark: "SparkSession",
    jobs: Sequence[Job],
    progress: Progress,
    stopping: Stopping,
    every_s: float | None,
) -> Iterator[list[Done]]:
    """Yield what each round did; ends early when asked to stop."""
    while True:
        yield _round(spark, jobs, progress, stopping)
        if every_s is None or stopping():
            return
        progress("waiting")
        stopping.wait(every_s)
        if stopping():
            return


def _round(
    spark: "SparkSession", jobs: Sequence[Job], progress: Progress, stopping: Stopping
) -> list[Done]:
    """Run each job once; the summary is written also where one fails."""
    done: list[Done] = []
    runs: list[JobRun] = []
    try:
        for job in jobs:
            if stopping():
                break
            done.append(_run(spark, job, progress, stopping, runs))
    except Exception as first:
        if stopping.is_cut:
            raise
        try:
            _summarize(spark, jobs, runs, progress)
        except Exception as error:  # the job's own error is the one to tell
            if _text_of(error) != _text_of(first):
                progress.note(f"the summary was not written: {_text_of(error)}")
        raise
    _summarize(spark, jobs, runs, progress)
    return done


def _run(
    spark: "SparkSession",
    job: Job,
    progress: Progress,
    stopping: Stopping,
    runs: "list[JobRun]",
) -> Done:
    """Run a job and note in ``runs`` how it ended."""
    progress(job.name)
    began_ms, began_s = _now_ms(), time.monotonic()
    try:
        run = import_module(f"phpmq_lite.spark.jobs.{job.name}").run
        result: Result = run(spark, job.options, progress, stopping)
    except Exception as error:
        if job.is_noted:
            runs.append(_run_of(job.name, "failed", began_ms, error=_text_of(error)))
        raise
    if job.is_noted:
        state = "stopped" if result.is_stopped else "done"
        runs.append(_run_of(job.name, state, began_ms, offset=result.offset))
    return Done(result, time.monotonic() - began_s)


def _summarize(
    spark: "SparkSession", jobs: Sequence[Job], runs: "list[JobRun]", progress: Progress
) -> None:
    """Write the summary; what did not work is a note."""
    from phpmq_lite.spark import summary

    if not runs:
        return
    progress("summary")
    options = jobs[0].options
    for note in summary.write(spark, options, runs, now_ms=_now_ms(), report=progress):
        progress.note(note)


def _run_of(
    name: str, state: str, began_ms: int, *, offset: int | None = None, error: str | None = None
) -> "JobRun":
    from phpmq_lite.spark.summary import JobRun

    return JobRun(
        name=name, state=state, started_at=began_ms, finished_at=_now_ms(), offset=offset,
        error=error,
    )  # fmt: skip


def _text_of(error: Exception) -> str:
    """Give what a page shows of an error."""
    return str(error) if isinstance(error, PhpmqError) else sentence_of(error) or repr(error)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _show(done: Sequence[Done], output: str | None) -> None:
    style = output or ("table" if sys.stdout.isatty() else "jsonl")
    write([row_of(one, style) for one in done], _COLUMNS, style, "nothing was done")
    for result, _ in done:
        for note in result.notes:
            click.echo(f"{result.job}: {note}", err=True)


def row_of(done: Done, style: str) -> dict[str, Any]:
    """Give a row of output; tables and CSV have the details as one text."""
    result = done.result
    details: Any = dict(result.details)
    if style in ("table", "csv"):
        details = ", ".join(f"{key} {_figure(value)}" for key, value in details.items())
    return {
        "job": result.job, "rows": result.rows, "offset": result.offset,
        "batches": result.batches, "seconds": round(done.seconds, 1),
        "stopped": result.is_stopped, "details": details,
    }  # fmt: skip


def _figure(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
