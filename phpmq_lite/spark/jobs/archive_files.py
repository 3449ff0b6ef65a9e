"""Opens the archive for a job that changes it, and counts the rows of files for its ledger."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from pyspark.sql import functions as sf

from phpmq_lite.spark import ledger as ledgers
from phpmq_lite.spark.checkpoints import last_committed_batch, query_id
from phpmq_lite.spark.columns import FILE_SCHEMA, TIME_COLUMNS, utc_day
from phpmq_lite.spark.delta_log import check_delta, has_delta_log, update_delta_log
from phpmq_lite.spark.history import BODY
from phpmq_lite.spark.jobs.day_files import FileCounts, count_groups
from phpmq_lite.spark.jobs.stream_writer import batch_name, remove_staged
from phpmq_lite.spark.ledger import ArchiveFile, ArchiveLedger, DateManifest, add_counts, now_ms
from phpmq_lite.spark.results_folder import (
    ARCHIVE,
    ARCHIVE_CHECKPOINT,
    EVENTS,
    LocalResultsFolder,
    ResultsFolder,
)
from phpmq_lite.spark.session import fit_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OLD_COMPACT: Final = "compact"  # working folder of the compact job of version 0.1.0
_PATH_PARTS: Final = range(3, 7)  # lengths of paths, from staged/x/y to generations/n/table/…/y


@contextmanager
def open_ledger(
    spark: "SparkSession", files: ResultsFolder, *, keep_ms: int, is_delta: bool = False
) -> Iterator[ArchiveLedger]:
    """Lock the archive, complete what was interrupted, and yield the current ledger.

    After the block, files that were replaced more than ``keep_ms`` ago are removed, and the Delta
    log, if there is one or ``is_delta`` is set, is brought up to date.
    An archive of version 0.1.0 gets a ledger, for which all of its rows are counted once.

    Raises:
        PipelineError: the Delta log cannot be written; nothing was changed.
    """
    is_delta = is_delta or has_delta_log(files)
    if is_delta:
        check_delta(files)
    with files.lock(ledgers.LOCK):
        ledgers.repair(files)
        files.remove(ledgers.STAGED)
        ledger = ledgers.read_ledger(files)
        if ledger is None:
            _finish_old_swap(files)
            remove_staged(files, ARCHIVE)
            ledger = _adopt(spark, files)
        yield ledger
        files.remove(ledgers.STAGED)
        if latest := ledgers.read_ledger(files):
            if is_delta:  # first, because the log of an interrupted job may name replaced files
                update_delta_log(files, latest)
            tidied = ledgers.tidy(files, latest, now_ms=now_ms(), keep_ms=keep_ms)
            if is_delta and tidied is not latest:
                update_delta_log(files, tidied)


def add_parts(
    manifest: DateManifest, parts: Iterable[FileCounts], batch: str, folder: str = ""
) -> tuple[DateManifest, dict[str, str]]:
    """Add staged files to a date; return its manifest, and where the files move below ``folder``.

    The counts stay as they are.
    """
    moves: dict[str, str] = {}
    added: dict[str, list[ArchiveFile]] = {ARCHIVE: [], EVENTS: []}
    for part in parts:
        target = f"{folder}{part.table}/date={manifest.date}/batch={batch}/{part.name}"
        moves[part.file.path] = target  # names are unique within a job of Spark
        added[part.table].append(replace(part.file, path=target, batch=batch))
    listed = (*manifest.files, *added[ARCHIVE])
    return replace(manifest, files=listed, events=(*manifest.events, *added[EVENTS])), moves


def count_rows(
    spark: "SparkSession",
    files: ResultsFolder,
    sizes: Mapping[str, int],
    *,
    has_bodies: bool | None = None,
) -> list[FileCounts]:
    """Count the rows of each file, given the paths and sizes; files without rows are omitted.

    If ``has_bodies`` is None, the bodies are read to find out.
    """
    if not sizes:
        return []
    if isinstance(files, LocalResultsFolder) and has_bodies is not None:
        groups = {path: _local_groups(files, path, has_bodies=has_bodies) for path in sizes}
    else:
        groups = _spark_groups(spark, files, sizes, has_bodies=has_bodies)
    return [FileCounts.of_groups(rows, path, sizes[path]) for path, rows in groups.items() if rows]


def _spark_groups(
    spark: "SparkSession",
    files: ResultsFolder,
    sizes: Mapping[str, int],
    *,
    has_bodies: bool | None,
) -> dict[str, list[dict[str, Any]]]:
    """Count the rows of each path by queue and outcome in one job."""
    rows = spark.read.schema(FILE_SCHEMA).parquet(*map(files.url, sizes))
    if has_bodies is None:
        fit_batches(spark, rows)
    days = [utc_day(time) for time in TIME_COLUMNS]
    groups = rows.groupBy(sf.col("_metadata.file_path").alias("path"), "queue", "outcome").agg(
        sf.count("*").alias("rows"),
        sf.min("offset").alias("lo"),
        sf.max("offset").alias("hi"),
        sf.sum("offset").alias("offsets"),
        sf.min(sf.unix_date(sf.least(*days))).alias("first_day"),
        sf.max(sf.unix_date(sf.greatest(*days))).alias("last_day"),
        (sf.count(BODY) > 0 if has_bodies is None else sf.lit(has_bodies)).alias("has_bodies"),
    )
    of_paths: dict[str, list[dict[str, Any]]] = {path: [] for path in sizes}
    for row in groups.collect():
        parts = unquote(row["path"]).split("/")
        path = next(p for n in _PATH_PARTS if (p := "/".join(parts[-n:])) in sizes)
        of_paths[path].append(row.asDict())
    return of_paths


def _local_groups(
    files: LocalResultsFolder, path: str, *, has_bodies: bool
) -> list[dict[str, Any]]:
    """Count the rows of one file in the same way, by pyarrow, which needs no job."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(files.path(path)) as file:
        return count_groups(file.read(["queue", "outcome", "offset", *TIME_COLUMNS]), has_bodies)


def _adopt(spark: "SparkSession", files: ResultsFolder) -> ArchiveLedger:
    """Return a ledger for the files of an archive that has none; store it if there are any.

    A batch after the last committed one may be incomplete. Spark repeats it, and then it is
    replaced.
    """
    committed = last_committed_batch(files, ARCHIVE_CHECKPOINT)
    query = query_id(files, ARCHIVE_CHECKPOINT)
    last = None if committed is None else batch_name(query or "", committed.batch)
    sizes: dict[str, int] = {}
    leftovers: list[str] = []
    for path, size in files.data_files(ARCHIVE).items():
        folder = path.rpartition("/")[0]
        batch = folder.rpartition("batch=")[2]
        if query and batch.startswith(query[:8]) and (last is None or batch > last):
            leftovers.append(path)
        else:
            sizes[path] = size
    ledger = ledgers.create_ledger(
        history_id=committed.history_id if committed else None,
        offset=committed.offset if committed else None,
        batch=last,
        leftovers=tuple(leftovers),
    )
    if not sizes and not leftovers:
        return ledger
    manifests = []
    counted = sorted(count_rows(spark, files, sizes), key=lambda part: part.date)
    for date, group in groupby(counted, lambda part: part.date):
        parts = list(group)
        sums = add_counts(*(part.counts for part in parts))
        listed = tuple(part.file for part in parts)
        manifests.append(DateManifest(date=date, files=listed, counts=sums))
    begin = min((part.file.lo for part in counted), default=1) - 1
    return ledgers.commit(files, ledger, now_ms=now_ms(), manifests=manifests, begin=begin)


def _finish_old_swap(files: ResultsFolder) -> None:
    """Complete a swap that the compact job of version 0.1.0 began."""
    text = files.read(f"{_OLD_COMPACT}/plan.json")
    if text is not None:
        plan = json.loads(text)
        folder, staged = f"{ARCHIVE}/{plan['date']}", f"{_OLD_COMPACT}/staged"
        for batch in plan["batches"]:
            files.remove(f"{folder}/{batch}")
        if files.exists(staged):
            files.move(staged, f"{folder}/{plan['merged']}")
    files.remove(_OLD_COMPACT)
