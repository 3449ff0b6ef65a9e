"""The configuration of a Spark session."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from phpmq_lite.errors import PipelineError
from phpmq_lite.spark.session import (
    fit_shuffles,
    python_of,
    settings_of,
    shuffle_partitions,
)
from phpmq_lite.spark.workers import check_workers


def test_local_session_listens_on_loopback_only_and_shows_no_page() -> None:
    settings = settings_of("jobs", "local[2]", {})
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.sql.session.timeZone"] == "UTC"
    assert settings["spark.sql.python.filterPushdown.enabled"] == "true"


def test_cluster_session_keeps_sparks_addresses_and_ships_code() -> None:
    settings = settings_of("jobs", "spark://host:7077", {}, [Path("/a.zip"), Path("/b.zip")])
    assert "spark.driver.host" not in settings
    assert settings["spark.submit.pyFiles"] == "/a.zip,/b.zip"


def test_settings_of_the_caller_take_precedence() -> None:
    settings = settings_of("jobs", "local", {"spark.sql.session.timeZone": "CET"})
    assert settings["spark.sql.session.timeZone"] == "CET"


CONF = {"spark.pyspark.python": "/conf/python"}
ENVIRON = {"PYSPARK_PYTHON": "/env/python"}


@pytest.mark.parametrize(
    ("master", "conf", "environ", "expected"),
    [
        ("spark://host:7077", CONF, ENVIRON, "/conf/python"),
        ("spark://host:7077", {}, ENVIRON, "/env/python"),
        ("spark://host:7077", {}, {}, sys.executable),
        ("spark://host:7077", {}, {"PYSPARK_PYTHON": ""}, sys.executable),
        ("local[2]", CONF, ENVIRON, sys.executable),
        ("local-cluster[2,1,1024]", {}, ENVIRON, sys.executable),
    ],
)
def test_only_cluster_workers_use_the_configured_python(
    master: str, conf: dict[str, str], environ: dict[str, str], expected: str
) -> None:
    assert python_of(master, conf, environ) == expected


@pytest.mark.parametrize(
    ("cores", "rows", "partitions"),
    [(2, 0, 2), (2, 1_000_000, 2), (2, 1_000_001, 3), (16, 1_000, 16), (4, 100_000_000, 200)],
)
def test_shuffle_partitions_depend_on_cores_and_rows(
    cores: int, rows: int, partitions: int
) -> None:
    assert shuffle_partitions(cores, rows) == partitions


class Conf(dict[str, str]):
    """The settings of a session."""

    def set(self, key: str, value: str) -> None:
        """Set a value, as Spark's own class does."""
        self[key] = value


def a_session(started_with: dict[str, str]) -> Any:
    conf = Conf({"spark.sql.shuffle.partitions": "200"} | started_with)
    context = SimpleNamespace(
        defaultParallelism=2, getConf=lambda: SimpleNamespace(getAll=started_with.items)
    )
    return SimpleNamespace(conf=conf, sparkContext=context)


def test_shuffles_follow_the_rows_of_each_job() -> None:
    spark = a_session({})
    found = []
    for rows in (0, 2_000_000, 10):
        fit_shuffles(spark, rows)
        found.append(spark.conf["spark.sql.shuffle.partitions"])
    assert found == ["2", "4", "2"]


@pytest.mark.parametrize("value", ["200", "7"])
def test_shuffle_partitions_set_by_the_user_are_kept(value: str) -> None:
    spark = a_session({"spark.sql.shuffle.partitions": value})  # --conf or spark-defaults.conf
    fit_shuffles(spark, 2_000_000)
    assert spark.conf["spark.sql.shuffle.partitions"] == value
    spark = a_session({})
    fit_shuffles(spark, 0)
    spark.conf.set("spark.sql.shuffle.partitions", value)  # while it runs
    fit_shuffles(spark, 2_000_000)
    assert spark.conf["spark.sql.shuffle.partitions"] == value


def test_workers_with_another_python_that_lacks_our_packages_are_named(tmp_path: Path) -> None:
    """As with a virtual environment that is not activated."""
    bare, equal = tmp_path / "bare", tmp_path / "equal"
    for file, flags in ((bare, " -I -S"), (equal, "")):
        file.write_text(f'#!/bin/sh\nexec {sys.executable}{flags} "$@"\n')
        file.chmod(0o755)

    def check(python: str, master: str = "local[2]") -> None:
        context = SimpleNamespace(pythonExec=python, master=master)
        check_workers(cast("Any", SimpleNamespace(_jsparkSession=None, sparkContext=context)))

    reason = f"Spark's workers run {bare}, and this program runs {sys.executable} (ModuleNotFound"
    with pytest.raises(PipelineError, match=re.escape(reason)) as caught:
        check(str(bare))
    assert f"Set PYSPARK_PYTHON={sys.executable} before" in str(caught.value)
    assert "\n" not in str(caught.value)
    check(str(equal))
    check(sys.executable)
    check(str(bare), "spark://mq:7077")
    check_workers(cast("Any", SimpleNamespace()))  # Spark Connect has no context


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux only")
@pytest.mark.parametrize(("niceness", "policy"), [(18, "SCHED_OTHER"), (19, "SCHED_IDLE")])
def test_highest_niceness_leaves_only_idle_time(niceness: int, policy: str) -> None:
    """In a process of its own, because a process cannot take its niceness back."""
    program = (
        "import os, sys\nfrom phpmq_lite.spark.session import be_nice\nbe_nice(int(sys.argv[1]))\n"
        f"assert os.sched_getscheduler(0) == os.{policy}\nprint(os.getpriority(os.PRIO_PROCESS, 0))"
    )
    command = [sys.executable, "-c", program, str(niceness)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) == niceness
