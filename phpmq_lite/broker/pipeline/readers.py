"""Positions of named history readers, which belong to the users who named them first."""

from collections.abc import Callable
from typing import Final

from phpmq_lite.broker.broker import Broker
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import AuditEntry
from phpmq_lite.queue_settings import name_problem
from phpmq_lite.writes import DeleteHistoryReader, RecordHistoryReader

READERS: Final = 200  # maximum number of history readers; one page can show all of them
READERS_PER_OWNER: Final = 20


def report_reader(
    core: Broker,
    reply: Callable[[bool], None],
    entry: AuditEntry,
    name: str,
    offset: int,
    *,
    owner: str,
    is_admin: bool,
) -> None:
    """Store a reader's progress.  Reply with whether the reader was created or taken over.

    Only then, an audit row is written.  An empty ``owner`` stands for the local machine without
    accounts, which may use every reader.  Only the readers that reported most recently are kept.
    Raises RefusedError: ``bad_name``, ``bad_value``, ``foreign_reader`` or ``too_many_readers``.
    """
    if (problem := name_problem(name)) is not None:
        raise RefusedError("bad_name", f"the reader name {problem}")
    if not 0 <= offset < 1 << 63:
        raise RefusedError("bad_value", f"offset is {offset}; it must be 0 to 2^63 - 1")
    readers, batch = core.history_readers, core.batch
    is_new, former = name not in readers, readers.get(name)
    _check_reader_owner(core, name, owner, is_admin=is_admin)
    if former != owner and owner and [*readers.values()].count(owner) >= READERS_PER_OWNER:
        raise RefusedError(
            "too_many_readers",
            f"{owner} has {READERS_PER_OWNER} history readers, which is the limit per user. Remove"
            f" one before {name!r} is used.",
        )
    readers.pop(name, None)
    if len(readers) >= READERS:
        oldest = next(iter(readers))
        _remove_reader(core, oldest)
        entry.detail = f"removed {oldest!r}, which is the longest silent of {READERS}"
    readers[name] = owner or former
    batch.writes.append(RecordHistoryReader(name, offset, core.now.wall_ms, readers[name]))
    is_changed = is_new or readers[name] != former
    if is_changed:
        entry.action = "reader.create" if is_new else "reader.take_over"
        entry.detail = entry.detail if is_new else f"from {former or 'nobody'}"
        core.record_audit(entry, 1)
    core.reply(reply, is_changed)


def remove_reader(
    core: Broker,
    reply: Callable[[None], None],
    entry: AuditEntry,
    name: str,
    *,
    owner: str,
    is_admin: bool,
) -> None:
    """Forget a reader's position.  Reply with None.

    Raises RefusedError: ``unknown_reader`` or ``foreign_reader``.
    """
    if name not in core.history_readers:
        raise RefusedError("unknown_reader", f"there is no history reader {name!r}")
    _check_reader_owner(core, name, owner, is_admin=is_admin)
    _remove_reader(core, name)
    core.record_audit(entry, 1)
    core.reply(reply, None)


def _check_reader_owner(core: Broker, name: str, owner: str, *, is_admin: bool) -> None:
    reader_owner = core.history_readers.get(name)
    if owner and not is_admin and reader_owner not in (None, owner):
        raise RefusedError(
            "foreign_reader",
            f"the history reader {name!r} belongs to another user: choose another name, or ask an"
            " admin to take it over or to remove it",
        )


def _remove_reader(core: Broker, name: str) -> None:
    core.history_readers.pop(name)
    core.batch.writes.append(DeleteHistoryReader(name))
