"""``bench`` starts a broker or measures a running one, and leaves no file and no process."""

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from phpmq_lite.bench import traffic
from phpmq_lite.bench.processes import BenchJob, cpu_seconds, run_together
from phpmq_lite.broker_process import isolated_broker
from phpmq_lite.cli.main import root_command
from phpmq_lite.errors import ClientError, StartRefusedError
from tests.support.postgres_nodes import needs_postgres
from tests.support.programs import run_program

ROOT = Path(__file__).parent.parent.parent
SHORT = ("bench", "--seconds", "0.1", "--size", "32")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a folder on a disk: ``bench`` refuses one in memory."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def run_benchmark(folder: Path, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    return run_program(
        [sys.executable, str(ROOT / "benchmarks" / script), *options, "--data", str(folder)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(root_command, [*SHORT, *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_bench_measures_limits_and_workloads_and_leaves_nothing(tmp_path: Path) -> None:
    code, stdout, stderr = invoke("--data", str(tmp_path), "-o", "json")
    assert (code, stderr.splitlines()[-2:]) == (0, ["flow", "latency"])
    document = json.loads(stdout)
    assert [rate["workload"] for rate in document["rates"]] == ["publish", "flow"]
    assert all(rate["messages"] > 0 for rate in document["rates"])
    assert all(value > 0 for value in document["limits"].values())
    assert document["latency"]["rounds"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_bench_writes_a_table_to_paste(tmp_path: Path) -> None:
    code, stdout, _ = invoke("--data", str(tmp_path), "--workloads", "flow-plain,latency")
    assert code == 0
    lines = stdout.splitlines()
    assert lines[0].startswith("phpmq-lite ")
    assert any(line.startswith("flow-plain ") for line in lines)
    assert any(line.startswith("publish to receipt ") for line in lines)
    assert max(map(len, lines[4:])) <= 80  # the tables; a processor may have a long name


def test_bench_removes_its_messages_from_a_running_broker(tmp_path: Path) -> None:
    with isolated_broker(tmp_path / "data") as broker:
        url = "phpmq://{}:{}".format(*broker.address)
        arguments = ("--url", url, "--workloads", "publish", "--data", str(tmp_path))
        code, stdout, _ = invoke(*arguments, "-o", "json")
        listed = CliRunner().invoke(
            root_command, ["queue", "list", "--data", str(broker.data), "-o", "json"]
        )
    assert code == 0
    [rate] = json.loads(stdout)["rates"]
    assert rate["load"]["broker"] is None
    queues = {row["name"]: row["ready"] for row in json.loads(listed.stdout)}
    assert [ready for name, ready in queues.items() if name.startswith("bench.publish.")] == [0]


@pytest.mark.slow
def test_bench_writes_a_markdown_report(tmp_path: Path) -> None:
    arguments = ("--workloads", "publish,flow", "--size", "100000", "--data", str(tmp_path))
    code, stdout, stderr = invoke(*arguments, "-o", "markdown")
    assert code == 0, stderr
    lines = stdout.splitlines()
    assert lines[0] == "### phpmq-lite bench"
    assert "| messages | 100,000 bytes, plain |" in lines
    rows = [line.split(" | ")[0] for line in lines if line.startswith("| ")]
    assert rows.count("| publish") == rows.count("| flow") == 1
    assert all(line.endswith(" |") for line in lines if line.startswith("|"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.sample("5000")
@pytest.mark.parametrize("left", [0, 5_000])
def test_drain_takes_the_given_number_and_leaves_the_rest(tmp_path: Path, left: int) -> None:
    with isolated_broker(tmp_path / "data") as broker:
        published = (broker.address, "few", 32, 60.0, True, traffic.PLAIN, 1_000 + left)
        run_together({"fill": BenchJob(traffic.publish, published)}, 60)
        job = BenchJob(traffic.drain, (broker.address, "few", 32, 1_000, 100))
        taken = run_together({"drain": job}, 60)["drain"].value
        assert 1_000 <= taken <= 1_100
        rest = 1_000 + left - taken
        if rest:
            again = BenchJob(traffic.drain, (broker.address, "few", 32, rest, 100))
            assert run_together({"drain": again}, 60)["drain"].value == rest


@pytest.fixture
def long_run(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    # A shell's background jobs ignore SIGINT, and so do the tests and the processes they start.
    with_sigint = ["env", "--default-signal=INT"]
    command = [sys.executable, "-m", "phpmq_lite", "bench", "--seconds", "2", "--data", "."]
    with subprocess.Popen(
        [*with_sigint, *command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        yield process
        process.kill()


@pytest.mark.sample("15")
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_bench_ends_its_processes_when_it_is_interrupted(
    tmp_path: Path, long_run: subprocess.Popen[str], number: signal.Signals
) -> None:
    assert long_run.stderr is not None
    assert "publish\n" in iter(long_run.stderr.readline, "")  # then its broker is there
    [lock] = tmp_path.glob(".bench-*/data/lock")
    broker = Path("/proc") / lock.read_text().strip()
    assert broker.exists()
    os.killpg(long_run.pid, number)  # as a terminal does: to all of them
    assert long_run.wait(60) != 0
    assert not broker.exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.sample("profile_paths.py --rounds 2 --batch 5-core: publish")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            "expiry.py --messages 50 --fill-seconds 4 --watch-seconds 0.5",
            "50 messages expired (history) in ",
        ),
        (
            "footprint.py --messages 1000 --connections 2 --settle-seconds 0",
            "of each, with connection and queue: ",
        ),
        ("profile_paths.py --rounds 2 --batch 5", "core: publish"),
        ("call_counts.py --messages 1000", "consume: "),
        ("payload_policies.py --rounds 1 --seconds 0.1", "envelope queue, envelope contents: "),
        ("profile_paths.py --rounds 2 --batch 5 --path backlog", "update: dispatched"),
        ("profile_paths.py --rounds 2 --batch 5 --path early", "settle: history"),
        ("profile_paths.py --rounds 2 --batch 5 --path expiry", "load messages"),
        ("profile_paths.py --rounds 2 --batch 5 --path history", "rows with bodies"),
    ],
)
def test_benchmark_reports(
    tmp_path_factory: pytest.TempPathFactory, arguments: str, expected: str
) -> None:
    tmp_path = tmp_path_factory.mktemp("data")  # short: it contains a Unix socket
    done = run_benchmark(tmp_path, *arguments.split())
    assert done.returncode == 0, done.stderr
    assert any(line.startswith(expected) for line in done.stdout.splitlines()), done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_benchmark_of_delivery_options_checks_their_rules(tmp_path: Path) -> None:
    """It fails if a message is early, two of a group are in flight, or a limit is exceeded."""
    cases = ("due", "rate", "in_flight", "groups")
    done = run_benchmark(tmp_path, "delivery_options.py", "--short", *cases)
    assert done.returncode == 0, done.stderr
    assert "at most 50 in flight" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@needs_postgres
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("postgres_bound --rounds 1 --seconds 1", "flow, relative to psycopg alone: "),
        ("two_shards --rounds 1 --seconds 1", "  relative to 1: "),
    ],
)
def test_benchmark_of_postgresql_reports(
    tmp_path_factory: pytest.TempPathFactory, program: str, expected: str
) -> None:
    tmp_path = tmp_path_factory.mktemp("data")  # short: it contains a Unix socket
    command = [sys.executable, "-m", *f"benchmarks.{program}".split()]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert any(line.startswith(expected) for line in done.stdout.splitlines()), done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--messages 1000000000000", "a backlog of 1,000,000,000,000 messages needs about 1,012"),
        pytest.param(
            "--messages 1000 --connections 100000000",
            "100,000,000 connections need 100,000,200",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_footprint_names_the_resource_that_is_missing(
    tmp_path_factory: pytest.TempPathFactory, options: str, expected: str
) -> None:
    tmp_path = tmp_path_factory.mktemp("data")  # short: it contains a Unix socket
    done = run_benchmark(tmp_path, "footprint.py", *options.split(), "--settle-seconds", "0")
    assert done.returncode == 1
    assert expected in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_curves_are_measured_drawn_and_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def curves(*options: str) -> str:
        done = run_benchmark(tmp_path, "curves.py", "--quick", *options, "--out", str(out))
        assert done.returncode == 0, done.stderr
        return done.stdout

    axes = ["backlog", "queues", "kept", "connections", "size", "history"]
    told = curves()
    assert [line.partition(":")[0] for line in told.splitlines()[::4]] == axes
    found = json.loads((out / "curves.json").read_text())
    assert list(found["axes"]) == axes
    for axis in found["axes"].values():
        assert list(axis["lines"]) == ["publish", "window 100", "window 1,000"]
        assert all(us > 0 for line in axis["lines"].values() for spot in line for us in spot["us"])
    picture = (out / "queues.svg").read_text()
    (out / "queues.svg").unlink()
    assert curves("--draw", "--axes", "queues") == "\n".join(told.splitlines()[4:8]) + "\n"
    assert (out / "queues.svg").read_text() == picture
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    assert [path for path in tmp_path.iterdir() if path != out] == []


def test_broker_process_reports_a_failed_start_and_serves_again_after_a_kill(
    tmp_path: Path,
) -> None:
    broker = isolated_broker(tmp_path / "data")
    message = r"the broker did not start \(exit code 1\): (?s:.)*is in use"
    with broker:
        second = isolated_broker(broker.data)
        with pytest.raises(StartRefusedError, match=message), second:
            pass
        broker.kill()
    with broker:
        assert broker.address[1] > 0


def test_run_names_the_job_that_failed() -> None:
    with pytest.raises(ClientError, match=r"producer: .*refused"):
        run_together({"producer": BenchJob(_refuse_connection)}, 10)


def test_run_ends_jobs_that_take_too_long() -> None:
    with pytest.raises(ClientError, match="waiter: did not finish within 0 s"):
        run_together({"waiter": BenchJob(_wait_forever)}, 0.3)


BUSY_PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print(child.pid, flush=True)
child.wait()
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")
def test_cpu_time_of_a_broker_includes_that_of_its_children() -> None:
    command = [sys.executable, "-c", BUSY_PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        while (used_s := cpu_seconds(child)) is not None and used_s < 0.3:
            time.sleep(0.02)
        running_s = cpu_seconds(parent.pid)
        os.kill(child, signal.SIGKILL)
        while cpu_seconds(child) is not None:  # until it is reaped
            time.sleep(0.02)
        ended_s = cpu_seconds(parent.pid)
    assert used_s is not None
    assert running_s is not None
    assert ended_s is not None
    assert used_s <= running_s <= ended_s


def _refuse_connection() -> Generator[None, None, None]:
    yield
    raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


def _wait_forever() -> Generator[None, None, None]:
    yield
    signal.pause()
