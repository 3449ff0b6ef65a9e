"""The lock of a data folder: exclusive for a broker, shared for checks of a stopped one.

Its file contains the pid of the broker and, if it has one, of its writer process.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from phpmq_lite.errors import StartRefusedError
from phpmq_lite.storage.atomic_files import PRIVATE_FILE

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
    """Return the pids of the broker and, if it has one, of its writer process."""
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
    """Return the pid of the broker that has locked a folder, or None if the folder is not locked.

    This changes nothing, but prevents a broker from starting for a few microseconds.
    """
    with _shared_lock(path) as pid:
        return pid


@contextmanager
def prevent_start(path: Path) -> Iterator[None]:
    """Prevent a broker from starting in this folder, without changing the folder.

    Raises:
        StartRefusedError: a broker is running there.
    """
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
    """Return the error message for a folder that another broker has open."""
    return f"{path} is in use by phpmq-lite (pid {pid}). Stop it or choose another --data folder"
