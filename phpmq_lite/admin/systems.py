"""What the system page and the restart report show, put into words.  Pure: nothing is read here."""

import platform
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from phpmq_lite import installation
from phpmq_lite.admin import formats
from phpmq_lite.admin.limits import Limit
from phpmq_lite.admin.views import plural
from phpmq_lite.server.status import BrokerStatus
from phpmq_lite.settings import Settings
from phpmq_lite.storage.integrity.startup import Start
from phpmq_lite.storage.read.measures import DatabaseSize, DiskUsage

_SAFE_SQLITE: Final = (3, 51, 3)  # before it two writers can damage a WAL: there is only one here
_PAUSES: Final = {  # reason not to read a connection -> what it waits for
    "memory": "more is read and not stored than limits.unstored_total allows",
    "unstored": "what it sent waits to be stored: limits.unstored_frames, limits.unstored_bytes",
    "receipts": "it does not read the answers to what it publishes",
    "queue": "the queue it publishes to is paused or full",
    "disk": "there is no room for messages: storage.free_bytes, storage.max_bytes",
    "resident": "the broker has more memory than limits.memory: publishers wait",
    "ending": "it is being closed",
}


@dataclass(slots=True, frozen=True)
class Fact:
    """One line of a list of facts."""

    name: str
    text: str
    note: str = ""
    level: str = ""  # warn or bad where somebody should look
    at_ms: int | None = None  # a moment, instead of the text


@dataclass(slots=True, frozen=True)
class Restart:
    """What a start found, in words."""

    start: Start
    title: str
    facts: list[Fact]
    expired: list[tuple[str, int]]  # by queue
    checks: list[str]


def told(start: Start) -> Restart:
    """Put the report of a start into words."""
    return Restart(
        start,
        _title(start),
        _found(start),
        sorted(start.report.expired_by_queue.items(), key=lambda pair: -pair[1]),
        start.report.checks,
    )


def _title(start: Start) -> str:
    if start.is_first:
        return "The first start"
    away = formats.duration(start.down_ms)
    how = "after a clean stop" if start.was_clean else "after it ended without a clean stop"
    return f"The broker was down for {away} and came back {how}"


def _found(start: Start) -> list[Fact]:
    """Tell only what happened; the time it took always."""
    report = start.report
    number = formats.number
    found = []
    if report.last_error:
        found.append(Fact("Stopped because", report.last_error, level="bad"))
    if report.wal_dropped:
        text = f"{number(report.wal_dropped)} {plural(report.wal_dropped, 'commit', 'commits')}"
        found.append(Fact("Given up", text, "behind damage in the write-ahead log", "bad"))
    if report.wal_commits:
        text = f"{number(report.wal_commits)} {plural(report.wal_commits, 'commit', 'commits')}"
        note = f"{number(report.wal_frames)} frames of the write-ahead log"
        found.append(Fact("Read back", text, note))
    if report.returned:
        text = f"{number(report.returned)} {plural(report.returned, 'message', 'messages')}"
        found.append(Fact("Put back", text, "consumers held them; each is in its old place"))
    if report.expired:
        text = f"{number(report.expired)} {plural(report.expired, 'message', 'messages')}"
        found.append(Fact("Expired meanwhile", text, "their queues decide what becomes of them"))
    if report.clock_doubt_ms:
        text = f"{formats.duration(report.clock_doubt_ms)} ahead"
        found.append(Fact("Clock", text, "or away for so long: somebody decides", "bad"))
    elif report.clock_jump_ms:
        way = "ahead" if report.clock_jump_ms > 0 else "back"
        text = f"set {way} by {formats.duration(abs(report.clock_jump_ms))}"
        found.append(Fact("Clock", text, "meanwhile; deadlines are unmoved", "warn"))
    if report.migrations:
        found.append(Fact("Schema", ", ".join(report.migrations), "brought up to date"))
    if report.version_before:
        found.append(Fact("Version", start.version, f"before: {report.version_before}"))
    text = f"{number(report.messages)} {plural(report.messages, 'message', 'messages')}"
    note = f"in {number(report.queues)} {plural(report.queues, 'queue', 'queues')}"
    found.append(Fact("Found", text, note))
    found.append(Fact("Start took", formats.duration(round(report.seconds * 1_000))))
    return found


# -- the system page


def times(status: BrokerStatus, now_ms: int) -> list[Fact]:
    """Tell how the process goes."""
    lag, commit = status.loop_lag_ms, status.commit_ms_last
    return [
        Fact("Started", "", formats.moment(status.started_at, now_ms).title,
             at_ms=status.started_at),
        Fact("Last commit", f"{commit:.1f} ms", f"{formats.number(status.commits)} since the start",
             "warn" if commit > 500 else ""),
        Fact("Loop lag", f"{lag:.1f} ms", "how late the event loop was at the last look",
             "warn" if lag > 100 else ""),
        Fact("Commands waiting", formats.number(status.inbox), "for the next transaction"),
        Fact("Clock jumps", formats.number(status.clock_jumps), "since the start",
             "warn" if status.clock_jumps else ""),
    ]  # fmt: skip


def versions(own: str) -> list[Fact]:
    """Name what runs."""
    return [
        Fact("PHPMQ Lite", own, installation.kind()),
        Fact("Python", platform.python_version(), platform.python_implementation()),
        Fact("SQLite", sqlite3.sqlite_version, sqlite_note(sqlite3.sqlite_version_info)),
        Fact("aiohttp", _installed("aiohttp")),
        Fact("Event loop", f"uvloop {_installed('uvloop')}" if "uvloop" in sys.modules
             else "asyncio"),
        Fact("System", f"{platform.system()} {platform.release()}", platform.machine()),
    ]  # fmt: skip


def sqlite_note(version: tuple[int, ...]) -> str:
    """Say what is to be known of a version of SQLite; mostly nothing."""
    if version >= _SAFE_SQLITE:
        return ""
    return "before 3.51.3, which is safe here: one connection writes"


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def listeners(settings: Settings, status: BrokerStatus) -> list[Fact]:
    """Say where the broker listens, and who may come there."""
    tcp, admin = settings.tcp, settings.admin
    who = ", ".join(map(str, tcp.allow)) if tcp.allow else "whoever reaches it"
    how = {
        "tcp": f"no TLS, {who}",
        "tls": f"TLS{' with a client certificate' if tcp.tls_client_ca else ''}, {who}",
        "unix": "for the account that runs the broker",
    }
    found = [Fact("PHPMQ", one.address, how[one.transport]) for one in status.listeners]
    security = "TLS" if admin.tls_cert else "no TLS"
    found += [Fact("Admin", address, security) for address in admin.listen if address != "none"]
    return [*found, Fact("Control", "control.sock", "for the account that runs the broker")]


def storage(
    settings: Settings, disk: DiskUsage | None, stored: DatabaseSize | None, folder: Path
) -> list[Fact]:
    """Tell where the files are, how large, and how much room there is."""
    found = [Fact("Folder", str(folder.absolute()))]
    if disk is not None:
        wal, limit = disk.files["wal"], settings.storage.wal_bytes
        found += [
            Fact("Database", formats.size(disk.files["database"])),
            Fact("Write-ahead log", formats.size(wal), f"cut back above {formats.size(limit)}",
                 "warn" if wal > 2 * limit else ""),
            Fact("Free on the disk", formats.size(disk.free), f"of {formats.size(disk.total)}",
                 "bad" if disk.free < disk.total / 50 else ""),
        ]  # fmt: skip
    if stored is not None:
        free = stored.pages_free * stored.page_bytes
        found += [
            Fact("Pages", formats.number(stored.pages),
                 f"of {formats.size(stored.page_bytes)} each"),
            Fact("Free in the file", formats.size(free), "used again before it grows"),
            Fact("Schema", f"version {stored.schema}"),
        ]  # fmt: skip
    return found


def retention(settings: Settings, stored: DatabaseSize | None) -> list[Fact]:
    """Tell how much settled history there is, beside its bounds."""
    if stored is None:
        return []
    history, audit, number = settings.history, settings.audit, formats.number
    most = int(history.rows * history.deleted_share)
    share = f"{stored.deleted_share:.1%} of the settled, at most {number(most)}"
    return [
        Fact("Settled messages", number(stored.history_rows), f"at most {number(history.rows)}"),
        Fact("Their bodies", formats.size(stored.history_bytes),
             f"at most {formats.size(history.bytes)}"),
        Fact("Oldest", formats.DASH, f"at most {history.days:g} days old",
             at_ms=stored.history_oldest_at),
        Fact("Deleted ones", number(stored.deleted_rows), share),
        Fact("Gone for good", number(stored.removed), "taken by retention so far"),
        Fact("Rows of the audit", number(stored.audit_rows), f"at most {number(audit.rows)}"),
        Fact("Oldest of them", formats.DASH, f"at most {audit.days:g} days old",
             at_ms=stored.audit_oldest_at),
    ]  # fmt: skip


def waiting(status: BrokerStatus, reached: Iterable[Limit] = ()) -> list[Fact]:
    """Say who waits and for what, and which of the limits are full; empty where nobody does."""
    paused = Counter(
        reason
        for client in status.clients
        for reason in (client.paused_reason or "").split(", ")
        if reason
    )
    found = [
        Fact(f"{formats.number(count)} {plural(count, 'connection', 'connections')} not read",
             _PAUSES.get(reason, reason), level="warn")
        for reason, count in paused.most_common()
    ]  # fmt: skip
    return [*found, *_full(reached)]


def _full(reached: Iterable[Limit]) -> Iterator[Fact]:
    for limit in reached:
        if limit.level == "bad":
            text = f"{limit.shown} of {limit.shown_bound}: {limit.then}"
            yield Fact(limit.name, text + (f" ({limit.setting})" if limit.setting else ""), "warn")


def refused(status: BrokerStatus) -> list[Fact]:
    """Count what was turned away since the start, by reason."""
    groups: Mapping[str, Mapping[str, int] | None] = {
        "Publishes refused": status.refused,
        "Commands ignored": status.acks_ignored,
        "Grammar broken": status.protocol_errors,
    }
    return [
        Fact(name, formats.number(count), reason.replace("_", " "))
        for name, counts in groups.items()
        for reason, count in sorted((counts or {}).items(), key=lambda pair: -pair[1])
    ]
