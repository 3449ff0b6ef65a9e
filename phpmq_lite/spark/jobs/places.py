"""What lies where below the results' root.

::

    archive/date=YYYY-MM-DD/batch=<query>-<number>/*.parquet   settled on that date (UTC)
    metrics/<table>/date=YYYY-MM-DD/*.parquet                  one file a date
    metrics/state.json                                         which offset they include
    metrics/begun.json                                         dates of a run that did not end
    consumed/<queue>/batch=<query>-<number>/*.parquet
    checkpoints/archive, checkpoints/consume/<subscription>    Spark's
    compact/                                                   staging; empty between runs
    replays/<name>.json, <name>.done                           plan; pieces that are sent
    jobs.json, summary.json
"""

from typing import Final
from urllib.parse import quote

ARCHIVE: Final = "archive"
METRICS: Final = "metrics"
METRICS_STATE: Final = "metrics/state.json"
METRICS_BEGUN: Final = "metrics/begun.json"
ARCHIVE_CHECKPOINT: Final = "checkpoints/archive"
ARCHIVE_SELECTION: Final = "archive.json"
COMPACT: Final = "compact"
REPLAYS: Final = "replays"
JOBS: Final = "jobs.json"
SUMMARY: Final = "summary.json"


def consumed(queue: str) -> str:
    """Give the folder of what was consumed of a queue."""
    return f"consumed/{_name(queue)}"


def consume_checkpoint(subscription: str) -> str:
    """Give the folder of a subscription's checkpoint."""
    return f"checkpoints/consume/{_name(subscription)}"


def replay_plan(name: str) -> str:
    """Give the file of a replay's plan."""
    return f"{REPLAYS}/{_name(name)}.json"


def replay_done(name: str) -> str:
    """Give the file with the number of pieces that are sent."""
    return f"{REPLAYS}/{_name(name)}.done"


def _name(text: str) -> str:
    """Make a file name of any text, two texts never the same one; no hidden one."""
    name = quote(text, safe="")
    return name if name[:1] not in {".", "_"} else f"%{ord(name[0]):02X}{name[1:]}"
