"""Accepted gaps, which are offset ranges with rows that were removed before being archived.

Each batch has a file, ``gaps/<batch>.json``, written before Spark commits the batch; a repeated
batch replaces its own file. Files are never appended to, because object stores do not support it.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from phpmq_lite.spark import results_folder
from phpmq_lite.spark.pipeline_client import HistoryBounds
from phpmq_lite.spark.results_folder import ResultsFolder, read_json_files


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveGap:
    """A range of offsets ``(lo, hi]`` in one batch, from which rows are missing."""

    at_ms: int  # time when the gap was accepted, in Unix ms
    history_id: str
    lo: int
    hi: int
    rows: int | None  # number of missing rows; None if the archive excludes queues or outcomes
    batch: str

    @property
    def rows_at_most(self) -> int:
        """Maximum number of missing rows."""
        return self.hi - self.lo if self.rows is None else self.rows


def find_gap(
    begin: int,
    end: int,
    bounds: HistoryBounds,
    *,
    needs_deleted: bool,
    archived: Callable[[], int | None],
    batch: str,
    at_ms: int,
) -> ArchiveGap | None:
    """Return the gap in the batch of offsets ``(begin, end]``, or None if no rows are missing.

    ``bounds`` are the bounds of the history after the batch was written.  ``archived`` returns the
    number of rows in the batch, or None if the archive excludes queues or outcomes.
    """
    hi = min(end, max(bounds.lo, bounds.lo_deleted if needs_deleted else 0))
    if hi <= begin:
        return None
    count = archived()
    rows = None if count is None else end - begin - count
    if rows == 0:  # retention removed the rows after they were read
        return None
    return ArchiveGap(
        at_ms=at_ms, history_id=bounds.history_id, lo=begin, hi=hi, rows=rows, batch=batch
    )


def store_gap(files: ResultsFolder, gap: ArchiveGap) -> None:
    """Store a gap in the file of its batch."""
    files.write(f"{results_folder.GAPS}/{gap.batch}.json", json.dumps(asdict(gap)))


def read_gaps(files: ResultsFolder) -> list[ArchiveGap]:
    """Return all stored gaps, newest first."""
    gaps = [ArchiveGap(**document) for document in read_json_files(files, results_folder.GAPS)]
    return sorted(gaps, key=lambda gap: (-gap.at_ms, -gap.lo))


def gap_text(gap: ArchiveGap) -> str:
    """Describe an accepted gap for the output of a run."""
    rows = f"{'up to ' if gap.rows is None else ''}{gap.rows_at_most:,} rows"
    return (
        f"offsets {gap.lo + 1} to {gap.hi} lack {rows}, which retention removed; the gap was"
        " accepted and recorded (phpmq-lite pipeline status --gaps)"
    )
