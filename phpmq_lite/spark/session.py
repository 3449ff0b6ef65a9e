"""Spark session that uses UTC, hides progress bars and has the data source registered."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from phpmq_lite.spark.errors import PipelineError
from phpmq_lite.spark.java import find_java
from phpmq_lite.spark.source_options import is_local

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ALWAYS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.extraJavaOptions": "-Duser.timezone=UTC",
    "spark.executor.extraJavaOptions": "-Duser.timezone=UTC",
    "spark.sql.python.filterPushdown.enabled": "true",  # required by the option pushFilters
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 columns have no statistics
}
SHUFFLES: Final = "spark.sql.shuffle.partitions"
SPARK_SHUFFLES: Final = "200"  # Spark's default
ROWS_PER_PARTITION: Final = 500_000
MAX_BATCH_ROWS: Final = 4_096  # Spark's default
BATCH_BYTES: Final = 32 << 20
_FITTED: Final = "phpmq.shuffle.partitions"  # value that we set last; any other value is the user's
LOCAL: Final[Mapping[str, str]] = {  # settings that make Spark listen only on loopback
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def settings_of(
    name: str, master: str, conf: Mapping[str, str], py_files: Sequence[Path] = ()
) -> dict[str, str]:
    """Return the Spark settings for a session; values in ``conf`` take precedence."""
    settings = {"spark.app.name": name, "spark.master": master, **ALWAYS}
    if is_local(master):
        settings |= LOCAL
    if py_files:
        settings["spark.submit.pyFiles"] = ",".join(str(file) for file in py_files)
    return settings | dict(conf)


def python_of(master: str, conf: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Return the Python for workers: the configured one on a cluster, otherwise our own.

    Driver and workers must have the same minor version. ``spark.pyspark.python`` takes precedence
    over ``PYSPARK_PYTHON``, as in spark-submit.
    """
    if is_local(master):
        return sys.executable
    return conf.get("spark.pyspark.python") or environ.get("PYSPARK_PYTHON") or sys.executable


def session(
    name: str = "phpmq-lite",
    *,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    py_files: Sequence[Path] = (),
    log: Path | None = None,
) -> "SparkSession":
    """Start Java and Spark, and return a session with ``format("phpmq")``; this takes 7 to 12 s.

    Sets ``JAVA_HOME`` and ``PYSPARK_PYTHON`` in this process (see ``python_of``). A process has one
    session: if it is running, it is returned with those ``conf`` settings that can still change.

    Args:
        name: application name.
        master: where Spark runs, such as ``local[2]`` or ``spark://host:7077``.
        conf: Spark settings that take precedence over ours.
        py_files: zips or eggs with code that executors need.
        log: file for the output of Java, its launcher and the workers; default: this process's
            standard error.

    Raises:
        JavaError: there is no usable Java.
        PipelineError: Java exited before Spark started; the log says why.
    """
    from phpmq_lite.spark.source import register

    settings = settings_of(name, master, conf or {}, py_files)
    find_java().export()
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = python_of(master, settings, os.environ)
    _start_java(settings, log)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    fit_shuffles(spark, 0)
    return spark


def shuffle_partitions(cores: int, rows: int) -> int:
    """Return the number of shuffle partitions: one per core, or more if there are many rows."""
    return max(cores, -(-rows // ROWS_PER_PARTITION))


def fit_shuffles(spark: "SparkSession", rows: int) -> None:
    """Set the number of shuffle partitions for ``rows`` rows, unless the user has set it.

    Spark's default of 200 suits a cluster. On two cores, it would make a short job spend most of
    its time starting tasks.
    """
    before = spark.conf.get(_FITTED, SPARK_SHUFFLES)
    is_set_by_user = SHUFFLES in dict(spark.sparkContext.getConf().getAll())
    if is_set_by_user or spark.conf.get(SHUFFLES) != before:
        return
    partitions = str(shuffle_partitions(spark.sparkContext.defaultParallelism, rows))
    spark.conf.set(SHUFFLES, partitions)
    spark.conf.set(_FITTED, partitions)


def fit_batches(spark: "SparkSession", archive: "DataFrame") -> None:
    """Limit the rows that Spark decodes at a time from an archive that may contain large bodies."""
    from pyspark.sql import functions as sf

    largest = archive.agg(sf.max("size")).collect()[0][0] or 0
    rows = max(1, min(MAX_BATCH_ROWS, BATCH_BYTES // max(largest, 1)))
    spark.conf.set("spark.sql.parquet.columnarReaderBatchSize", str(rows))


def _start_java(settings: Mapping[str, str], log: Path | None) -> None:
    """Start the JVM once per process, with its output redirected to ``log``."""
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    conf = SparkConf(loadDefaults=False)
    conf.setAll(list(settings.items()))
    with ExitStack() as stack:
        streams: dict[str, Any] = {}
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(log.open("ab"))  # Java inherits a copy of the descriptor
            streams = {"stdout": file, "stderr": file}
        try:
            gateway = launch_gateway(conf, streams)  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as error:
            where = f"; see {log}" if log is not None else ""
            java, python = os.environ.get("JAVA_HOME", ""), sys.version.split()[0]
            raise PipelineError(
                f"Java ({shlex.quote(java)}) exited before Spark started,"
                f" with Python {python}{where}"
            ) from error
    SparkContext._gateway = gateway
    SparkContext._jvm = gateway.jvm
