"""The database: what the running broker says, or what the next start will find."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from phpmq_lite import __version__
from phpmq_lite.admin.base import formats
from phpmq_lite.admin.base.formats import plural
from phpmq_lite.cli.findings import Finding, bad, ok, warn
from phpmq_lite.cli.main import REFUSED, CommandError
from phpmq_lite.cli.node import NoAnswerError, Node
from phpmq_lite.settings import Settings
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.integrity.stopped_database import StoppedDatabase, read_stopped

_TIMEOUT_S: Final = 10.0
# What starts, restores and migrations leave in the data folder, and what it is good for.
_LEFT: Final = {
    "damaged-*": "copies of damaged files",
    "replaced-*": "what a restore replaced",
    "before-migration-*.db": "copies from before an upgrade",
}


class Left(NamedTuple):
    """What lies beside the database for somebody to look at."""

    words: str
    names: tuple[str, ...]
    size: int  # bytes
    is_damage: bool


def look(settings: Settings, pid: str | None) -> Iterator[Finding]:
    """Ask the broker, or look at the files where none runs."""
    path = settings.data
    if pid is not None:
        yield _running(settings, pid)
    elif path.is_dir():
        yield glance_finding(read_stopped(path), settings.storage.max_bytes)
    if path.is_dir():
        yield from left_findings(left_in(path))


def _running(settings: Settings, pid: str) -> Finding:
    node = Node(DataFolder.seen(settings.data).control_socket)
    try:
        stats = node.call("GET", "/stats", timeout_s=_TIMEOUT_S)
    except CommandError as error:
        if isinstance(error, NoAnswerError) and error.code == REFUSED:
            return warn("broker", f"pid {pid} is not ready: {error}", "it starts: look again soon")
        return bad(
            "broker",
            f"pid {pid} does not answer: {error}",
            "its log says what it does",
        )
    return running_finding(stats, pid, settings)


def running_finding(stats: dict[str, Any], pid: str, settings: Settings) -> Finding:
    """Judge what a running broker says of itself (``/api/v1/stats``)."""
    messages = stats["ready"] + stats["dispatched"]
    text = (
        f"pid {pid}, {messages:,} {plural(messages, 'message', 'messages')} in "
        f"{stats['queues']:,} {plural(stats['queues'], 'queue', 'queues')}"
    )
    reason = stats["storing_stopped"] or stats["publishing_stopped"]
    if reason is not None:
        return bad("broker", f"{text}; it takes no message: {reason}", "the page System says more")
    if not stats["is_ready"]:
        return warn(
            "broker",
            f"{text}; it is not ready: {stats['step']}",
            "wait for it, or look into its log",
        )
    if stats["version"] != __version__:
        return warn(
            "broker", f"{text}; it is {stats['version']}, {__version__} is installed", "restart it"
        )
    if stats["wal_bytes"] > 2 * settings.storage.wal_bytes:
        return warn(
            "broker",
            f"{text}; its write-ahead log has "
            f"{formats.format_size(stats['wal_bytes'])}, more than twice "
            f"storage.wal_bytes, {formats.format_size(settings.storage.wal_bytes)}",
            "a reader holds it: a backup, an export, or another program that has the database open",
        )
    return ok("broker", f"{text}, ready")


def glance_finding(seen: StoppedDatabase, max_bytes: int) -> Finding:
    """Judge the files of a stopped broker."""
    name = "database"
    if seen.problems:
        return bad(
            name,
            "; ".join(seen.problems),
            "`phpmq-lite verify` says more, `phpmq-lite restore` puts a backup in its place",
        )
    if seen.refusal:
        return bad(name, seen.refusal, "until then a start is refused with exit code 1")
    if seen.is_new:
        return ok(name, "none yet", "the first start makes it")
    text = f"schema {seen.schema}, {formats.format_size(seen.used_bytes)} in use"
    if 0 < max_bytes <= seen.used_bytes:
        return bad(
            name,
            f"{text}: as storage.max_bytes is {formats.format_size(max_bytes)}, "
            "nothing can be published",
            "raise storage.max_bytes, or lower history.days and history.bytes",
        )
    if not seen.was_clean:
        why = f": {seen.last_error}" if seen.last_error else ""
        return warn(
            name,
            f"{text}; the broker did not stop cleanly{why}",
            f"the next start reads the write-ahead log back: {seen.log}",
        )
    if seen.waiting:
        count = len(seen.waiting)
        return ok(
            name,
            f"{text}; {count} {plural(count, 'migration waits', 'migrations wait')}",
            "the next start applies them, and keeps a copy from before",
        )
    return ok(name, f"{text}, closed cleanly", "`phpmq-lite verify` looks at everything")


def left_in(path: Path) -> list[Left]:
    """Gather what lies beside the database."""
    found = []
    for pattern, words in _LEFT.items():
        paths = sorted(path.glob(pattern))
        if paths:
            names = tuple(one.name for one in paths)
            size = sum(_size(one) for one in paths)
            found.append(Left(words, names, size, pattern.startswith("damaged")))
    return found


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(one.stat().st_size for one in files)


def left_findings(found: Iterable[Left]) -> Iterator[Finding]:
    """Tell what lies beside the database, and when it can go."""
    for left in found:
        text = f"{left.words}, {formats.format_size(left.size)}: {', '.join(left.names)}"
        if left.is_damage:
            yield warn(
                "left over",
                text,
                "damage.json in it says what was wrong; remove it once you have back what you need",
            )
        else:
            yield ok("left over", text, "remove it when you are sure of what is there now")
