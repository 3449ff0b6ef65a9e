"""Files of events and messages, read by DuckDB."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet import ParquetFile

from phpmq_lite.spark.columns import EVENT_COLUMNS, arrow_schema
from phpmq_lite.spark.jobs import day_files
from phpmq_lite.spark.jobs.archive_source import write_events
from phpmq_lite.spark.results_folder import LocalResultsFolder

BEGIN = datetime(2026, 3, 1, 22, tzinfo=UTC)
FACTS = """
SELECT count(*), min(history_offset), max(history_offset),
  min(date_diff('day', DATE '1970-01-01', CAST(least(settled_at, event_at, last_at) AS DATE))),
  max(date_diff('day', DATE '1970-01-01', CAST(greatest(settled_at, event_at, last_at) AS DATE))),
  min(CAST(settled_at AS DATE)), max(CAST(settled_at AS DATE)),
  count(detail) FILTER (kind IN ('retry', 'failure')), count(*) FILTER (detail IS NULL)
FROM read_parquet($1)
"""


def events() -> pa.Table:
    dice, at = random.Random(1), BEGIN
    rows = []
    for event_id in range(1, 301):
        at += timedelta(minutes=dice.randrange(10))
        rows.append(
            {
                "history_offset": event_id // 3 + 1, "seq": 1, "message_id": "a", "queue": "q",
                "settled_at": BEGIN + timedelta(minutes=event_id // 3 * 10), "event_id": event_id,
                "event_at": at, "kind": dice.choice(["retry", "failure", "requeue"]),
                "detail": "text", "count": 1, "last_at": dice.choice([None, at]),
                "history_id": "h", "broker": "b",
            }
        )  # fmt: skip
    return pa.Table.from_pylist(rows, arrow_schema(EVENT_COLUMNS))


@pytest.mark.parametrize("has_reports", [True, False])
def test_files_have_each_event_once_and_the_facts_that_the_ledger_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_reports: bool
) -> None:
    monkeypatch.setattr(day_files, "GROUP_BYTES", 10_000)
    files, table = LocalResultsFolder(tmp_path), events()
    written = write_events(
        files, table.to_batches(max_chunksize=30), "staged/b", is_masked=not has_reports
    )
    paths = [str(tmp_path / part.file.path) for part in written]
    duckdb.execute("SET TimeZone = 'UTC'")
    stored = duckdb.execute("SELECT event_id FROM read_parquet($1) ORDER BY 1", [paths]).fetchall()
    assert [number for (number,) in stored] == table["event_id"].to_pylist()
    assert {part.table for part in written} == {"events"}
    assert len(written) == 2
    assert sum(ParquetFile(path).num_row_groups for path in paths) >= 4
    assert {part.date for part in written} == {"2026-03-01", "2026-03-02"}
    hidden = 0
    for part, path in zip(written, paths, strict=True):
        found = duckdb.execute(FACTS, [path]).fetchall()[0]
        file = part.file
        assert found[:5] == (file.rows, file.lo, file.hi, file.first_day, file.last_day)
        assert {str(day) for day in found[5:7]} == {part.date}
        assert (found[7] > 0) is has_reports
        hidden += found[8]
        assert file.size_bytes == Path(path).stat().st_size
        assert b"number of its arrival" in b"".join(pq.read_schema(path).metadata.values())
    reports = sum(kind != "requeue" for kind in table["kind"].to_pylist())
    assert hidden == (0 if has_reports else reports)


def test_no_events_write_nothing(tmp_path: Path) -> None:
    assert write_events(LocalResultsFolder(tmp_path), (), "staged/b") == []
    assert list(tmp_path.iterdir()) == []
