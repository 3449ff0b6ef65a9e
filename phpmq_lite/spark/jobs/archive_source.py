"""Source of the archive job: on a local folder, Spark's tasks also write the files.

The rows of the source then say what was written. Rows that pass through the JVM, which writes them
itself, take twice as long.
"""

import json
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import datasource as ds
from pyspark.sql.types import StringType, StructField, StructType

from phpmq_lite.errors import PipelineError
from phpmq_lite.spark.body_mask import hide_reports, mask_batch, parse_path
from phpmq_lite.spark.columns import FILE_SCHEMA, arrow_schema, conform_batch, history_columns
from phpmq_lite.spark.events import event_batches
from phpmq_lite.spark.jobs.day_files import DayFiles, FileCounts
from phpmq_lite.spark.ledger import STAGED, ArchiveFile
from phpmq_lite.spark.reader import HistoryReader, HistoryStreamReader, OffsetRange
from phpmq_lite.spark.results_folder import ARCHIVE, EVENTS, LocalResultsFolder, ResultsFolder
from phpmq_lite.spark.source_options import HistoryOptions, SourceMode, history_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

NAME: Final = "phpmq_archive"
OPTION: Final = "archive"  # besides those of the data source phpmq
FILES: Final = "files"  # JSON list of the files of one range; null in other rows
_STAGED: Final = f"{STAGED}/tasks"


def write_events(
    files: ResultsFolder,
    events: "Iterable[pa.RecordBatch]",
    folder: str,
    *,
    is_masked: bool = False,
) -> list[FileCounts]:
    """Write events below ``folder``, and return the files; ``is_masked`` hides texts of workers."""
    written = DayFiles(files, folder, EVENTS)
    for batch in events:
        written.add(hide_reports(batch) if is_masked else batch)
    return written.close()


@dataclass(frozen=True, slots=True)
class ArchiveTasks:
    """What Spark's tasks do: write rows above the offset ``after``, and events, to ``folder``.

    Without a folder, they pass on the rows for Spark to write. ``masks`` are the members of bodies
    that become null.
    """

    folder: str | None
    after: int
    masks: Sequence[str]

    def options(self) -> dict[str, str]:
        """Return the option of the source that these are."""
        return {OPTION: json.dumps(asdict(self))}

    def write(
        self,
        options: HistoryOptions,
        offsets: OffsetRange,
        read: "Callable[[OffsetRange], Iterator[pa.RecordBatch]]",
    ) -> "Iterator[pa.RecordBatch]":
        """Write a range, and yield a row for each of it, which Spark counts, then the files' list.

        Events come first: if retention removes some of them meanwhile, the rows are missing, too.
        """
        import pyarrow as pa

        offsets = replace(offsets, lo=max(offsets.lo, self.after))
        if offsets.lo >= offsets.hi:
            return
        paths = [parse_path(mask) for mask in self.masks if options.has_body]
        rows = (_file_batch(mask_batch(batch, paths)) for batch in read(offsets))
        if self.folder is None:
            yield from rows
            return
        files = LocalResultsFolder(Path(self.folder))
        events = event_batches(options, offsets)
        written = write_events(files, events, _STAGED, is_masked=bool(self.masks))
        target = DayFiles(files, _STAGED, ARCHIVE, has_bodies=options.has_body)
        for batch in rows:
            target.add(batch)
            yield pa.record_batch([pa.nulls(batch.num_rows, pa.string())], [FILES])
        written += target.close()
        document = json.dumps([asdict(file) for file in written])
        yield pa.record_batch([pa.array([document])], [FILES])


def _file_batch(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    """Add the columns of files that the batch lacks."""
    import pyarrow as pa

    schema = arrow_schema(FILE_SCHEMA)
    absent = {f.name: pa.scalar(None, f.type) for f in schema if f.name not in batch.schema.names}
    return conform_batch(batch, schema, absent)


class _ArchiveReader(HistoryReader):
    def __init__(self, options: HistoryOptions, schema: StructType, tasks: ArchiveTasks) -> None:
        super().__init__(options, schema)
        self._tasks = tasks

    def read(self, partition: ds.InputPartition) -> "Iterator[pa.RecordBatch]":
        if isinstance(partition, OffsetRange):
            yield from self._tasks.write(self._options, partition, super().read)


class _ArchiveStreamReader(HistoryStreamReader):
    def __init__(self, options: HistoryOptions, schema: StructType, tasks: ArchiveTasks) -> None:
        super().__init__(options, schema)
        self._tasks = tasks

    def read(self, partition: ds.InputPartition) -> "Iterator[pa.RecordBatch]":
        if isinstance(partition, OffsetRange):
            yield from self._tasks.write(self._options, partition, super().read)


class ArchiveSource(ds.DataSource):
    """Data source with the options of ``phpmq`` that select rows, and ``ArchiveTasks``."""

    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of a file or, if tasks write it, the one with a range's files."""
        files = StructType([StructField(FILES, StringType())])
        return FILE_SCHEMA if self._tasks().folder is None else files

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        """Return the reader for a backfill."""
        return _ArchiveReader(*self._parsed(SourceMode.BATCH_READ))

    def streamReader(self, schema: StructType) -> ds.DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader for a stream."""
        return _ArchiveStreamReader(*self._parsed(SourceMode.HISTORY_STREAM))

    def _parsed(self, use: SourceMode) -> tuple[HistoryOptions, StructType, ArchiveTasks]:
        values = {n.lower(): value for n, value in self.options.items() if n.lower() != OPTION}
        options = history_options(values, use)
        return options, history_columns(body=options.has_body), self._tasks()

    def _tasks(self) -> ArchiveTasks:
        return ArchiveTasks(**json.loads(self.options[OPTION]))


def written_files(rows: "DataFrame", files: ResultsFolder) -> list[FileCounts] | None:
    """Run Spark's tasks, and return their files; None if ``rows`` are those of another source.

    Raises:
        PipelineError: the executors do not share the results folder with this machine.
    """
    if rows.columns != [FILES]:
        return None
    documents = [json.loads(row[FILES]) for row in rows.where(f"{FILES} IS NOT NULL").collect()]
    written = [FileCounts.of_document(file) for listed in documents for file in listed]
    check_files(files, [part.file for part in written])
    return written


def check_files(files: ResultsFolder, written: Sequence[ArchiveFile]) -> None:
    """Raise PipelineError if a file is not there as it was written: the ledger would name it."""
    sizes = files.data_files(_STAGED)
    for file in written:
        if sizes.get(file.path) != file.size_bytes:
            raise PipelineError(
                f"an executor wrote {file.path} with {file.size_bytes:,} bytes, but in"
                f" {files.url('')} it has {sizes.get(file.path, 0):,}: --out must be a folder that"
                " all executors share with this machine, or a URI such as s3a://…"
            )
