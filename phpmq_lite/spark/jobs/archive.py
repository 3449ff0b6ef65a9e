"""Archive job, which writes each row of the history to Parquet exactly once.

A batch is written to ``staged/``, counted, and moved to ``archive/date=…/batch=…`` by one change of
the ledger. A batch that the ledger already has is skipped when Spark repeats it, and rows up to the
ledger's offset are never archived again, even if the checkpoint is lost.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import date, timedelta
from itertools import groupby
from platform import node
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf

from phpmq_lite.errors import RefusedError
from phpmq_lite.spark import results_folder
from phpmq_lite.spark.checkpoints import (
    CommittedBatch,
    last_committed_batch,
    planned_batch,
    query_id,
)
from phpmq_lite.spark.columns import utc_day
from phpmq_lite.spark.events import event_batches, event_options
from phpmq_lite.spark.history import open_history
from phpmq_lite.spark.jobs.archive_files import add_parts, count_rows, open_ledger
from phpmq_lite.spark.jobs.archive_source import (
    ArchiveSource,
    ArchiveTasks,
    write_events,
    written_files,
)
from phpmq_lite.spark.jobs.day_files import FileCounts
from phpmq_lite.spark.jobs.options import UNCONTROLLED, ArchiveOptions, JobControl, JobResult
from phpmq_lite.spark.jobs.stream_writer import (
    StreamTarget,
    batch_name,
    parquet_options,
    write_stream,
)
from phpmq_lite.spark.ledger import (
    STAGED,
    ArchiveLedger,
    DateManifest,
    add_counts,
    commit,
    manifest_of,
    now_ms,
    read_ledger,
    read_manifest,
)
from phpmq_lite.spark.pipeline_client import HistoryBounds, PipelineClient
from phpmq_lite.spark.reader import OffsetRange
from phpmq_lite.spark.results_folder import (
    ARCHIVE,
    ResultsFolder,
    local_folder_of,
    open_results,
)
from phpmq_lite.spark.selection import ArchiveSelection, read_selection, selection_of
from phpmq_lite.spark.source_options import DELETED, SourceMode, history_options, queues_text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

TARGET: Final = StreamTarget(
    name="archive",
    folder=ARCHIVE,
    checkpoint=results_folder.ARCHIVE_CHECKPOINT,
)
_OLD_READER: Final = "archive"  # of all archives of version 0.1.0


def transform(history: "DataFrame") -> "DataFrame":
    """Add ``date``, the UTC day on which a message was settled."""
    return history.withColumn("date", utc_day("settled_at"))


def run(
    spark: "SparkSession", options: ArchiveOptions, control: JobControl = UNCONTROLLED
) -> JobResult:
    """Archive the messages settled since the last run.

    Raises:
        RefusedError: ``other_history``: the archive belongs to another history. Accepting gaps does
            not help, because offsets would restart and rows would be archived twice.
    """
    end, begin, reader, after = None, 0, "", 0
    allowed: tuple[str, ...] = ()
    if options.connection is not None:
        bounds = open_history(options.connection).bounds()
        end, allowed = bounds.hi, bounds.allowed
        files = open_results(spark, options.out)
        committed = last_committed_batch(files, TARGET.checkpoint)
        ledger = read_ledger(files)
        history_ids = {state.history_id for state in (committed, ledger) if state}
        others = sorted(filter(None, history_ids - {bounds.history_id}))
        if others:
            raise RefusedError(
                "other_history",
                f"the broker's history is {bounds.history_id}, but the archive in "
                f"{options.out} belongs to {', '.join(others)}: the broker was restored "
                "or replaced. Archive to another folder",
            )
        if ledger is None:
            ledger = _create_ledger(spark, files, options, is_old=committed is not None)
        reader = ledger.reader
        if options.backfill and ledger.offset is not None:  # refused before anything is written
            open_history(options.connection).bounds(reader, ledger.offset)
        if ledger.offset is not None:  # even if the checkpoint is lost
            after = ledger.offset
            options = replace(options, starting_offsets=str(after + 1))
        begin = first_offset(options, bounds, committed)
        control.report(TARGET.name, begin, end)
    values = source_options(options, reader) | _task_options(spark, options, allowed, after)
    stream = spark.readStream.format(ArchiveSource.name()).options(**values).load()
    return archive_stream(spark, stream, options, control, end, begin, allowed)


def _task_options(
    spark: "SparkSession", options: ArchiveOptions, allowed: tuple[str, ...], after: int = 0
) -> dict[str, str]:
    """Return the options of the stream, whose tasks write the files of a local archive."""
    spark.dataSource.register(ArchiveSource)
    folder = local_folder_of(options.out)
    path = None if folder is None else str(folder.absolute())
    return ArchiveTasks(path, after, selection_of(options, allowed).masks).options()


def _create_ledger(
    spark: "SparkSession", files: ResultsFolder, options: ArchiveOptions, *, is_old: bool
) -> ArchiveLedger:
    """Store the ledger of a new archive, or of one of version 0.1.0, and return it.

    The archives of that version all had the same reader, which is removed.
    """
    connection = options.connection
    if is_old and connection is not None and connection.url is not None:
        PipelineClient(connection).remove_reader(_OLD_READER)
    with open_ledger(spark, files, keep_ms=options.keep_replaced_ms) as ledger:
        return ledger if ledger.number else commit(files, ledger, now_ms=now_ms())


def archive_stream(
    spark: "SparkSession",
    stream: "DataFrame",
    options: ArchiveOptions,
    control: JobControl = UNCONTROLLED,
    end: int | None = None,
    begin: int = 0,
    allowed: tuple[str, ...] = (),
) -> JobResult:
    """Archive a stream of history rows; ``begin`` is the offset just before the first row.

    ``allowed`` are the token's queue globs, which belong to the archive's selection.
    """
    files = open_results(spark, options.out)
    keep_ms = options.keep_replaced_ms
    is_delta = options.format == "delta"
    with open_ledger(spark, files, keep_ms=keep_ms, is_delta=is_delta) as ledger:
        selection = selection_of(options, allowed)
        writer = _BatchWriter(spark, files, options, selection, ledger, begin)
        if options.backfill:
            writer.backfill()
        check_selection(files, selection)
        totals = write_stream(stream, files, TARGET, control, end, writer.write, begin=begin)
    return JobResult(
        job="archive",
        rows=writer.rows,
        offset=writer.offset,
        batches=totals.batches,
        is_stopped=totals.is_stopped,
        notes=tuple(map(results_folder.gap_text, writer.gaps)),
    )


class _BatchWriter:
    """Adds batches to the archive and its ledger, and records accepted gaps.

    ``begin`` is the offset just before the first row if neither ledger nor checkpoint has one.
    """

    def __init__(
        self,
        spark: "SparkSession",
        files: ResultsFolder,
        options: ArchiveOptions,
        selection: ArchiveSelection,
        ledger: ArchiveLedger,
        begin: int,
    ) -> None:
        self._spark, self._files, self._options = spark, files, options
        self._selection = selection
        committed = last_committed_batch(files, TARGET.checkpoint)
        self._begin = begin if committed is None or committed.offset is None else committed.offset
        self._ledger = ledger
        if not ledger.number:  # its id exists before its first batch
            self._ledger = commit(files, ledger, now_ms=now_ms())
        self.gaps: list[results_folder.ArchiveGap] = []
        self.rows = 0  # that were added, except by a backfill

    @property
    def offset(self) -> int | None:
        """The last archived offset."""
        return self._ledger.offset

    def write(self, batch: "DataFrame", number: int) -> None:
        """Archive a batch unless the ledger has it; Spark repeats one that it did not commit."""
        files, ledger = self._files, self._ledger
        name = batch_name(query_id(files, TARGET.checkpoint) or "", number)
        if name == ledger.batch:
            return
        planned = planned_batch(files, TARGET.checkpoint, number)
        if planned.offset is not None and ledger.offset is not None:
            if "offset" in batch.columns:
                batch = batch.where(sf.col("offset") > ledger.offset)
            self._begin = ledger.offset
        settings = source_options(self._options)
        offsets = self._begin, planned.offset, planned.history_id
        counts = self._stage(batch, settings, offsets, name)
        rows = sum(part.file.rows for part in counts if part.table == ARCHIVE)
        if planned.offset is not None:
            self._record_gap(self._begin, planned.offset, name, rows)
        self._commit(
            counts,
            name,
            begin=self._begin if ledger.begin is None else ledger.begin,
            offset=planned.offset,
            history_id=planned.history_id,
        )
        self.rows += rows
        self._begin = planned.offset or self._begin

    def backfill(self) -> None:
        """Add the rows up to the ledger's offset that only the new selection has, and store it.

        A new checkpoint then continues after that offset.

        Raises:
            RefusedError: ``not_wider``: the new selection may lack rows of the stored one.
        """
        files, ledger, connection = self._files, self._ledger, self._options.connection
        stored, selection = read_selection(files), self._selection
        if stored in (None, selection) or connection is None or ledger.offset is None:
            return
        if not selection.contains(stored):
            raise RefusedError(
                "not_wider",
                f"the selection {json.dumps(selection.document())} does not certainly contain the"
                f" archive's, {json.dumps(stored.document())}; --backfill only widens it. Use"
                " another folder",
            )
        names = {name for name in open_history(connection).queues() if selection.has_queue(name)}
        old_names = {name for name in names if stored.has_queue(name)}
        begin = ledger.begin or 0
        ranges = {
            "startingOffsets": str(begin + 1),
            "endingOffsets": str(ledger.offset + 1),
            "maxOffsetsPerTrigger": "",
            "reader": "",
        }
        name = f"backfill-{ledger.number + 1:08d}"
        counts: list[FileCounts] = []
        for queues, outcomes in (
            (names - old_names, selection.all_outcomes),
            (old_names, selection.all_outcomes - stored.all_outcomes),
        ):
            if queues and outcomes:
                part = {"queues": queues_text(sorted(queues)), "outcomes": ",".join(outcomes)}
                values = source_options(self._options) | ranges | part | {"queuePattern": ""}
                settings = {key: value for key, value in values.items() if value}
                tasks = _task_options(self._spark, self._options, selection.allowed)
                reader = self._spark.read.format(ArchiveSource.name())
                rows = reader.options(**settings, **tasks).load()
                offsets = begin, ledger.offset, ledger.history_id
                counts += self._stage(rows, settings, offsets, f"{name}/{len(counts)}")
        self._record_gap(begin, ledger.offset, name, None)
        spans = [(c.file.first_day, c.file.last_day) for c in counts if c.table == ARCHIVE]
        days = {number for first, last in spans for number in range(first, last + 1)}
        begun = json.loads(files.read(results_folder.METRICS_BEGUN) or "[]")
        begun += [(date(1970, 1, 1) + timedelta(number)).isoformat() for number in days]
        self._commit(
            counts,
            name,
            removes=(*ledger.leftovers, TARGET.checkpoint),
            writes={
                results_folder.ARCHIVE_SELECTION: selection.document(),
                results_folder.METRICS_BEGUN: sorted(set(begun)),
            },
        )

    def _stage(
        self,
        rows: "DataFrame",
        settings: Mapping[str, str],
        offsets: tuple[int, int | None, str | None],
        name: str,
    ) -> list[FileCounts]:
        """Write rows and events outside of the archive, and count the rows.

        ``settings`` are the options by which the rows ``(lo, hi]`` of a history are read.
        """
        if (written := written_files(rows, self._files)) is not None:
            return written
        files, folder, has_bodies = self._files, f"{STAGED}/{name}", self._options.bodies
        lo, hi, history_id = offsets
        events: Iterator[pa.RecordBatch] = iter(())
        if self._options.connection is not None and hi is not None and history_id is not None:
            options = history_options(event_options(settings), SourceMode.BATCH_READ)
            chosen = (options.queues, options.outcomes, self._selection.allowed)
            events = event_batches(options, OffsetRange(lo, hi, history_id, node(), *chosen))
        written_events = write_events(files, events, folder, is_masked=bool(self._selection.masks))
        writer = transform(rows).write.options(**parquet_options(has_bodies=has_bodies))
        writer.mode("overwrite").partitionBy("date").parquet(files.url(f"{folder}/{ARCHIVE}"))
        files.sync(folder)  # the broker may remove what the ledger names
        staged = files.data_files(f"{folder}/{ARCHIVE}")
        return count_rows(self._spark, files, staged, has_bodies=has_bodies) + written_events

    def _commit(self, counts: list[FileCounts], name: str, **changes: Any) -> None:
        files, ledger = self._files, self._ledger
        moves: dict[str, str] = {}
        manifests = []
        for day, group in groupby(sorted(counts, key=lambda part: part.date), lambda p: p.date):
            path, parts = manifest_of(ledger, day), list(group)
            before = DateManifest(date=day) if path is None else read_manifest(files, path)
            manifest, targets = add_parts(before, parts, name)
            sums = add_counts(before.counts, *(part.counts for part in parts))
            moves |= targets
            manifests.append(replace(manifest, counts=sums))
        self._ledger = commit(
            files,
            ledger,
            now_ms=now_ms(),
            manifests=manifests,
            moves=moves,
            **{"removes": ledger.leftovers, "leftovers": (), "batch": name, **changes},
        )
        files.remove(f"{STAGED}/{name}")

    def _record_gap(self, begin: int, end: int, name: str, rows: int | None) -> None:
        options = self._options
        if options.fail_on_data_loss or options.connection is None:
            return
        gap = find_gap(
            begin,
            end,
            open_history(options.connection).bounds(),
            needs_deleted=not options.outcomes or DELETED in options.outcomes,
            archived=rows if self._selection.is_everything else None,
            batch=name,
            at_ms=now_ms(),
        )
        if gap is not None:
            results_folder.store_gap(self._files, gap)
            self.gaps.append(gap)


def first_offset(
    options: ArchiveOptions, bounds: HistoryBounds, committed: CommittedBatch | None
) -> int:
    """Return the offset after which a run starts: the last archived one or the configured one."""
    if committed is not None and committed.offset is not None:
        return committed.offset
    start = options.starting_offsets
    return (
        max(int(start) - 1, 0) if start.isdigit() else {"latest": bounds.hi}.get(start, bounds.lo)
    )


def source_options(options: ArchiveOptions, reader: str = "") -> dict[str, str]:
    """Return the stream's options as strings; ``reader`` is the name of the archive's reader."""
    values = {
        **options.connection_options,
        "startingOffsets": options.starting_offsets,
        "maxOffsetsPerTrigger": str(options.max_offsets_per_trigger),
        "reader": reader,
        "failOnDataLoss": str(options.fail_on_data_loss).lower(),
        "includeBody": "true" if options.bodies else "",
        "queues": queues_text(options.queues) if options.queues else "",
        "queuePattern": options.queue_pattern or "",
        "outcomes": ",".join(options.outcomes),
        "broker": options.broker or "",
        "numPartitions": "" if options.num_partitions is None else str(options.num_partitions),
    }
    return {name: value for name, value in values.items() if value}


def check_selection(files: ResultsFolder, selection: ArchiveSelection) -> None:
    """Store the selection, or refuse another one (``other_selection``): there is one offset."""
    document, stored = json.dumps(selection.document()), read_selection(files)
    if stored is None:
        files.write(results_folder.ARCHIVE_SELECTION, document)
    elif stored != selection:
        raise RefusedError(
            "other_selection",
            f"the archive in {files.url('')} was created with the selection "
            f"{json.dumps(stored.document())}, not {document} (allowed: the token's queue globs; "
            "what is missing selects everything). Use the same selection, or another folder; "
            "--backfill adds what a wider one has",
        )


def find_gap(
    begin: int,
    end: int,
    bounds: HistoryBounds,
    *,
    needs_deleted: bool,
    archived: int | None,
    batch: str,
    at_ms: int,
) -> results_folder.ArchiveGap | None:
    """Return the gap in the batch of offsets ``(begin, end]``, or None if no rows are missing.

    ``bounds`` are the bounds of the history after the batch was written.  ``archived`` is the
    number of rows in the batch, or None if the archive excludes queues or outcomes.
    """
    hi = min(end, max(bounds.lo, bounds.lo_deleted if needs_deleted else 0))
    if hi <= begin:
        return None
    rows = None if archived is None else end - begin - archived
    if rows == 0:  # retention removed the rows after they were read
        return None
    return results_folder.ArchiveGap(
        at_ms=at_ms, history_id=bounds.history_id, lo=begin, hi=hi, rows=rows, batch=batch
    )
