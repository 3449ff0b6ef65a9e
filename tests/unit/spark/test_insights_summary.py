"""A summary from the metric tables, without Spark, and its limits."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from phpmq_lite.insights_document import OTHER_QUEUES, SUMMARY_BYTES, PipelineJobState
from phpmq_lite.spark import insights_figures
from phpmq_lite.spark.insights_figures import fit_queues, path_item
from phpmq_lite.spark.insights_summary import encode_summary, record_run, write_summary
from phpmq_lite.spark.insights_tables import BUCKET_BASE
from phpmq_lite.spark.jobs.metrics import conform, write_table
from phpmq_lite.spark.jobs.options import JobOptions
from phpmq_lite.spark.ledger import ArchiveLedger
from phpmq_lite.spark.results_folder import LocalResultsFolder
from phpmq_lite.spark.table_columns import COUNTS
from tests.spark.history_rows import DAY_MS, START_MS, Row, history_rows
from tests.unit.spark.jobs.test_metric_tables import computed, narrowed

HOUR_MS = 3_600_000
SPANS = [f"{s}_{n}" for s in ("wait", "hold") for n in ("p50", "p95", "p99", "max")]


def item(queue: str, minute: int, count: int = 1, **given: Any) -> dict[str, Any]:
    figures = dict.fromkeys(COUNTS, count) | dict.fromkeys(SPANS, 5)
    return {"minute": minute, "queue": queue, **figures, **given}


def test_all_queues_are_kept_if_they_fit() -> None:
    items = [item("a", 2), item("b", 1)]
    assert fit_queues(items, [], ["a", "b"], "minute", 10_000) == [items[1], items[0]]


def test_quiet_queues_are_combined_by_minute() -> None:
    items = [item("a", minute) for minute in range(5)]
    items += [item(q, minute, 2) for q in ("b", "c") for minute in range(5)]
    rest = [{**item("", 0, 7, wait_max=9), "hold_max": None}]
    kept = fit_queues(items, rest, ["a", "b", "c"], "minute", 4_600)
    assert {i["queue"] for i in kept} == {"a", OTHER_QUEUES}
    others = {i["minute"]: i for i in kept if i["queue"] == OTHER_QUEUES}
    assert [others[m]["acked"] for m in range(5)] == [11, 4, 4, 4, 4]
    assert (others[0]["wait_max"], others[0]["hold_max"]) == (9, 5)
    assert others[0]["wait_p50"] is None
    assert sum(i["acked"] for i in kept) == sum(i["acked"] for i in items + rest)
    assert len(json.dumps(kept, separators=(",", ":"))) <= 4_600


def test_summary_stays_within_its_limit_with_long_names() -> None:
    lists = ("last24h", "last30d", "urns", "deaths", "paths", "expiries")
    summary: dict[str, Any] = {name: [] for name in lists}
    summary["paths"] = [{"path": [f"{n}" + "ü" * 500] * 50} for n in range(50)]
    text = encode_summary(summary)
    assert len(text.encode()) <= SUMMARY_BYTES
    kept = json.loads(text)["paths"]
    assert 0 < len(kept) < 50
    assert kept == summary["paths"][: len(kept)]  # most common first


def test_newest_run_of_each_job_is_kept(tmp_path: Path) -> None:
    files = LocalResultsFolder(tmp_path)
    record_run(
        files,
        [PipelineJobState(name=n, state="done", started_at=1) for n in ("metrics", "archive")],
        None,
    )
    failed = PipelineJobState(name="archive", state="failed", started_at=2, error="no disk")
    kept = record_run(files, [failed], None)
    assert [(run["name"], run["state"]) for run in kept] == [
        ("archive", "failed"),
        ("metrics", "done"),
    ]


def test_failed_run_keeps_the_offset_that_the_job_has_reached(tmp_path: Path) -> None:
    files = LocalResultsFolder(tmp_path)
    names = ("archive", "metrics", "consume")
    done = [PipelineJobState(name=name, state="done", offset=20) for name in names[:2]]
    record_run(files, [*done, PipelineJobState(name="consume", state="done")], None)
    ledger = ArchiveLedger(number=2, archive_id="0" * 8, offset=30)
    failed = [PipelineJobState(name=name, state="failed") for name in names]
    kept = record_run(files, failed, ledger)
    assert {run["name"]: run["offset"] for run in kept} == {
        "archive": 30, "metrics": 20, "consume": None,
    }  # fmt: skip
    assert {run["state"] for run in kept} == {"failed"}


@pytest.mark.parametrize("ms", [1, 2, 900, 86_400_000])
def test_durations_of_paths_add_up_within_one_percent(ms: int) -> None:
    bucket = 0
    while BUCKET_BASE**bucket < ms:
        bucket += 1
    found = path_item(["a:u"], [{bucket: 3}, {bucket: 4}])
    assert found["traces"] == 7
    assert found["p50_ms"] == pytest.approx(ms, rel=0.01, abs=0.06)
    assert found["p95_ms"] == found["p50_ms"]


def write_metrics(files: LocalResultsFolder) -> list[Row]:
    """Write the tables of 5,000 rows of four days; return the rows."""
    rows = history_rows(5_000)
    for name, table in computed(narrowed(rows), size=10_000).items():
        days = table["date"].unique().to_pylist()
        write_table(files, name, conform(table, name), days)
    return rows


def test_summary_without_news_keeps_the_figures_of_the_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minutes that are too old leave it; in the next hour, the tables are read again."""
    files = LocalResultsFolder(tmp_path)
    write_metrics(files)
    options = JobOptions(connection=None, out=str(tmp_path))
    reads = Mock(wraps=insights_figures.collect_figures)
    monkeypatch.setattr(insights_figures, "collect_figures", reads)

    def summarized(now_ms: int, *, has_news: bool = False) -> dict[str, Any]:
        run = PipelineJobState(name="metrics", state="done", finished_at=now_ms)
        assert write_summary(None, options, [run], now_ms=now_ms, has_news=has_news) == ()
        summary: dict[str, Any] = json.loads((tmp_path / "summary.json").read_text())
        assert (summary["finished_at"], summary["jobs"][0]["finished_at"]) == (now_ms, now_ms)
        return summary

    begin_ms = START_MS + 3 * DAY_MS
    first = summarized(begin_ms, has_news=True)
    later = begin_ms + HOUR_MS - 1
    second = summarized(later)
    assert reads.call_count == 1
    kept = [item for item in first["last24h"] if item["minute"] > later - DAY_MS]
    assert 0 < len(kept) < len(first["last24h"])
    assert second["last24h"] == kept
    assert len(second["last30d"]) == len(first["last30d"])
    summarized(later + 1)
    assert reads.call_count == 2


def test_summary_of_a_run_without_news_loads_neither_arrow_nor_spark() -> None:
    code = (
        "import phpmq_lite.spark.idle, phpmq_lite.cli.pipeline.commands, sys;"
        "print([m for m in sys.modules if m in ('pyspark', 'pyarrow', 'numpy', 'pandas')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
