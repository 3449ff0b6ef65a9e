"""Looks at the WAL ahead of SQLite: damage refuses the start, and a copy of everything is kept.

``wal_frames.py`` reads the format, ``wal_scan.py`` judges, this acts.
"""

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from phpmq_lite.errors import DataDamagedError
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.durable import (
    create_private,
    new_folder,
    sync_file,
    sync_folder,
    write_whole,
)
from phpmq_lite.storage.wal_index import committed_frames
from phpmq_lite.storage.wal_scan import WalScan, scan

_PREFIX: Final = "damaged-"
_REPORT: Final = "damage.json"  # written last: a copy without it is not whole


def check_wal(folder: DataFolder, *, accept_loss: bool = False) -> WalScan:
    """Scan the WAL of a locked folder; to be called before SQLite opens the database.

    Blocks: 0.2 s for a WAL of 64 MiB, longer where damaged files are copied.

    Raises:
        DataDamagedError: complete commits would be lost, or the WAL is gone.  Database, WAL and
            shm were copied to ``damaged-<time>/``.  With ``accept_loss`` the files are copied,
            nothing is raised, and SQLite drops those commits; a copy that failed is still raised.
    """
    try:
        found = look_at_wal(folder.wal, folder.shm)
    except FileNotFoundError:
        _check_missing(folder, accept_loss=accept_loss)
        return WalScan()
    except OSError as error:
        raise DataDamagedError(f"cannot read {folder.wal}: {error.strerror}") from error
    if not found.is_damaged:
        return found
    loss = describe(folder.wal.name, found)
    copies = keep_damaged(folder, loss, _digest(folder.wal))
    if not accept_loss:
        raise DataDamagedError(
            f"{loss}; the files were copied to {copies}; to start without these commits, once, "
            "use storage.accept_loss (--accept-loss)"
        )
    return found


def look_at_wal(wal: Path, index: Path) -> WalScan:
    """Scan a WAL and ask its index, the ``-shm`` file, how long it was; changes neither.

    Raises:
        OSError: it cannot be read, or is not there.
    """
    with wal.open("rb") as file:
        found = scan(file)
    return replace(found, known_frames=committed_frames(index, found.salts))


def _check_missing(folder: DataFolder, *, accept_loss: bool) -> None:
    if folder.meta.is_running and not accept_loss:
        raise DataDamagedError(
            f"{folder.wal} is missing, but the broker did not stop cleanly: commits that were in "
            "it may be lost; put it back, or, if another program opened and closed the database "
            "since, start once with storage.accept_loss (--accept-loss)"
        )


def describe(name: str, found: WalScan) -> str:
    """Say which frames and commits of a damaged WAL would be lost."""
    if not found.commits_behind:
        return (
            f"{name} is whole up to frame {found.frames} only, and was up to frame "
            f"{found.known_frames}: the commits in between would be lost"
        )
    where = "its header" if found.first_bad == 0 else f"frame {found.first_bad}"
    return (
        f"{name} is damaged at {where}, and {found.commits_behind} complete commits behind it, "
        f"up to frame {found.last_behind}, would be lost"
    )


def keep_damaged(folder: DataFolder, loss: str, digest: str) -> Path:
    """Copy database, WAL and shm to a new ``damaged-<time>/`` and return that folder.

    A supervisor may start a refused broker again and again: what was copied already, known by the
    checksum of the damaged file, is not copied again.

    Raises:
        DataDamagedError: the copy is not whole, mostly for want of space.
    """
    try:
        return _copied(folder, digest) or _copy(folder, loss, digest)
    except OSError as error:
        raise DataDamagedError(f"{loss}; the files could not be copied: {error}") from error


def _copied(folder: DataFolder, digest: str) -> Path | None:
    for report in sorted(folder.path.glob(f"{_PREFIX}*/{_REPORT}")):
        if _read_report(report).get("sha256") == digest:
            return report.parent
    return None


def _copy(folder: DataFolder, loss: str, digest: str) -> Path:
    target = new_folder(folder.path, _PREFIX)
    for source in (folder.database, folder.wal, folder.shm):
        if source.exists():
            copy = target / source.name
            os.close(create_private(copy))
            shutil.copyfile(source, copy)
            sync_file(copy)
    told = {"sha256": digest, "loss": loss}
    write_whole(target / _REPORT, json.dumps(told, indent=1).encode() + b"\n")
    sync_folder(folder.path)
    return target


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_report(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
