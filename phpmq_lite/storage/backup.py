"""Backups: a whole copy of the database at one moment, checked before it gets its name.

A folder of backups has one folder for each, called after its time: the database and what is known
of it, ``manifest.json``.  The copy is made by ``VACUUM INTO`` on a reader of its own, so it has all
that was committed before it began, and needs no WAL.  What is under way has a dot in front.
"""

import hashlib
import json
import os
import re
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from secrets import token_hex
from time import time_ns
from typing import Final

from phpmq_lite.errors import DataDamagedError, StorageError, StorageFullError, os_reason
from phpmq_lite.storage.data_folder import DATABASE
from phpmq_lite.storage.durable import (
    PRIVATE_FOLDER,
    create_private,
    sync_file,
    sync_folder,
    write_whole,
)
from phpmq_lite.storage.statements import load
from phpmq_lite.storage.verify import integrity_problems

MANIFEST: Final = "manifest.json"
LIMIT_S: Final = 600.0  # for the copy
_STEPS_BETWEEN_LOOKS: Final = 100_000  # of SQLite's machine, some milliseconds
_ID: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z(-[0-9]+)?")


@dataclass(slots=True, frozen=True)
class Manifest:
    """What a backup holds; counts and numbers are those of its database."""

    id: str
    made_at: int  # Unix ms: when it began
    took_ms: int
    version: str  # of the program
    schema: int
    sha256: str
    bytes: int
    queues: int
    messages: int  # alive
    settled: int
    bodies: int
    last_seq: int
    last_offset: int


_KINDS: Final = {one.name: one.type for one in fields(Manifest)}


@dataclass(slots=True, frozen=True)
class Backup:
    """One that is there."""

    folder: Path
    manifest: Manifest

    @property
    def database(self) -> Path:
        """The copy."""
        return self.folder / DATABASE


class Making:
    """Makes one backup, in a thread of its own; ``stop`` may be called from any.

    ``is_open``: a broker has the database open.  Else whoever calls this has locked its folder.
    """

    def __init__(
        self,
        database: Path,
        folder: Path,
        version: str,
        *,
        reserve: int = 0,
        is_open: bool = True,
        check_files: Callable[[], None] = lambda: None,
    ) -> None:
        self._check_files = check_files  # raises StorageError: it is not the broker's database
        self._reserve = reserve  # bytes that stay free on the disk of the database
        self._is_open = is_open
        self._database = database
        self._folder = folder
        self._version = version
        self._connection: sqlite3.Connection | None = None
        self._is_stopped = threading.Event()

    def stop(self) -> None:
        """Give up; ``run`` raises soon."""
        self._is_stopped.set()
        connection = self._connection
        if connection is not None:
            with suppress(sqlite3.ProgrammingError):  # it was closed just now
                connection.interrupt()

    def run(self, limit_s: float = LIMIT_S) -> Backup:
        """Copy, check, name.  Blocks: about 4 s for each GiB.

        Raises:
            StorageFullError: there is less space than twice the database, or the reserve after it.
            DataDamagedError: the database, or the copy of it, is not whole.
            StorageError: it took longer than ``limit_s``, was stopped, or cannot be written.
        """
        began_at = time_ns() // 1_000_000
        clock = threading.Timer(limit_s, self.stop)
        clock.daemon = True
        clock.start()
        try:
            self._prepare()
            with self._unnamed() as place:
                self._copy(place / DATABASE)
                self._check_files()
                return self._name(place, began_at)
        except sqlite3.Error as error:
            raise self._refusal(error, limit_s) from error
        except OSError as error:
            raise StorageError(
                f"cannot make a backup in {self._folder}: {os_reason(error)}"
            ) from error
        finally:
            clock.cancel()

    def _prepare(self) -> None:
        """Make the folder, and see that there is space."""
        if not self._folder.exists():
            self._folder.mkdir(mode=PRIVATE_FOLDER, parents=True)
            sync_folder(self._folder.parent)
        for left in self._folder.glob(".*.new"):  # of one that was cut off
            shutil.rmtree(left, ignore_errors=True)
        size = _size(self._database)
        is_beside = self._folder.stat().st_dev == self._database.stat().st_dev
        check_space(self._folder, max(2 * size, size + self._reserve * is_beside))

    @contextmanager
    def _unnamed(self) -> Iterator[Path]:
        place = self._folder / f".{token_hex(8)}.new"
        place.mkdir(mode=PRIVATE_FOLDER)
        try:
            yield place
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise

    def _copy(self, copy: Path) -> None:
        os.close(create_private(copy))  # SQLite takes an empty file, and keeps its mode
        wal = self._database.with_name(f"{self._database.name}-wal")
        # SQLite would make a WAL to read a database that was closed.
        is_alone = not self._is_open and not (wal.exists() and _size(wal))
        uri = f"{self._database.resolve().as_uri()}?mode=ro{'&immutable=1' * is_alone}"
        with self._opened(uri) as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))
        sync_file(copy)

    @contextmanager
    def _opened(self, uri: str) -> Iterator[sqlite3.Connection]:
        with closing(
            sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        ) as connection:
            self._connection = connection
            # ``interrupt`` ends what runs, and is lost on what is about to.
            connection.set_progress_handler(self._is_stopped.is_set, _STEPS_BETWEEN_LOOKS)
            try:
                if self._is_stopped.is_set():  # ahead of a statement ``stop`` could end
                    raise StorageError("the backup was stopped before it was made")
                yield connection
            finally:
                self._connection = None

    def _name(self, place: Path, began_at: int) -> Backup:
        """Check the copy, write what it holds, and give both their name."""
        copy = place / DATABASE
        with self._opened(f"{copy.resolve().as_uri()}?mode=ro&immutable=1") as connection:
            problems = integrity_problems(connection, "quick_check")
            if problems:
                raise DataDamagedError(f"the copy is damaged: {'; '.join(problems[:3])}")
            manifest = self._manifest(connection, copy, began_at)
        write_whole(place / MANIFEST, json.dumps(asdict(manifest), indent=1).encode() + b"\n")
        folder = self._folder / manifest.id
        place.rename(folder)
        sync_folder(self._folder)
        return Backup(folder, manifest)

    def _manifest(self, connection: sqlite3.Connection, copy: Path, began_at: int) -> Manifest:
        sql = load("verify")
        queues, messages, settled, bodies = connection.execute(sql["counts"]).fetchone()
        last_seq, last_offset = connection.execute(sql["ends"]).fetchone()
        return Manifest(
            _free_id(self._folder, began_at),
            began_at,
            time_ns() // 1_000_000 - began_at,
            self._version,
            connection.execute("PRAGMA user_version").fetchone()[0],
            sha256_of(copy),
            _size(copy),
            queues,
            messages,
            settled,
            bodies,
            last_seq,
            last_offset,
        )

    def _refusal(self, error: sqlite3.Error, limit_s: float) -> StorageError:
        name = getattr(error, "sqlite_errorname", "")
        if name == "SQLITE_INTERRUPT":
            return StorageError(f"the backup was stopped; it may take {limit_s:g} s")
        if name == "SQLITE_FULL":
            return StorageFullError(f"no space for a backup in {self._folder}")
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return DataDamagedError(f"cannot copy {self._database}: {error}")
        return StorageError(f"cannot copy {self._database}: {error}")


def listed(folder: Path) -> list[Backup]:
    """Give the backups in a folder, the newest first; what is not whole is no backup."""
    if not folder.is_dir():
        return []
    names = sorted((path for path in folder.iterdir() if is_id(path.name)), reverse=True)
    found = (read_backup(path) for path in names)
    return sorted((one for one in found if one is not None), key=lambda b: -b.manifest.made_at)


def is_id(text: str) -> bool:
    """Tell whether a backup may be called so; nothing else becomes part of a path."""
    return _ID.fullmatch(text) is not None


def read_backup(folder: Path) -> Backup | None:
    """Read the manifest of a backup; None where there is none, or no database beside it."""
    try:
        told = json.loads((folder / MANIFEST).read_bytes())
        manifest = Manifest(**told)
    except (OSError, ValueError, TypeError):
        return None
    if not all(type(value) is _KINDS[name] for name, value in asdict(manifest).items()):
        return None
    return Backup(folder, manifest) if (folder / DATABASE).is_file() else None


def remove_old(folder: Path, keep: int, made: str) -> list[str]:
    """Remove all but the newest ``keep`` backups; returns the ids of those that went.

    ``made`` is the newest whatever its time says: others may be of a clock that was ahead.
    """
    gone = []
    others = [backup for backup in listed(folder) if backup.manifest.id != made]
    for backup in others[keep - 1 :]:
        hidden = folder / f".{backup.manifest.id}.new"  # half of it is never taken for a backup
        backup.folder.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)
        gone.append(backup.manifest.id)
    return gone


def check_copy(backup: Backup, tell: Callable[[str], None] = lambda step: None) -> None:
    """Compare a backup with its manifest.

    Raises:
        DataDamagedError: it is not the file that was made.
    """
    size = _size(backup.database)
    if size != backup.manifest.bytes:
        raise DataDamagedError(
            f"{backup.database} has {size:,} bytes, its manifest says {backup.manifest.bytes:,}"
        )
    tell("comparing the backup with its manifest")
    if sha256_of(backup.database) != backup.manifest.sha256:
        raise DataDamagedError(f"{backup.database} is damaged: it has another SHA-256")


def check_space(folder: Path, need: int) -> None:
    """Refuse where there is too little space.

    Raises:
        StorageFullError: there is; it says how much is needed.
    """
    free = shutil.disk_usage(folder).free
    if free < need:
        raise StorageFullError(f"{folder} has {free:,} bytes free, this needs {need:,}")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _free_id(folder: Path, at_ms: int) -> str:
    """Call it after its time; two of one second are told apart by a number."""
    stamp = f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%Y%m%dT%H%M%SZ}"
    names = (stamp if number == 1 else f"{stamp}-{number}" for number in count(1))
    return next(name for name in names if not (folder / name).exists())


def _size(path: Path) -> int:
    return path.stat().st_size
