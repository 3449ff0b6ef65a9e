"""The scrub, which checks every body, slice by slice, and the structure of the database.

It is synchronous and has its own read-only connection; ``server/maintenance.py`` schedules it.  Its
progress and findings are stored in ``scrub.json``, so that it continues after a restart.
"""

import sqlite3
import threading
from collections.abc import Generator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from phpmq_lite.errors import DataDamagedError, StorageError
from phpmq_lite.model import checksum
from phpmq_lite.storage.atomic_files import write_json
from phpmq_lite.storage.sqlite.database_file import open_read_only, wal_of
from phpmq_lite.storage.sqlite.errors import is_damage
from phpmq_lite.storage.sqlite.integrity.database_check import integrity_problems
from phpmq_lite.storage.statements import load

FILE: Final = "scrub.json"
PARTS: Final = ("alive", "settled")
_ROW_BYTES: Final = 256  # number of bytes counted for a row in addition to its body
_STEPS_BETWEEN_CHECKS: Final = 100_000  # in SQLite virtual-machine steps; 100,000 take a few ms
_MAX_NAMED: Final = 100  # maximum number of damaged bodies whose seqs are stored

Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


@dataclass(slots=True)
class ScrubRound:
    """One pass over all bodies; times are in Unix ms, and a time of 0 means not yet."""

    began_at: Number = 0
    ended_at: Number = 0
    part: Number = 0  # index into PARTS; ``upto`` is the position within that part
    upto: Number = 0
    bodies: Number = 0
    bytes: Number = 0
    bad_alive: Number = 0  # damaged live messages; those not held are settled as dead
    bad_settled: Number = 0
    named: list[Number] = field(default_factory=list)  # seqs of the first damaged bodies

    @property
    def bad(self) -> int:
        return self.bad_alive + self.bad_settled


@dataclass(slots=True)
class ScrubState:
    """Persistent state of the scrub."""

    now: ScrubRound = field(default_factory=ScrubRound)  # the current round, if one has begun
    last: ScrubRound | None = None  # the most recent completed round
    structure_at: Number = 0  # Unix ms of the most recent structure check; 0 means never
    structure: list[str] = field(default_factory=list)  # problems found in the database structure
    tried_at: Number = 0  # Unix ms when a round was last abandoned after a failure

    @property
    def is_under_way(self) -> bool:
        return self.now.began_at > 0

    @property
    def last_ended_at(self) -> int:
        """Return when the last round ended or was abandoned, in Unix ms; 0 means never."""
        return max(self.tried_at, 0 if self.last is None else self.last.ended_at)

    @property
    def problem_count(self) -> int:
        last = 0 if self.last is None else self.last.bad
        return max(self.now.bad, last) + len(self.structure)

    @property
    def damage(self) -> list[str]:
        """Describe the known damage, newest first; return an empty list if there is none."""
        damage = [f"structure: {text}" for text in self.structure[:3]]
        newest = self.now if self.now.bad else self.last
        if newest is not None and newest.bad:
            seqs = ", ".join(map(str, newest.named[:5]))
            damage.insert(0, f"{newest.bad:,} bodies have a wrong checksum: seq {seqs}")
        return damage


@dataclass(slots=True)
class ScrubSlice:
    """Result of checking one slice."""

    upto: int
    bodies: int = 0
    bytes: int = 0
    bad: list[int] = field(default_factory=list)  # seqs of damaged bodies
    is_end: bool = True  # whether this is the last slice of its part


def read_state(folder: Path) -> ScrubState:
    """Read the stored state, or return a new state if the file is unreadable."""
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode((folder / FILE).read_bytes(), type=ScrubState)
    return ScrubState()


def write_state(folder: Path, state: ScrubState) -> None:
    """Store the state without syncing it, because a slice can be read again after a crash."""
    write_json(folder / FILE, asdict(state), sync=False)


class Scrub:
    """Checks one database.  ``interrupt`` and ``stop`` can be called from any thread."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._log = wal_of(database)
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()  # guards _connection and _is_stopped
        self._is_stopped = False

    def check(self, part: str, after: int, most_bytes: int) -> ScrubSlice:
        """Check about ``most_bytes`` bytes of bodies, starting after a position.

        Raises:
            DataDamagedError: the database cannot be read at that position.
            StorageError: the scrub was stopped, or the database cannot be read at present.
        """
        checked = ScrubSlice(after)
        with closing(self._rows(part, after)) as rows:
            for number, seq, size, crc, content in rows:
                if checked.bytes >= most_bytes:
                    checked.is_end = False
                    break
                checked.upto = number
                checked.bodies += 1
                checked.bytes += _ROW_BYTES + (len(content) if isinstance(content, bytes) else 0)
                if not _is_whole(seq, size, crc, content):
                    checked.bad.append(seq)
        return checked

    def structure(self) -> list[str]:
        """Return problems in pages and indexes, or raise StorageError; takes over 2 s per GiB."""
        try:
            with closing(self._open()) as connection:
                return integrity_problems(connection)
        except sqlite3.Error as error:
            raise StorageError(f"the structure was not checked: {error}") from error
        finally:
            self._connection = None

    @property
    def log_bytes(self) -> int:
        """Return the size of the write-ahead log, which grows while any read is in progress."""
        with suppress(FileNotFoundError):
            return self._log.stat().st_size
        return 0

    def interrupt(self) -> None:
        """Interrupt the current statement, but not one that has not started yet."""
        with self._lock:
            if self._connection is not None:
                with suppress(sqlite3.ProgrammingError):  # the connection may just have been closed
                    self._connection.interrupt()

    def stop(self) -> None:
        """Interrupt the current statement and refuse new ones."""
        with self._lock:
            self._is_stopped = True
        self.interrupt()

    def _rows(self, part: str, after: int) -> Generator[tuple[Any, ...], None, None]:
        """Yield rows, then close the connection so that it does not block a checkpoint."""
        try:
            with closing(self._open()) as connection:
                yield from connection.execute(load("scrub", "sqlite")[part], (after,))
        except sqlite3.Error as error:
            kind = DataDamagedError if is_damage(error) else StorageError
            raise kind(f"cannot read {part} messages after {after}: {error}") from error
        finally:
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        with self._lock:
            if self._is_stopped:
                raise StorageError("the scrub was stopped")
            connection = open_read_only(self._database)
            connection.execute("PRAGMA query_only=1")
            # ``interrupt`` does not affect a statement that has not started yet.
            connection.set_progress_handler(lambda: self._is_stopped, _STEPS_BETWEEN_CHECKS)
            self._connection = connection
            return connection


def note(state: ScrubState, part: str, checked: ScrubSlice) -> None:
    """Add the result of a slice to the current round."""
    now = state.now
    now.upto = checked.upto
    now.bodies += checked.bodies
    now.bytes += checked.bytes
    if part == "alive":
        now.bad_alive += len(checked.bad)
    else:
        now.bad_settled += len(checked.bad)
    now.named = (now.named + checked.bad)[:_MAX_NAMED]
    if checked.is_end:
        now.part, now.upto = now.part + 1, 0


def _is_whole(seq: int, size: object, crc: object, content: object) -> bool:
    """Return whether a body matches its row; the columns of a damaged row may contain anything."""
    if seq < 0 or not isinstance(content, bytes):
        return False
    return len(content) == size and checksum(seq, content) == crc
