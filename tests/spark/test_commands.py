"""The command line with a real Spark: results, errors, and the tour of the examples.

All of it runs here, in the session that all tests share; ``test_cluster.py`` has a process.
"""

import json
import os
import re
import runpy
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from phpmq_lite.broker_process import BrokerProcess, broker_process
from phpmq_lite.cli.main import root_command
from phpmq_lite.client.blocking_client import BlockingClient, connect_blocking
from phpmq_lite.spark import insights_summary
from phpmq_lite.spark.jobs import replay

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

ROOT = Path(__file__).parent.parent.parent
ROWS = 500
FAILED = (
    b'{"job":"urn:a","trace_id":"t","data":{},"meta":{"id":"m%d","schema_version":1},'
    b'"attempts":3,"dead_letter":{"reason":"failed"}}'
)
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("commands") / "data"
    with broker_process(data, "--admin", "127.0.0.1:0") as running:
        yield running


@pytest.fixture(scope="module")
def history(broker: BrokerProcess) -> None:
    """Publish and acknowledge envelopes of messages that had failed."""
    with connect_blocking(broker.phpmq[0]) as client:
        client.publish_many("orders", (FAILED % n for n in range(ROWS)))
        taken(client, "orders", ROWS)


def taken(client: BlockingClient, queue: str, count: int) -> list[bytes]:
    """Acknowledge the messages of a queue and return their bodies; check that it is empty then."""
    bodies = []
    with client.consume(queue, 100, 30) as deliveries:
        for _ in range(count):
            delivery = next(deliveries)
            bodies.append(bytes(delivery.body))
            delivery.ack()
    with client.consume(queue, 1, 0.5) as more:
        assert next(more, None) is None
    return bodies


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture
def shared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Return the session of all tests, with a ``stop`` that does nothing."""
    monkeypatch.setattr(spark, "stop", lambda: None)
    return spark


@pytest.fixture
def pipeline(
    shared: SparkSession, broker: BrokerProcess, out: Path, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Return a runner of pipeline commands in this process, without the slow summary."""
    monkeypatch.setattr(insights_summary, "write_summary", lambda *given, **options: ())

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(root_command, command(broker, out, *arguments))

    return run


def command(broker: BrokerProcess, out: Path | str, *arguments: str) -> list[str]:
    return [
        "pipeline", *arguments, "--master", "local[2]",
        "--url", broker.admin[0], "--out", str(out), "--conf", "spark.sql.shuffle.partitions=2",
    ]  # fmt: skip


def test_java_and_python_workers_are_as_nice_as_the_session(spark: SparkSession) -> None:
    """They share the session, within which Linux compares priorities, but not Ctrl-C's group."""
    java = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    workers = spark.sparkContext.parallelize([0], 1)
    worker = workers.map(lambda _: (os.getpriority(os.PRIO_PROCESS, 0), os.getsid(0))).first()
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    assert nice >= 1
    assert (os.getpriority(os.PRIO_PROCESS, java), os.getsid(java)) == (nice, os.getsid(0))
    assert worker == (nice, os.getsid(0))
    assert os.getpgid(java) == java


@pytest.mark.slow
@pytest.mark.usefixtures("history")
def test_archive_answers_in_a_line(pipeline: Run) -> None:
    """The commands after it find the bodies."""
    done = pipeline("archive", "--bodies")
    assert done.exit_code == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["job"], answer["rows"], answer["offset"]) == ("archive", ROWS, ROWS)


@pytest.mark.slow  # needs the archive of the test above
def test_error_is_a_sentence_and_no_trace(pipeline: Run) -> None:
    """The condition is Spark's to understand."""
    done = pipeline("replay", "--where", "sizes > 5")
    assert done.exit_code == 4
    assert done.stdout == ""
    last = done.stderr[done.stderr.rindex("Error: ") :]
    assert "`sizes` cannot be resolved" in last
    assert "\tat " not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_replay_goes_on_by_name_after_an_interrupt(
    pipeline: Run, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run first; then Ctrl-C comes while the first of three pieces is published."""
    write = replay.publish_piece

    def interrupted(*given: Any) -> None:
        write(*given)
        signal.raise_signal(signal.SIGINT)

    selection = ("--queue", "orders", "--since", "2h", "--to", "again")
    done = pipeline("replay", *selection, "--dry-run")
    assert json.loads(done.stdout)["details"]["again"] == ROWS
    monkeypatch.setattr(replay, "MAX_ROWS", 200)
    with monkeypatch.context() as patch:
        patch.setattr(replay, "publish_piece", interrupted)
        done = pipeline("replay", *selection)
    assert done.exit_code == 130, done.stderr
    assert json.loads(done.stdout)["rows"] == 200
    found = re.search(r"200 of 500 messages were sent; continue with --name (\w+)", done.stderr)
    assert found is not None, done.stderr
    done = pipeline("replay", "--name", found[1], "--rate", "1000/s")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 300
    assert "all 500 messages" in pipeline("replay", "--name", found[1]).stderr
    with connect_blocking(broker.phpmq[0]) as client:
        bodies = [json.loads(body) for body in taken(client, "again", ROWS)]
    assert [body["meta"]["id"] for body in bodies] == [f"m{n}" for n in range(ROWS)]
    assert Counter((body["attempts"], "dead_letter" in body) for body in bodies) == {
        (0, False): ROWS
    }


def test_consume_writes_a_queue_and_leaves_it_empty(
    pipeline: Run, shared: SparkSession, broker: BrokerProcess, out: Path
) -> None:
    with connect_blocking(broker.phpmq[0]) as client:
        client.publish_many("eat", (b"%d" % n for n in range(30)))
        done = pipeline("consume", "eat", "--max-messages", "20")
        assert done.exit_code == 0, done.stderr
        assert json.loads(done.stdout)["rows"] == 30
        taken(client, "eat", 0)
    rows = shared.read.parquet(str(out / "consumed" / "eat")).collect()
    assert Counter(bytes(row["body"]) for row in rows) == Counter(b"%d" % n for n in range(30))


@pytest.mark.parametrize("queue", ["missing", "again"])
def test_consume_of_nothing_is_no_error(pipeline: Run, queue: str) -> None:
    """One queue does not exist and one is empty; the subscription is new."""
    done = pipeline("consume", queue, "--subscription", f"new-{queue}")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 0


@pytest.mark.slow
def test_tour_goes_from_nothing_to_a_chart(
    shared: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["pipeline_tour.py", str(tmp_path)])
    runpy.run_path(str(ROOT / "examples" / "spark" / "pipeline_tour.py"), run_name="__main__")
    page = (tmp_path / "chart.html").read_text(encoding="utf-8")
    cells = re.findall(r"<td>(.*?)</td>", page)
    queues = {
        row[0]: [int(cell) for cell in row[1:7]]
        for row in (cells[at : at + 10] for at in range(0, len(cells), 10))
    }
    published, acked, dead, expired, deleted, redelivered = queues["orders"]
    assert (published, acked + dead, expired, deleted) == (3_000, 3_000, 0, 0)
    assert dead > 0
    assert redelivered > 0
    assert queues["quotes"] == [400, 0, 0, 400, 0, 0]
    assert queues["mails"][:2] == [acked, acked]


def test_missing_file_system_is_one_line_and_its_trace_is_in_the_log(
    shared: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    log = tmp_path / "spark.log"
    given = command(broker, "s3a://bucket/x", "archive", "--log", str(log))
    done = CliRunner().invoke(root_command, given)
    assert done.exit_code == 1
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, done.stderr
    assert "add --conf spark.jars.packages=org.apache.hadoop:hadoop-aws:3." in lines[0]
    assert "note" not in done.stderr
    assert "S3AFileSystem not found" in log.read_text()
