"""What is staged under tokens, and who has published which version: the core's idea of it.

The rows themselves are on disk only (``staging.sql``); here are sums, by token and queue.
"""

from dataclasses import dataclass, field
from typing import Final

from phpmq_lite.broker.lives import Lives
from phpmq_lite.pipeline_rows import ROW_BITS, PipelineRows

KEPT_MS: Final = 86_400_000  # without a publish
KEPT_VERSIONS: Final = 10_000  # writers; those that published last


@dataclass(slots=True)
class Part:
    """What a token has for one queue."""

    queue_id: int
    rows: int = 0
    bytes: int = 0
    bad_rows: int = 0  # of them: dead at once when they are published
    bad_bytes: int = 0
    least_ttl_s: int | None = None  # None: none expires
    policy: str = ""  # by which they were judged; empty: the queue judges not


@dataclass(slots=True)
class Stage:
    """The rows under one token."""

    stage_id: int
    token: str
    until_ms: int  # steady: dropped then
    rows: int = 0
    bytes: int = 0
    is_whole: bool = False  # its last row is there
    parts: dict[int, Part] = field(default_factory=dict)  # by queue_id

    @property
    def first_row(self) -> int:
        """The number of its first row."""
        return self.stage_id << ROW_BITS


class Staging:
    """All tokens, oldest first, and the highest version of each writer."""

    def __init__(self, stored: PipelineRows) -> None:
        self.stages: dict[str, Stage] = {}
        self.next_id = stored.next_stage_id
        by_id: dict[int, Stage] = {}
        for stage_id, token, until_ms, rows, size in stored.staged:
            stage = Stage(stage_id, token, until_ms, rows, size, is_whole=True)
            self.stages[token] = by_id[stage_id] = stage
        for row in stored.parts:
            by_id[row[0]].parts[row[1]] = Part(*row[1:])
        self.bytes = sum(stage.bytes for stage in self.stages.values())
        self.rows = sum(stage.rows for stage in self.stages.values())
        self.parts = sum(len(stage.parts) for stage in self.stages.values())
        self.versions: dict[str, int] = dict(stored.published)  # oldest first

    @property
    def due_ms(self) -> int | None:
        """When the oldest token is to be dropped (steady ms)."""
        for stage in self.stages.values():
            return stage.until_ms
        return None

    def drop_old(self, lives: Lives) -> None:
        """Drop what has waited for too long."""
        while (until_ms := self.due_ms) is not None and until_ms <= lives.now.steady_ms:
            self.drop(lives, next(iter(self.stages)))

    def drop(self, lives: Lives, token: str) -> bool:
        """Drop a token; its rows are removed behind.  False: there is none."""
        stage = self.stages.pop(token, None)
        if stage is None:
            return False
        self.bytes -= stage.bytes
        self.rows -= stage.rows
        self.parts -= len(stage.parts)
        rare = lives.batch.rare
        rare.append(("staging", "drop_stage", (stage.stage_id,)))
        rare.append(("staging", "drop_parts", (stage.stage_id,)))
        return True

    def note_version(self, lives: Lives, app_id: str, version: int, rows: int) -> None:
        """Keep the version of a writer; the one that published longest ago may be forgotten."""
        self.versions.pop(app_id, None)
        self.versions[app_id] = version
        rare = lives.batch.rare
        rare.append(("staging", "note_version", (app_id, version, lives.now.wall_ms, rows)))
        if len(self.versions) > KEPT_VERSIONS:
            oldest = next(iter(self.versions))
            del self.versions[oldest]
            rare.append(("staging", "forget_version", (oldest,)))
