"""What a session is configured with."""

import sys
from pathlib import Path

import pytest

from phpmq_lite.spark.session import python_of, settings_of


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


def test_settings_of_the_caller_have_the_last_word() -> None:
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
def test_workers_take_the_python_that_is_named_on_a_cluster_only(
    master: str, conf: dict[str, str], environ: dict[str, str], expected: str
) -> None:
    assert python_of(master, conf, environ) == expected
