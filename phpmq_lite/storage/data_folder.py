"""The data folder: the files of one broker, private to its account and locked while it runs.

The lock is exclusive for a broker, and shared for checks of a stopped one.  Its file contains the
pid of the broker and, if it has one, of its writer process.

Startup begins with ``DataFolder.open``, and shutdown ends with ``close``::

    folder = DataFolder.open(path)   # lock, file modes, check for a lost database
    check_wal(folder)                # before SQLite opens the WAL
    ... open folder.database, migrate, recover ...
    folder.record(is_running=True, has_messages=True)  # from now on, a missing file is a loss
    ... serve ...
    folder.record(is_running=False)  # before the writable connection closes
    folder.close()
"""

import fcntl
import os
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from phpmq_lite.errors import DataDamagedError, StartRefusedError
from phpmq_lite.storage.atomic_files import (
    PRIVATE_FILE,
    PRIVATE_FOLDER,
    create_private,
    read_json,
    sync_folder,
    write_json,
)
from phpmq_lite.storage.copy_state import CopyState
from phpmq_lite.storage.mounts import check_local

_LOCK_FILE: Final = "lock"
_LOCK_S: Final = 5.0  # maximum wait for checks, which take up to 1 s, and for a writer process
_RETRY_S: Final = 0.02


def lock_folder(path: Path) -> int:
    """Lock the file ``lock``, write this process's pid to it and return its descriptor."""
    fd = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    try:
        os.fchmod(fd, PRIVATE_FILE)
        _lock_exclusively(fd, path)
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        pid, *writers = _read_pids(fd)
        os.close(fd)
        if writers and not _is_alive(pid):
            raise StartRefusedError(
                f"{path} is in use by process {writers[0]}, which writes for a broker that has "
                f"ended (pid {pid}) or runs in another container. End it, or choose another --data "
                "folder"
            ) from None
        raise StartRefusedError(in_use_message(path, pid)) from None
    except BaseException:
        os.close(fd)
        raise
    return fd


def _lock_exclusively(lock: int, path: Path) -> None:
    """Acquire an exclusive lock, waiting for checks that hold a shared lock.

    Also waits for a writer process whose broker was killed, perhaps before it had recorded the
    process; it ends after its last commit.

    Raises:
        BlockingIOError: a broker or its writer process holds the lock.
        StartRefusedError: a check holds the lock for too long.
    """
    until_s = time.monotonic() + _LOCK_S
    while True:
        is_late = time.monotonic() >= until_s
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # fails if a broker holds the lock
            except BlockingIOError:
                if is_late or _is_alive(_read_pids(lock)[0]):
                    raise
            else:
                fcntl.flock(lock, fcntl.LOCK_UN)
                if is_late:
                    raise StartRefusedError(
                        f"{path} is locked by a check or a backup; wait until it has finished"
                    ) from None
        else:
            return
        time.sleep(_RETRY_S)


def _read_pids(lock: int) -> list[str]:
    return os.pread(lock, 64, 0).decode("ascii", "replace").split() or ["unknown"]


def _is_alive(pid: str) -> bool:
    """Return whether a process exists, or may exist.  A zombie has closed all of its files."""
    try:
        status = Path("/proc", pid, "stat").read_text(encoding="ascii", errors="replace")
        return status.rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        pass  # it has ended, or this system has no /proc
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (ValueError, OSError):  # not a pid, or another account's process
        pass
    return True


def locking_pid(path: Path) -> str | None:
    """Return the pid of the broker that has locked a folder, or None; takes a few microseconds."""
    with _shared_lock(path) as pid:
        return pid


@contextmanager
def prevent_start(path: Path) -> Iterator[None]:
    """Keep brokers from starting in this folder; raise StartRefusedError if one is running."""
    with _shared_lock(path) as pid:
        if pid is not None:
            raise StartRefusedError(f"{path} is in use by phpmq-lite; stop it first")
        yield


@contextmanager
def _shared_lock(path: Path) -> Iterator[str | None]:
    """Lock a folder in shared mode and yield None; if a broker has locked it, yield its pid."""
    try:
        fd = os.open(path / _LOCK_FILE, os.O_RDONLY)
    except FileNotFoundError:  # no broker has ever used this folder
        yield None
        return
    pid = None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _read_pids(fd)[0]
        yield pid
    finally:
        os.close(fd)


def in_use_message(path: Path, pid: str) -> str:
    return f"{path} is in use by phpmq-lite (pid {pid}). Stop it or choose another --data folder"


DATABASE: Final = "phpmq.db"
STAGED_COPY: Final = ".copied.new"
_META: Final = "meta.json"

_SQLITE_MAGIC: Final = b"SQLite format 3\0"


@dataclass(slots=True, frozen=True)
class DataFolderMetadata:
    """The contents of ``meta.json``, which reveal whether the database has been lost."""

    created_at: int  # Unix ms
    has_messages: bool = False  # whether a message has ever been stored; never reset to False
    is_running: bool = False  # whether the database is open for writing; if so, a WAL must exist
    seal: int | None = None  # CRC-32 of the database after the last clean stop; see seal.py
    leaves_wal: bool = False  # whether a clean stop left a WAL, because Litestream was running

    copy: CopyState | None = None  # copy of which this is the source

    @property
    def needs_wal(self) -> bool:
        return self.is_running or self.leaves_wal


class DataFolder:
    """A locked data folder.  The lock is held until ``close`` is called or the process ends."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.database = path / DATABASE
        self.wal = path / f"{DATABASE}-wal"  # present while the database is open or after a crash
        self.shm = path / f"{DATABASE}-shm"  # index of the WAL, which SQLite rebuilds after a crash
        self.staged_copy = path / STAGED_COPY  # a database that is being copied here
        self.control_socket = path / "control.sock"  # through which commands reach a broker
        self.meta_file = path / _META  # describes the database; only this class writes to it
        self.last_error_file = path / "last_error.json"  # what stopped the broker immediately
        self.lock = lock  # file descriptor; the lock is held until all copies of it are closed
        self._writer_pid: int | None = None
        self.meta = read_meta(path)

    @classmethod
    def open(cls, path: Path, *, allow_network_fs: bool = False, has_database: bool = True) -> Self:
        """Create the folder if necessary, lock it and check for lost files.

        Afterwards, the folder has mode 0700, its files have mode 0600, and the database file exists
        (empty in a new folder), because SQLite copies its mode to the WAL.  Without
        ``has_database``, the database is elsewhere or about to be replaced, so it is neither
        checked nor created.

        Raises:
            StartRefusedError: another process uses the folder, it is on a network file system, the
                account has no access, or a copy is used instead or is incomplete.
            DataDamagedError: the database is missing or empty, but messages were stored.
        """
        path = path.absolute()
        if not allow_network_fs:
            check_local(path)
        try:
            _make_private(path)
            lock = lock_folder(path)
        except OSError as error:
            raise StartRefusedError(f"cannot use data folder {path}: {error.strerror}") from error
        try:
            folder = cls(path, lock)
            if has_database:
                folder.check_copy()
                folder.check_database()
                folder._prepare_files()
        except BaseException as error:
            os.close(lock)
            if isinstance(error, OSError):
                raise StartRefusedError(f"cannot use data folder {path}: {error}") from error
            raise
        return folder

    @classmethod
    def open_unlocked(cls, path: Path) -> Self:
        """Open an existing folder for read-only checks, without locking it."""
        return cls(path.absolute(), -1)

    def record_writer(self, pid: int) -> None:
        """Record the pid of a process that inherited the lock, in case it outlives this one."""
        os.pwrite(self.lock, b"%d\n%d\n" % (os.getpid(), pid), 0)
        self._writer_pid = pid

    def kill_writer(self, *, waits: bool = True) -> None:
        """Kill that process if it still runs, and wait until it has released the lock."""
        if self._writer_pid:
            with suppress(ChildProcessError):  # it has been awaited
                os.waitid(os.P_PID, self._writer_pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                os.kill(self._writer_pid, signal.SIGKILL)
                if waits:
                    os.waitpid(self._writer_pid, 0)

    @property
    def has_journal(self) -> bool:
        """Return whether a rollback journal remains because the first write was interrupted."""
        return self.path.joinpath(f"{DATABASE}-journal").exists()

    def record(
        self,
        *,
        has_messages: bool | None = None,
        is_running: bool | None = None,
        leaves_wal: bool = False,
    ) -> None:
        """Store changes in ``meta.json`` with two fsyncs; do nothing if nothing has changed.

        Call it with ``is_running=True`` after the writer's first transaction, when the WAL exists,
        and with ``is_running=False`` before its connection closes, which deletes the WAL.  In the
        reverse order, a kill between the two steps would look like a loss.
        """
        self._update_meta(
            replace(
                self.meta,
                has_messages=self.meta.has_messages if has_messages is None else has_messages,
                is_running=self.meta.is_running if is_running is None else is_running,
                leaves_wal=leaves_wal,
            )
        )

    def seal(self, checksum: int | None) -> None:
        """Store the checksum of the closed database, or None before it is opened for writing."""
        self._update_meta(replace(self.meta, seal=checksum))

    def set_copy(self, state: CopyState | None) -> None:
        """Store the copy of which this is the source, or None to use the data here."""
        self._update_meta(replace(self.meta, copy=state))

    def replace_database(self, checksum: int) -> None:
        """Store that another database, with this checksum, is about to be moved into place."""
        self._update_meta(
            DataFolderMetadata(self.meta.created_at, has_messages=True, seal=checksum)
        )

    def write_last_error(self, error: BaseException, at_ms: int) -> bool:
        """Write ``last_error.json`` for the next startup and return whether it was written.

        This is safe during a fail-stop, because it raises no error and does not wait for the disk.
        """
        cause = _sqlite_cause(error)
        content = {
            "at_ms": at_ms,
            "error": type(error).__name__,
            "message": str(error),
            "sqlite_errorcode": getattr(cause, "sqlite_errorcode", None),
            "sqlite_errorname": getattr(cause, "sqlite_errorname", None),
            "pid": os.getpid(),
        }
        try:
            write_json(self.last_error_file, content, sync=False)
        except OSError:
            return False
        return True

    def read_last_error(self) -> dict[str, Any] | None:
        return read_json(self.last_error_file)

    def close(self) -> None:
        """Release the lock; can be called twice.  Deleting the lock file would cause a race."""
        if self.lock >= 0:
            with suppress(OSError):  # the pid in the file is valid only while the file is locked
                os.ftruncate(self.lock, 0)
            os.close(self.lock)
            self.lock = -1

    def check_copy(self) -> None:
        """Raise StartRefusedError if the database is an incomplete copy or its copy is in use."""
        if self.staged_copy.exists():
            raise StartRefusedError(
                f"{self.path} contains an incomplete copy of another database: run `phpmq-lite "
                f"store copy` again, or delete {self.staged_copy}"
            )
        if self.meta.copy is not None:
            raise StartRefusedError(f"{self.path}: {self.meta.copy.refusal(str(self.path))}")

    def check_database(self) -> None:
        """Check that the database exists; otherwise SQLite would create one and hide the loss.

        ``open`` calls this method.

        Raises:
            DataDamagedError: messages were stored, but the database is missing, empty or invalid.
        """
        size = _size_of(self.database)
        if size:
            with self.database.open("rb") as file:
                is_sqlite = file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
            if not is_sqlite and not self.has_journal:
                raise DataDamagedError(f"{self.database} is not an SQLite database")
            return
        state = "missing" if size is None else "empty"
        if self.wal.exists():
            sign = f"{self.wal.name} exists next to it"
        elif self.meta.has_messages:
            sign = "meta.json says that messages were stored"
        else:
            return
        raise DataDamagedError(
            f"{self.database} is {state}, but {sign}: move the database back, or restore "
            "a backup. To start with an empty database, move the whole folder away"
        )

    def _prepare_files(self) -> None:
        files = (self.database, self.wal, self.shm, self.meta_file, self.last_error_file)
        for file in files:
            if file.exists() and stat.S_IMODE(file.stat().st_mode) != PRIVATE_FILE:
                file.chmod(PRIVATE_FILE)
        if not self.database.exists():
            os.close(create_private(self.database))
        if not self.meta_file.exists():
            self._write_meta(self.meta)

    def _update_meta(self, meta: DataFolderMetadata) -> None:
        if meta != self.meta:
            self._write_meta(meta)

    def _write_meta(self, meta: DataFolderMetadata) -> None:
        write_json(self.meta_file, {"format": 1, **asdict(meta)})
        self.meta = meta


def read_meta(path: Path) -> DataFolderMetadata:
    """Read ``meta.json``; if it is unreadable, assume that an existing database has been used."""
    file = path / _META
    content = read_json(file)
    if content is None:
        may_have = file.exists() or bool(_size_of(path / DATABASE))
        return DataFolderMetadata(time.time_ns() // 1_000_000, has_messages=may_have)
    seal, created_at = content.get("seal"), content.get("created_at")
    copy = content.get("copy")
    return DataFolderMetadata(
        created_at=created_at if isinstance(created_at, int) else 0,
        has_messages=bool(content.get("has_messages", True)),
        is_running=bool(content.get("is_running", False)),
        seal=seal if isinstance(seal, int) else None,
        leaves_wal=bool(content.get("leaves_wal", False)),
        copy=CopyState(**copy) if isinstance(copy, dict) else None,
    )


def has_never_had_database(path: Path) -> bool:
    """Return whether a folder has never contained a database, rather than having lost one."""
    files = DATABASE, f"{DATABASE}-wal", STAGED_COPY
    if path.is_file() or any((path / name).exists() for name in files):
        return False
    return not read_meta(path).has_messages


def check_rights(path: Path) -> None:
    """Check, without changing the folder, that startup can make it private.

    Raises:
        StartRefusedError: the path is not a folder, is shared by all accounts, or belongs to
            another account and is open to others.
    """
    if not path.exists():
        return
    if not path.is_dir():
        raise StartRefusedError(f"data folder {path} is a file, not a folder")
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if mode & stat.S_ISVTX:
        raise StartRefusedError(
            f"{path} is shared by all accounts; choose a folder that only the broker uses"
        )
    if status.st_uid != os.geteuid() and mode & stat.S_IRWXO:
        raise StartRefusedError(
            f"{path} belongs to account {status.st_uid} and is open to others (mode {mode:04o}); "
            "mode 0700 is required"
        )


def _make_private(path: Path) -> None:
    check_rights(path)
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)
    status = path.stat()
    if stat.S_IMODE(status.st_mode) != PRIVATE_FOLDER and status.st_uid == os.geteuid():
        path.chmod(PRIVATE_FOLDER)


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _sqlite_cause(error: BaseException | None) -> BaseException | None:
    visited: list[BaseException] = []
    while error is not None and error not in visited:
        if hasattr(error, "sqlite_errorcode"):
            return error
        visited.append(error)
        error = error.__cause__ or error.__context__
    return None
