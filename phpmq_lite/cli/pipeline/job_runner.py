"""Runs pipeline jobs in a Spark session, either once or in rounds."""

import logging
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from phpmq_lite.cli.errors import CommandError
from phpmq_lite.cli.output import Column, number_columns, output_format, write_rows
from phpmq_lite.cli.pipeline.spark_errors import (
    INTERRUPTED,
    explain_spark_errors,
    in_command_words,
    spark_error_text,
)
from phpmq_lite.cli.pipeline.target import PipelineTarget
from phpmq_lite.cli.progress import JobProgress, show_progress
from phpmq_lite.cli.signals import StopRequest
from phpmq_lite.errors import PhpmqError, PipelineError
from phpmq_lite.installation import install_command
from phpmq_lite.spark import executor_zip
from phpmq_lite.spark.jobs.options import JobControl
from phpmq_lite.spark.ledger import now_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from phpmq_lite.insights_document import PipelineJobState
    from phpmq_lite.spark.jobs.options import JobOptions, JobResult
    from phpmq_lite.spark.source_options import SourceConnection

NEEDED: Final = ("pyspark", "pyarrow", "pandas")
_PROBE_ROWS: Final = 1_000
_TRACING: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def require_spark() -> None:
    """Raise CommandError if a package of the extra ``spark`` is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise CommandError(
            f"the pipeline requires the extra spark (not installed: {', '.join(missing)}): "
            + install_command("spark")
        )


def source_connection(target: PipelineTarget) -> "SourceConnection":
    """Return how Spark's processes connect to the broker; raise PhpmqError if they cannot."""
    require_spark()
    from phpmq_lite.spark.source_options import SourceConnection

    connection = SourceConnection(
        url=target.url, token=target.token, path=str(target.path) if target.path else None
    )
    connection.check_master(target.master)
    return connection


@contextmanager
def spark_session(target: PipelineTarget, progress: JobProgress) -> "Iterator[SparkSession]":
    """Start a Spark session whose JVM logs to a file, and stop the session on exit."""
    from phpmq_lite.spark import session as sessions
    from phpmq_lite.spark.session import find_java

    with ExitStack() as stack:
        shipped: list[Path] = []
        if not target.is_local:
            folder = stack.enter_context(TemporaryDirectory(prefix="phpmq-lite-"))
            shipped.append(executor_zip.build_zip(Path(folder) / executor_zip.zip_name()))
        runtime = find_java()
        progress(f"starting Spark on Java {runtime.version}")
        stack.enter_context(_log_to_file(target.log))
        spark = sessions.session(
            "phpmq-lite pipeline",
            master=target.master,
            conf=target.conf,
            py_files=shipped,
            log=target.log,
            niceness=target.niceness,
        )
        try:
            yield spark
        finally:
            progress("stopping Spark")
            spark.stop()


@contextmanager
def command_session(target: PipelineTarget) -> "Iterator[tuple[SparkSession, JobProgress]]":
    """Start a session for a command without jobs; show its progress, and explain its errors."""
    with (
        show_progress(sys.stderr) as progress,
        explain_spark_errors(target),
        spark_session(target, progress) as spark,
    ):
        yield spark, progress


@contextmanager
def _log_to_file(file: Path) -> Iterator[None]:
    """Send the output of Python's loggers to a file, because py4j logs a traceback after Ctrl-C.

    Two PySpark loggers would write each query error, with its Java stack trace, to standard error.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(file)
    logging.getLogger().addHandler(handler)
    previous = {name: _replace_handlers(name, [handler]) for name in _TRACING}
    try:
        yield
    finally:
        for name, handlers in previous.items():
            _replace_handlers(name, handlers)
        logging.getLogger().removeHandler(handler)
        handler.close()


def _replace_handlers(name: str, handlers: list[logging.Handler]) -> list[logging.Handler]:
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger(name)
    before, logger.handlers = logger.handlers, handlers
    return before


def probe(target: PipelineTarget, *, reads: bool) -> str:
    """Start Spark, and return its version; if ``reads``, with how many rows it read."""
    with command_session(target) as (spark, progress):
        if not reads:
            return f"{spark.version} starts"
        options = source_connection(target).as_options()
        progress("reading")
        options |= {"failOnDataLoss": "false", "columns": "offset"}
        source = spark.read.format("phpmq").options(**options)
        rows = source.load().limit(_PROBE_ROWS)
        return f"{spark.version} read {rows.count():,} rows from the history"


_COLUMNS: Final = (
    Column("job", "JOB"),
    *number_columns("rows", "offset", "batches", "seconds"),
    Column("details", "DETAILS"),
)


class PipelineJob(NamedTuple):
    """A job's module name and options; the summary includes the job only if ``is_noted``."""

    name: str
    options: "JobOptions"
    is_noted: bool = True


class JobOutcome(NamedTuple):
    """A job's result and duration."""

    result: "JobResult"
    seconds: float


def run_jobs(
    target: PipelineTarget,
    jobs: Sequence[PipelineJob],
    *,
    every_s: float | None = None,
    output: str | None = None,
) -> None:
    """Run jobs one after another, either once or in rounds, and write their results.

    The first failure ends the command.  ``every_s`` is the minimum of seconds between rounds, each
    of which is followed by a pause at least as long as the round; then the default format of the
    results is JSON lines.
    """
    finished: list[JobOutcome] = []
    with ExitStack() as stack:
        progress = stack.enter_context(show_progress(sys.stderr))
        stack.enter_context(explain_spark_errors(target))
        stop = StopRequest(progress.note)
        session = _Session(target, progress, stack, stop)
        with stop:
            for outcomes in _JobRunner(session, jobs, progress, stop).rounds(every_s):
                if every_s is None:
                    finished = outcomes
                else:
                    _write_results(outcomes, output or "jsonl")
    if every_s is None:
        _write_results(finished, output)
    if stop.signal == signal.SIGINT:
        raise CommandError(
            "stopped after the current batch; run the command again to continue", INTERRUPTED
        )


class _Session:
    """A Spark session that starts when a job needs it, and ends with ``stack``."""

    def __init__(
        self, target: PipelineTarget, progress: JobProgress, stack: ExitStack, stop: StopRequest
    ) -> None:
        self._target, self._progress, self._stack, self._stop = target, progress, stack, stop
        self._spark: SparkSession | None = None

    def start(self) -> "SparkSession":
        """Return the session, which is started if necessary."""
        if self._spark is None:
            self._spark = self._stack.enter_context(spark_session(self._target, self._progress))
            self._stop.handle_signals()
        return self._spark

    def start_for_storage(self) -> "SparkSession | None":
        """Return the session if it runs or if the results are on storage that only it reaches."""
        return self._spark if self._target.results_folder is not None else self.start()


class _JobRunner(NamedTuple):
    """Runs jobs in a Spark session, and writes a summary after each round."""

    session: _Session
    jobs: Sequence[PipelineJob]
    progress: JobProgress
    stop: StopRequest

    def rounds(self, every_s: float | None) -> Iterator[list[JobOutcome]]:
        """Yield the outcomes of each round; there is only one if ``every_s`` is None."""
        while True:
            began_s = time.monotonic()
            outcomes = self.run_round()
            took_s = time.monotonic() - began_s
            yield outcomes
            if every_s is None or self.stop():
                return
            self.progress("waiting")
            self.stop.sleep(max(every_s, took_s))  # leave half of the time to the broker
            if self.stop():
                return

    def run_round(self) -> list[JobOutcome]:
        """Run each job once, and write the summary even if a job fails."""
        if (outcomes := self._find_idle()) is not None:
            return outcomes
        outcomes = []
        runs: list[PipelineJobState] = []
        try:
            for job in self.jobs:
                if self.stop():
                    break
                outcomes.append(self._run(job, runs))
        except Exception as job_error:
            if self.stop.is_aborted:
                raise
            try:
                self._summarize(runs)
            except Exception as error:  # the job's own error is reported instead
                if _error_text(error) != _error_text(job_error):
                    self.progress.note(f"the summary was not written: {_error_text(error)}")
            raise
        self._summarize(runs)
        return outcomes

    def _find_idle(self) -> list[JobOutcome] | None:
        """Return the outcomes of a round without news, or None if a job has work.

        Spark is not needed then, and does not start.
        """
        from phpmq_lite.insights_document import PipelineJobState
        from phpmq_lite.spark.idle import idle_results
        from phpmq_lite.spark.results_folder import open_results

        began_ms, began_s = now_ms(), time.monotonic()
        files = open_results(self.session.start_for_storage(), self.jobs[0].options.out)
        try:
            results = idle_results(files, [job.options for job in self.jobs])
        except PipelineError:  # the job reports it, or waits for the broker
            return None
        if results is None:
            return None
        times: dict[str, Any] = {"started_at": began_ms, "finished_at": now_ms()}
        runs = [
            PipelineJobState(name=result.job, state="done", offset=result.offset, **times)
            for result in results
        ]
        self._summarize(runs, has_news=False)
        return [JobOutcome(result, time.monotonic() - began_s) for result in results]

    def _run(self, job: PipelineJob, runs: "list[PipelineJobState]") -> JobOutcome:
        from phpmq_lite.insights_document import PipelineJobState

        self.progress(job.name)
        began_ms, began_s = now_ms(), time.monotonic()
        end: dict[str, Any] = {"state": "failed", "offset": None, "error": None}
        try:
            run = import_module(f"phpmq_lite.spark.jobs.{job.name}").run
            control = JobControl(self.progress, self.stop)
            result: JobResult = run(self.session.start(), job.options, control)
            end |= {"state": "stopped" if result.is_stopped else "done", "offset": result.offset}
        except Exception as error:
            end["error"] = _error_text(error)
            raise
        finally:
            if job.is_noted:
                end |= {"started_at": began_ms, "finished_at": now_ms()}
                runs.append(PipelineJobState(name=job.name, **end))
        return JobOutcome(result, time.monotonic() - began_s)

    def _summarize(self, runs: "list[PipelineJobState]", *, has_news: bool = True) -> None:
        from phpmq_lite.spark import insights_summary

        if not runs:
            return
        self.progress("summary")
        spark, options = self.session.start_for_storage(), self.jobs[0].options
        for note in insights_summary.write_summary(
            spark, options, runs, now_ms=now_ms(), has_news=has_news
        ):
            self.progress.note(note)


def _error_text(error: Exception) -> str:
    text = str(error) if isinstance(error, PhpmqError) else spark_error_text(error) or repr(error)
    return in_command_words(text)


def _write_results(outcomes: Sequence[JobOutcome], output: str | None) -> None:
    style = output_format(output)
    write_rows([outcome_row(outcome, style) for outcome in outcomes], _COLUMNS, style, "no jobs")
    for result, _ in outcomes:
        for note in result.notes:
            click.echo(f"{result.job}: {note}", err=True)


def outcome_row(outcome: JobOutcome, style: str) -> dict[str, Any]:
    """Return a row of the output; for tables and CSV, the details are combined into one text."""
    result = outcome.result
    details: Any = dict(result.details)
    if style in ("table", "csv"):
        texts = {k: f"{v:,}" if isinstance(v, int) else v for k, v in details.items()}
        details = ", ".join(f"{key} {value}" for key, value in texts.items())
    return {
        "job": result.job,
        "rows": result.rows,
        "offset": result.offset,
        "batches": result.batches,
        "seconds": round(outcome.seconds, 1),
        "stopped": result.is_stopped,
        "details": details,
    }
