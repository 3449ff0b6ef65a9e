"""Litestream beside a broker: its files, its configuration, and the rule on checkpoints.

SQLite before 3.51.3 can lose committed pages if one connection checkpoints while another commits
(https://www.sqlite.org/wal.html#walresetbug).  Therefore a data folder with a standby has one rule:
only the process that holds the lock on ``standby.lock`` may checkpoint.  ``standby run`` takes the
lock, checks the versions and becomes Litestream, which holds the lock until it ends; the broker
holds it for one checkpoint at a time, and only while Litestream is not running.

The configuration names the database by an environment variable that only ``standby run`` sets, so
Litestream cannot be started without the lock by accident.
"""

import fcntl
import os
import re
import shutil
import sqlite3
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from phpmq_lite.errors import SettingsError, StartRefusedError
from phpmq_lite.storage.atomic_files import PRIVATE_FILE, read_json, write_json
from phpmq_lite.storage.data_folder import DATABASE, DataFolder

CONFIG: Final = "litestream.yml"  # JSON, which every YAML parser reads
LOCK: Final = "standby.lock"
SOCKET: Final = "litestream.sock"
STATE_FOLDER: Final = f".{DATABASE}-litestream"  # made by Litestream
TABLES: Final = ("_litestream_seq", "_litestream_lock")  # made by Litestream
MIN_LITESTREAM: Final = (0, 5, 17)
MIN_SQLITE: Final = (3, 51, 3)
_DATABASE_VARIABLE: Final = "PHPMQ_STANDBY_DATABASE"
_SOCKET_VARIABLE: Final = "PHPMQ_STANDBY_SOCKET"
# Taken from the environment, because the configuration must not contain credentials.
_SFTP: Final = {
    "password": "${LITESTREAM_SFTP_PASSWORD}",
    "key-path": "${LITESTREAM_SFTP_KEY_PATH}",
    "host-key": "${LITESTREAM_SFTP_HOST_KEY}",
}
_SCHEMES: Final = ("file", "sftp", "s3", "gs", "abs", "oss", "nats", "webdav", "webdavs")
_HISTORY_ID: Final = re.compile(r"[0-9a-f]{32}")
_SOCKET_CHARS: Final = 100  # a Unix socket's path has at most 104 or 108 bytes
_FRAME_BYTES: Final = 4_096 + 24
_LOCK_S: Final = 5.0  # maximum wait for a checkpoint by the broker
_RETRY_S: Final = 0.02
_COMMAND_S: Final = 60.0
_KEPT_FILES: Final = 5


class Version(NamedTuple):
    """The versions of an installed Litestream and of the SQLite that it contains."""

    path: str
    litestream: tuple[int, ...]
    sqlite: tuple[int, ...]

    def __str__(self) -> str:
        return f"Litestream {_dotted(self.litestream)} with SQLite {_dotted(self.sqlite)}"


def find_litestream() -> Version | None:
    """Return the Litestream on the PATH, or None if there is none.

    Its SQLite is asked in 0.1 s: Litestream replicates an empty database, and SQLite writes its own
    version into bytes 96 to 99 of the file (https://www.sqlite.org/fileformat2.html).
    """
    path = shutil.which("litestream")
    if path is None:
        return None
    text = run_litestream(path, "version").strip().removeprefix("v")
    found = re.match(r"\d+(\.\d+)*", text)
    with tempfile.TemporaryDirectory(prefix="phpmq-litestream-") as place:
        database = Path(place) / "empty.db"
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA journal_mode=WAL").fetchall()
        run_litestream(path, "replicate", "-once", str(database), f"file://{place}/replica")
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        (number,) = struct.unpack_from(">I", database.read_bytes(), 96)
    sqlite = (number // 1_000_000, number // 1_000 % 1_000, number % 1_000)
    return Version(path, _numbers(found[0] if found else "0"), sqlite)


def require_litestream() -> Version:
    """Return the Litestream on the PATH.

    Raises:
        StartRefusedError: there is none, or it is too old.
    """
    version = find_litestream()
    if version is None:
        raise StartRefusedError(
            f"litestream is not on the PATH; install version {_dotted(MIN_LITESTREAM)} or newer"
        )
    _check_version(version)
    return version


def check_standby(data: Path) -> None:
    """Check, before a broker starts, the Litestream that may run beside it.

    A Litestream in another container is not on the PATH; ``standby run`` has checked it there.

    Raises:
        StartRefusedError: the Litestream on the PATH is too old.
    """
    if is_configured(data) and (version := find_litestream()) is not None:
        _check_version(version)


def _check_version(version: Version) -> None:
    if version.litestream < MIN_LITESTREAM or version.sqlite < MIN_SQLITE:
        raise StartRefusedError(
            f"{version.path} is {version}, but a standby requires Litestream "
            f"{_dotted(MIN_LITESTREAM)} with SQLite {_dotted(MIN_SQLITE)} or newer: an older "
            "SQLite can lose commits while it checkpoints"
        )


def run_litestream(
    path: str,
    *arguments: str,
    environment: dict[str, str] | None = None,
    timeout_s: float = _COMMAND_S,
) -> str:
    """Run a command of Litestream and return its output.

    Raises:
        StartRefusedError: it failed or did not end; the message contains its last line.
    """
    try:
        done = subprocess.run(
            [path, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False,
            env=os.environ | (environment or {}),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StartRefusedError(f"{path} {arguments[0]} failed: {error}") from error
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        reason = lines[-1].removeprefix("Error: ") if lines else f"exit code {done.returncode}"
        raise StartRefusedError(f"litestream {arguments[0]} failed: {reason}")
    return done.stdout


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


# -- configuration


@dataclass(slots=True, frozen=True)
class Target:
    """A folder or URL for replicas; each history has a path of its own below it.

    A broker that comes back after a promotion has the old history id, so it cannot overwrite the
    replica of the promoted one.
    """

    url: str  # of the folder above all histories; for a folder, an absolute path
    history_id: str = ""  # empty if the target was given without one

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Parse a folder or URL, which may end with a history id.

        Raises:
            SettingsError: the target is no folder or URL that Litestream supports, or it contains
                credentials.
        """
        scheme, user = (urlsplit(text).scheme, urlsplit(text)) if "://" in text else ("", None)
        if any(char in text for char in '$"\\\n'):
            raise SettingsError("the target must not contain $, quotes or backslashes")
        if scheme and scheme not in _SCHEMES:
            raise SettingsError(f"{text}: use a folder, or a URL with {', '.join(_SCHEMES)}")
        if user is not None and (user.password or "key" in user.query.lower()):
            raise SettingsError(
                "the target must not contain credentials; pass them to litestream in its "
                "environment, for example AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        if scheme in ("", "file"):
            text = os.path.abspath(text.removeprefix("file://"))
        base, query = _without_query(text)
        name = base.rpartition("/")[2]
        if _HISTORY_ID.fullmatch(name):
            return cls(base.removesuffix(name).rstrip("/") + query, name)
        return cls(base.rstrip("/") + query)

    def of_history(self, history_id: str) -> "Target":
        """Return the replica of a history."""
        return Target(self.url, history_id)

    @property
    def is_folder(self) -> bool:
        """Return whether the target is a local folder."""
        return "://" not in self.url

    def __str__(self) -> str:
        base, query = _without_query(self.url)
        return f"{base}/{self.history_id}{query}" if self.history_id else self.url

    def histories(self) -> list[str]:
        """Return the history ids below a folder, newest first; a URL cannot be listed."""
        if not self.is_folder or not Path(self.url).is_dir():
            return []
        found = [path for path in Path(self.url).iterdir() if _HISTORY_ID.fullmatch(path.name)]
        return [path.name for path in sorted(found, key=lambda path: -_newest_mtime(path))]


def _without_query(text: str) -> tuple[str, str]:
    if "://" not in text:
        return text, ""
    parts = urlsplit(text)
    return urlunsplit(parts._replace(query="")), f"?{parts.query}" if parts.query else ""


def _newest_mtime(folder: Path) -> float:
    return max((file.stat().st_mtime for file in folder.rglob("*.ltx")), default=0.0)


def configure(folder: DataFolder, target: Target, wal_bytes: int) -> None:
    """Add a standby to a locked data folder, whose seal no longer holds then.

    Raises:
        SettingsError: the data folder's path cannot be used.
    """
    environment_of(folder.path)
    write_config(folder.path, target, wal_bytes)
    folder.seal(None)


def write_config(place: Path, target: Target, wal_bytes: int) -> Path:
    """Write the private configuration of Litestream for a replica and return its path.

    Litestream checks the WAL once a second and checkpoints without blocking readers once it has a
    sixteenth of ``wal_bytes``.  At ``wal_bytes`` it blocks writers in order to truncate the WAL.
    """
    replica: dict[str, Any] = {"sync-interval": "1s", "auto-recover": True}
    if target.is_folder:
        replica |= {"type": "file", "path": str(target)}
    else:
        replica |= {"url": str(target)} | (_SFTP if target.url.startswith("sftp:") else {})
    database = {
        "path": f"${{{_DATABASE_VARIABLE}}}",
        "monitor-interval": "1s",
        "checkpoint-interval": "1m",
        "min-checkpoint-page-count": max(100, wal_bytes // 16 // _FRAME_BYTES),
        "truncate-page-n": max(200, wal_bytes // _FRAME_BYTES),
        "replica": replica,
    }
    content = {
        "dbs": [database],
        "socket": {
            "enabled": True,
            "path": f"${{{_SOCKET_VARIABLE}}}",
            "permissions": PRIVATE_FILE,
        },
        "logging": {"level": "warn", "stderr": True},
    }
    write_json(place / CONFIG, content)
    return place / CONFIG


def read_target(data: Path) -> Target | None:
    """Return the target in the data folder's configuration, or None if no standby is configured.

    Raises:
        SettingsError: the file is not one that ``standby init`` wrote.
    """
    if not is_configured(data):
        return None
    try:
        replica = (read_json(data / CONFIG) or {})["dbs"][0]["replica"]
        return Target.parse(replica.get("path") or replica["url"])
    except (KeyError, IndexError, TypeError) as error:
        raise SettingsError(
            f"{data / CONFIG} was not written by `phpmq-lite standby init`; run that again"
        ) from error


def environment_of(data: Path) -> dict[str, str]:
    """Return the variables to which the configuration refers.

    Raises:
        SettingsError: the data folder's path cannot be used.
    """
    path = str(data.absolute())
    if any(char in path for char in '"\\\n') or len(path) + len(SOCKET) > _SOCKET_CHARS:
        raise SettingsError(
            f"{path} cannot have a standby: the path must have at most "
            f"{_SOCKET_CHARS - len(SOCKET)} characters, and no quotes or backslashes"
        )
    return {_DATABASE_VARIABLE: f"{path}/{DATABASE}", _SOCKET_VARIABLE: f"{path}/{SOCKET}"}


def is_configured(data: Path) -> bool:
    """Return whether the data folder has a standby."""
    return (data / CONFIG).exists()


def change_history(data: Path, history_id: str) -> None:
    """Replicate to the path of a new history after a restore.  Litestream must not be running."""
    target = read_target(data)
    if target is not None:
        content = read_json(data / CONFIG) or {}
        replica = content["dbs"][0]["replica"]
        replica["path" if target.is_folder else "url"] = str(target.of_history(history_id))
        write_json(data / CONFIG, content)
    shutil.rmtree(data / STATE_FOLDER, ignore_errors=True)


# -- who may checkpoint


class CheckpointRight:
    """Decides whether this process may checkpoint a database at the moment."""

    def __init__(self, data: Path | None = None) -> None:
        self._lock = data / LOCK if data is not None and is_configured(data) else None

    @property
    def is_shared(self) -> bool:
        """Return whether the database has a standby, so that Litestream may checkpoint it."""
        return self._lock is not None

    @contextmanager
    def hold(self) -> Iterator[bool]:
        """Yield whether this process may checkpoint; Litestream cannot start until this ends."""
        if self._lock is None:
            yield True
            return
        file = os.open(self._lock, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
        try:
            yield _try_lock(file)
        finally:
            os.close(file)


def is_running(data: Path) -> bool:
    """Return whether Litestream is running for a data folder."""
    with suppress(FileNotFoundError):
        file = os.open(data / LOCK, os.O_RDONLY)
        try:
            return not _try_lock(file, fcntl.LOCK_SH)
        finally:
            os.close(file)
    return False


def lock_for_litestream(data: Path) -> int:
    """Take the lock for a process that will become Litestream, and return its descriptor.

    Raises:
        StartRefusedError: Litestream is running already.
    """
    file = os.open(data / LOCK, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    until_s = time.monotonic() + _LOCK_S
    while not _try_lock(file):
        if time.monotonic() >= until_s:
            os.close(file)
            raise StartRefusedError(f"Litestream is already running for {data}")
        time.sleep(_RETRY_S)
    os.set_inheritable(file, True)
    return file


def _try_lock(file: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def local_files(data: Path) -> list[tuple[int, Path]]:
    """Return Litestream's local files and the numbers of their transactions, oldest first."""
    folder = data / STATE_FOLDER / "ltx" / "0"
    return sorted((int(file.stem[-16:], 16), file) for file in folder.glob("*-*.ltx"))


def drop_backlog(data: Path) -> int:
    """Delete the local files but the newest, and return the size of those deleted.

    Litestream detects the gap when it reaches the target again (``auto-recover``), and continues
    with a copy of the whole database.  It reads the newest file with each transaction.
    """
    dropped = 0
    for _, file in local_files(data)[:-_KEPT_FILES]:
        with suppress(FileNotFoundError):
            size = file.stat().st_size
            file.unlink()
            dropped += size
    return dropped


def has_closed_database(folder: DataFolder) -> bool:
    """Return whether Litestream was the last to close a database, and therefore removed its WAL.

    SQLite then removes the WAL together with its index, after copying the WAL to the database,
    which is therefore newer than the last file in which Litestream stored a part of the WAL.
    """
    files = local_files(folder.path)
    if not files or not is_configured(folder.path) or folder.wal.exists() or folder.shm.exists():
        return False
    return files[-1][1].stat().st_mtime_ns <= folder.database.stat().st_mtime_ns
