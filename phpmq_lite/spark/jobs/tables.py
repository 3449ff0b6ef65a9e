"""Tables job, which writes one typed Parquet table for each URN or queue from archived bodies.

The rows of a slice of offsets are staged for all tables, then committed together (see
``table_store``). Offsets decide what is new, not files, so compaction changes nothing. All files of
a table have the same columns: a change of the columns rewrites the earlier files.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace
from pyspark.sql import functions as sf

from phpmq_lite.envelopes.payload_schema import read_schema
from phpmq_lite.envelopes.payload_shape import Shape, adopt, shape_of, widen
from phpmq_lite.envelopes.schema_compatibility import schema_changes
from phpmq_lite.errors import RefusedError
from phpmq_lite.spark.archive_reader import read_archive
from phpmq_lite.spark.jobs.options import UNCONTROLLED, JobControl, JobResult, TablesOptions
from phpmq_lite.spark.ledger import LOCK as ARCHIVE_LOCK
from phpmq_lite.spark.ledger import ArchiveFile, archive_files, repair
from phpmq_lite.spark.pipeline_client import PipelineClient
from phpmq_lite.spark.results_folder import REJECTS, ResultsFolder, file_name, open_results
from phpmq_lite.spark.running_rows import watch_rows
from phpmq_lite.spark.selection import ArchiveSelection
from phpmq_lite.spark.session import fit_batches
from phpmq_lite.spark.table_columns import KEY_COLUMNS, MISFIT, QUEUE_KEY_COLUMNS
from phpmq_lite.spark.table_rows import TableColumns
from phpmq_lite.spark.table_store import (
    COUNTED,
    FOLDERS,
    LOCK,
    TableChanges,
    TablesState,
    TypedTable,
    new_files,
    read_state,
    repair_tables,
    staged,
    stored_selection,
)
from phpmq_lite.spark.table_writer import write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLICE_OFFSETS: Final = 1_000_000  # maximum number of offsets per commit
SMALL_BYTES: Final = 32 << 20  # smaller files are merged once a table has SMALL_FILES of them
SMALL_FILES: Final = 64
FILE_BYTES: Final = 128 << 20  # intended size of a merged file
_MAX_NOTES: Final = 20


def run(
    spark: "SparkSession", options: TablesOptions, control: JobControl = UNCONTROLLED
) -> JobResult:
    """Add the messages archived since the last run to the tables.

    Raises:
        RefusedError: ``no_archive``, ``no_bodies``; ``other_archive``: the tables belong to another
            archive; ``unknown_table``.
    """
    files = open_results(spark, options.out)
    with files.lock(LOCK):
        repair_tables(files)
        return _TablesRun(spark, files, options, control).run()


class _TablesRun:
    """One run; ``state`` is what is committed."""

    def __init__(
        self,
        spark: "SparkSession",
        files: ResultsFolder,
        options: TablesOptions,
        control: JobControl,
    ) -> None:
        self.spark, self.files, self.options, self.control = spark, files, options, control
        self.by = options.by
        state = read_state(files, options.by)
        self.ledger, self.chosen = new_files(files, state)
        self.selection = stored_selection(files)  # after the ledger, see _add_backfilled
        self.keys = KEY_COLUMNS if self.by == "urn" else QUEUE_KEY_COLUMNS
        self.state = state or TablesState(archive_id=self.ledger.archive_id)
        connection = options.connection
        self.broker = PipelineClient(connection) if connection and connection.url else None
        self.notes: list[str] = []
        self.converted = self.highest = 0  # bodies of this slice; offset that was reported
        self.totals: Counter[str] = Counter()

    def run(self) -> JobResult:
        end, is_stopped, slices = self.ledger.offset or 0, False, 0
        self._note_bodies()
        if self.state.number and self.state.selection != self.selection:
            self._add_backfilled()
        if self.options.rebuild:
            self._rebuild()
        while self.state.offset < end:
            self._report()
            if is_stopped := self.control.stop():
                break
            hi = min(self.state.offset + SLICE_OFFSETS, end)
            rows = self._rows(self.chosen, self.state.offset, hi)
            self._commit(rows, hi)
            slices += 1
        self._report()
        return JobResult(
            job="tables",
            rows=self.totals["rows"],
            offset=self.state.offset,
            batches=slices,
            is_stopped=is_stopped,
            notes=tuple(self.notes[:_MAX_NOTES]),
            details={"tables": len(self.state.tables), **{n: self.totals[n] for n in COUNTED}},
        )

    def _report(self, running: int = 0) -> None:
        """Report the offset, with the bodies of the running slice that are done or ``running``."""
        end = self.ledger.offset or 0
        self.highest = max(self.highest, min(self.state.offset + self.converted + running, end))
        self.control.report("tables", self.highest, end)

    def _note_bodies(self) -> None:
        """Note where bodies begin, if not at the first new message."""
        bodiless = [file.hi for file in self.chosen if not file.has_bodies]
        if bodiless:
            first = min(file.lo for file in self.chosen if file.has_bodies)
            self.notes.append(
                f"messages up to offset {max(bodiless)} were archived without --bodies and are in"
                f" no table; bodies are there from offset {first} on"
            )

    def _rebuild(self) -> None:
        """Create tables again from all rows that the archive has."""
        changes, names = TableChanges(self.files, self.by, self.state), self.options.rebuild
        for name in names:
            if name not in changes.tables:
                raise RefusedError("unknown_table", f"there is no table of the {self.by} {name!r}")
            changes.drop(name)
        rows = self._rows(archive_files(self.files, self.ledger), 0, self.state.offset)
        self._commit(rows.where(sf.col(self.by).isin(*names)), self.state.offset, changes)

    def _add_backfilled(self) -> None:
        """Add the rows that a wider selection has added to the archive below the last offset.

        They are those that the selection before does not contain. A backfill stores its selection
        before the ledger, so a selection that did not change belongs to the ledger read before it.
        """
        with self.files.lock(ARCHIVE_LOCK):
            repair(self.files)
            self.ledger, self.chosen = new_files(self.files, self.state)
            self.selection = stored_selection(self.files)
        before = ArchiveSelection.parse(self.state.selection)
        rows = self._rows(archive_files(self.files, self.ledger), 0, self.state.offset)
        queues = (row["queue"] for row in rows.select("queue").distinct().collect())
        is_new = sf.col("queue").isin([name for name in queues if not before.has_queue(name)])
        is_new |= ~sf.col("outcome").isin(*before.all_outcomes)
        self._commit(rows.where(is_new), self.state.offset)

    def _rows(self, chosen: Sequence[ArchiveFile], lo: int, hi: int) -> "DataFrame":
        """Return what tables need of the offsets ``(lo, hi]``."""
        matching = [file for file in chosen if file.lo <= hi and file.hi > lo]
        rows = read_archive(self.spark, self.files, matching)
        fit_batches(self.spark, rows)
        names = dict.fromkeys([*(c.name for c in self.keys), "urn", "erased_at", "body"])
        return rows.where(sf.col("offset").between(lo + 1, hi)).select(*names)

    def _commit(self, rows: "DataFrame", hi: int, changes: TableChanges | None = None) -> None:
        """Add the rows up to offset ``hi`` to their tables, together with other ``changes``."""
        changes = changes or TableChanges(self.files, self.by, self.state)
        is_erased = sf.col("erased_at").isNotNull()
        has_body = ~is_erased & sf.col("body").isNotNull()
        counts = rows.groupBy(self.by).agg(
            sf.count_if(has_body), sf.count_if(is_erased), sf.count_if(~is_erased & ~has_body)
        )
        for name, bodies, erased, bodiless in sorted(counts.collect(), key=lambda r: r[0] or ""):
            self.totals["erased"] += erased
            self.totals["without_body"] += bodiless
            if name is None:
                self.totals["without_urn"] += bodies
            elif bodies:
                selected = rows.where((sf.col(self.by) == name) & has_body)
                with watch_rows(self.spark, bodies, self._report):
                    self._stage(name, selected, bodies, changes)
                self.converted += bodies
        self.state = changes.commit(offset=hi, selection=self.selection)
        self.converted = 0

    def _stage(self, name: str, rows: "DataFrame", bodies: int, changes: TableChanges) -> None:
        """Write the new rows of a table, with wider columns if they need them."""
        before = changes.tables.get(name)
        table = self._current_table(name, before)
        urls = [self.files.url(staged(table, kind)) for kind in ("new", "rejects")]
        while True:
            written, counts = write_rows(rows, bodies, self._columns(table), urls[0], name, urls[1])
            wider = widen(table.shape, counts)
            if wider == table.shape:
                break
            version = 1 if before is None else before.version + 1
            table = replace(table, shape=wider, version=version)
        if before is not None:
            self._merge(before, table, changes)
        changes.add(name, table)
        self.totals += Counter(written)
        self.notes += _table_notes(name, FOLDERS[self.by], before, table, written)

    def _columns(self, table: TypedTable) -> TableColumns:
        return TableColumns(table.shape, table.version, table.document, self.keys)

    def _current_table(self, name: str, before: TypedTable | None) -> TypedTable:
        """Return a table with the columns of the newest compatible registered schema."""
        document = self.broker.schema(name) if self.broker and self.by == "urn" else None
        if before is None:
            shape = Shape(kinds=("object",), is_open=True)
            if document is not None:
                shape = shape_of(read_schema(json.loads(document)))
            return TypedTable(folder=file_name(name), shape=shape, document=document)
        if document in (None, before.document):
            return before
        schema = read_schema(json.loads(document))
        shape, conflicts = adopt(before.shape, shape_of(schema))
        if before.document is not None:
            changes = schema_changes(read_schema(json.loads(before.document)), schema)
            conflicts += [change.pointer for change in changes if change.is_breaking]
        if conflicts := list(dict.fromkeys(conflicts)):
            self.notes.append(
                f"{name}: the registered schema changes {', '.join(conflicts[:3])}, so the table"
                f" keeps the columns of version {before.version}; give the new schema another URN,"
                f" or create the table again with --rebuild {name}"
            )
            return before
        return replace(before, shape=shape, document=document, version=before.version + 1)

    def _merge(self, before: TypedTable, table: TypedTable, changes: TableChanges) -> None:
        """Rewrite all files of a table if its columns changed, or else its many small files."""
        old, new = self._columns(before).schema, self._columns(table).schema
        is_changed = old.simpleString() != new.simpleString()
        sizes = self.files.data_files(f"{FOLDERS[self.by]}/{table.folder}")
        paths = [path for path, size in sizes.items() if is_changed or size < SMALL_BYTES]
        if paths and (is_changed or len(paths) >= SMALL_FILES):
            rows = self.spark.read.schema(old).parquet(*map(self.files.url, paths)).to(new)
            count = math.ceil(sum(sizes[path] for path in paths) / FILE_BYTES)
            url = self.files.url(staged(table, "old"))
            rows.coalesce(max(1, count)).write.mode("overwrite").parquet(url)
            changes.removes += paths


def _table_notes(
    name: str, root: str, before: TypedTable | None, table: TypedTable, written: Mapping[str, int]
) -> Iterator[str]:
    if before is None:
        source = "the registered schema" if table.document else f"{written['rows']:,} bodies"
        yield f"{name} is a new table, {root}/{table.folder}, with the columns of {source}"
    if before is not None and before.version != table.version:
        yield f"{name}: the columns have changed; they have version {table.version} now"
    if written["rejects"]:
        see = f"see {REJECTS}/{table.folder}"
        yield f"{name}: the schema rejects {written['rejects']:,} bodies; {see}"
    if written["misfits"]:
        yield f"{name}: {written['misfits']:,} bodies have values without a column; see {MISFIT}"
