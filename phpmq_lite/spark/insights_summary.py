"""The insights document, ``summary.json``, built from the archive's ledger and the metric tables.

``insights_document`` defines its fields. The jobs also write fields that no page shows:
``history_id`` and ``batch`` for each gap, and ``published``, ``bytes``, ``expired``, ``dead``,
``deleted`` and ``redelivered_messages`` for each URN.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from phpmq_lite.errors import PhpmqError
from phpmq_lite.insights_document import (
    SUMMARY_BYTES,
    PipelineJobState,
    encode,
    merge_summaries,
)
from phpmq_lite.spark import results_folder
from phpmq_lite.spark.history import open_history
from phpmq_lite.spark.insights_tables import DAY_MS
from phpmq_lite.spark.jobs.options import JobOptions
from phpmq_lite.spark.ledger import ArchiveLedger, read_ledger
from phpmq_lite.spark.pipeline_client import PipelineClient
from phpmq_lite.spark.results_folder import ResultsFolder, open_results

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_GAPS: Final = 100

_COMPUTING: Final = frozenset({"archive", "metrics", "compact"})  # jobs with figures of their own
_HOUR_MS: Final = 3_600_000

Item = dict[str, Any]


def write_summary(
    spark: "SparkSession | None",
    options: JobOptions,
    runs: Sequence[PipelineJobState],
    *,
    now_ms: int,
    has_news: bool = True,
) -> tuple[str, ...]:
    """Write ``summary.json``, and send the folder's figures to the broker; return problems.

    The most recent run of each job is stored in ``jobs.json``. If no run has figures of its own,
    only the state of the jobs is sent. The broker keeps absent figures, which may come from
    another folder. Without news, the figures of the last run are kept while they are of the same
    hour, except for periods that have become too old.
    """
    files = open_results(spark, options.out)
    ledger = read_ledger(files)
    jobs = record_run(files, runs, ledger)
    lag: int | None = None  # the last offset in the broker's history
    notes: tuple[str, ...] = ()
    if options.connection is not None:
        try:
            lag = open_history(options.connection).bounds().hi
        except (PhpmqError, OSError) as error:
            notes = (f"the archive's lag is unknown: {error}",)
    stored = files.read(results_folder.SUMMARY) or "{}"
    previous: Item = {}  # may have figures that another folder's jobs sent
    with suppress(ValueError):
        previous = json.loads(stored)
        previous.pop("queues", None)  # of version 0.1.0
    summary: Item = {"version": 1, "finished_at": now_ms, **_archive(files, ledger)}
    if has_news or previous.get("finished_at", 0) // _HOUR_MS != now_ms // _HOUR_MS:
        from phpmq_lite.spark.insights_figures import collect_figures

        summary |= collect_figures(spark, files, now_ms)
    else:
        recent = [m for m in previous.get("last24h", []) if m["minute"] > now_ms - DAY_MS]
        summary["last24h"] = recent
    if "archive" in summary:
        archived_offset = summary["archive"]["offset"]
        rows = None if lag is None or archived_offset is None else max(0, lag - archived_offset)
        summary["lag"] = {"offset": lag, "rows": rows}
    text = encode_summary(merge_summaries(previous, {**summary, "jobs": jobs}))
    files.write(results_folder.SUMMARY, text)
    if options.connection is not None and options.connection.url is not None:
        names = {run.name for run in runs}
        document = summary if names & _COMPUTING else {"version": 1, "finished_at": now_ms}
        document = {**document, "jobs": [job for job in jobs if job["name"] in names]}
        try:
            PipelineClient(options.connection).put_insights(encode_summary(document).encode())
        except (PhpmqError, OSError) as error:
            notes += (f"the broker did not accept the summary: {error}",)
    return notes


def record_run(
    files: ResultsFolder, runs: Iterable[PipelineJobState], ledger: ArchiveLedger | None
) -> list[Item]:
    """Store the most recent run of each job; return all stored runs, sorted by job name.

    A run that failed keeps the offset that the job has reached.
    """
    by_name = {run["name"]: run for run in read_runs(files)}
    for run in runs:
        offset = run.offset
        if offset is None and run.name == "archive" and ledger is not None:
            offset = ledger.offset
        if offset is None and run.name in by_name:
            offset = by_name[run.name]["offset"]
        by_name[run.name] = {**run.model_dump(), "offset": offset}
    ordered = [by_name[name] for name in sorted(by_name)]
    files.write(results_folder.JOBS, json.dumps(ordered))
    return ordered


def read_runs(files: ResultsFolder) -> list[Item]:
    """Return the most recent run of each job."""
    runs: list[Item] = json.loads(files.read(results_folder.JOBS) or "[]")
    return runs


def _archive(files: ResultsFolder, ledger: ArchiveLedger | None) -> Item:
    """Return what the document says about the archive; nothing if there is none."""
    if ledger is None or (ledger.offset is None and not ledger.dates):
        return {}
    gaps = results_folder.read_gaps(files)
    selection = json.loads(files.read(results_folder.ARCHIVE_SELECTION) or "{}")
    return {
        "gaps": [asdict(gap) for gap in gaps[:MAX_GAPS]],
        "history_id": ledger.history_id,
        "archive": {
            "offset": ledger.offset,
            "rows": ledger.rows,
            "dates": len(ledger.dates),
            "bytes": ledger.size_bytes,
            "outcomes": selection.get("outcomes", []),
            "gaps": len(gaps),
            "missing": sum(gap.rows_at_most for gap in gaps),
        },
    }


def encode_summary(summary: Item) -> str:
    """Encode the document; if it is too large, truncate its longest lists.

    This happens only with very long names, because ``SHARES`` bounds the periods.
    """
    while len(text := encode(summary).encode()) > SUMMARY_BYTES:
        lists = ("urns", "deaths", "paths", "expiries", "last30d", "last24h")
        longest = max(lists, key=lambda name: len(encode(summary.get(name, []))))
        is_timed = longest.startswith("last")  # these lists start with the oldest entries
        half = len(summary[longest]) // 2
        shorter = summary[longest][half:] if is_timed else summary[longest][:half]
        summary = {**summary, longest: shorter}
    return text.decode()
