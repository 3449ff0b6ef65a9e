"""The limits of a summary; ``tests/spark`` tests its figures."""

import json
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.insights_document import OTHER_QUEUES, SUMMARY_BYTES, PipelineJobState
from phpmq_lite.spark.insights_summary import (
    encode_summary,
    fit_queues,
    path_item,
    record_run,
)
from phpmq_lite.spark.jobs.metrics import BUCKET_BASE, COUNTS
from phpmq_lite.spark.results_folder import LocalResultsFolder

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
    lists = ("queues", "last24h", "last30d", "urns", "deaths", "paths", "expiries")
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
    )
    kept = record_run(
        files, [PipelineJobState(name="archive", state="failed", started_at=2, error="no disk")]
    )
    assert [(run["name"], run["state"]) for run in kept] == [
        ("archive", "failed"),
        ("metrics", "done"),
    ]


def test_failed_run_keeps_the_offset_that_the_job_has_reached(tmp_path: Path) -> None:
    files = LocalResultsFolder(tmp_path)
    names = ("archive", "metrics", "consume")
    done = [PipelineJobState(name=name, state="done", offset=20) for name in names[:2]]
    record_run(files, [*done, PipelineJobState(name="consume", state="done")])
    for number, offset in ((0, 20), (1, 30)):
        files.write(f"checkpoints/archive/commits/{number}", "v1\n{}")
        end = json.dumps({"history": "h", "offset": offset})
        files.write(f"checkpoints/archive/offsets/{number}", f"v1\n{{}}\n{end}")
    kept = record_run(files, [PipelineJobState(name=name, state="failed") for name in names])
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
