"""The pipeline on a real cluster, by drivers in processes of their own; Ctrl-C, and the status."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from phpmq_lite.broker_process import BrokerProcess, broker_process
from phpmq_lite.cli.main import root_command
from phpmq_lite.client.blocking_client import connect_blocking
from phpmq_lite.spark.jobs import archive, compact, metrics
from phpmq_lite.spark.jobs.options import ArchiveOptions, CompactOptions, MetricsOptions
from phpmq_lite.spark.session import find_java
from phpmq_lite.spark.source_options import SourceConnection
from tests.spark.archived_rows import archive_rows, envelope_row
from tests.spark.standalone import Cluster, standalone_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

ROWS: Final = 2_000
COMPARED: Final = ("minutes", "deaths")  # tables of metrics
SMALL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.task.maxFailures": "1",
    "spark.ui.enabled": "false",
}

NOT_SHIPPED: Final = """\
import json, sys
from phpmq_lite.spark.session import session

master, url, conf = sys.argv[1:]
spark = session("bare", master=master, conf=json.loads(conf))
print(spark.read.format("phpmq").option("url", url).load().count())
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a history: four of five acked, the rest dead, in two queues."""
    data = tmp_path_factory.mktemp("cluster-broker") / "data"
    with broker_process(data, "--admin", "127.0.0.1:0") as running:
        with connect_blocking(running.phpmq[0]) as client:
            for queue in ("orders", "mails"):
                client.publish_many(queue, (b"%d" % n for n in range(ROWS // 2)))
                with client.consume(queue, 500, 30) as deliveries:
                    for number in range(ROWS // 2):
                        delivery = next(deliveries)
                        if number % 5:
                            delivery.ack()
                        else:
                            delivery.dead_letter()
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster") / "spark"
    with standalone_cluster(folder, find_java().home) as running:
        yield running


def url_of(broker: BrokerProcess) -> str:
    return broker.admin[0].rstrip("/")


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with this package on its path."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environment, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


def pipeline(master: str, broker: BrokerProcess, out: Path) -> list[dict[str, Any]]:
    """Run the jobs by the command, in rounds; gives what those of the first round answered.

    Only then comes Ctrl-C, which ends the command.
    """
    confs = [part for item in SMALL.items() for part in ("--conf", "=".join(item))]
    command = [
        sys.executable, "-m", "phpmq_lite", "pipeline", "run", "--continuous", "--every", "1h",
        "--master", master, "--url", url_of(broker), "--out", str(out), "--partitions", "2",
        "-o", "jsonl", "--nice", "0", *confs,  # other tests must not starve it
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        rest, talk = process.communicate(timeout=120)
    log = out / "logs" / "spark.log"
    last_words = log.read_text(errors="replace")[-4_000:] if log.exists() else ""
    assert process.returncode == 130, talk + last_words
    assert rest == ""
    assert_is_told(talk)
    return [json.loads(line) for line in lines]


def assert_is_told(talk: str) -> None:
    """What an interrupted command says on standard error: its phases, and why it ended."""
    last = "Error: stopped after the current batch; run the command again to continue"
    assert talk.splitlines()[-1] == last
    phases = [json.loads(text).get("phase") for text in talk.splitlines() if text.startswith("{")]
    # Spark starts for the first job that has work.
    assert phases[:2] == ["archive", f"starting Spark on Java {find_java().version}"]
    assert "WARN" not in talk
    assert "Traceback" not in talk


def status(broker: BrokerProcess, out: Path) -> list[tuple[str, str, int | None]]:
    """Ask without a session; gives name, state and how far behind each job is."""
    arguments = ["pipeline", "status", "--url", url_of(broker), "--out", str(out), "-o", "jsonl"]
    done = CliRunner().invoke(root_command, arguments)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [(row["name"], row["state"], row["behind"]) for row in rows]


def jobs(
    spark: SparkSession, broker: BrokerProcess, out: Path
) -> list[tuple[str, int, int | None]]:
    """Run the same jobs in the session of this process; gives job, rows and offset of each."""
    own: dict[str, Any] = {"connection": SourceConnection(url_of(broker)), "out": str(out)}
    results = (
        archive.run(spark, ArchiveOptions(num_partitions=2, **own)),
        metrics.run(spark, MetricsOptions(**own)),
        compact.run(spark, CompactOptions(**own)),
    )
    return [(result.job, result.rows, result.offset) for result in results]


def rows(folder: Path, *columns: str) -> list[tuple[Any, ...]]:
    """Read all Parquet files below a folder, in the order of the columns' text."""
    import pyarrow.dataset as ds

    table = ds.dataset(folder, format="parquet", partitioning="hive").to_table()
    names = columns or tuple(sorted(set(table.column_names) - {"batch"}))
    found = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    return sorted(found, key=repr)


@pytest.mark.slow
def test_executors_without_our_code_fail_and_name_it(
    cluster: Cluster, broker: BrokerProcess
) -> None:
    one_executor = json.dumps(SMALL | {"spark.cores.max": "1"})
    done = python("-c", NOT_SHIPPED, cluster.url, url_of(broker), one_executor)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "ModuleNotFoundError: No module named 'phpmq_lite" in done.stderr


@pytest.mark.slow
def test_shipped_jobs_give_on_the_cluster_what_they_give_locally_until_interrupted(
    spark: SparkSession, cluster: Cluster, broker: BrokerProcess, tmp_path: Path
) -> None:
    far, near = tmp_path / "far", tmp_path / "near"
    before = cluster.executors()
    there = pipeline(cluster.url, broker, far)
    here = jobs(spark, broker, near)
    assert [(answer["job"], answer["rows"], answer["offset"]) for answer in there] == here
    offsets = [offset for (offset,) in rows(far / "archive", "offset")]
    assert sorted(offsets) == list(range(1, ROWS + 1))
    assert rows(far / "archive") == rows(near / "archive")
    for table in COMPARED:
        assert rows(far / "metrics" / table) == rows(near / "metrics" / table)
    assert status(broker, far) == [
        ("archive", "done", 0),
        ("compact", "done", None),
        ("metrics", "done", 0),
    ]
    assert cluster.executors() > before


@pytest.mark.slow
def test_executors_convert_bodies_and_report_their_types(
    cluster: Cluster, broker: BrokerProcess, tmp_path: Path
) -> None:
    payloads: list[Any] = [{"n": n, "s": str(n)} for n in range(1, 40)] + [{"n": "x", "s": None}]
    archive_rows(tmp_path, [envelope_row(n, "urn:a", d) for n, d in enumerate(payloads, 1)])
    confs = [part for item in SMALL.items() for part in ("--conf", "=".join(item))]
    done = python(
        "-m", "phpmq_lite", "pipeline", "tables", "--master", cluster.url,
        "--url", url_of(broker), "--out", str(tmp_path), "-o", "jsonl", "--nice", "0", *confs,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["details"]["misfits"] == 1
    assert rows(tmp_path / "tables" / "urn%3Aa", "n", "s", "_misfit") == sorted(
        [*((n, str(n), None) for n in range(1, 40)), (None, None, ["/data/n"])], key=repr
    )
