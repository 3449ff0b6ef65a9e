"""Checks of the database, which is in files or on a PostgreSQL server, and of backups."""

import time
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from phpmq_lite import __version__
from phpmq_lite.admin import formats
from phpmq_lite.admin.formats import count_of
from phpmq_lite.checks import CHECKS, Check, Level
from phpmq_lite.cli.admin_client import AdminClient, BrokerUnavailableError
from phpmq_lite.cli.doctor.findings import Finding, at_level, bad, ok, ok_if, warn
from phpmq_lite.cli.errors import REFUSED, CommandError
from phpmq_lite.errors import SettingsError, StorageError
from phpmq_lite.settings import Settings
from phpmq_lite.storage.data_folder import DATABASE, DataFolder
from phpmq_lite.storage.sqlite.backups import list_backups
from phpmq_lite.storage.sqlite.integrity.startup import StoppedDatabase, read_stopped
from phpmq_lite.storage.sqlite.litestream import read_replica
from phpmq_lite.storage.sqlite.standby_lag import read_standby

if TYPE_CHECKING:
    from phpmq_lite.storage.postgres.inspection import ServerProbe

_TIMEOUT_S: Final = 10.0
# Startups, restores and migrations leave these files in the data folder.
_VERIFIED: Final = (Level.OK, "remove them once you have verified the current data")
_LEFTOVERS: Final = {
    "damaged-*": (
        "copies of damaged files",
        Level.WARN,
        "see damage.json there; remove the copies once you have recovered what you need",
    ),
    "replaced-*": ("files that a restore replaced", *_VERIFIED),
    "before-migration-*.db": ("copies made before an upgrade", *_VERIFIED),
}


def check_database(settings: Settings, pid: str | None) -> Iterator[Finding]:
    """Check the broker if it is running; otherwise, check its database files."""
    path = settings.data
    if pid is not None:
        admin = AdminClient(DataFolder.open_unlocked(path).control_socket)
        try:
            yield running_finding(admin.call("GET", "/stats", timeout_s=_TIMEOUT_S), pid, settings)
        except CommandError as error:
            if isinstance(error, BrokerUnavailableError) and error.code == REFUSED:
                turn = "; a standby waits for its turn" if settings.store.url else ""
                hint = f"if it is starting, run doctor again soon{turn}"
                yield warn("broker", f"pid {pid} is not ready: {error}", hint)
            else:
                yield bad("broker", f"pid {pid} does not answer: {error}", "see the broker's log")
    elif path.is_dir() and not settings.store.url:
        yield stopped_database_finding(read_stopped(path), settings.storage.max_bytes)
    if path.is_dir():
        yield from leftover_findings(path)


def running_finding(stats: dict[str, Any], pid: str, settings: Settings) -> Finding:
    name, limit = "broker", settings.storage.wal_bytes
    live = stats["ready"] + stats.get("scheduled", 0) + stats["dispatched"]
    messages = count_of(live, "message", "messages")
    text = f"pid {pid}, {messages} in {count_of(stats['queues'], 'queue', 'queues')}"
    if reason := stats["storing_stopped"] or stats["publishing_stopped"]:
        return bad(name, f"{text}; it rejects messages: {reason}", "see the System page")
    if not stats["is_ready"]:
        return warn(name, f"{text}; it is not ready: {stats['step']}", "wait, or read its log")
    if stats["version"] != __version__:
        text += f"; it is {stats['version']}, but {__version__} is installed"
        return warn(name, text, "restart")
    if CHECKS[Check.WAL].doctor.level((stats["wal_bytes"] or 0) / limit) is not Level.OK:
        size = formats.format_size(stats["wal_bytes"])
        text += f"; its write-ahead log has grown to {size}, more than twice storage.wal_bytes "
        hint = "a reader blocks it: a backup, an export, or another program with the database open"
        return warn(name, f"{text}({formats.format_size(limit)})", hint)
    return ok(name, f"{text}, ready")


def stopped_database_finding(files: StoppedDatabase, max_bytes: int) -> Finding:
    name, verify = "database", "`phpmq-lite database verify`"
    if files.problems:
        hint = f"inspect it with {verify}, or replace it with `phpmq-lite backup restore`"
        return bad(name, "; ".join(files.problems), hint)
    if files.refusal:
        return bad(name, files.refusal, "until then, the broker refuses to start (exit code 1)")
    if files.is_new:
        return ok(name, "none yet", "the broker creates it at startup")
    text = f"schema {files.schema}, {formats.format_size(files.used_bytes)} in use"
    if 0 < max_bytes <= files.used_bytes:
        text += f": publishing stops above storage.max_bytes ({formats.format_size(max_bytes)})"
        return bad(name, text, "raise storage.max_bytes, or lower history.days and history.bytes")
    if not files.was_clean:
        text += "; the broker did not stop cleanly"
        text += f": {files.last_error}" if files.last_error else ""
        return warn(name, text, f"the next startup replays the write-ahead log: {files.log}")
    if files.waiting:
        pending = count_of(len(files.waiting), "migration is pending", "migrations are pending")
        hint = "the next startup copies the database and applies them"
        return ok(name, f"{text}; {pending}", hint)
    return ok(name, f"{text}, closed cleanly", f"{verify} checks everything")


def leftover_findings(path: Path) -> Iterator[Finding]:
    """Yield findings about leftover files in the data folder, which an operator can remove."""
    for pattern, (words, level, hint) in _LEFTOVERS.items():
        paths = sorted(path.glob(pattern))
        if not paths:
            continue
        files = [file for path in paths for file in (path, *path.rglob("*")) if file.is_file()]
        size = formats.format_size(sum(file.stat().st_size for file in files))
        text = f"{words}, {size}: {', '.join(file.name for file in paths)}"
        yield Finding("left over", level, text, hint)


NAME: Final = "backups"
_HOUR_MS: Final = 3_600_000
OLD_MS: Final = 7 * 24 * _HOUR_MS  # maximum age of the newest backup if no backups are scheduled


def check_backups(settings: Settings) -> Iterator[Finding]:
    """Check the backups, but only if there is a database file."""
    if settings.store.url or not (settings.data / DATABASE).is_file():
        return
    folder = settings.backups_folder
    now_ms = time.time_ns() // 1_000_000
    ages = [now_ms - backup.manifest.made_at for backup in list_backups(folder)]
    # If an age is negative, the clock was ahead when that backup was made.
    age_ms = min((age for age in ages if age >= 0), default=None)
    is_same = folder.is_dir() and folder.stat().st_dev == settings.data.stat().st_dev
    yield backup_finding(folder, age_ms, settings.backups.every_h, is_same=is_same)


def backup_finding(folder: Path, age_ms: int | None, every_h: float, *, is_same: bool) -> Finding:
    """Return a finding about the newest backup; ``every_h`` is 0 if no backups are scheduled."""
    if age_ms is None:
        hint = "create one with `phpmq-lite backup create`, or schedule them with backups.every_h"
        return warn(NAME, f"none in {folder}", hint)
    text = f"the newest is {formats.format_duration(age_ms)} old, in {folder}"
    age = CHECKS[Check.BACKUP_AGE].doctor
    if every_h and age.level(age_ms / (every_h * _HOUR_MS)) is not Level.OK:
        text += f"; the schedule is every {every_h:g} h"
        return warn(NAME, text, "see the log and the Backups page")
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
    level = CHECKS[Check.STANDBY].doctor.level(inf if state.problem else state.lag_s)
    yield at_level(level, "standby", text, "see the log of `phpmq-lite standby run`")


SERVER: Final = "database server"
_OLDEST: Final = 130_000  # the oldest version that works
_CONNECTIONS: Final = 10  # which a broker needs, with the pages
_CLOCK_MS: Final = 2_000
_FAILED_S: Final = 10


def check_server(settings: Settings) -> Iterator[Finding]:
    """Check the server, the role's rights, replication, the schema, and which broker is active."""
    text = "not used: store.url is set, so the broker stores in PostgreSQL"
    yield ok("database file", text, "backups are made by PostgreSQL's own tools, such as pg_dump")
    from phpmq_lite.storage.postgres.inspection import probe

    try:
        server = probe(settings.store.url)
    except SettingsError as error:
        yield bad(SERVER, str(error), "until then, the broker refuses to start (exit code 78)")
    except StorageError as error:
        yield bad(SERVER, str(error), "check the hosts of store.url, its role and PGPASSFILE")
    else:
        yield from server_findings(server)
        yield from replication_findings(server, is_allowed=settings.store.allow_asynchronous)
        yield from database_findings(server)


def server_findings(server: "ServerProbe") -> Iterator[Finding]:
    facts, name = server.facts, "pooler"
    text = f"PostgreSQL {facts.version // 10_000}.{facts.version % 10_000} at {server.place}"
    if facts.version < _OLDEST:
        yield bad(SERVER, f"{text} is older than 13", "upgrade the server")
    elif not facts.can_create or facts.can_write is False:
        action = "create tables" if facts.can_write is not False else "write the tables"
        yield bad(
            SERVER, f"{text}: the role may not {action}", "let it own the database and tables"
        )
    else:
        yield ok(SERVER, f"{text}, writable")
    if server.pooler == "transaction":
        text = "a connection pooler shares server processes, so settings of sessions get lost"
        yield bad(name, text, "connect to the servers directly")
    elif server.pooler:
        text = "a connection pooler is in between, which may notice a failover late"
        yield warn(name, text, "connect to the servers directly")
    free, text = facts.max_connections - facts.connections, f"{facts.connections} of "
    hint = f"a broker needs {_CONNECTIONS}: raise max_connections"
    level = CHECKS[Check.CONNECTIONS].doctor.level(free)
    yield at_level(level, "connections", f"{text}{facts.max_connections} in use", hint)
    text = f"{server.clock_ms:+,d} ms from this machine's"
    hint = "synchronize both; messages have the server's time"
    yield ok_if(abs(server.clock_ms) <= _CLOCK_MS, "server clock", text, hint)


def replication_findings(server: "ServerProbe", *, is_allowed: bool) -> Iterator[Finding]:
    """Yield findings about what a confirmed message survives; ``is_allowed``: asynchronously."""
    name, facts, required = "replication", server.facts, server.replicas_required
    ready = sum(replica.is_ready for replica in server.replicas)
    text = f"{required} must confirm ({facts.quorum}), {ready} can"
    if not required:
        text, hint = "synchronous_standby_names names no quorum", "set it to ANY 1 (n2, n3)"
        if is_allowed:
            yield warn(name, f"{text}: a failover can lose confirmed messages", hint)
        else:
            yield bad(name, f"{text}: nothing is confirmed", hint)
    else:
        hint = "start the replicas; until then, nothing is confirmed"
        if ready == required:
            hint = "add a replica: if one fails now, nothing is confirmed"
        yield at_level(CHECKS[Check.QUORUM].doctor.level(ready - required), name, text, hint)
    if required and is_allowed:
        yield warn(name, "store.allow_asynchronous is set", "remove it, as there is a quorum")
    settings = ("fsync", "full_page_writes", "synchronous_commit")
    off = [setting for setting in settings if getattr(facts, setting) != "on"]
    if off:
        text = f"not on: {', '.join(off)}; a crash of the server can lose messages"
        yield bad("durability", text, "switch on; a pooler may ignore the sessions' own settings")
    else:
        yield ok("durability", f"on: {', '.join(settings)}")


def database_findings(server: "ServerProbe") -> Iterator[Finding]:
    name, row = "schema", server.epoch
    if server.refusal:
        yield bad(name, server.refusal, "a broker of this version stays standby")
    elif row is None:
        yield ok(name, "the database is empty", "the first broker creates the tables")
    elif server.pending:
        text = f"version {server.schema}, pending migrations: {server.pending}"
        yield ok(name, text, "a broker applies them when it becomes active")
    else:
        hint = "`phpmq-lite database verify` checks everything"
        yield ok(name, f"version {server.schema}", hint)
    name = "active broker"
    if row is None or row.is_released:
        yield ok(name, "none", "the next broker that starts becomes active")
        return
    age = formats.format_duration(round(max(0.0, row.age_s) * 1_000))
    text = f"on {row.host or 'unknown'}, epoch {row.epoch}, wrote {age} ago"
    hint = "it has failed; the next broker that starts takes over"
    yield ok_if(row.age_s <= _FAILED_S, name, text, hint)
