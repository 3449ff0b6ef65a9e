"""What a streaming query wrote down: which batches are done, and up to which offset.

Spark commits a batch N in three steps: ``offsets/N`` is the plan, then the sink is called, then
``commits/N`` is written.  A batch without ``commits/N`` comes again, with the same rows.
"""

import json
from dataclasses import dataclass
from typing import Any

from phpmq_lite.spark.jobs.files import Files


@dataclass(frozen=True, slots=True)
class Done:
    """A batch of a checkpoint, and the offset that it ends with."""

    batch: int
    history_id: str | None  # None: not the history's checkpoint
    offset: int | None


def last_done(files: Files, checkpoint: str) -> Done | None:
    """Read the last committed batch; None where none is."""
    numbers = [int(name) for name in files.names(f"{checkpoint}/commits") if name.isdigit()]
    if not numbers:
        return None
    return planned(files, checkpoint, max(numbers))


def planned(files: Files, checkpoint: str, batch: int) -> Done:
    """Read where a batch ends that is planned, committed or not."""
    text = files.read(f"{checkpoint}/offsets/{batch}")
    history_id, offset = offset_of(text.splitlines()[-1]) if text else (None, None)
    return Done(batch, history_id, offset)


def query_id(files: Files, checkpoint: str) -> str | None:
    """Give the number that a checkpoint keeps for its life; None before its first start."""
    text = files.read(f"{checkpoint}/metadata")
    return None if text is None else str(json.loads(text)["id"])


def offset_of(written: Any) -> tuple[str | None, int | None]:
    """Take history id and offset from the JSON of a stream's offset, as text or as objects."""
    while isinstance(written, str):
        try:
            written = json.loads(written)
        except ValueError:
            return None, None
    if not isinstance(written, dict):
        return None, None
    history_id, offset = written.get("history"), written.get("offset")
    return (
        history_id if isinstance(history_id, str) else None,
        offset if isinstance(offset, int) else None,
    )
