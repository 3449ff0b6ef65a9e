"""What went wrong in Spark, in one sentence: the cause out of a Java trace or a worker's traceback.

Pure text: Python's traceback of a worker is quoted in the message of a Java error, and that one in
another's.  In both the last is the one that a person can act on.
"""

import re
from itertools import takewhile
from typing import Final

_LONGEST: Final = 600
_TRACEBACK: Final = "Traceback (most recent call last):"
_RAISED: Final = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?:: ?(?P<text>.*))?$")
_JAVA: Final = tuple(  # in this order; of each the last
    re.compile(head + r"(?P<name>[\w.$]+)(?:: (?P<text>.*))?$", re.MULTILINE)
    for head in ("^Caused by: ", r"\([^()]*executor [^()]*\): ", "^: ")
)
_CONDITION: Final = re.compile(r"\[[A-Z][A-Z0-9_.]+\] ")
_STATE: Final = re.compile(r";?\s*SQLSTATE: \w+;?")
_PLUMBING: Final = (  # says only that something below failed
    "Py4JJavaError",
    "PythonException",
    "SparkException",
    "StreamingQueryException",
    "ExecutionException",
    "RuntimeException",
)
_ENDS: Final = ("\tat ", "    at ", "===", " SQLSTATE", "During handling", "The above exception")


def cause_of(text: str) -> str:
    """Give the cause in one line: of a worker if one failed, else of Java, else the first line.

    Errors of ours are their sentence alone; others have their name before it.
    """
    for traceback in reversed(text.split(_TRACEBACK)[1:]):
        found = _raised(traceback)
        if found is not None:
            return found
    for pattern in _JAVA:
        for match in reversed(list(pattern.finditer(text))):
            if not _is_plumbing(match["name"]):
                return _line(match["name"], match["text"] or "")
    first = next((line for line in text.splitlines() if line.strip()), "")
    return _shortened(first).rstrip(";")


def _raised(traceback: str) -> str | None:
    """Find what a traceback ends with: its first line that is not indented, and what follows."""
    lines = traceback.splitlines()[1:]
    at = next((n for n, line in enumerate(lines) if line and not line[0].isspace()), len(lines))
    match = _RAISED.match(lines[at]) if at < len(lines) else None
    if match is None or _is_plumbing(match["name"]):
        return None
    more = takewhile(lambda line: line.strip() and not line.startswith(_ENDS), lines[at + 1 :])
    return _line(match["name"], " ".join([match["text"] or "", *more]))


def _is_plumbing(name: str) -> bool:
    return name.rpartition(".")[2] in _PLUMBING


def _line(name: str, text: str) -> str:
    text = _shortened(text)
    if name.startswith("phpmq_lite.") and text:
        return text
    short = name.rpartition(".")[2]
    return f"{short}: {text}" if text else short


def _shortened(text: str) -> str:
    """Drop Spark's condition names and states, join the lines, keep it short."""
    text = " ".join(_STATE.sub("", _CONDITION.sub("", text)).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
