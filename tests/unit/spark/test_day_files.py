"""Files of events and messages, read by DuckDB."""

import random
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow.parquet import ParquetFile

from phpmq_lite.errors import PipelineError
from phpmq_lite.spark.columns import EVENT_COLUMNS, FILE_SCHEMA, arrow_schema
from phpmq_lite.spark.jobs import day_files
from phpmq_lite.spark.jobs.archive_source import check_files, write_events
from phpmq_lite.spark.jobs.day_files import DayFiles
from phpmq_lite.spark.results_folder import LocalResultsFolder

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from("pq"), st.sampled_from(["acked", "dead"])),
        min_size=1,
        max_size=60,
    ),
    st.integers(1, 9),
    st.integers(200, 4_000),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_messages_are_in_the_file_of_their_day_and_counted_as_a_loop_counts_them(
    tmp_path: Path, chosen: list[tuple[int, str, str]], in_batch: int, group_bytes: int
) -> None:
    times = [BEGIN + timedelta(days=day, minutes=n) for n, (day, _, _) in enumerate(chosen)]
    rows: list[dict[str, Any]] = [
        {
            "offset": n, "history_offset": n, "queue": queue, "outcome": outcome, "body": bytes(n),
            "published_at": at - timedelta(days=1), "settled_at": at,
        }
        for n, ((_, queue, outcome), at) in enumerate(zip(chosen, times, strict=True), 1)
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows, arrow_schema(FILE_SCHEMA))
    files = LocalResultsFolder(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(day_files, "BODY_GROUP_BYTES", group_bytes)
        target = DayFiles(files, "staged/tasks", "archive", has_bodies=True)
        for batch in table.to_batches(max_chunksize=in_batch):
            target.add(batch)
        written = target.close()
    assert sorted(part.date for part in written) == sorted({str(at.date()) for at in times})
    for part in written:
        of_day = [row for row in rows if str(row["settled_at"].date()) == part.date]
        stored = ParquetFile(tmp_path / part.file.path).read().to_pylist()
        assert [row["offset"] for row in stored] == [row["offset"] for row in of_day]
        assert [row["body"] for row in stored] == [row["body"] for row in of_day]
        counted = Counter((row["queue"], row["outcome"]) for row in of_day)
        found = {
            (q, o): rows for q, outcomes in part.counts.items() for o, rows in outcomes.items()
        }
        assert found == counted
        assert part.offsets == sum(row["offset"] for row in of_day)
        days = [(row[n] - EPOCH).days for row in of_day for n in ("published_at", "settled_at")]
        file = part.file
        assert (file.first_day, file.last_day) == (min(days), max(days))
        assert (file.rows, file.lo, file.hi) == (
            len(of_day), of_day[0]["offset"], of_day[-1]["offset"],
        )  # fmt: skip
        assert file.has_bodies
    shutil.rmtree(tmp_path / "staged")


def test_numbers_are_stored_as_differences_and_bodies_have_no_statistics(tmp_path: Path) -> None:
    target = DayFiles(LocalResultsFolder(tmp_path), "staged", "archive", has_bodies=True)
    row = {"offset": 1, "queue": "q", "outcome": "acked", "body": b"secret", "settled_at": BEGIN}
    target.add(pa.RecordBatch.from_pylist([row], arrow_schema(FILE_SCHEMA)))
    [part] = target.close()
    group = ParquetFile(tmp_path / part.file.path).metadata.row_group(0)
    columns = {c.path_in_schema: c for c in map(group.column, range(group.num_columns))}
    for name in ("offset", "history_offset", "settled_at", "deadline"):
        assert "DELTA_BINARY_PACKED" in columns[name].encodings
    assert columns["settled_at"].statistics is not None
    assert columns["body"].statistics is None


def test_file_that_only_an_executor_has_is_an_error(tmp_path: Path) -> None:
    files = LocalResultsFolder(tmp_path)
    [part, _] = write_events(files, events().to_batches(), "staged/tasks")
    check_files(files, [part.file])
    with pytest.raises(PipelineError, match=rf"{part.file.path} .*0: --out must be a folder that"):
        check_files(LocalResultsFolder(tmp_path / "other"), [part.file])
