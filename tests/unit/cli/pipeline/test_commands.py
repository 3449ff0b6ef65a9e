"""What the pipeline commands refuse before a JVM starts, and how they parse arguments."""

import json
import logging
import os
import signal
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner, Result
from pyspark.logger import PySparkLogger

from phpmq_lite.cli import contexts, parameters
from phpmq_lite.cli.admin_client import AdminClient
from phpmq_lite.cli.doctor import findings
from phpmq_lite.cli.errors import ERROR, REFUSED, CommandError
from phpmq_lite.cli.main import root_command
from phpmq_lite.cli.pipeline import commands, doctor, job_runner, spark_errors
from phpmq_lite.cli.pipeline.target import PipelineTarget
from phpmq_lite.cli.signals import StopRequest
from phpmq_lite.installation import install_command
from phpmq_lite.spark import executor_zip, results_folder
from phpmq_lite.spark.jobs import options, replay_plans
from phpmq_lite.spark.results_folder import ArchiveGap, LocalResultsFolder, store_gap


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ignore contexts and settings of this machine."""
    monkeypatch.setattr(contexts, "current_context", lambda: None)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the jobs that would run and the seconds between rounds."""
    found: list[Any] = []

    def execute(target: Any, jobs: Any, *, every_s: float | None = None, **_: Any) -> None:
        found.append((list(jobs), every_s))

    monkeypatch.setattr(commands, "run_jobs", execute)
    return found


def ask(*arguments: str) -> Result:
    where = ["--url", "http://127.0.0.1:9101", "--out", "out"]
    return CliRunner().invoke(root_command, ["pipeline", *arguments, *where])


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, asked: list[Any]) -> None:
    monkeypatch.setattr(job_runner, "find_spec", lambda name: None if name == "pyspark" else 1)
    for name in (["run"], ["archive"], ["metrics"], ["compact"], ["consume", "q"], ["replay"]):
        result = ask(*name)
        assert result.exit_code == 1, name
        assert result.stderr == (
            "Error: the pipeline requires the extra spark (not installed: pyspark):"
            f" {install_command('spark')}\n"
        )
    assert asked == []


def test_run_is_archive_metrics_and_compact_in_rounds(asked: list[Any]) -> None:
    assert ask("run", "--continuous", "--every", "5m", "--bodies").exit_code == 0
    ((given, every_s),) = asked
    assert [job.name for job in given] == ["archive", "metrics", "compact"]
    assert every_s == 300
    assert given[0].options.bodies is True
    assert {job.options.out for job in given} == {str(Path("out").absolute())}


def test_run_includes_tables_once_there_are_some(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def jobs(*arguments: str) -> list[tuple[str, Any]]:
        assert ask("run", *arguments).exit_code == 0
        *_, (given, _) = asked
        assert given[0].options.bodies is (len(given) > 3)
        return [(job.name, getattr(job.options, "by", None)) for job in given]

    monkeypatch.chdir(tmp_path)
    head, tail = [("archive", None), ("metrics", None)], [("compact", None)]
    assert jobs() == head + tail
    assert jobs("--tables") == [*head, ("tables", "urn"), *tail]
    LocalResultsFolder(tmp_path / "out").write("tables/_state/queue.json", '{"archive_id":"x"}')
    assert jobs() == [*head, ("tables", "queue"), *tail]
    assert jobs("--tables") == [*head, ("tables", "urn"), ("tables", "queue"), *tail]


def test_single_run_has_no_rounds(asked: list[Any]) -> None:
    ask("archive", "--every", "5m", "--accept-gap")
    ((given, every_s),) = asked
    assert every_s is None
    assert given[0].options.fail_on_data_loss is False


def test_consume_reads_its_flags(asked: list[Any]) -> None:
    assert ask("consume", "eat", "--max-messages", "5", "--accept-gap").exit_code == 0
    given = asked[0][0][0].options
    assert (given.queue, given.subscription, given.max_messages) == ("eat", "pipeline", 5)
    assert given.fail_on_data_loss is False


def test_replay_reads_its_selection(asked: list[Any]) -> None:
    result = ask(
        "replay", "--queue", "a", "--queue", "b", "--since", "2026-01-31T08:00+01:00",
        "--until", "2026-02-01", "--rate", "20/s", "--where", "size > 5", "--dry-run",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    given = asked[0][0][0].options
    assert (given.queues, given.rate, given.where) == (("a", "b"), 20.0, "size > 5")
    assert given.since_ms == 1_769_842_800_000
    assert given.until_ms == 1_769_904_000_000
    assert (given.dry_run, given.is_continuation) == (True, False)


def test_replay_prints_the_absolute_time_and_its_name(asked: list[Any]) -> None:
    result = ask("replay", "--since", "2h")
    given = asked[0][0][0].options
    when, name = result.stderr.splitlines()
    assert when == f"settled since {replay_plans.time_text(given.since_ms)}"
    assert parameters.time_ms(when.split()[-1]) == given.since_ms
    assert abs(given.since_ms / 1_000 - (time.time() - 7_200)) < 60
    assert name.endswith(f"to continue it later, use --name {replay_plans.plan_name(given)}")


def stored(sent: int, **selection: Any) -> replay_plans.ReplayPlan:
    """Store a plan of two pieces, of which ``sent`` are sent."""
    asked = options.ReplayOptions(connection=None, out="out", **selection)
    plan = replay_plans.ReplayPlan(
        replay_plans.plan_name(asked), "key", replay_plans.selection_of(asked)
    )
    plan.pieces = [[1, 10, 10], [11, 15, 5]]
    files = LocalResultsFolder(Path("out"))
    replay_plans.store_plan(files, plan)
    files.write(results_folder.replay_progress_file(plan.name), str(sent))
    return plan


def test_replay_goes_on_by_its_name_alone(asked: list[Any]) -> None:
    plan = stored(1, queues=("a",), since_ms=1_769_842_800_000)
    result = ask("replay", "--name", plan.name, "--rate", "5/s")
    assert result.stderr.splitlines() == [
        f"continuing replay {plan.name}: 10 of 15 messages are published",
        "settled since 2026-01-31T07:00:00Z",
    ]
    given = asked[0][0][0].options
    assert (given.name, given.is_continuation, given.rate) == (plan.name, True, 5.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--name", "none"], "there is no replay none; available: NAME"),
        (["--name", "NAME", "--queue", "b"], "the replay NAME has a different selection"),
        (["--queue", "a", "--since", "2h"], "sent 10 of 15 messages"),
        (["--queue", "a", "--until", "2026-11-22"], '"since": "2026-01-31T07:00:00Z"'),
    ],
)
def test_unfinished_replay_is_refused(arguments: list[str], message: str, asked: list[Any]) -> None:
    """The last case selects differently and would publish most messages twice."""
    name = stored(1, queues=("a",), since_ms=1_769_842_800_000).name
    result = ask("replay", *(name if word == "NAME" else word for word in arguments))
    assert result.exit_code == 4
    assert message.replace("NAME", name) in result.stderr
    assert asked == []


def test_replay_is_made_beside_finished_ones_and_under_a_name_of_its_own(asked: list[Any]) -> None:
    stored(1, queues=("a",), since_ms=1_769_842_800_000)
    stored(2, queues=("b",), since_ms=1_769_842_800_000)
    assert ask("replay", "--queue", "a", "--since", "2h", "--name", "own").exit_code == 0
    assert ask("replay", "--queue", "b", "--since", "2h").exit_code == 0
    assert ask("replay", "--queue", "a", "--since", "2h", "--dry-run").exit_code == 0
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "select messages"),
        (["--name", "night", "--to", "b"], "--to and --ttl require a selection"),
        (["--dry-run"], "select messages"),
        (["--since", "2026-02-01", "--until", "2026-01-31"], "--since must be before --until"),
        (["--since", "yesterday"], "is not a time"),
        (["--queue", "a", "--rate", "fast"], "is not a rate"),
        (["--queue", "a", "--rate", "0/s"], "is not a rate"),
        (["--outcome", "failed"], "'failed' is not one of"),
    ],
)
def test_replay_refuses(arguments: list[str], message: str, asked: list[Any]) -> None:
    result = ask("replay", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert asked == []


@pytest.mark.parametrize("name", [["replay", "--queue", "a"], ["consume", "a"]])
def test_writing_jobs_need_the_broker(name: list[str], tmp_path: Path, asked: list[Any]) -> None:
    (tmp_path / "phpmq.db").touch()
    result = CliRunner().invoke(root_command, ["pipeline", *name, "--path", "phpmq.db"])
    assert result.exit_code == 2
    assert "use --url instead of --path" in result.stderr


def test_wrong_date_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="is not a date"):
        commands.utc_date("31.1.2026")


def test_first_signal_asks_and_second_interrupt_ends() -> None:
    noted = threading.Event()
    stopping = StopRequest(lambda _text: noted.set())
    before = signal.getsignal(signal.SIGINT)
    with stopping:
        assert not stopping()
        os.kill(os.getpid(), signal.SIGTERM)
        assert noted.wait(10)
        assert stopping()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert stopping.signal == signal.SIGTERM
    assert signal.getsignal(signal.SIGINT) == before


def test_session_that_starts_later_takes_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark sets a handler of SIGINT when its session starts, which may be within the block."""
    before = signal.getsignal(signal.SIGINT)
    stopping = StopRequest()

    @contextmanager
    def start(*_: object) -> Iterator[object]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        yield object()

    monkeypatch.setattr(job_runner, "spark_session", start)
    with ExitStack() as stack, stopping:
        job_runner._Session(cast(Any, None), cast(Any, None), stack, stopping).start()
        signal.raise_signal(signal.SIGINT)
        assert stopping.signal == signal.SIGINT
    assert signal.getsignal(signal.SIGINT) == before


def test_second_interrupt_overrides_an_error_of_spark() -> None:
    stopping = StopRequest(lambda _text: None)

    def job() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        finally:
            raise OSError("Broken pipe")

    with pytest.raises(KeyboardInterrupt), stopping:
        job()


def test_zip_has_the_source_and_nothing_of_the_admin(tmp_path: Path) -> None:
    first = executor_zip.build_zip(tmp_path / "a.zip").read_bytes()
    assert executor_zip.build_zip(tmp_path / "b.zip").read_bytes() == first
    names = zipfile.ZipFile(tmp_path / "a.zip").namelist()
    assert {"phpmq_lite/__init__.py", "phpmq_lite/spark/source.py"} <= set(names)
    assert {"phpmq_lite/spark/jobs/archive.py", "phpmq_lite/storage/arrow.py"} <= set(names)
    assert not [name for name in names if "/admin/" in name or "__pycache__" in name]


@pytest.mark.parametrize(("code", "state"), [(ERROR, findings.BAD), (REFUSED, findings.WARN)])
def test_doctor_distinguishes_a_missing_extra_from_a_busy_broker(
    code: int, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(self: AdminClient, method: str, path: str, *others: Any) -> dict[str, Any]:
        if "arrow" in path:
            raise CommandError("the broker answered", code)
        return {"history_id": "ab", "lo": 0, "hi": 9}

    monkeypatch.setattr(AdminClient, "call", call)
    target = PipelineTarget("http://mq:9101", None, None, "out", "local", {}, Path("log"))
    found = {one.check: one for one in doctor.check_pipeline(target)}
    assert found["export"].state == state
    assert ("extra export" in found["export"].hint) == (state == findings.BAD)


SUMMARY: dict[str, Any] = {
    "version": 1,
    "finished_at": 1_769_842_800_000,
    "history_id": "ab",
    "archive": {"offset": 900, "rows": 890, "dates": 2, "bytes": 12_345},
    "jobs": [
        {"name": "archive", "state": "done", "finished_at": 1_769_842_800_000, "offset": 900},
        {"name": "compact", "state": "failed", "finished_at": None, "offset": None, "error": "x"},
    ],
}


def notes(bounds: dict[str, Any] | None, **changes: Any) -> list[str]:
    return commands.status_notes(SUMMARY | changes, bounds, 1_769_842_860_000)


def test_status_has_the_lag_of_each_job() -> None:
    rows = commands.job_rows(SUMMARY, {"history_id": "ab", "lo": 0, "hi": 1_000})
    assert [(row["name"], row["behind"], row["finished"]) for row in rows] == [
        ("archive", 100, "2026-01-31 07:00:00"),
        ("compact", None, None),
    ]


def test_status_without_an_archive_shows_no_figures_of_it() -> None:
    bounds = {"history_id": "ab", "lo": 950, "lo_deleted": 0, "hi": 1_000}
    assert len(notes(bounds, archive={"offset": None, "rows": None, "dates": None})) == 1


def test_continuous_run_rests_as_long_as_a_round_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 100.0, 1_000.0, 1_020.0])
    rests: list[float] = []

    class Stop:
        def __call__(self) -> bool:
            return len(rests) == 2

        def sleep(self, seconds: float) -> None:
            rests.append(seconds)

    monkeypatch.setattr("phpmq_lite.cli.pipeline.job_runner.time.monotonic", lambda: next(clock))
    monkeypatch.setattr(job_runner._JobRunner, "run_round", lambda _: [])
    given: list[Any] = [None, [], lambda _: None, Stop()]
    assert list(job_runner._JobRunner(*given).rounds(60.0)) == [[], []]
    assert rests == [100.0, 60.0]


def test_status_of_another_history_has_no_lag() -> None:
    bounds = {"history_id": "cd", "lo": 0, "hi": 1_000}
    assert commands.job_rows(SUMMARY, bounds)[0]["behind"] is None
    assert "another history" in notes(bounds)[-1]


def test_status_reports_rows_removed_by_retention() -> None:
    bounds = {"history_id": "ab", "lo": 950, "lo_deleted": 0, "hi": 1_000}
    told = notes(bounds)
    assert told[0] == "last run: 2026-01-31 07:00:00 UTC, 1 min ago"
    assert told[1] == "archive: 890 rows for 2 dates, 12,345 bytes, up to offset 900"
    assert told[2] == "retention removed up to 50 rows before they were archived"


def test_status_counts_deleted_messages_that_retention_took() -> None:
    bounds = {"history_id": "ab", "lo": 0, "lo_deleted": 960, "hi": 1_000}
    told = notes(bounds)
    assert told[2] == "retention removed up to 60 rows before they were archived"
    archive = SUMMARY["archive"] | {"outcomes": ["acked", "dead"]}
    assert len(notes(bounds, archive=archive)) == 2


def test_status_reports_and_lists_accepted_gaps(tmp_path: Path) -> None:
    archive = SUMMARY["archive"] | {"gaps": 2, "missing": 65}
    told = notes(None, archive=archive)
    assert told[2].startswith("accepted gaps: 2, with up to 65 missing rows")
    for number, rows in ((0, None), (1, 60)):
        gap = ArchiveGap(at_ms=1_769_842_800_000 + number, history_id="ab", lo=10 * number, hi=70,
                  rows=rows, batch=f"b-{number}")  # fmt: skip
        store_gap(LocalResultsFolder(tmp_path / "pipeline"), gap)
    (tmp_path / "phpmq.db").touch()
    given = ["pipeline", "status", "--gaps", "--path", str(tmp_path / "phpmq.db"), "-o", "jsonl"]
    result = CliRunner().invoke(root_command, given)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    found = [(line["first"], line["hi"], line["rows"]) for line in lines if "first" in line]
    assert found == [(11, 70, 60), (1, 70, None)]


def test_status_before_the_first_run_names_the_command(tmp_path: Path) -> None:
    (tmp_path / "phpmq.db").touch()
    result = CliRunner().invoke(root_command, ["pipeline", "status", "--path", "phpmq.db"])
    assert result.exit_code == 3
    assert "phpmq-lite pipeline run" in result.stderr


def test_pyspark_errors_go_to_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logger = PySparkLogger.getLogger(name)
        before = logger.handlers
        with job_runner._log_to_file(tmp_path / name):
            logger.error("a trace of Java")
        assert "a trace of Java" in (tmp_path / name).read_text()
        assert logger.handlers == before
    assert capfd.readouterr().err == ""


def test_terminal_stays_clean_when_the_start_of_spark_is_interrupted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def start(_name: str, **options: Any) -> None:
        asked.update(options)
        logging.getLogger().error("KeyboardInterrupt while sending command.")  # as py4j does
        raise KeyboardInterrupt

    monkeypatch.setattr("phpmq_lite.spark.session.session", start)
    log = tmp_path / "spark.log"
    target = PipelineTarget("http://mq", None, None, str(tmp_path), "local[2]", {}, log)
    with pytest.raises(KeyboardInterrupt), job_runner.spark_session(target, progress=print):  # type: ignore[arg-type]
        pass
    assert capfd.readouterr().err == ""
    assert "while sending command" in log.read_text()
    assert asked["niceness"] == 19


def test_error_of_executors_without_our_code_has_a_hint() -> None:
    class Failed(Exception):  # noqa: N818 - stands for one of Spark's
        __module__ = "pyspark.errors"

    text = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'phpmq_lite'"
    hint = spark_errors.spark_error_text(Failed(text)) or ""
    assert "see `phpmq-lite pipeline package`" in hint
    hint = spark_errors.spark_error_text(Failed(text.replace("phpmq_lite", "pyarrow"))) or ""
    assert hint.startswith("ModuleNotFoundError: No module named 'pyarrow': the executors' Python")
    assert "PYSPARK_PYTHON or --conf spark.pyspark.python" in hint
    assert spark_errors.spark_error_text(ConnectionRefusedError()) == "Spark's JVM has ended"
    assert spark_errors.spark_error_text(ValueError("a defect of ours")) is None


def test_results_are_rows_of_figures() -> None:
    result = options.JobResult(job="compact", rows=5, details={"files": 1_200, "plan": "x"})
    outcome = job_runner.JobOutcome(result, 1.25)
    assert job_runner.outcome_row(outcome, "table")["details"] == "files 1,200, plan x"
    assert job_runner.outcome_row(outcome, "jsonl")["details"] == result.details
