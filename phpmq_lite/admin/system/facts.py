"""The facts on the System page: process, storage, limits and their usage, and the last starts."""

import asyncio
import platform
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, NamedTuple

from phpmq_lite import installation
from phpmq_lite.admin import formats
from phpmq_lite.admin.formats import count_of
from phpmq_lite.admin.http.context import Context
from phpmq_lite.admin.http.live_feeds import STREAMS, WAITS
from phpmq_lite.admin.messages import owned_stores
from phpmq_lite.admin.messages.jobs import STORES
from phpmq_lite.admin.slow_clients import LIMITS
from phpmq_lite.broker import reasons
from phpmq_lite.checks import CHECKS, Check, Level
from phpmq_lite.model import EXTRA_PERCENT
from phpmq_lite.server.admission import SCARCE_PERCENT, TOO_MANY, TOO_MANY_OF_ADDRESS
from phpmq_lite.server.backpressure import IDLE_S, NOT_READ, NOT_TAKEN, SILENT, TOO_SLOW
from phpmq_lite.server.status import BrokerStatus
from phpmq_lite.settings import Settings
from phpmq_lite.storage.backend import StoreStatus
from phpmq_lite.storage.disk_space import DatabaseSize, DiskUsage
from phpmq_lite.storage.start_report import Start

_CLOSED: Final = "closed immediately"
_ENDED: Final = "closed"
_PAUSED: Final = "the connection is not read"
_NO_DISPATCH: Final = "the consumer gets no further dispatches"
_SHARED: Final = (
    f"queues that hold their share get no dispatches; other queues get up to {EXTRA_PERCENT} % more"
)


class LimitText(NamedTuple):
    """What the System page and the metrics call a limit."""

    key: str  # value of the label in the metrics
    name: str
    then: str  # what happens when the limit is exceeded
    setting: str = ""  # name of the setting for the limit; empty if the limit is fixed
    unit: str = ""  # "bytes", "s", or empty for a count


class Measured(NamedTuple):
    """A limit's bound and usage; ``used`` and ``reached`` are None if they are not known."""

    bound: int
    used: int | None = None
    reached: int | None = None  # number of times the limit has been reached since startup


@dataclass(slots=True, frozen=True)
class LimitUsage:
    """A limit and its usage."""

    text: LimitText
    measured: Measured

    @property
    def share(self) -> float | None:
        """The fraction of the limit that is in use, or None if the usage is unknown."""
        used = self.measured.used
        return None if used is None else used / self.measured.bound

    @property
    def level(self) -> str:
        """The CSS class: ``bad`` at the limit, ``warn`` at 80 % of it or more, otherwise empty."""
        share = self.share or 0.0
        return "bad" if share >= 1 else "warn" if share >= 0.8 else ""

    @property
    def shown(self) -> str:
        used = self.measured.used
        return formats.DASH if used is None else self._format_value(used)

    @property
    def shown_bound(self) -> str:
        return self._format_value(self.measured.bound)

    def _format_value(self, value: int) -> str:
        if self.text.unit == "bytes":
            return formats.format_size(value)
        return f"{formats.format_number(value)} {self.text.unit}".rstrip()


def count_paused_readers(status: BrokerStatus) -> Counter[str]:
    """Count the connections that the broker is not reading from, grouped by reason."""
    return Counter(reason for client in status.clients for reason in client.paused_reasons)


_L: Final = LimitText
_LIMITS: Final = (
    _L("connections", "Connections", _CLOSED, "limits.connections"),
    _L("connections_per_address", "Connections from one address", _CLOSED,
     "limits.connections_per_address"),
    _L("silent", f"Inactivity when {SCARCE_PERCENT} % of connections are in use", _ENDED, unit="s"),
    _L("frame_timeout", "Time to send a message", _ENDED, "limits.frame_timeout_s", "s"),
    _L("write_timeout", "Time without reading", "closed; messages held by the client return",
     "limits.write_timeout_s", "s"),
    _L("max_content", "Message content size", "closed; HTTP 413", "limits.max_content", "bytes"),
    _L("max_queues", "Queues",
     "publishing to a new queue is refused, and a forward to one becomes a dead letter",
     "limits.max_queues"),
    _L("receipts", "Remembered publish keys", "the queue that has most forgets its oldest",
     "receipts.limit"),
    _L("credit", "Held by one consumer of a queue", _NO_DISPATCH, "limits.credit"),
    _L("credit_bytes", "Held by one consumer, bytes", _NO_DISPATCH, "limits.credit_bytes", "bytes"),
    _L("held", "Held by all consumers", _SHARED, "limits.held"),
    _L("held_bytes", "Held by all consumers, bytes", _SHARED, "limits.held_bytes", "bytes"),
    _L("memory", "Memory of the process",
     "data from publishers is read only briefly, once a second", "limits.memory", "bytes"),
    _L("body_cache", "Bodies in memory", "other bodies are read from disk", "limits.body_cache",
     "bytes"),
    _L("unstored_total", "Received but not stored", "large messages are read one at a time",
     "limits.unstored_total", "bytes"),
    _L("unstored_frames", "Not stored, per connection", _PAUSED, "limits.unstored_frames"),
    _L("unstored_bytes", "Not stored, per connection, bytes", _PAUSED, "limits.unstored_bytes",
     "bytes"),
    _L("write_buffer", "Unsent data of one connection",
     "the connection gets no dispatches and is not read", "limits.write_buffer", "bytes"),
    _L("http_connections", "Connections to the admin", _CLOSED, "limits.http_connections"),
    _L("http_connections_per_address", "Admin connections from one address", _CLOSED,
     "limits.http_connections_per_address"),
    _L("http_memory", "Large requests and responses",
     "the slowest transfer is closed; others are refused with 429 or 503", "limits.http_memory",
     "bytes"),
    _L("http_slow", "Time to send a request", "closed with HTTP 408, also for slow bodies",
     unit="s"),
    _L("streams", "Pages with live updates", "further pages poll every few seconds"),
    _L("waits", "Waits for a message", "HTTP 429"),
    _L("selections", "Frozen selections", "the oldest is dropped", unit="bytes"),
)  # fmt: skip


def list_limits(context: Context, status: BrokerStatus) -> list[LimitUsage]:
    settings = context.settings
    measured = _of_clients(settings, status) | _of_memory(settings, status) | _of_admin(context)
    return [LimitUsage(text, measured[text.key]) for text in _LIMITS]


def _of_clients(settings: Settings, status: BrokerStatus) -> dict[str, Measured]:
    limits, closed, admission = settings.limits, status.counters.closed, status.admission
    too_many = admission.refused.get(TOO_MANY, 0)
    of_address = admission.refused.get(TOO_MANY_OF_ADDRESS, 0)
    hosts = Counter(client.address.rpartition(":")[0] for client in status.clients)
    busiest = max(hosts.values(), default=0)
    per_address = max(limits.connections_per_address, limits.connections_per_loopback_address)
    capacity = admission.capacity or limits.connections
    count = max(admission.connections, len(status.clients))
    too_large = status.counters.protocol_errors["too-large"]
    too_many_queues = status.refused.get(reasons.TOO_MANY_QUEUES, 0)
    held = [held for client in status.clients for _, held in client.queues.values()]
    not_read = closed.get(NOT_READ, 0) + closed.get(NOT_TAKEN, 0)
    return {
        "connections": Measured(capacity, count, too_many),
        "connections_per_address": Measured(per_address, busiest, of_address),
        "silent": Measured(IDLE_S, None, closed.get(SILENT, 0)),
        "frame_timeout": Measured(limits.frame_timeout_s, None, closed.get(TOO_SLOW, 0)),
        "write_timeout": Measured(limits.write_timeout_s, None, not_read),
        "max_content": Measured(limits.max_content, None, too_large),
        "max_queues": Measured(limits.max_queues, status.queue_count, too_many_queues),
        "receipts": Measured(settings.receipts.limit, status.publish_keys, status.evicted_keys),
        "credit": Measured(limits.credit, max(held, default=0)),
        "credit_bytes": Measured(limits.credit_bytes, status.consumer_bytes),
        "held": Measured(limits.held, status.held, status.held_times),
        "held_bytes": Measured(limits.held_bytes, status.held_bytes, status.held_times),
    }


def _of_memory(settings: Settings, status: BrokerStatus) -> dict[str, Measured]:
    limits, paused = settings.limits, status.counters.paused
    limiter, backpressure = status.memory_limiter, status.backpressure
    memory = limiter.bound_bytes or limits.memory
    unstored, receipts = paused.get("unstored", 0), paused.get("receipts", 0)
    return {
        "memory": Measured(memory, limiter.resident_bytes, limiter.limit_hits),
        "body_cache": Measured(limits.body_cache, status.body_cache_bytes),
        "unstored_total": Measured(
            limits.unstored_total, backpressure.total_bytes, backpressure.limit_hits
        ),
        "unstored_frames": Measured(limits.unstored_frames, None, unstored),
        "unstored_bytes": Measured(limits.unstored_bytes, None, unstored),
        "write_buffer": Measured(limits.write_buffer, status.unsent_bytes, receipts),
    }


def _of_admin(context: Context) -> dict[str, Measured]:
    limits, memory, live = context.settings.limits, context.memory, context.live
    connections, selected = context.app[LIMITS], context.app[STORES].selections
    admission, head_s = connections.admission, round(connections.timeouts.head_s)
    too_many = admission.refused.get(TOO_MANY, 0)
    of_address = admission.refused.get(TOO_MANY_OF_ADDRESS, 0)
    per_address = limits.http_connections_per_address
    return {
        "http_connections": Measured(admission.capacity, admission.connections, too_many),
        "http_connections_per_address": Measured(per_address, admission.busiest, of_address),
        "http_memory": Measured(limits.http_memory, memory.used, memory.reached),
        "http_slow": Measured(head_s, None, connections.ended.total()),
        "streams": Measured(STREAMS, live.streams, live.streams_refused),
        "waits": Measured(WAITS, len(live.waits), live.waits_refused),
        "selections": Measured(owned_stores.BYTES_MAX, selected.bytes, selected.dropped),
    }


# -- a start


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
    tcp, admin = settings.tcp, settings.admin
    peers = ", ".join(map(str, tcp.allow)) if tcp.allow else "anyone who can reach it"
    how = {
        "tcp": f"no TLS, {peers}",
        "tls": f"TLS{' with a client certificate' if tcp.tls_client_ca else ''}, {peers}",
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
    size = formats.format_size
    facts = [SystemFact("Folder", str(folder.absolute()))]
    if disk is not None:
        wal, limit = disk.files["wal"], settings.storage.wal_bytes
        wal_level = _level(Check.WAL, wal / limit)
        disk_level = _level(Check.DISK, 1 - disk.used_share)
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


_PAUSES: Final = {  # explanations, keyed by the reason why a connection is not being read
    "memory": "unstored data exceeds limits.unstored_total",
    "unstored": "data is waiting to be stored (limits.unstored_frames, limits.unstored_bytes)",
    "receipts": "receipts are not being read",
    "queue": "the target queue is paused or full",
    "disk": "no space is left for messages (storage.free_bytes, storage.max_bytes)",
    "resident": "the broker uses more memory than limits.memory, so publishers wait",
    "ending": "the connection is being closed",
}


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
            text = f"{usage.shown} of {usage.shown_bound}: {usage.text.then}"
            text += f" ({usage.text.setting})" if usage.text.setting else ""
            facts.append(SystemFact(usage.text.name, text, level="warn"))
    return facts


def refusal_facts(status: BrokerStatus) -> list[SystemFact]:
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


def server_facts(store: StoreStatus) -> Iterator[SystemFact]:
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
