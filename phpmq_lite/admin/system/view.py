"""The facts shown on the system page, including the restart report and certificates."""

import asyncio
import platform
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from phpmq_lite import installation
from phpmq_lite.admin import formats
from phpmq_lite.admin.formats import count_of
from phpmq_lite.admin.system.limits import LimitUsage, count_paused_readers
from phpmq_lite.checks import CHECKS, Check, Level, asynchronous_text
from phpmq_lite.server.status import BrokerStatus
from phpmq_lite.settings import Settings
from phpmq_lite.storage.backend import StoreStatus
from phpmq_lite.storage.disk_space import DatabaseSize, DiskUsage
from phpmq_lite.storage.start_report import Start

_PAUSES: Final = {  # explanations, keyed by the reason why a connection is not being read
    "memory": "unstored data exceeds limits.unstored_total",
    "unstored": "data is waiting to be stored (limits.unstored_frames, limits.unstored_bytes)",
    "receipts": "receipts are not being read",
    "queue": "the target queue is paused or full",
    "disk": "no space is left for messages (storage.free_bytes, storage.max_bytes)",
    "resident": "the broker uses more memory than limits.memory, so publishers wait",
    "ending": "the connection is being closed",
}


@dataclass(slots=True, frozen=True)
class SystemFact:
    """One line in a list of facts."""

    name: str
    text: str
    note: str = ""
    level: str = ""  # "warn" or "bad" if it requires attention
    at_ms: int | None = None  # time shown instead of the text, in Unix ms


@dataclass(slots=True, frozen=True)
class RestartReport:
    """A startup report as shown to users."""

    start: Start
    title: str
    facts: list[SystemFact]
    expired: list[tuple[str, int]]  # queues and their numbers of expired messages, largest first
    checks: list[str]


def describe_restart(start: Start) -> RestartReport:
    """Convert a startup report into the form shown to users."""
    title = "First startup"
    if not start.is_first:
        away = formats.format_duration(start.down_ms)
        how = "after a clean stop" if start.was_clean else "after an unclean stop"
        title = f"The broker was down for {away} and restarted {how}"
    return RestartReport(
        start,
        title,
        _found_at_start(start),
        sorted(start.report.expired_by_queue.items(), key=lambda pair: -pair[1]),
        start.report.checks,
    )


def _found_at_start(start: Start) -> list[SystemFact]:
    """Return the duration of a startup and the facts that apply to it."""
    report = start.report
    facts = []
    if report.last_error:
        facts.append(SystemFact("Stopped because", report.last_error, level="bad"))
    frames = f"{formats.format_number(report.wal_frames)} frames of the write-ahead log"
    returned = "held by consumers; returned to their positions"
    expired = "expired, forwarded or dead-lettered, as each queue specifies"
    for name, count, noun, note, level in (
        ("Lost", report.wal_dropped, "commit", "after damage in the write-ahead log", "bad"),
        ("Recovered", report.wal_commits, "commit", frames, ""),
        ("Returned", report.returned, "message", returned, ""),
        ("Expired while stopped", report.expired, "message", expired, ""),
    ):
        if count:
            facts.append(SystemFact(name, count_of(count, noun, f"{noun}s"), note, level))
    if report.clock_doubt_ms:
        text = f"{formats.format_duration(report.clock_doubt_ms)} ahead"
        note = "or the downtime was as long; an operator must decide"
        facts.append(SystemFact("Clock", text, note, "bad"))
    elif report.clock_jump_ms:
        way = "forward" if report.clock_jump_ms > 0 else "back"
        text = f"set {way} by {formats.format_duration(abs(report.clock_jump_ms))}"
        facts.append(SystemFact("Clock", text, "while stopped; deadlines are unaffected", "warn"))
    if report.migrations:
        facts.append(SystemFact("Schema", ", ".join(report.migrations), "migrated"))
    if report.version_before:
        facts.append(SystemFact("Version", start.version, f"previously {report.version_before}"))
    text = count_of(report.messages, "message", "messages")
    queues = f"in {count_of(report.queues, 'queue', 'queues')}"
    facts.append(SystemFact("Found", text, queues))
    facts.append(SystemFact("Startup time", formats.format_duration(round(report.seconds * 1_000))))
    return facts


# -- the system page


def _level(check: Check, value: float) -> str:
    """Return the level of a fact: empty unless the value reaches a bound for the System page."""
    level = CHECKS[check].page.level(value)
    return "" if level is Level.OK else level


def process_facts(status: BrokerStatus) -> list[SystemFact]:
    """Return facts about the broker's process."""
    number, batch_s, commits = formats.format_number, status.oldest_batch_s, status.commits
    return [
        SystemFact("Started", "", at_ms=status.started_at),
        SystemFact(
            "Last commit",
            f"{commits.last_ms:.1f} ms",
            f"{number(commits.count)} since startup",
            _level(Check.COMMITS, commits.last_ms / 1_000),
        ),
        SystemFact(
            "Oldest batch",
            f"{batch_s:.1f} s",
            "without an answer of the database",
            _level(Check.BATCHES, batch_s),
        ),
        SystemFact(
            "Loop lag",
            f"{status.loop_lag_ms:.1f} ms",
            "event loop delay at the last measurement",
            _level(Check.LOOP_LAG, status.loop_lag_ms / 1_000),
        ),
        SystemFact("Commands waiting", number(status.inbox), "for the next transaction"),
        SystemFact(
            "Clock jumps",
            number(status.clock_jumps),
            "since startup",
            _level(Check.CLOCK_JUMPS, status.clock_jumps),
        ),
    ]


def version_facts(own: str, store: StoreStatus) -> list[SystemFact]:
    """Return the versions of the broker, its libraries and the operating system."""
    sqlite_note = installation.sqlite_note(sqlite3.sqlite_version_info)
    server = store.server.version if store.server else "unknown"
    is_uvloop = type(asyncio.get_running_loop()).__module__.startswith("uvloop")
    return [
        SystemFact("PHPMQ Lite", own, installation.build_kind()),
        SystemFact("Python", platform.python_version(), platform.python_implementation()),
        SystemFact("SQLite", sqlite3.sqlite_version, sqlite_note)
        if store.has_file
        else SystemFact("PostgreSQL", server, f"psycopg {_installed('psycopg')}"),
        SystemFact("aiohttp", _installed("aiohttp")),
        SystemFact("Event loop", f"uvloop {_installed('uvloop')}" if is_uvloop else "asyncio"),
        SystemFact("System", f"{platform.system()} {platform.release()}", platform.machine()),
    ]


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def listener_facts(settings: Settings, status: BrokerStatus) -> list[SystemFact]:
    """Return each listener and who can connect to it."""
    tcp, admin = settings.tcp, settings.admin
    who = ", ".join(map(str, tcp.allow)) if tcp.allow else "anyone who can reach it"
    how = {
        "tcp": f"no TLS, {who}",
        "tls": f"TLS{' with a client certificate' if tcp.tls_client_ca else ''}, {who}",
        "unix": "only for the broker's user",
    }
    facts = [SystemFact("PHPMQ", row.address, how[row.transport]) for row in status.listeners]
    security = "TLS" if admin.tls_cert else "no TLS"
    facts += [
        SystemFact("Admin", address, security) for address in admin.listen if address != "none"
    ]
    return [*facts, SystemFact("Control", "control.sock", "only for the broker's user")]


def storage_facts(
    settings: Settings, disk: DiskUsage | None, stored: DatabaseSize | None, folder: Path
) -> list[SystemFact]:
    """Return the data folder's path, file sizes and free space."""
    size = formats.format_size
    facts = [SystemFact("Folder", str(folder.absolute()))]
    if disk is not None:
        wal, limit = disk.files["wal"], settings.storage.wal_bytes
        wal_level, disk_level = (
            _level(Check.WAL, wal / limit),
            _level(Check.DISK, 1 - disk.used_share),
        )
        facts += [
            SystemFact("Database", size(disk.files["database"])),
            SystemFact("Write-ahead log", size(wal), f"truncated above {size(limit)}", wal_level),
            SystemFact("Free disk space", size(disk.free), f"of {size(disk.total)}", disk_level),
        ]
    if stored is not None:
        pages, free = stored.pages, stored.pages_free * stored.page_bytes
        facts += [
            SystemFact("Pages", formats.format_number(pages), f"of {size(stored.page_bytes)} each"),
            SystemFact("Free space in the file", size(free), "reused before the file grows"),
            SystemFact("Schema", f"version {stored.schema}"),
        ]
    return facts


def retention_facts(settings: Settings, stored: DatabaseSize | None) -> list[SystemFact]:
    """Return the size and limits of the history."""
    if stored is None:
        return []
    history, audit = settings.history, settings.audit
    number, size = formats.format_number, formats.format_size
    limit = int(history.rows * history.deleted_share)
    share = f"{stored.deleted_share:.1%} of settled messages, at most {number(limit)}"
    return [
        SystemFact(
            "Settled messages", number(stored.history_rows), f"at most {number(history.rows)}"
        ),
        SystemFact("Body size", size(stored.history_bytes), f"at most {size(history.bytes)}"),
        _oldest("Oldest", stored.history_oldest_at, history.days),
        SystemFact("Deleted messages", number(stored.deleted_rows), share),
        SystemFact("Removed messages", number(stored.removed), "by retention so far"),
        SystemFact("Audit rows", number(stored.audit_rows), f"at most {number(audit.rows)}"),
        _oldest("Oldest audit row", stored.audit_oldest_at, audit.days),
    ]


def _oldest(name: str, at_ms: int | None, days: float) -> SystemFact:
    return SystemFact(name, formats.DASH, f"at most {days:g} days old", at_ms=at_ms)


def waiting_facts(status: BrokerStatus, usages: Iterable[LimitUsage] = ()) -> list[SystemFact]:
    """Return the number of connections whose reads are paused, the reasons, and limits reached."""
    facts = [
        SystemFact(
            f"{count_of(count, 'connection', 'connections')} not being read",
            _PAUSES.get(reason, reason),
            level=_level(Check.READERS, count),
        )
        for reason, count in count_paused_readers(status).most_common()
    ]
    for usage in usages:
        if usage.level == "bad":
            text = f"{usage.shown} of {usage.shown_bound}: {usage.then}"
            text += f" ({usage.setting})" if usage.setting else ""
            facts.append(SystemFact(usage.name, text, level="warn"))
    return facts


def refusal_facts(status: BrokerStatus) -> list[SystemFact]:
    """Return the number of refusals since startup for each reason."""
    groups: Mapping[str, Mapping[str, int]] = {
        "Publish requests refused": status.refused,
        "Commands ignored": status.acks_ignored,
        "Protocol errors": status.counters.protocol_errors,
    }
    return [
        SystemFact(name, formats.format_number(count), reason.replace("_", " "))
        for name, counts in groups.items()
        for reason, count in sorted(counts.items(), key=lambda pair: -pair[1])
    ]


# -- a PostgreSQL database


Measurement = tuple[Check, float, str]  # a value, and the text of the notice if it is too high


def measure_replication(store: StoreStatus) -> Iterator[Measurement]:
    """Measure whether commits have a quorum, whether a replica may fail, and how far each lags."""
    if store.asynchronous is not None:
        yield Check.ASYNCHRONOUS, 1, asynchronous_text(store.asynchronous)
    ready, required = store.replicas_ready, store.replicas_required
    if store.server is None or ready is None or not required:
        return
    requirement = f"{count_of(required, 'replica', 'replicas')} must confirm each commit"
    text = f"{requirement}, and only {ready} can: if one more fails, nothing can be stored"
    if ready < required:
        text = f"No quorum: {requirement}, and {ready or 'none'} can"
    yield Check.QUORUM, ready - required, text
    for replica in store.server.replicas:
        lag_s = replica.lag_s or 0
        yield Check.REPLICA_LAG, lag_s, f"Replica {replica.name} is {lag_s:.1f} s behind"


def measure_store(store: StoreStatus) -> Iterator[Measurement]:
    """Measure a PostgreSQL database, except whether anything can be stored."""
    yield from measure_replication(store)
    if store.problem is not None:
        yield Check.DATABASE_STATE, 1, f"Its state cannot be read: {store.problem}"
    if (server := store.server) is None:
        return
    age_s = server.oldest_transaction_s
    text = f"{server.oldest_transaction}: open for {formats.format_duration(round(age_s * 1_000))}"
    yield Check.TRANSACTION, age_s, f"{text}; until it ends, VACUUM cannot remove old rows"
    text = f"{server.connections} of {server.max_connections} connections are in use"
    share = server.connections / max(1, server.max_connections)
    yield Check.CONNECTIONS, share, f"{text}; a broker may be unable to connect"
    if server.disk_bytes:
        text = f"{formats.format_size(server.disk_free)} free on the server's disk"
        share = server.disk_free / server.disk_bytes
        yield Check.SERVER_DISK, share, f"{text}; when it is full, nothing can be stored"


def server_facts(store: StoreStatus) -> Iterator[SystemFact]:
    """Yield the facts about a PostgreSQL database for the System page."""
    number, size = formats.format_number, formats.format_size
    yield SystemFact("Database", store.place)
    yield SystemFact("Role", "active", f"epoch {number(store.epoch)}")
    if store.replicas_required:
        replicas = count_of(store.replicas_required, "replica", "replicas")
        yield SystemFact("Confirmed by", f"the primary and {replicas}", store.quorum)
    else:
        note = "synchronous_standby_names names no quorum"
        yield SystemFact("Confirmed by", "the primary alone", note, "bad")
    if store.allows_asynchronous:
        note = "store.allow_asynchronous is set"
        yield SystemFact("Without a quorum", "messages are confirmed", note, "warn")
    if store.problem is not None:
        yield SystemFact("Server", "cannot be read", store.problem, "bad")
    if (server := store.server) is None:
        return
    for replica in server.replicas:
        lag_s = replica.lag_s or 0
        behind = f"{size(replica.lag_bytes or 0)}, {lag_s:.1f} s behind"
        level = _level(Check.REPLICA_LAG, lag_s) if replica.is_ready else "warn"
        note = behind if replica.state else "lag unknown: grant pg_monitor to the broker's role"
        yield SystemFact(f"Replica {replica.name}", replica.state or "connected", note, level)
    if not server.replicas:
        yield SystemFact("Replicas", "none", level="bad" if store.replicas_required else "")
    yield SystemFact("Size", size(server.database_bytes), f"schema version {server.schema}")
    yield SystemFact("Page checksums", "on" if server.has_checksums else "off")
    yield SystemFact("Connections", number(server.connections), f"of {server.max_connections}")
    if server.disk_bytes:
        yield SystemFact("Free disk space", size(server.disk_free), f"of {size(server.disk_bytes)}")
    if server.oldest_transaction is not None and server.oldest_transaction_s >= 1:
        age = formats.format_duration(round(server.oldest_transaction_s * 1_000))
        yield SystemFact("Oldest transaction", age, server.oldest_transaction)
    if store.reconnects:
        note = f"{count_of(store.unknown_batches, 'batch', 'batches')} of unknown outcome resolved"
        yield SystemFact("Reconnects", number(store.reconnects), note)
