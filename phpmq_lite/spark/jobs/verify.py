"""Verify job, which compares the archive with the broker's history and with its own ledger.

Offsets that both still have are compared by day, queue and outcome: the number of rows, and a
checksum of their offsets. All rows are compared with the counts that each batch left in the ledger.
Rows that the selection excludes, accepted gaps and pruned dates are accounted for.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf

from phpmq_lite.errors import DataLossError, RefusedError
from phpmq_lite.spark.archive_reader import read_archive
from phpmq_lite.spark.columns import utc_day
from phpmq_lite.spark.history import HistorySource, open_history
from phpmq_lite.spark.jobs.options import JobOptions
from phpmq_lite.spark.ledger import ArchiveLedger, Counts, archive_files, read_ledger, read_manifest
from phpmq_lite.spark.pipeline_client import HistoryBounds
from phpmq_lite.spark.results_folder import EVENTS, ResultsFolder, open_results, read_gaps
from phpmq_lite.spark.selection import ArchiveSelection, read_selection
from phpmq_lite.spark.source_options import DELETED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_READS: Final = 3  # retention may remove rows while they are read
_KEY: Final = ("date", "queue", "outcome")

Cell = tuple[str, str, str]  # date, queue, outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRows:
    """The rows of one day (UTC, of ``settled_at``), queue and outcome."""

    date: str
    queue: str
    outcome: str
    broker: int  # rows of the comparable range in the broker
    compared: int  # the same in the archive
    archived: int  # all rows in the archive
    counted: int  # all rows that should be in the archive, by its ledger
    missing: int
    doubled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What was compared, and the result by day, queue and outcome.

    Offsets ``(lo, hi]`` were compared with the broker. ``unexplained`` is the number of archived
    offsets for which the archive has neither rows nor gaps; it is None if the selection excludes
    some, or if the size of a gap is unknown.
    """

    history_id: str | None
    offset: int | None
    lo: int | None = None  # None if nothing could be compared with the broker
    hi: int | None = None
    behind: int | None = None  # offsets that the broker has, but the archive not yet
    removed: int  # rows that prune removed from the archive
    gaps: int
    gap_rows: int  # at most
    unexplained: int | None
    lost_events: int  # rows that the files of events should have
    rows: tuple[ComparedRows, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def differences(self) -> list[ComparedRows]:
        """The rows with a difference."""
        return [row for row in self.rows if row.missing or row.doubled]

    @property
    def is_equal(self) -> bool:
        """Whether nothing is missing or doubled."""
        return not (self.differences or self.unexplained or self.lost_events)

    def document(self) -> dict[str, Any]:
        """Return the report as JSON values, with totals."""
        totals = {
            f"{name}_rows": sum(getattr(row, name) for row in self.rows)
            for name in ("compared", "archived", "missing", "doubled")
        }
        return {"is_equal": self.is_equal, **totals, **asdict(self)}


def run(spark: "SparkSession", options: JobOptions) -> VerifyReport:
    """Compare the archive with its ledger and, if there is a connection, with the broker.

    Raises:
        RefusedError: ``no_ledger``: the archive has none yet.
    """
    files = open_results(spark, options.out)
    ledger = read_ledger(files)
    if ledger is None:
        raise RefusedError(
            "no_ledger",
            f"the archive in {options.out} has no ledger; run `phpmq-lite pipeline archive` first",
        )
    counted, removed = _ledger_counts(files, ledger)
    archive = read_archive(spark, files, archive_files(files, ledger)).select("offset", *_KEY)
    archived = _count(archive)
    selection = read_selection(files) or ArchiveSelection()
    report = _summarize(spark, files, ledger, selection, counted, removed)
    both: dict[Cell, tuple[int, int, int, int]] = {}
    if options.connection is not None:
        history = open_history(options.connection)
        for _ in range(_READS):
            before = history.bounds()
            if before.history_id != ledger.history_id or ledger.offset is None:
                note = f"the broker's history is {before.history_id}, not {ledger.history_id}"
                report = replace(report, notes=(f"{note}: compared with the ledger only",))
                break
            lo = max(before.lo, ledger.begin or 0)
            hi = max(lo, min(before.hi, ledger.offset))
            source = _broker_rows(spark, options, selection, lo, hi)
            condition = _in_both(history, before, selection, removed)
            rows = archive.where(sf.col("offset").between(lo + 1, hi))
            both = _compare(source.where(condition), rows.where(condition))
            after = history.bounds()
            if (after.lo, after.lo_deleted) == (before.lo, before.lo_deleted):
                report = replace(report, lo=lo, hi=hi, behind=max(0, after.hi - ledger.offset))
                break
        else:
            raise DataLossError(
                f"retention removed rows during each of {_READS} reads; run the command again"
            )
    expected = counted - removed
    cells = []
    for cell in sorted({*counted, *archived, *both}):
        in_broker, compared, missing, doubled = both.get(cell, (0, 0, 0, 0))
        difference = expected[cell] - archived[cell]
        cells.append(
            ComparedRows(
                date=cell[0],
                queue=cell[1],
                outcome=cell[2],
                broker=in_broker,
                compared=compared,
                archived=archived[cell],
                counted=expected[cell],
                missing=max(missing, difference),
                doubled=max(doubled, -difference),
            )
        )
    return replace(report, rows=tuple(cells))


def _ledger_counts(
    files: ResultsFolder, ledger: ArchiveLedger
) -> tuple[Counter[Cell], Counter[Cell]]:
    """Return how many rows were ever archived, and how many of them were removed."""
    totals: tuple[Counter[Cell], Counter[Cell]] = (Counter(), Counter())
    paths = [*(entry.manifest for entry in ledger.dates.values()), *ledger.pruned.values()]
    for path in paths:
        manifest = read_manifest(files, path)
        parts: tuple[Counts, Counts] = (manifest.counts, manifest.removed)
        for total, counts in zip(totals, parts, strict=True):
            for queue, outcomes in counts.items():
                total.update({(manifest.date, queue, o): rows for o, rows in outcomes.items()})
    return totals


def _summarize(
    spark: "SparkSession",
    files: ResultsFolder,
    ledger: ArchiveLedger,
    selection: ArchiveSelection,
    counted: Counter[Cell],
    removed: Counter[Cell],
) -> VerifyReport:
    """Return the report without the archive's rows."""
    events = archive_files(files, ledger, table=EVENTS)
    stored = read_archive(spark, files, events, table=EVENTS).count() if events else 0
    gaps = [gap for gap in read_gaps(files) if gap.history_id == ledger.history_id]
    unexplained = None
    sizes = [gap.rows for gap in gaps]
    if selection.is_everything and ledger.offset is not None and None not in sizes:
        archived = counted.total() + sum(filter(None, sizes))
        unexplained = ledger.offset - (ledger.begin or 0) - archived
    return VerifyReport(
        history_id=ledger.history_id,
        offset=ledger.offset,
        removed=removed.total(),
        gaps=len(gaps),
        gap_rows=sum(gap.rows_at_most for gap in gaps),
        unexplained=unexplained,
        lost_events=sum(file.rows for file in events) - stored,
    )


def _broker_rows(
    spark: "SparkSession", options: JobOptions, selection: ArchiveSelection, lo: int, hi: int
) -> "DataFrame":
    settings = {
        **options.connection_options,
        "startingOffsets": str(lo + 1),
        "endingOffsets": str(hi + 1),
        "failOnDataLoss": "false",
        "columns": "offset,queue,outcome,settled_at",
        "outcomes": ",".join(selection.outcomes),
    }
    present = {name: value for name, value in settings.items() if value}
    source = spark.read.format("phpmq").options(**present).load()
    return source.select("offset", utc_day("settled_at").alias("date"), "queue", "outcome")


def _in_both(
    history: HistorySource,
    bounds: HistoryBounds,
    selection: ArchiveSelection,
    removed: Iterable[Cell],
) -> "Column":
    """Return the condition for rows that archive and broker must have."""
    condition = (sf.col("outcome") != DELETED) | (sf.col("offset") > bounds.lo_deleted)
    if bounds.allowed or not replace(selection, outcomes=()).is_everything:
        names = [name for name in history.queues() if selection.has_queue(name)]
        condition &= sf.col("queue").isin(names)
    excluded = {date for date, _, _ in removed}
    return condition & ~sf.col("date").cast("string").isin(excluded)


def _count(rows: "DataFrame") -> Counter[Cell]:
    counts = rows.groupBy(*_KEY).count().collect()
    return Counter({(str(row[0]), row[1], row[2]): row[3] for row in counts})


def _compare(broker: "DataFrame", archive: "DataFrame") -> dict[Cell, tuple[int, int, int, int]]:
    """Return the rows in the broker and the archive, those missing and those doubled, by cell."""
    sides = [
        rows.groupBy(*_KEY)
        .agg(sf.count("*"), sf.sum("offset"), sf.bit_xor(sf.xxhash64("offset")))
        .collect()
        for rows in (broker, archive)
    ]
    ours, theirs = ({(str(r[0]), r[1], r[2]): tuple(r[3:]) for r in side} for side in sides)
    both = {}
    for cell in {*ours, *theirs}:
        rows = (ours.get(cell, (0,))[0], theirs.get(cell, (0,))[0])
        both[cell] = (*rows, 0, 0)
    differing = {cell for cell in both if ours.get(cell) != theirs.get(cell)}
    if not differing:
        return both
    counts = [
        rows.groupBy("offset", *_KEY).agg(sf.count("*").alias(name))
        for rows, name in ((broker, "n"), (archive, "m"))
    ]
    rows_of = counts[0].join(counts[1], ["offset", *_KEY], "full")
    more = sf.coalesce("n", sf.lit(0)) - sf.coalesce("m", sf.lit(0))
    sums = rows_of.groupBy(*_KEY).agg(
        sf.sum(sf.greatest(more, sf.lit(0))), sf.sum(sf.greatest(-more, sf.lit(0)))
    )
    for row in sums.collect():
        cell = (str(row[0]), row[1], row[2])
        both[cell] = (*both[cell][:2], row[3], row[4])
    return both
