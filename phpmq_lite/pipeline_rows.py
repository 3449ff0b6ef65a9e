"""What broker and storage share for the pipeline: rows read at start, and copied rows."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

ROW_BITS: Final = 17  # of stage_row.row_id, for the index of a row among those of its token


class CopiedRows(NamedTuple):
    """New messages that the writer creates from staged rows, unknown to the core.

    Their seqs are from ``first`` (inclusive) to ``end`` (exclusive), in the order of the rows.
    """

    first: int
    end: int
    publisher: int  # client number
    counts: dict[int, int]  # queue_id -> messages; the other numbers stay unused


@dataclass(slots=True)
class PipelineRows:
    """What the core keeps in memory for the pipeline: rows of its tables, see ``batch.sql``."""

    subscriptions: list[tuple[int, str, int, int, int]] = field(default_factory=list)
    held: list[tuple[int, int, int]] = field(default_factory=list)  # queue_id, claimed, bytes
    staged: list[tuple[int, str, int, int, int]] = field(default_factory=list)
    parts: list[tuple[int, int, int, int, int, int, int | None, str]] = field(default_factory=list)
    # app_id, version, owner, used_ms, single_use; least recently used first
    published: list[tuple[str, int, str | None, int, int]] = field(default_factory=list)
    next_stage_id: int = 1
