"""Checks of the database files and backups."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from phpmq_lite import __version__
from phpmq_lite.admin.base import formats
from phpmq_lite.admin.base.formats import plural
from phpmq_lite.admin.monitoring.attention import STANDBY_LAG_S
from phpmq_lite.cli.admin_client import AdminClient, BrokerUnavailableError
from phpmq_lite.cli.doctor.findings import Finding, bad, ok, warn
from phpmq_lite.cli.errors import REFUSED, CommandError
from phpmq_lite.settings import Settings
from phpmq_lite.storage.data_folder import DATABASE, DataFolder
from phpmq_lite.storage.sqlite.backup.backups import list_backups
from phpmq_lite.storage.sqlite.integrity.stopped_database import StoppedDatabase, read_stopped
from phpmq_lite.storage.sqlite.standby.lag import read_standby
from phpmq_lite.storage.sqlite.standby.litestream import read_replica

_TIMEOUT_S: Final = 10.0
# Startups, restores and migrations leave these files in the data folder.
_LEFT: Final = {
    "damaged-*": "copies of damaged files",
    "replaced-*": "files that a restore replaced",
    "before-migration-*.db": "copies made before an upgrade",
}


def check_database(settings: Settings, pid: str | None) -> Iterator[Finding]:
    """Check the broker if it is running; otherwise, check its database files."""
    path = settings.data
    if pid is not None:
        yield _running_broker(settings, pid)
    elif path.is_dir() and not settings.store.url:
        yield stopped_database_finding(read_stopped(path), settings.storage.max_bytes)
    if path.is_dir():
        yield from leftover_findings(path)


def _running_broker(settings: Settings, pid: str) -> Finding:
    admin = AdminClient(DataFolder.open_unlocked(settings.data).control_socket)
    try:
        stats = admin.call("GET", "/stats", timeout_s=_TIMEOUT_S)
    except CommandError as error:
        if isinstance(error, BrokerUnavailableError) and error.code == REFUSED:
            return warn(
                "broker",
                f"pid {pid} is not ready: {error}",
                "the broker is starting; run doctor again soon",
            )
        return bad("broker", f"pid {pid} does not answer: {error}", "see the broker's log")
    return running_finding(stats, pid, settings)


def running_finding(stats: dict[str, Any], pid: str, settings: Settings) -> Finding:
    """Return a finding about a running broker, based on the response of ``/api/v1/stats``."""
    messages = stats["ready"] + stats["dispatched"]
    text = (
        f"pid {pid}, {messages:,} {plural(messages, 'message', 'messages')} in "
        f"{stats['queues']:,} {plural(stats['queues'], 'queue', 'queues')}"
    )
    reason = stats["storing_stopped"] or stats["publishing_stopped"]
    if reason is not None:
        return bad("broker", f"{text}; it rejects messages: {reason}", "see the System page")
    if not stats["is_ready"]:
        return warn("broker", f"{text}; it is not ready: {stats['step']}", "wait, or read its log")
    if stats["version"] != __version__:
        return warn(
            "broker", f"{text}; it is {stats['version']}, but {__version__} is installed", "restart"
        )
    if (stats["wal_bytes"] or 0) > 2 * settings.storage.wal_bytes:
        return warn(
            "broker",
            f"{text}; its write-ahead log has grown to "
            f"{formats.format_size(stats['wal_bytes'])}, more than twice "
            f"storage.wal_bytes ({formats.format_size(settings.storage.wal_bytes)})",
            "a reader blocks it: a backup, an export, or another program with the database open",
        )
    return ok("broker", f"{text}, ready")


def stopped_database_finding(seen: StoppedDatabase, max_bytes: int) -> Finding:
    """Return a finding about the database files of a stopped broker."""
    name = "database"
    if seen.problems:
        return bad(
            name,
            "; ".join(seen.problems),
            "inspect it with `phpmq-lite database verify`, or replace it with `phpmq-lite backup "
            "restore`",
        )
    if seen.refusal:
        return bad(name, seen.refusal, "until then, the broker refuses to start (exit code 1)")
    if seen.is_new:
        return ok(name, "none yet", "the broker creates it at startup")
    text = f"schema {seen.schema}, {formats.format_size(seen.used_bytes)} in use"
    if 0 < max_bytes <= seen.used_bytes:
        return bad(
            name,
            f"{text}: publishing stops above storage.max_bytes ({formats.format_size(max_bytes)})",
            "raise storage.max_bytes, or lower history.days and history.bytes",
        )
    if not seen.was_clean:
        why = f": {seen.last_error}" if seen.last_error else ""
        return warn(
            name,
            f"{text}; the broker did not stop cleanly{why}",
            f"the next startup replays the write-ahead log: {seen.log}",
        )
    if seen.waiting:
        count = len(seen.waiting)
        return ok(
            name,
            f"{text}; {count} {plural(count, 'migration is pending', 'migrations are pending')}",
            "the next startup copies the database and applies them",
        )
    return ok(name, f"{text}, closed cleanly", "`phpmq-lite database verify` checks everything")


def leftover_findings(path: Path) -> Iterator[Finding]:
    """Yield findings about leftover files in the data folder, which an operator can remove."""
    for pattern, words in _LEFT.items():
        paths = sorted(path.glob(pattern))
        if not paths:
            continue
        size = sum(map(_size, paths))
        names = ", ".join(one.name for one in paths)
        text = f"{words}, {formats.format_size(size)}: {names}"
        if pattern.startswith("damaged"):
            yield warn(
                "left over",
                text,
                "see damage.json there; remove the copies once you have recovered what you need",
            )
        else:
            yield ok("left over", text, "remove them once you have verified the current data")


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(one.stat().st_size for one in files)


NAME: Final = "backups"
_HOUR_MS: Final = 3_600_000
OLD_MS: Final = 7 * 24 * _HOUR_MS  # maximum age of the newest backup if no backups are scheduled


def check_backups(settings: Settings) -> Iterator[Finding]:
    """Check the backups, but only if there is a database file."""
    if settings.store.url or not (settings.data / DATABASE).is_file():
        return
    folder = settings.backups_folder
    found = list_backups(folder)
    now_ms = time.time_ns() // 1_000_000
    ages = [now_ms - one.manifest.made_at for one in found]
    # If an age is negative, the clock was ahead when that backup was made.
    age_ms = min((age for age in ages if age >= 0), default=None)
    is_same = folder.is_dir() and folder.stat().st_dev == settings.data.stat().st_dev
    yield backup_finding(folder, age_ms, settings.backups.every_h, is_same=is_same)


def backup_finding(folder: Path, age_ms: int | None, every_h: float, *, is_same: bool) -> Finding:
    """Return a finding about the newest backup; ``every_h`` is 0 if no backups are scheduled."""
    if age_ms is None:
        return warn(
            NAME,
            f"none in {folder}",
            "create one with `phpmq-lite backup create`, or schedule them with backups.every_h",
        )
    text = f"the newest is {formats.format_duration(age_ms)} old, in {folder}"
    if every_h and age_ms > 2 * every_h * _HOUR_MS:
        return warn(
            NAME,
            f"{text}; the schedule is every {every_h:g} h",
            "see the log and the Backups page",
        )
    if not every_h and age_ms > OLD_MS:
        return warn(NAME, text, "schedule them with backups.every_h")
    hint = (
        "backups are on the database's disk: set backups.folder, or use `backup create --copy-to`"
    )
    return ok(NAME, text, hint if is_same else "")


def check_standby(settings: Settings) -> Iterator[Finding]:
    """Check Litestream and the lag of the replica, if a standby is configured."""
    if not (replica := read_replica(settings.data)):
        return
    state = read_standby(settings.data, asks_target=True)
    text = f"{replica} is {state.lag_s:.1f} s and {state.lag_messages:,} messages behind"
    if state.problem:
        text = f"{state.problem}; {text}"
    if state.problem or state.lag_s > STANDBY_LAG_S:
        yield bad("standby", text, "see the log of `phpmq-lite standby run`")
    else:
        yield ok("standby", text)
