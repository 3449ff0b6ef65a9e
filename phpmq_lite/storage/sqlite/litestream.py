"""Litestream beside a broker: its configuration, its files, and the rule on checkpoints.

SQLite before 3.51.3 can lose committed pages if one connection checkpoints while another commits
(https://www.sqlite.org/wal.html#walresetbug).  Therefore, in a data folder with a standby, only the
process that holds the lock on ``standby.lock`` may checkpoint: Litestream, for which ``standby
run`` takes the lock after checking the versions, or the broker, for one checkpoint at a time.  The
configuration names the database by a variable that only ``standby run`` sets, so Litestream cannot
run without the lock by accident.
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
from pathlib import Path
from typing import Any, Final

from phpmq_lite.errors import SettingsError, StartRefusedError
from phpmq_lite.storage.atomic_files import PRIVATE_FILE, read_json, write_json
from phpmq_lite.storage.data_folder import DATABASE, DataFolder

CONFIG: Final = "litestream.yml"  # JSON, which every YAML parser reads
SOCKET: Final = "litestream.sock"
STATE_FOLDER: Final = f".{DATABASE}-litestream"  # made by Litestream
_LOCK: Final = "standby.lock"
_MIN_LITESTREAM: Final = (0, 5, 17)
_MIN_SQLITE: Final = 3_051_003
_SCHEMES: Final = ("sftp", "s3", "gs", "abs", "oss", "nats", "webdav", "webdavs")
_HISTORY: Final = re.compile(r"/([0-9a-f]{32})/*(?=$|\?)")
_SECRET: Final = re.compile(r"^[^/@]*:[^/@]*@|[?&][^=&]*(key|token|secret|password)", re.I)
_FRAME_BYTES: Final = 4_096 + 24
_LOCK_S: Final = 5.0  # maximum wait for a checkpoint by the broker
_KEPT_FILES: Final = 5


def require_litestream() -> None:
    """Check the versions of the Litestream on the PATH and of its SQLite.

    This takes 0.1 s: SQLite writes its version into bytes 96 to 99 of each database.

    Raises:
        StartRefusedError: there is none, or it or its SQLite is too old.
    """
    path = shutil.which("litestream")
    if path is None:
        raise StartRefusedError("litestream is not on the PATH; install version 0.5.17 or newer")
    version = run_litestream("version").strip().removeprefix("v")
    with tempfile.TemporaryDirectory(prefix="phpmq-litestream-") as place:
        database = Path(place) / "empty.db"
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA journal_mode=WAL").fetchall()
        run_litestream("replicate", "-once", str(database), f"file://{place}/replica")
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        (sqlite,) = struct.unpack_from(">I", database.read_bytes(), 96)
    if tuple(map(int, re.findall(r"\d+", version)[:3])) < _MIN_LITESTREAM or sqlite < _MIN_SQLITE:
        raise StartRefusedError(
            f"{path} is version {version} with SQLite {sqlite:,}, but a standby requires 0.5.17 "
            f"with SQLite {_MIN_SQLITE:,} or newer; an older SQLite can lose commits"
        )


def check_standby(data: Path) -> None:
    """Raise StartRefusedError if Litestream is too old, unless it is in another container."""
    if is_configured(data) and shutil.which("litestream"):
        require_litestream()


def run_litestream(*arguments: str, data: Path | None = None, timeout_s: float = 60) -> str:
    """Run a command of Litestream and return its output, or raise StartRefusedError."""
    try:
        return subprocess.run(
            ["litestream", *arguments],  # noqa: S607 - the one on the PATH
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=True,
            env=environment_of(data) if data else None,
        ).stdout
    except subprocess.CalledProcessError as error:
        raise StartRefusedError(
            f"litestream {arguments[0]}: {(error.stderr.strip() or error.stdout.strip())[-500:]}"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StartRefusedError(f"litestream {arguments[0]}: {error}") from error


def parse_target(target: str) -> tuple[str, str]:
    """Return an absolute path or URL and its history id, or ""; raise SettingsError if invalid."""
    scheme, _, location = target.rpartition("://")
    if scheme not in ("", "file", *_SCHEMES) or any(char in target for char in '$"\\\n'):
        raise SettingsError(f"{target}: use a folder, or a URL with {', '.join(_SCHEMES)}")
    if _SECRET.search(location):
        raise SettingsError("the target must not contain credentials; see the page on standbys")
    text = target if scheme in _SCHEMES else os.path.abspath(location)
    history = _HISTORY.search(text)
    return _HISTORY.sub("", text), history[1] if history else ""


def replica_of(target: str, history_id: str) -> str:
    """Return where in a target a history is replicated.

    Each history has a path of its own, so a broker that comes back after a promotion cannot
    overwrite the replica of the promoted one.
    """
    base, query, options = parse_target(target)[0].partition("?")
    return f"{base.rstrip('/')}/{history_id}{query}{options}"


def write_config(place: Path, replica: str, wal_bytes: int) -> None:
    """Write the private configuration of Litestream; credentials come from its environment.

    The seal of a data folder no longer holds then.
    Each second, Litestream copies the WAL.  With a sixteenth of ``wal_bytes``, it checkpoints; with
    all of it, it blocks writers in order to truncate the WAL.
    """
    target: dict[str, Any] = {"sync-interval": "1s", "auto-recover": True}
    target |= {"url": replica} if "://" in replica else {"type": "file", "path": replica}
    if replica.startswith("sftp:"):
        for name in ("password", "key-path", "host-key"):
            target[name] = f"${{LITESTREAM_SFTP_{name.replace('-', '_').upper()}}}"
    database = {
        "path": "${PHPMQ_STANDBY_DATABASE}",
        "monitor-interval": "1s",
        "replica": target,
        "checkpoint-interval": "1m",
        "truncate-page-n": max(200, wal_bytes // _FRAME_BYTES),
        "min-checkpoint-page-count": max(100, wal_bytes // 16 // _FRAME_BYTES),
    }
    socket = {"enabled": True, "path": "${PHPMQ_STANDBY_SOCKET}", "permissions": PRIVATE_FILE}
    logging = {"level": "warn", "stderr": True}
    write_json(place / CONFIG, {"dbs": [database], "socket": socket, "logging": logging})


def is_configured(data: Path) -> bool:
    return (data / CONFIG).exists()


def read_replica(data: Path) -> str:
    """Return where the data folder is replicated, or ""; raise SettingsError if that is damaged."""
    if not is_configured(data):
        return ""
    try:
        target = (read_json(data / CONFIG) or {})["dbs"][0]["replica"]
        return str(target.get("path") or target["url"])
    except (LookupError, TypeError, AttributeError) as error:
        raise SettingsError(f"{data / CONFIG} is damaged; run `phpmq-lite standby init`") from error


def change_history(data: Path, history_id: str) -> None:
    """Replicate to the path of a new history after a restore.  Litestream must not be running."""
    if replica := read_replica(data):
        content = read_json(data / CONFIG) or {}
        target = content["dbs"][0]["replica"]
        target["path" if "path" in target else "url"] = replica_of(replica, history_id)
        write_json(data / CONFIG, content)
    shutil.rmtree(data / STATE_FOLDER, ignore_errors=True)


def environment_of(data: Path) -> dict[str, str]:
    """Return the environment with the variables to which the configuration refers."""
    files = {"DATABASE": DATABASE, "SOCKET": SOCKET}
    return os.environ | {
        f"PHPMQ_STANDBY_{name}": f"{data.absolute()}/{file}" for name, file in files.items()
    }


class CheckpointRight:
    """Decides whether this process may checkpoint; ``is_shared`` if Litestream may, too."""

    def __init__(self, data: Path | None = None) -> None:
        self._lock = data / _LOCK if data is not None and is_configured(data) else None
        self.is_shared = self._lock is not None

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
    with suppress(FileNotFoundError), (data / _LOCK).open("rb") as file:
        return not _try_lock(file.fileno(), fcntl.LOCK_SH)
    return False


def lock_for_litestream(data: Path) -> None:
    """Lock for a process that becomes Litestream; raise StartRefusedError if it already runs."""
    file = os.open(data / _LOCK, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    until_s = time.monotonic() + _LOCK_S
    while not _try_lock(file):
        if time.monotonic() >= until_s:
            raise StartRefusedError(f"Litestream is already running for {data}")
        time.sleep(0.02)
    os.set_inheritable(file, True)


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


def drop_backlog(data: Path) -> None:
    """Delete the local files but the newest, which Litestream reads with each transaction.

    Litestream detects the gap when it reaches the target again (``auto-recover``), and continues
    with a copy of the whole database.
    """
    for _, file in local_files(data)[:-_KEPT_FILES]:
        file.unlink(missing_ok=True)


def has_closed_database(folder: DataFolder) -> bool:
    """Return whether Litestream was the last to close a database, and therefore removed its WAL.

    SQLite then removes the WAL's index too, and has copied the WAL to the database, which is thus
    newer than the last file in which Litestream stored a part of the WAL.
    """
    files = local_files(folder.path)
    if not files or not is_configured(folder.path) or folder.wal.exists() or folder.shm.exists():
        return False
    return files[-1][1].stat().st_mtime_ns <= folder.database.stat().st_mtime_ns
