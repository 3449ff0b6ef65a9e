"""Reduces a Spark error to one line that names the cause found in its tracebacks."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Final

import click

from phpmq_lite.cli.errors import CommandError
from phpmq_lite.cli.pipeline.target import PipelineTarget
from phpmq_lite.errors import PhpmqError
from phpmq_lite.spark.source_options import Remedy

_LONGEST: Final = 600
_TRACEBACK: Final = "Traceback (most recent call last):"
_EXCEPTION: Final = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?:: ?(?P<text>.*))?$")
_JAVA: Final = tuple(  # patterns tried in this order, starting with the last match of each
    re.compile(head + r"(?P<name>[\w.$]+)(?:: (?P<text>.*))?$", re.MULTILINE)
    for head in ("^Caused by: ", r"\([^()]*executor [^()]*\): ", "^: ")
)
_CONDITION: Final = re.compile(r"\[[A-Z][A-Z0-9_.]+\] ")
_STATE: Final = re.compile(r";?\s*SQLSTATE: \w+;?")
_WRAPPERS: Final = (  # exceptions that only wrap the cause
    "Py4JJavaError",
    "PythonException",
    "SparkException",
    "StreamingQueryException",
    "ExecutionException",
    "RuntimeException",
)
_ENDS: Final = ("\tat ", "    at ", "===", " SQLSTATE", "During handling", "The above exception")


def find_cause(text: str) -> str:
    """Return the cause from a Python worker or Java in one line; otherwise, the first line."""
    for traceback in reversed(text.split(_TRACEBACK)[1:]):
        cause = _last_exception(traceback)
        if cause is not None:
            return cause
    for pattern in _JAVA:
        for match in reversed(list(pattern.finditer(text))):
            if not _is_wrapper(match["name"]):
                return _format_cause(match["name"], match["text"] or "")
    first_line = next((line for line in text.splitlines() if line.strip()), "")
    return _shorten(first_line).rstrip(";")


def _last_exception(traceback: str) -> str | None:
    """Return the exception at the end of a traceback, with its complete message."""
    lines = traceback.splitlines()[1:]
    at = next((n for n, line in enumerate(lines) if line and not line[0].isspace()), len(lines))
    match = _EXCEPTION.match(lines[at]) if at < len(lines) else None
    if match is None or _is_wrapper(match["name"]):
        return None
    continuation = takewhile(
        lambda line: line.strip() and not line.startswith(_ENDS), lines[at + 1 :]
    )
    return _format_cause(match["name"], " ".join([match["text"] or "", *continuation]))


def _is_wrapper(name: str) -> bool:
    return name.rpartition(".")[2] in _WRAPPERS


def _format_cause(name: str, text: str) -> str:
    text = _shorten(text)
    if name.startswith("phpmq_lite.") and text:
        return text
    class_name = name.rpartition(".")[2]
    return f"{class_name}: {text}" if text else class_name


def _shorten(text: str) -> str:
    """Remove Spark's condition names and SQL states, and return one line of limited length."""
    text = " ".join(_STATE.sub("", _CONDITION.sub("", text)).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


_OTHER_PYTHON: Final = (
    "install it there, or name another Python with PYSPARK_PYTHON or --conf spark.pyspark.python"
)
_COMMAND_REMEDIES: Final = {
    Remedy.ACCEPT_LOSS: "--accept-gap",
    Remedy.SELECT_UNDELETED: "or archive to another --out with --outcome acked --outcome expired"
    " --outcome dead",
    Remedy.SET_TOKEN: "(--token-file)",
    Remedy.SET_OPTION_URL: "set --url",
    Remedy.SET_URL: "set --url,",
    Remedy.USE_NEW_CHECKPOINT: "or another --out",
    Remedy.BEGIN_NEW_CHECKPOINT: "with another --out",
}


def in_command_words(text: str) -> str:
    """Return an error's text with the options of the commands instead of the data source's."""
    for remedy in Remedy:
        text = text.replace(remedy, _COMMAND_REMEDIES[remedy])
    return text


INTERRUPTED: Final = 130  # 128 + SIGINT, the exit code that shells use


@contextmanager
def explain_spark_errors(target: PipelineTarget) -> Iterator[None]:
    """Replace a Spark error with a one-line cause, and write the complete error to the log."""
    try:
        yield
    except KeyboardInterrupt:
        raise CommandError("interrupted; run the command again to continue", INTERRUPTED) from None
    except (PhpmqError, CommandError, click.ClickException) as error:
        if error.__cause__ is not None:
            _write_trace(target.log, error.__cause__)
        error.args = (in_command_words(str(error)), *error.args[1:])
        raise
    except Exception as error:
        sentence = spark_error_text(error)
        if sentence is None:
            raise
        _write_trace(target.log, error)
        text = in_command_words(sentence)
        raise CommandError(f"{text}\nSpark's log: {target.log}") from None


def _write_trace(file: Path, error: BaseException) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as log:
        log.write(f"\n{type(error).__name__}: {error}\n")


def spark_error_text(error: Exception) -> str | None:
    """Return one line that describes a Spark error, or None for any other error."""
    module = type(error).__module__.partition(".")[0]
    if isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError":
        return "Spark's JVM has ended"
    if module not in ("pyspark", "py4j"):
        return None
    sentence = find_cause(str(error))
    if sentence.startswith("ModuleNotFoundError: No module named 'phpmq_lite"):
        return f"{sentence}: the executors lack phpmq_lite; see `phpmq-lite pipeline package`"
    if "Python worker failed to connect back" in sentence:
        return (
            f"{sentence} It got too little processor time: lower --nice, or run when less is busy"
        )
    if sentence.startswith("ModuleNotFoundError: "):
        return f"{sentence}: the executors' Python lacks it; {_OTHER_PYTHON}"
    return sentence
