"""The report on each start of the broker, which the system page shows."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from phpmq_lite.model import RecoveredState
from phpmq_lite.storage.read.read_pool import RowReader
from phpmq_lite.storage.store import Store

STARTS_KEPT: Final = 1_000  # maximum number of startups stored
QUEUES_NAMED: Final = 20  # maximum number of queues whose expired messages are listed


@dataclass(slots=True)
class StartReport:
    """A startup report, stored as JSON in the table ``start``; counts default to 0."""

    version_before: str | None = None  # previous version; None if unchanged or unknown
    wal_frames: int = 0  # number of WAL frames not yet copied to the database
    wal_commits: int = 0
    wal_dropped: int = 0  # number of commits dropped after damage, with accept_loss
    returned: int = 0  # number of dispatched messages that became ready again
    expired: int = 0  # number of messages whose deadline passed before startup
    expired_by_queue: dict[str, int] = field(default_factory=dict)
    migrations: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)  # descriptions of completed checks
    queues: int = 0
    messages: int = 0  # number of live messages
    seconds: float = 0.0  # time from acquiring the lock to the first batch
    clock_jump_ms: int = 0  # change of the wall clock while the broker was down
    clock_doubt_ms: int = 0  # downtime or clock change that an operator must assess
    last_error: str | None = None  # error that stopped the broker immediately, if any


class StartRecorder:
    """Collects the report on one startup; call the methods in the order of their definition."""

    def __init__(self, version: str, at_ms: int, *, was_clean: bool) -> None:
        self.version = version
        self.at_ms = at_ms  # Unix ms
        self.was_clean = was_clean  # whether the previous stop was clean; True on the first startup
        self.down_from_ms: int | None = None  # start of downtime in Unix ms; None on first startup
        self.report = StartReport()

    def note_error(self, content: dict[str, Any] | None) -> None:
        """Record the error, read from ``last_error.json``, that stopped the broker immediately."""
        if content is not None and not self.was_clean:
            text = content.get("message") or content.get("error")
            self.report.last_error = str(text or "unknown")

    def note_wal(self, frames: int, commits: int, dropped: int) -> None:
        """Record what SQLite's write-ahead log contained, and the commits dropped from it."""
        report = self.report
        report.wal_frames, report.wal_commits, report.wal_dropped = frames, commits, dropped

    def note_migrations(self, applied: Sequence[str]) -> None:
        self.report.migrations = [str(name) for name in applied]
        self.report.checks.append("the schema against the migrations")

    def read_database(self, store: Store, now_steady_ms: int) -> None:
        """Read the downtime, previous version and expired messages, in the writer's thread."""
        sql, counters = store.sql("startup"), store.counters()
        seen_ms = counters.get("last_seen_ms")
        before = store.execute(sql["previous_start"]).fetchone()
        if seen_ms is not None:
            self.down_from_ms = self.at_ms - max(0, now_steady_ms - seen_ms)
        elif before is not None:
            self.down_from_ms = int(before[1])
        if before is not None and before[0] != self.version:
            self.report.version_before = before[0]
        late = store.execute(sql["overdue_messages"], (now_steady_ms,)).fetchall()
        self.report.expired = sum(count for _, count in late)
        self.report.expired_by_queue = {name or "?": count for name, count in late[:QUEUES_NAMED]}

    def note_recovered(self, stored: RecoveredState, now_ms: int) -> None:
        self.report.queues = len(stored.queues)
        self.report.messages = sum(row.live_count for row in stored.queues)
        self.report.returned = stored.returned
        self.report.seconds = max(0, now_ms - self.at_ms) / 1_000

    def store(self, store: Store) -> None:
        """Store the report in the writer's thread, before the first batch."""
        sql = store.sql("startup")
        report = json.dumps(asdict(self.report), ensure_ascii=False)
        row = (self.at_ms, self.version, int(self.was_clean), self.down_from_ms, report)
        with store.transaction():
            store.execute(sql["insert_start"], row)
            store.execute(sql["trim_starts"], (STARTS_KEPT,))


@dataclass(slots=True, frozen=True)
class Start:
    """A stored startup."""

    start_id: int
    at_ms: int
    version: str
    was_clean: bool
    down_from_ms: int | None
    report: StartReport
    dismissed_by: str | None

    @property
    def is_first(self) -> bool:
        return self.down_from_ms is None

    @property
    def down_ms(self) -> int:
        """Downtime before startup; if an idle broker was killed, up to a minute too long."""
        return 0 if self.down_from_ms is None else max(0, self.at_ms - self.down_from_ms)


class StoredStarts(RowReader):
    """Reads the table ``start``."""

    file = "startup"

    async def newest(self, limit: int = 20) -> list[Start]:
        """Return the most recent startups, newest first."""
        rows = await self._read("newest_starts", limit=limit)
        return [
            Start(number, at_ms, version, bool(was_clean), down_from_ms, _report(text), by)
            for number, at_ms, version, was_clean, down_from_ms, text, by in rows
        ]


def _report(text: str) -> StartReport:
    """Parse a report, ignoring unknown fields written by other versions."""
    try:
        content = json.loads(text)
    except ValueError:
        content = {}
    fields = StartReport.__dataclass_fields__
    return StartReport(**{name: value for name, value in content.items() if name in fields})
