"""The facts shown on the system page, including the restart report and certificates."""

import asyncio
import platform
import sqlite3
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from phpmq_lite import installation
from phpmq_lite.admin import formats
from phpmq_lite.admin.formats import count_of
from phpmq_lite.admin.system.limits import LimitUsage, count_paused_readers
from phpmq_lite.server.status import BrokerStatus
from phpmq_lite.settings import Settings
from phpmq_lite.storage.disk_space import DiskUsage
from phpmq_lite.storage.read.database_size import DatabaseSize
from phpmq_lite.storage.start_report import Start
from phpmq_lite.storage.store_status import StoreStatus

LAG_S: Final = 10.0  # a longer lag of a replica is a problem
TRANSACTION_S: Final = 600.0  # as is a transaction that has been open for longer
_CONNECTIONS: Final = 0.9  # or a larger part of max_connections in use
_DISK_FREE: Final = 0.1  # or a smaller part of the disk free
_SAFE_SQLITE: Final = (3, 51, 3)  # in older versions, two writers can damage the WAL
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
    found = []
    if report.last_error:
        found.append(SystemFact("Stopped because", report.last_error, level="bad"))
    frames = f"{formats.format_number(report.wal_frames)} frames of the write-ahead log"
    for name, count, what, note, level in (
        ("Lost", report.wal_dropped, "commit", "after damage in the write-ahead log", "bad"),
        ("Recovered", report.wal_commits, "commit", frames, ""),
        ("Returned", report.returned, "message",
         "held by consumers; returned to their positions", ""),
        ("Expired while stopped", report.expired, "message",
         "expired, forwarded or dead-lettered, as each queue specifies", ""),
    ):  # fmt: skip
        if count:
            found.append(SystemFact(name, count_of(count, what, f"{what}s"), note, level))
    if report.clock_doubt_ms:
        text = f"{formats.format_duration(report.clock_doubt_ms)} ahead"
        found.append(
            SystemFact("Clock", text, "or the downtime was as long; an operator must decide", "bad")
        )
    elif report.clock_jump_ms:
        way = "forward" if report.clock_jump_ms > 0 else "back"
        text = f"set {way} by {formats.format_duration(abs(report.clock_jump_ms))}"
        found.append(SystemFact("Clock", text, "while stopped; deadlines are unaffected", "warn"))
    if report.migrations:
        found.append(SystemFact("Schema", ", ".join(report.migrations), "migrated"))
    if report.version_before:
        found.append(SystemFact("Version", start.version, f"previously {report.version_before}"))
    text = count_of(report.messages, "message", "messages")
    note = f"in {count_of(report.queues, 'queue', 'queues')}"
    found.append(SystemFact("Found", text, note))
    found.append(SystemFact("Startup time", formats.format_duration(round(report.seconds * 1_000))))
    return found


# -- the system page


def process_facts(status: BrokerStatus) -> list[SystemFact]:
    """Return facts about the broker's process."""
    lag, commit = status.loop_lag_ms, status.commits.last_ms
    return [
        SystemFact("Started", "", at_ms=status.started_at),
        SystemFact(
            "Last commit",
            f"{commit:.1f} ms",
            f"{formats.format_number(status.commits.count)} since startup",
            "warn" if commit > 500 else "",
        ),
        SystemFact(
            "Oldest batch",
            f"{status.oldest_batch_s:.1f} s",
            "without an answer of the database",
            "warn" if status.oldest_batch_s > 1 else "",
        ),
        SystemFact(
            "Loop lag",
            f"{lag:.1f} ms",
            "event loop delay at the last measurement",
            "warn" if lag > 100 else "",
        ),
        SystemFact(
            "Commands waiting", formats.format_number(status.inbox), "for the next transaction"
        ),
        SystemFact(
            "Clock jumps",
            formats.format_number(status.clock_jumps),
            "since startup",
            "warn" if status.clock_jumps else "",
        ),
    ]


def version_facts(own: str, store: StoreStatus) -> list[SystemFact]:
    """Return the versions of the broker, its libraries and the operating system."""
    sqlite = SystemFact("SQLite", sqlite3.sqlite_version, sqlite_note(sqlite3.sqlite_version_info))
    server = store.server.version if store.server else "unknown"
    is_uvloop = type(asyncio.get_running_loop()).__module__.startswith("uvloop")
    return [
        SystemFact("PHPMQ Lite", own, installation.build_kind()),
        SystemFact("Python", platform.python_version(), platform.python_implementation()),
        sqlite if store.has_file
        else SystemFact("PostgreSQL", server, f"psycopg {_installed('psycopg')}"),
        SystemFact("aiohttp", _installed("aiohttp")),
        SystemFact("Event loop", f"uvloop {_installed('uvloop')}" if is_uvloop else "asyncio"),
        SystemFact("System", f"{platform.system()} {platform.release()}", platform.machine()),
    ]  # fmt: skip


def sqlite_note(version: tuple[int, ...]) -> str:
    """Return a note if the SQLite version is old, otherwise an empty string."""
    if version >= _SAFE_SQLITE:
        return ""
    return "older than 3.51.3, which is safe here because only one connection writes"


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
    found = [SystemFact("PHPMQ", one.address, how[one.transport]) for one in status.listeners]
    security = "TLS" if admin.tls_cert else "no TLS"
    found += [
        SystemFact("Admin", address, security) for address in admin.listen if address != "none"
    ]
    return [*found, SystemFact("Control", "control.sock", "only for the broker's user")]


def storage_facts(
    settings: Settings, disk: DiskUsage | None, stored: DatabaseSize | None, folder: Path
) -> list[SystemFact]:
    """Return the data folder's path, file sizes and free space."""
    size = formats.format_size
    found = [SystemFact("Folder", str(folder.absolute()))]
    if disk is not None:
        wal, limit = disk.files["wal"], settings.storage.wal_bytes
        found += [
            SystemFact("Database", size(disk.files["database"])),
            SystemFact("Write-ahead log", size(wal), f"truncated above {size(limit)}",
                 "warn" if wal > 2 * limit else ""),
            SystemFact("Free disk space", size(disk.free), f"of {size(disk.total)}",
                 "bad" if disk.free < disk.total / 50 else ""),
        ]  # fmt: skip
    if stored is not None:
        free = stored.pages_free * stored.page_bytes
        found += [
            SystemFact("Pages", formats.format_number(stored.pages),
                 f"of {size(stored.page_bytes)} each"),
            SystemFact("Free space in the file", size(free), "reused before the file grows"),
            SystemFact("Schema", f"version {stored.schema}"),
        ]  # fmt: skip
    return found


def retention_facts(settings: Settings, stored: DatabaseSize | None) -> list[SystemFact]:
    """Return the size and limits of the history."""
    if stored is None:
        return []
    history, audit = settings.history, settings.audit
    number, size = formats.format_number, formats.format_size
    most = int(history.rows * history.deleted_share)
    share = f"{stored.deleted_share:.1%} of settled messages, at most {number(most)}"
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


def waiting_facts(status: BrokerStatus, reached: Iterable[LimitUsage] = ()) -> list[SystemFact]:
    """Return the number of connections whose reads are paused, the reasons, and limits reached."""
    found = [
        SystemFact(
            f"{count_of(count, 'connection', 'connections')} not being read",
            _PAUSES.get(reason, reason),
            level="warn",
        )
        for reason, count in count_paused_readers(status).most_common()
    ]
    return [*found, *_full(reached)]


def _full(reached: Iterable[LimitUsage]) -> Iterator[SystemFact]:
    for limit in reached:
        if limit.level == "bad":
            text = f"{limit.shown} of {limit.shown_bound}: {limit.then}"
            yield SystemFact(
                limit.name, text + (f" ({limit.setting})" if limit.setting else ""), "warn"
            )


def refusal_facts(status: BrokerStatus) -> list[SystemFact]:
    """Return the number of refusals since startup for each reason."""
    groups: Mapping[str, Mapping[str, int]] = {
        "Publish requests refused": status.refused,
        "Commands ignored": status.acks_ignored,
        "Protocol errors": status.figures.protocol_errors,
    }
    return [
        SystemFact(name, formats.format_number(count), reason.replace("_", " "))
        for name, counts in groups.items()
        for reason, count in sorted(counts.items(), key=lambda pair: -pair[1])
    ]


_EXPIRED: Final = 10  # https://docs.openssl.org/3.0/man3/X509_STORE_CTX_get_error/


@dataclass(slots=True, frozen=True)
class Certificate:
    """A certificate in use; times are in Unix ms."""

    section: str  # "tcp" or "admin"
    path: str
    subject: str = ""
    issuer: str = ""
    names: tuple[str, ...] = ()  # host names
    expires_at: int | None = None
    error: str = ""  # why the certificate is unreadable or not valid


async def read_certificates(settings: Settings) -> list[Certificate]:
    """Read the certificates of all listeners, in a thread."""
    used = [
        (section, Path(pair.tls_cert), Path(pair.tls_key))
        for section, pair in (("tcp", settings.tcp), ("admin", settings.admin))
        if pair.tls_cert is not None and pair.tls_key is not None
    ]
    return await asyncio.to_thread(lambda: [_read(*one) for one in used])


def _read(section: str, cert: Path, key: Path) -> Certificate:
    try:
        facts = _certificate_facts(cert, key)
    except ssl.SSLCertVerificationError as error:
        wrong = "has expired" if error.verify_code == _EXPIRED else error.verify_message
        return Certificate(section, str(cert), error=str(wrong))
    except (OSError, ValueError) as error:
        return Certificate(section, str(cert), error=str(error))
    return Certificate(
        section,
        str(cert),
        subject=_name(facts.get("subject", ())),
        issuer=_name(facts.get("issuer", ())),
        names=tuple(value for _, value in facts.get("subjectAltName", ())),
        expires_at=int(ssl.cert_time_to_seconds(facts["notAfter"])) * 1_000,
    )


def _certificate_facts(cert: Path, key: Path) -> dict[str, Any]:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key, password=lambda: b"")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cert)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server)
    for side in (theirs, ours, theirs):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return dict(theirs.getpeercert() or {})


def _name(parts: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Return a subject's common name or, if it has none, all values in its name."""
    pairs = [pair for part in parts for pair in part]
    common = [value for kind, value in pairs if kind == "commonName"]
    return common[0] if common else ", ".join(value for _, value in pairs)


# -- a PostgreSQL database; a problem is a fact with the level "bad" or "warn"


def asynchronous_text(store: StoreStatus) -> str:
    """Return why messages are confirmed although no quorum of replicas has them."""
    return (
        f"Messages are confirmed without a quorum: {store.asynchronous}. A failover of the database"
        " can lose them (store.allow_asynchronous)"
    )


def replication_problems(store: StoreStatus) -> Iterator[SystemFact]:
    """Yield a problem if commits lack a quorum, if a replica lags, or if none of them may fail."""
    name, ready, required = "Replication", store.replicas_ready, store.replicas_required
    if store.asynchronous is not None:
        yield SystemFact(name, asynchronous_text(store), level="bad")
    if store.server is None or ready is None or not required:
        return
    must = f"{count_of(required, 'replica', 'replicas')} must confirm each commit"
    if ready < required:
        text = f"No quorum: {must}, and {ready or 'none'} can"
        yield SystemFact(name, text, level="bad")
    elif ready == required:
        text = f"{must}, and only {ready} can: if one more fails, nothing can be stored"
        yield SystemFact(name, text, level="warn")
    for one in store.server.replicas:
        if (one.lag_s or 0) > LAG_S:
            text = f"Replica {one.name} is {one.lag_s:.1f} s behind"
            yield SystemFact(name, text, level="warn")


def store_problems(store: StoreStatus) -> Iterator[SystemFact]:
    """Yield all problems of a PostgreSQL database, except that nothing can be stored."""
    yield from replication_problems(store)
    if store.problem is not None:
        yield SystemFact("Database", f"Its state cannot be read: {store.problem}", level="warn")
    if (server := store.server) is None:
        return
    if server.oldest_transaction_s > TRANSACTION_S:
        age = formats.format_duration(round(server.oldest_transaction_s * 1_000))
        text = f"open for {age}; until it ends, VACUUM cannot remove old rows"
        yield SystemFact("Transaction", f"{server.oldest_transaction}: {text}", level="warn")
    if server.connections > server.max_connections * _CONNECTIONS:
        text = f"{server.connections} of {server.max_connections} connections are in use"
        yield SystemFact("Database", f"{text}; a broker may be unable to connect", level="warn")
    if server.disk_free < server.disk_bytes * _DISK_FREE:
        text = f"{formats.format_size(server.disk_free)} free on the server's disk"
        yield SystemFact("Disk", f"{text}; when it is full, nothing can be stored", level="bad")


def server_facts(store: StoreStatus) -> Iterator[SystemFact]:
    """Yield the facts about a PostgreSQL database for the System page."""
    number, size = formats.format_number, formats.format_size
    yield SystemFact("Database", store.place)
    yield SystemFact("Role", "active", f"epoch {number(store.epoch)}")
    if store.replicas_required:
        must = count_of(store.replicas_required, "replica", "replicas")
        yield SystemFact("Confirmed by", f"the primary and {must}", store.quorum)
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
    for one in server.replicas:
        behind = f"{size(one.lag_bytes or 0)}, {one.lag_s or 0:.1f} s behind"
        level = "" if one.is_ready and (one.lag_s or 0) <= LAG_S else "warn"
        note = behind if one.state else "lag unknown: grant pg_monitor to the broker's role"
        yield SystemFact(f"Replica {one.name}", one.state or "connected", note, level)
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
