"""Checks of WAL, seal and structure before SQLite writes anything, and the startup report.

A failed check raises DataDamagedError and changes nothing; with ``accept_loss``, startup continues
with the remaining data.
"""

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from phpmq_lite.errors import StartRefusedError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.model import RecoveredState
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.read.read_pool import RowReader
from phpmq_lite.storage.sqlite.integrity.database_check import integrity_problems
from phpmq_lite.storage.sqlite.integrity.seal import break_seal, checksum_of
from phpmq_lite.storage.sqlite.integrity.wal_check import (
    WalScan,
    check_wal,
    refuse_damaged_database,
)
from phpmq_lite.storage.sqlite.migrate import schema_problems
from phpmq_lite.storage.statements import load

CHECKED_BYTES: Final = 256 << 20  # the scrub checks larger databases while the broker runs


@dataclass(slots=True)
class StartupCheck:
    """Results of the startup checks."""

    wal: WalScan
    checks: list[str] = field(default_factory=list)  # descriptions of completed checks
    is_structure_due: bool = False  # whether the structure check was skipped and should run soon


def check_files(
    folder: DataFolder,
    *,
    accept_loss: bool = False,
    tell: Callable[[str], None] = lambda step: None,
) -> StartupCheck:
    """Check the files of a locked folder before its database is opened for writing.

    Blocks for up to 0.3 s; after a clean stop, for 0.3 s per GiB, or 1 s per GiB with a slow zlib.
    ``tell`` is called with a description of each step.

    Raises:
        DataDamagedError: commits or contents are lost or damaged.
        StartRefusedError: the database cannot be read at the moment, but may be intact.
    """
    tell("checking the write-ahead log")
    done = StartupCheck(check_wal(folder, accept_loss=accept_loss))
    done.checks.append("every frame of the write-ahead log against its checksum")
    tell("checking the database")
    if break_seal(folder, accept_loss=accept_loss):
        done.checks.append("every byte of the database against what the broker left")
    elif folder.has_journal or folder.database.stat().st_size > CHECKED_BYTES:
        done.is_structure_due = True
    else:
        _check_structure(folder, accept_loss=accept_loss)
        done.checks.append("the structure of the database")
    return done


def _check_structure(folder: DataFolder, *, accept_loss: bool) -> None:
    uri = f"{folder.database.as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        try:
            connection.execute("PRAGMA schema_version").fetchone()  # opens the WAL and its index
            problems = integrity_problems(connection)
            problems = problems or schema_problems(connection, migrations_folder())
        except sqlite3.OperationalError as error:  # damage would raise a different error
            raise StartRefusedError(f"cannot read {folder.database}: {error}") from error
        except sqlite3.DatabaseError as error:
            problems = [str(error)]
    if not problems:
        return
    loss = f"{folder.database} is damaged: {'; '.join(problems[:3])}"
    refuse_damaged_database(folder, loss, checksum_of(folder.database), accept_loss=accept_loss)


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
    interrupted: int = 0  # number of bulk jobs still running when the broker stopped
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
            self.report.last_error = str(
                content.get("message") or content.get("error") or "unknown"
            )

    def note_files(self, found: StartupCheck) -> None:
        """Record the results of the file checks."""
        report, wal = self.report, found.wal
        report.wal_frames, report.wal_commits = wal.frames, wal.commits
        report.wal_dropped = wal.commits_lost
        report.checks += found.checks

    def note_migrations(self, applied: Sequence[str]) -> None:
        """Record the migrations that were applied."""
        self.report.migrations = [str(name) for name in applied]
        self.report.checks.append("the schema against the migrations")

    def note_clock(self, jump_ms: int, doubt_ms: int) -> None:
        """Record the clock jump, and any downtime or clock change that an operator must assess."""
        self.report.clock_jump_ms, self.report.clock_doubt_ms = jump_ms, doubt_ms

    def read_database(self, connection: sqlite3.Connection, now_steady_ms: int) -> None:
        """Read the downtime, previous version and expired messages, in the writer's thread."""
        sql = load("startup")
        counters: dict[str, int] = dict(connection.execute("SELECT name, value FROM counter"))
        seen_ms = counters.get("last_seen_ms")
        before = connection.execute(sql["previous_start"]).fetchone()
        if seen_ms is not None:
            self.down_from_ms = self.at_ms - max(0, now_steady_ms - seen_ms)
        elif before is not None:
            self.down_from_ms = int(before[1])
        if before is not None and before[0] != self.version:
            self.report.version_before = before[0]
        late = connection.execute(sql["overdue_messages"], (now_steady_ms,)).fetchall()
        self.report.expired = sum(count for _, count in late)
        self.report.expired_by_queue = {name or "?": count for name, count in late[:QUEUES_NAMED]}

    def note_recovered(self, stored: RecoveredState, now_ms: int) -> None:
        """Record what was recovered from the database and how long startup took."""
        report = self.report
        report.queues = len(stored.queues)
        report.messages = sum(row.live_count for row in stored.queues)
        report.returned = stored.returned
        report.seconds = max(0, now_ms - self.at_ms) / 1_000

    def store(self, connection: sqlite3.Connection) -> None:
        """Store the report in the writer's thread, before the first batch."""
        sql = load("startup")
        report = json.dumps(asdict(self.report), ensure_ascii=False)
        row = (self.at_ms, self.version, int(self.was_clean), self.down_from_ms, report)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(sql["insert_start"], row)
        connection.execute(sql["trim_starts"], (STARTS_KEPT,))
        connection.execute("COMMIT")


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
        """Return whether this was the broker's first startup."""
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
    known = StartReport.__dataclass_fields__
    return StartReport(**{name: value for name, value in content.items() if name in known})
