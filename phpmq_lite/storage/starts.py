"""What a start of the broker found: gathered while it goes on, stored once, read by the admin.

The composition root fills a ``Starting`` on the way and stores it ahead of the first batch; the
overview shows the newest row until somebody dismisses it.
"""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from phpmq_lite.model import Stored
from phpmq_lite.storage.checkup import Checkup
from phpmq_lite.storage.readers import Readers
from phpmq_lite.storage.statements import load

KEPT: Final = 1_000  # starts
QUEUES_NAMED: Final = 20  # of those where messages expired


@dataclass(slots=True)
class Report:
    """The JSON of a start's row.  Counts are 0 where nothing of it happened."""

    version_before: str | None = None  # None: the same as now, or unknown
    wal_frames: int = 0  # found in the write-ahead log, beyond the database
    wal_commits: int = 0
    wal_dropped: int = 0  # complete commits behind damage, given up with accept_loss
    returned: int = 0  # dispatched when the broker went down, ready again
    interrupted: int = 0  # bulk work that was cut off
    expired: int = 0  # deadline passed before the start
    expired_by_queue: dict[str, int] = field(default_factory=dict)
    migrations: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)  # done, in words
    queues: int = 0
    messages: int = 0  # alive
    seconds: float = 0.0  # from the lock to the first batch
    clock_jump_ms: int = 0  # the wall clock was set by this while the broker was away
    clock_doubt_ms: int = 0  # away for so long, or the clock was set: somebody has to decide
    last_error: str | None = None  # why the broker stopped at once, if it did


class Starting:
    """Gathers the report of one start; the methods are called in this order."""

    def __init__(self, version: str, at_ms: int, *, was_clean: bool) -> None:
        self.version = version
        self.at_ms = at_ms  # Unix ms
        self.was_clean = was_clean  # the stop before; True on the first start
        self.down_from_ms: int | None = None  # Unix ms; None: this is the first start
        self.report = Report()

    def note_error(self, told: dict[str, Any] | None) -> None:
        """Take over ``last_error.json``, where the broker stopped at once."""
        if told is not None and not self.was_clean:
            self.report.last_error = str(told.get("message") or told.get("error") or "unknown")

    def note_files(self, found: Checkup) -> None:
        """Take over what was seen of the files before they were opened."""
        report, wal = self.report, found.wal
        report.wal_frames, report.wal_commits = wal.frames, wal.commits
        report.wal_dropped = wal.commits_lost
        report.checks += found.checks

    def note_migrations(self, applied: Sequence[str]) -> None:
        """Take over which migrations ran."""
        self.report.migrations = [str(name) for name in applied]
        self.report.checks.append("the schema against the migrations")

    def note_clock(self, jump_ms: int, doubt_ms: int) -> None:
        """Take over what the clocks said."""
        self.report.clock_jump_ms, self.report.clock_doubt_ms = jump_ms, doubt_ms

    def look(self, connection: sqlite3.Connection, now_steady_ms: int) -> None:
        """Read what only the database knows; before the first batch, in the writer's thread."""
        sql = load("starts")
        counters: dict[str, int] = dict(connection.execute("SELECT name, value FROM counter"))
        seen_ms = counters.get("last_seen_ms")
        before = connection.execute(sql["before"]).fetchone()
        if seen_ms is not None:
            self.down_from_ms = self.at_ms - max(0, now_steady_ms - seen_ms)
        elif before is not None:
            self.down_from_ms = int(before[1])
        if before is not None and before[0] != self.version:
            self.report.version_before = before[0]
        late = connection.execute(sql["overdue"], (now_steady_ms,)).fetchall()
        self.report.expired = sum(count for _, count in late)
        self.report.expired_by_queue = {name or "?": count for name, count in late[:QUEUES_NAMED]}

    def note_recovered(self, stored: Stored, now_ms: int) -> None:
        """Take over what recovery read into memory."""
        report = self.report
        report.queues = len(stored.queues)
        report.messages = sum(row.live_count for row in stored.queues)
        report.returned = stored.returned
        report.seconds = max(0, now_ms - self.at_ms) / 1_000

    def store(self, connection: sqlite3.Connection) -> None:
        """Write the row, ahead of the first batch, in the writer's thread."""
        sql = load("starts")
        report = json.dumps(asdict(self.report), ensure_ascii=False)
        row = (self.at_ms, self.version, int(self.was_clean), self.down_from_ms, report)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(sql["insert"], row)
        connection.execute(sql["trim"], (KEPT,))
        connection.execute("COMMIT")


@dataclass(slots=True, frozen=True)
class Start:
    """One start, as stored."""

    start_id: int
    at_ms: int
    version: str
    was_clean: bool
    down_from_ms: int | None
    report: Report
    dismissed_by: str | None

    @property
    def is_first(self) -> bool:
        """Tell whether there was nothing before it."""
        return self.down_from_ms is None

    @property
    def down_ms(self) -> int:
        """How long the broker was away; killed while idle, up to a minute more."""
        return 0 if self.down_from_ms is None else max(0, self.at_ms - self.down_from_ms)


class Starts:
    """Reads the table ``start``."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    async def newest(self, limit: int = 20) -> list[Start]:
        """Give the newest starts, the newest first."""
        rows = await self._readers.read("starts", "newest", limit=limit)
        return [
            Start(number, at_ms, version, bool(was_clean), down_from_ms, _report(text), by)
            for number, at_ms, version, was_clean, down_from_ms, text, by in rows
        ]


def _report(text: str) -> Report:
    """Read a report; members of other versions are passed over."""
    try:
        told = json.loads(text)
    except ValueError:
        told = {}
    known = Report.__dataclass_fields__
    return Report(**{name: value for name, value in told.items() if name in known})
