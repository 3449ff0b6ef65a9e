"""Runs without news, which need no Spark; each kind of news is found."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from phpmq_lite.cli.pipeline import job_runner
from phpmq_lite.cli.pipeline.job_runner import PipelineJob, run_jobs
from phpmq_lite.cli.pipeline.target import PipelineTarget
from phpmq_lite.errors import RefusedError
from phpmq_lite.insights_document import PipelineJobState
from phpmq_lite.spark import idle, insights_summary
from phpmq_lite.spark.idle import idle_results
from phpmq_lite.spark.insights_summary import record_run
from phpmq_lite.spark.insights_tables import VERSION
from phpmq_lite.spark.jobs.options import (
    ArchiveOptions,
    CompactOptions,
    ConsumeOptions,
    JobOptions,
    JobResult,
    MetricsOptions,
    TablesOptions,
)
from phpmq_lite.spark.ledger import ArchiveFile, ArchiveLedger, DateManifest, ReplacedFile, commit
from phpmq_lite.spark.pipeline_client import HistoryBounds
from phpmq_lite.spark.results_folder import METRICS_STATE, LocalResultsFolder
from phpmq_lite.spark.source_options import SourceConnection
from phpmq_lite.spark.table_store import COUNTED, TablesState, stored_selection

BOUNDS = HistoryBounds("h", 0, 20, 0)
LEDGER = ArchiveLedger(number=0, archive_id="0" * 8, history_id="h", offset=20)
FILE = ArchiveFile(
    path="archive/x", rows=20, size_bytes=9, lo=1, hi=20, first_day=1, last_day=1, batch="b",
    has_bodies=False,
)  # fmt: skip
RESULT = JobResult(job="tables", rows=0, details={"tables": 0, **dict.fromkeys(COUNTED, 0)})
CONNECTION = SourceConnection(path="history.db")
reports: list[tuple[str | None, int | None]] = []  # of the reader to the broker


def jobs(out: Path, **given: Any) -> list[JobOptions]:
    own: dict[str, Any] = {"connection": CONNECTION, "out": str(out)}
    reading = [MetricsOptions(**own), TablesOptions(**own)]
    return [ArchiveOptions(**own, **given), *reading, CompactOptions(**own)]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalResultsFolder:
    """Return a folder whose jobs have nothing to do."""
    files = LocalResultsFolder(tmp_path)
    commit(files, LEDGER, now_ms=5)
    files.write(METRICS_STATE, json.dumps({"tables": VERSION, "history_id": "h", "offset": 20}))
    files.write("archive.json", json.dumps({"queues": [], "queue_pattern": None}))
    state = TablesState(archive_id="0" * 8, number=1, offset=20, selection=stored_selection(files))
    files.write("tables/_state/urn.json", msgspec.json.encode(state).decode())
    for name in ("offsets", "commits"):
        files.write(f"checkpoints/archive/{name}/0", "v1")
    done = PipelineJobState(name="compact", state="done", finished_at=6)
    record_run(files, [done], None)
    know(monkeypatch, BOUNDS)
    return files


def know(monkeypatch: pytest.MonkeyPatch, bounds: HistoryBounds) -> None:
    class History:
        def bounds(self, reader: str | None = None, position: int | None = None) -> HistoryBounds:
            reports.append((reader, position))
            return bounds

    reports.clear()

    for module in (idle, insights_summary):
        monkeypatch.setattr(module, "open_history", lambda connection: History())


def test_run_without_news_has_results(files: LocalResultsFolder, tmp_path: Path) -> None:
    results = idle_results(files, jobs(tmp_path))
    assert results is not None
    assert [(r.job, r.rows, r.offset, dict(r.details)) for r in results] == [
        ("archive", 0, 20, {}),
        ("metrics", 0, 20, {"dates": 0, "tables": 7}),
        ("tables", 0, 20, {"tables": 0, **dict.fromkeys(COUNTED, 0)}),
        ("compact", 0, None, {"dates": 0, "files_before": 0, "files_after": 0}),
    ]
    assert reports == [(None, None), ("archive-00000000", 20)]


def _write(path: str, content: str) -> Callable[[LocalResultsFolder], None]:
    return lambda files: files.write(path, content)


def _compact(**given: Any) -> Callable[[LocalResultsFolder], None]:
    fields: dict[str, Any] = {"name": "compact", "state": "done", "finished_at": 6, **given}

    def record(files: LocalResultsFolder) -> None:
        record_run(files, [PipelineJobState(**fields)], None)

    return record


def _replace_file(files: LocalResultsFolder) -> None:
    old = ReplacedFile(path="archive/x", at_ms=1, reason="compact")
    commit(files, replace(LEDGER, number=1), now_ms=5, replaced=[old])


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_write("ledger/prepared.json", "{}"), id="a change was cut off"),
        pytest.param(_replace_file, id="replaced files are due"),
        pytest.param(_write("checkpoints/archive/offsets/1", "v1"), id="a batch is not committed"),
        pytest.param(_write("archive.json", '{"queues": ["a"]}'), id="other selection"),
        pytest.param(_write("metrics/begun.json", "[]"), id="metrics were cut off"),
        pytest.param(
            _write(METRICS_STATE, '{"tables": 3, "history_id": "h", "offset": 19}'),
            id="metrics are behind",
        ),
        pytest.param(
            _write(METRICS_STATE, '{"tables": 2, "history_id": "h", "offset": 20}'),
            id="tables have changed",
        ),
        pytest.param(_compact(finished_at=4), id="compact has not seen the archive"),
        pytest.param(_write("tables/_state/prepared.json", "{}"), id="tables were cut off"),
        pytest.param(_write("tables/_staged/a/new/0.parquet", ""), id="tables were killed"),
        pytest.param(
            _write("tables/_state/urn.json", '{"archive_id": "00000000", "number": 1}'),
            id="tables are behind",
        ),
        pytest.param(_write("_delta_log/0.json", "{}"), id="a Delta log may be behind"),
        pytest.param(_compact(state="failed"), id="compact failed"),
    ],
)
def test_run_with_work_is_none(
    files: LocalResultsFolder, tmp_path: Path, change: Callable[[LocalResultsFolder], None]
) -> None:
    change(files)
    assert idle_results(files, jobs(tmp_path)) is None


@pytest.mark.parametrize("change", [{"hi": 21}, {"history_id": "other"}, {"allowed": ("a*",)}])
def test_new_rows_or_another_broker_are_news(
    files: LocalResultsFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
) -> None:
    know(monkeypatch, replace(BOUNDS, **change))
    assert idle_results(files, jobs(tmp_path)) is None
    assert reports == [(None, None)]


def test_tables_need_an_archive_with_bodies_before_spark_starts(
    files: LocalResultsFolder, tmp_path: Path
) -> None:
    def idle(out: Path, **given: Any) -> list[JobResult] | None:
        options = TablesOptions(connection=CONNECTION, out=str(out), **given)
        return idle_results(LocalResultsFolder(out), [options])

    with pytest.raises(RefusedError, match="run `phpmq-lite pipeline archive --bodies` first"):
        idle(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    _replace_file(files)  # other jobs remove it
    assert idle(tmp_path) == [replace(RESULT, offset=20)]
    note = "the archive has no messages: run `phpmq-lite pipeline archive --bodies` first"
    assert idle(tmp_path, by="queue") == [replace(RESULT, offset=20, notes=(note,))]
    assert idle(tmp_path, rebuild=("urn:a",)) is None
    date = DateManifest(date="2026-03-01", files=(FILE,))
    commit(files, replace(LEDGER, number=9), now_ms=5, manifests=[date])
    with pytest.raises(RefusedError, match=r"no bodies of offsets 1 to 20: .*from offset 21 on"):
        idle(tmp_path, by="queue")


def test_other_jobs_and_named_dates_always_run(files: LocalResultsFolder, tmp_path: Path) -> None:
    own: dict[str, Any] = {"connection": CONNECTION, "out": str(tmp_path)}
    consume = ConsumeOptions(**own, queue="q", subscription="s")
    assert idle_results(files, [consume]) is None
    named = MetricsOptions(**own, dates=(date(2026, 3, 1),))
    assert idle_results(files, [named]) is None
    assert idle_results(files, jobs(tmp_path, queues=("a",))) is None
    assert idle_results(files, [ArchiveOptions(connection=None, out=str(tmp_path))]) is None
    assert idle_results(LocalResultsFolder(tmp_path / "new"), jobs(tmp_path)) is None


def test_command_without_news_updates_the_summary_and_starts_no_session(
    files: LocalResultsFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    start = Mock(side_effect=AssertionError)
    monkeypatch.setattr(job_runner, "spark_session", start)
    target = PipelineTarget(
        None, None, Path("history.db"), str(tmp_path), "local[2]", {}, tmp_path / "log"
    )
    names = ("archive", "metrics", "tables", "compact")
    run = [PipelineJob(n, o) for n, o in zip(names, jobs(tmp_path), strict=True)]
    run_jobs(target, run, output="jsonl")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["job"], row["rows"], row["offset"]) for row in rows] == [
        ("archive", 0, 20), ("metrics", 0, 20), ("tables", 0, 20),
        ("compact", 0, None),
    ]  # fmt: skip
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["lag"] == {"offset": 20, "rows": 0}
    assert {job["name"]: job["state"] for job in summary["jobs"]} == dict.fromkeys(names, "done")
    files.write("metrics/begun.json", "[]")
    with pytest.raises(AssertionError):
        run_jobs(target, run, output="jsonl")
    start.assert_called_once()
