"""What lies where below the results' root.

::

    archive/date=YYYY-MM-DD/batch=<query>-<number>/*.parquet   settled on that date (UTC)
    metrics/<table>/date=YYYY-MM-DD/*.parquet                  one file a date
    metrics/state.json                                         which offset they include
    metrics/begun.json                                         dates of a run that did not end
    consumed/<queue>/batch=<query>-<number>/*.parquet
    checkpoints/archive, checkpoints/consume/<subscription>    Spark's
    compact/                                                   staging; empty between runs
    gaps/<query>-<number>.json                                 what an archived batch lacks
    replays/<name>.json, <name>.done                           plan; pieces that are sent
    jobs.json, summary.json

``<queue>``, ``<subscription>`` and ``<name>`` are percent-encoded.  What is too long for a file
system then keeps its beginning, and ends with ``%-`` and its SHA-256.
"""

from hashlib import sha256
from typing import Final
from urllib.parse import quote

ARCHIVE: Final = "archive"
METRICS: Final = "metrics"
METRICS_STATE: Final = "metrics/state.json"
METRICS_BEGUN: Final = "metrics/begun.json"
ARCHIVE_CHECKPOINT: Final = "checkpoints/archive"
ARCHIVE_SELECTION: Final = "archive.json"
COMPACT: Final = "compact"
GAPS: Final = "gaps"
REPLAYS: Final = "replays"
JOBS: Final = "jobs.json"
SUMMARY: Final = "summary.json"

_NAME_MAX: Final = 255  # bytes that file systems take; HDFS too
_KEPT: Final = 128  # of a name that is too long
_WRITING: Final = len("..json.4194304.new")  # what a file is called besides while it is written
_LOCK: Final = len(".consume-.lock")


def consumed(queue: str) -> str:
    """Give the folder of what was consumed of a queue."""
    return f"consumed/{_name(queue)}"


def consume_checkpoint(subscription: str) -> str:
    """Give the folder of a subscription's checkpoint."""
    return f"checkpoints/consume/{_name(subscription)}"


def consume_lock(subscription: str) -> str:
    """Give the lock of a subscription."""
    return f"consume-{_name(subscription, _LOCK)}"


def replay_plan(name: str) -> str:
    """Give the file of a replay's plan."""
    return f"{REPLAYS}/{_name(name, _WRITING)}.json"


def replay_done(name: str) -> str:
    """Give the file with the number of pieces that are sent."""
    return f"{REPLAYS}/{_name(name, _WRITING)}.done"


def _name(text: str, besides: int = 0) -> str:
    """Make a file name of any text, two texts never the same one; no hidden one.

    It leaves room for ``besides`` more bytes.  No name that is short enough has a ``%-``.
    """
    name = quote(text, safe="")
    if name[:1] in {".", "_"}:
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if len(name) + besides > _NAME_MAX:
        name = f"{name[:_KEPT]}%-{sha256(text.encode()).hexdigest()}"
    return name
