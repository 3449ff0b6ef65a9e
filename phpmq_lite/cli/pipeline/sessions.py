"""A Spark session for a command: what must be there, its log, and its errors in a sentence."""

import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import click

from phpmq_lite.cli.main import CommandError
from phpmq_lite.cli.pipeline import causes, packing
from phpmq_lite.cli.pipeline.progress import Progress, shown
from phpmq_lite.cli.pipeline.target import Target
from phpmq_lite.errors import PhpmqError
from phpmq_lite.installation import install_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from phpmq_lite.spark.options import Connection

INTERRUPTED: Final = 130  # 128 + SIGINT, as shells count
NEEDED: Final = ("pyspark", "pyarrow", "pandas")
_PROBE_ROWS: Final = 1_000
_TRACING: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def require_spark() -> None:
    """Say which extra is missing, before anything is imported that needs it.

    Raises:
        CommandError: a package of the extra `spark` is not installed.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise CommandError(
            f"the pipeline needs the extra spark ({', '.join(missing)} not installed): "
            + install_command("spark")
        )


def connection(target: Target) -> "Connection":
    """Give what Spark's processes need to reach the broker.

    Raises:
        CommandError: the extra `spark` is not installed.
        PhpmqError: the address is none, or a database file is meant for a cluster.
    """
    require_spark()
    from phpmq_lite.spark.options import Connection

    made = Connection(
        url=target.url, token=target.token, path=str(target.path) if target.path else None
    )
    made.check_master(target.master)
    return made


@contextmanager
def session(target: Target, progress: Progress) -> "Iterator[SparkSession]":
    """Start Spark and end it; the JVM and all that it starts write to the log.

    A master that is not local gets our own code as a zip: its executors import it from there.
    """
    from phpmq_lite.spark import java
    from phpmq_lite.spark import session as sessions

    with ExitStack() as stack:
        shipped: list[Path] = []
        if not target.is_local:
            folder = stack.enter_context(TemporaryDirectory(prefix="phpmq-lite-"))
            shipped.append(packing.build(Path(folder) / packing.file_name()))
        found = java.find_java()
        progress(f"starting Spark on Java {found.version}")
        spark = sessions.session(
            "phpmq-lite pipeline",
            master=target.master,
            conf=target.conf,
            py_files=shipped,
            log=target.log,
        )
        stack.enter_context(_logged(target.log))
        try:
            yield spark
        finally:
            progress("stopping Spark")
            spark.stop()


@contextmanager
def _logged(file: Path) -> Iterator[None]:
    """Send what Python's libraries log to the log: py4j logs a traceback for a Ctrl-C.

    Two loggers of PySpark's write each error of a query to standard error, with Java's trace.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(file)
    logging.getLogger().addHandler(handler)
    own = {name: _handlers(name, [handler]) for name in _TRACING}
    try:
        yield
    finally:
        for name, handlers in own.items():
            _handlers(name, handlers)
        logging.getLogger().removeHandler(handler)
        handler.close()


def _handlers(name: str, handlers: list[logging.Handler]) -> list[logging.Handler]:
    """Replace the handlers of one of PySpark's loggers; return the previous ones."""
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger(name)
    before, logger.handlers = logger.handlers, handlers
    return before


def probe(target: Target) -> str:
    """Start Spark, read some rows of the history with it, and say how many there were."""
    with ExitStack() as stack:
        progress = stack.enter_context(shown(sys.stderr))
        stack.enter_context(explained(target))
        options = connection(target).as_options()
        spark = stack.enter_context(session(target, progress))
        progress("reading")
        source = spark.read.format("phpmq").options(**options, failOnDataLoss="false")
        rows = source.load().limit(_PROBE_ROWS)
        return f"{spark.version} read {rows.count():,} rows of the history"


@contextmanager
def explained(target: Target) -> Iterator[None]:
    """Turn what Spark raises into its cause and the name of the log; the whole goes there."""
    try:
        yield
    except KeyboardInterrupt:
        raise CommandError("interrupted; run it again to go on", INTERRUPTED) from None
    except (PhpmqError, CommandError, click.ClickException) as error:
        if error.__cause__ is not None:
            _write_trace(target.log, error.__cause__)
        raise
    except Exception as error:
        sentence = sentence_of(error)
        if sentence is None:
            raise
        _write_trace(target.log, error)
        raise CommandError(f"{sentence}\nSpark's log: {target.log}") from None


def _write_trace(file: Path, error: BaseException) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as log:
        log.write(f"\n{type(error).__name__}: {error}\n")


def sentence_of(error: Exception) -> str | None:
    """Give the sentence for an error of Spark's; None for what is none."""
    module = type(error).__module__.partition(".")[0]
    if isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError":
        return "Spark's JVM has ended"
    if module not in ("pyspark", "py4j"):
        return None
    sentence = causes.cause_of(str(error))
    if sentence.startswith("ModuleNotFoundError: No module named 'phpmq_lite"):
        return f"{sentence}: the executors have no phpmq_lite; ship it, see `pipeline package`"
    return sentence
