"""One JVM for all tests of this folder, and a fake broker for tests that inject failures."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from phpmq_lite.spark.session import session
from tests.spark.fake_broker import FakeBroker, fake_broker

HERE = Path(__file__).parent

# For every JVM of the tests, in processes of their own too.  They live for seconds, so what they
# compile is not worth much of compiling: this halves their processor time.  Classes come from
# PySpark's jars and are not verified, which takes a sixth of a start.
os.environ["SPARK_CONF_DIR"] = str(HERE / "conf")
os.environ["JDK_JAVA_OPTIONS"] = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    " -Djdk.lang.Process.launchMechanism=VFORK"
)
# For every Python that those start: conf/sitecustomize.py, and no threads of NumPy that wait in
# a loop.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(HERE / "conf"), *filter(None, [os.environ.get("PYTHONPATH")])]
)
os.environ["OPENBLAS_NUM_THREADS"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that start a JVM; the first one waits for it."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("spark")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return the session that all tests share; starting it takes 7 to 12 s."""
    folder = tmp_path_factory.mktemp("spark")
    started = session(
        "tests",
        master="local[2]",
        conf={
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
            "spark.driver.memory": "1g",
            # The cost of a batch is mostly its bookkeeping.
            "spark.sql.streaming.numRecentProgressUpdates": "20",
        },
        log=folder / "spark.log",
        niceness=1,  # for test_commands.py
    )
    yield started
    started.stop()


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """Return a fake broker with an empty history."""
    with fake_broker() as broker:
        yield broker
