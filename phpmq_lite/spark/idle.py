"""Finds out, without Spark, that a run has nothing to do."""

from collections.abc import Sequence

from phpmq_lite.spark import results_folder
from phpmq_lite.spark.checkpoints import has_planned_batch
from phpmq_lite.spark.delta_log import has_delta_log
from phpmq_lite.spark.history import open_history
from phpmq_lite.spark.insights_summary import read_runs
from phpmq_lite.spark.insights_tables import TABLES, metrics_offset
from phpmq_lite.spark.jobs.options import (
    ArchiveOptions,
    CompactOptions,
    JobOptions,
    JobResult,
    MetricsOptions,
    TablesOptions,
)
from phpmq_lite.spark.ledger import ArchiveLedger, is_change_due, now_ms, read_ledger
from phpmq_lite.spark.results_folder import ResultsFolder
from phpmq_lite.spark.selection import read_selection, selection_of
from phpmq_lite.spark.table_store import (
    ARCHIVE_COMMAND,
    COUNTED,
    is_current,
    new_files,
    read_state,
)


def idle_results(files: ResultsFolder, jobs: Sequence[JobOptions]) -> list[JobResult] | None:
    """Return the results of jobs that all have nothing to do, or None if one has work.

    None is also the answer if it is uncertain: a job that runs for nothing does no harm.
    """
    if isinstance(jobs[0], TablesOptions):  # an archive that they cannot read needs no Spark
        new_files(files, read_state(files, jobs[0].by))
    ledger = read_ledger(files)
    at_ms, keep_ms = now_ms(), min(options.keep_replaced_ms for options in jobs)
    if ledger is None:
        return None
    reads_only = all(isinstance(options, TablesOptions) for options in jobs)
    if not reads_only and is_change_due(files, ledger, now_ms=at_ms, keep_ms=keep_ms):
        return None
    results = []
    for options in jobs:
        result = _idle_result(files, ledger, options)
        if result is None:
            return None
        results.append(result)
    return results


def _idle_result(
    files: ResultsFolder, ledger: ArchiveLedger, options: JobOptions
) -> JobResult | None:
    if isinstance(options, ArchiveOptions) and _is_archived(files, ledger, options):
        return JobResult(job="archive", rows=0, offset=ledger.offset)
    if isinstance(options, MetricsOptions) and _is_measured(files, ledger, options):
        details = {"dates": 0, "tables": len(TABLES)}
        return JobResult(job="metrics", rows=0, offset=ledger.offset, details=details)
    if isinstance(options, CompactOptions) and _is_compacted(files, ledger):
        details = {"dates": 0, "files_before": 0, "files_after": 0}
        return JobResult(job="compact", rows=0, details=details)
    if isinstance(options, TablesOptions) and not options.rebuild and is_current(files, options.by):
        return _tables_result(files, ledger, options)
    return None


def _tables_result(
    files: ResultsFolder, ledger: ArchiveLedger, options: TablesOptions
) -> JobResult:
    state = read_state(files, options.by)
    details = {"tables": len(state.tables) if state else 0, **dict.fromkeys(COUNTED, 0)}
    note = f"the archive has no messages: run {ARCHIVE_COMMAND} first"
    notes = () if ledger.dates or state else (note,)
    return JobResult(job="tables", rows=0, offset=ledger.offset, details=details, notes=notes)


def _is_archived(files: ResultsFolder, ledger: ArchiveLedger, options: ArchiveOptions) -> bool:
    """Return whether the history has no row that the archive lacks."""
    if options.connection is None or ledger.offset is None or ledger.leftovers:
        return False
    if options.format == "delta" or has_delta_log(files):  # an interrupted run may have left it
        return False
    if has_planned_batch(files, results_folder.ARCHIVE_CHECKPOINT):  # Spark has to commit it
        return False
    history = open_history(options.connection)
    bounds = history.bounds()
    is_same = read_selection(files) == selection_of(options, bounds.allowed)
    if not is_same or (bounds.history_id, bounds.hi) != (ledger.history_id, ledger.offset):
        return False
    history.bounds(ledger.reader, ledger.offset)  # so that the broker knows that it still runs
    return True


def _is_measured(files: ResultsFolder, ledger: ArchiveLedger, options: MetricsOptions) -> bool:
    is_begun = files.exists(results_folder.METRICS_BEGUN)
    return not options.dates and not is_begun and metrics_offset(files, ledger) == ledger.offset


def _is_compacted(files: ResultsFolder, ledger: ArchiveLedger) -> bool:
    """Return whether the job has seen the current ledger; only a new batch closes a date."""
    return any(
        run["name"] == "compact" and run["state"] == "done" and run["finished_at"] >= ledger.at_ms
        for run in read_runs(files)
    )
