"""Creates private files and folders, and replaces files atomically even if power fails."""

import hashlib
import json
import os
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Final

PRIVATE_FILE: Final = 0o600
PRIVATE_FOLDER: Final = 0o700


def create_private(path: Path) -> int:
    """Create a new file with mode 0600, whatever the umask is, and return its open descriptor."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    os.fchmod(fd, PRIVATE_FILE)  # set the mode again, because the umask may have cleared bits
    return fd


def new_folder(parent: Path, prefix: str) -> Path:
    """Create a folder with mode 0700 and the UTC time in its name: ``<prefix>20261231T235959Z``."""
    target = unused_path(parent, f"{prefix}{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    target.mkdir(mode=PRIVATE_FOLDER)
    target.chmod(PRIVATE_FOLDER)
    return target


def unused_path(parent: Path, name: str) -> Path:
    """Return an unused path: ``name`` itself, or ``name`` followed by the lowest free number."""
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(path for path in map(parent.joinpath, names) if not path.exists())


def write_whole(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Replace ``path`` atomically: readers see either old or new content, even after a power cut.

    With ``sync=False``, return without waiting for the disk, which could block a shutdown.
    """
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(create_private(temporary), "wb") as file:
        file.write(content)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    temporary.replace(path)
    if sync:
        sync_folder(path.parent)


def write_json(path: Path, content: dict[str, Any], *, sync: bool = True) -> None:
    """Replace ``path`` atomically with a file that contains a JSON object."""
    write_whole(path, json.dumps(content, indent=1).encode() + b"\n", sync=sync)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None if the file is missing or contains no object."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_file(path: Path) -> None:
    """Wait until the content of ``path`` is on disk."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Wait until the directory entries of the folder ``path`` are on disk."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
