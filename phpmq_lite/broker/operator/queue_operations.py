"""What operators can change.

The admin runs each function in a batch: ``await engine.run(operations.purge, entry, "orders")``.
``reply`` is called with the result after the commit.  ``entry`` becomes one row of the audit log,
in the same transaction.  A function that raises RefusedError has changed nothing and stored no row;
``record_only`` stores the row of a refusal.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.operator import audit
from phpmq_lite.broker.operator.message_actions import Action, ActionOptions, QueueAction
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import AuditEntry, Message
from phpmq_lite.queue_settings import check_no_cycle, check_settings, name_problem, to_dict
from phpmq_lite.writes import RecordHistoryReader, ShiftDeadlines, Write

READERS: Final = 200  # history readers to keep; a page shows them all
DISCONNECTED: Final = "disconnected by an operator"

Precondition = Callable[[Broker], None]  # a condition, checked in the batch of the change


def accept(_core: Broker) -> None:
    """Accept any change: the default of ``check``."""


def purge(
    core: Broker,
    reply: Callable[[int], None],
    entry: AuditEntry,
    name: str,
    *,
    with_dispatched: bool = False,
    limit: int | None = None,
) -> None:
    """Settle messages of a queue, or its ``limit`` oldest, as deleted.  Replies their number."""
    queue = core.find_queue(name)
    options = ActionOptions(with_dispatched=with_dispatched)
    QueueAction(core, entry, Action.DELETE, queue, options, reply, limit)


def redrive(
    core: Broker,
    reply: Callable[[int], None],
    entry: AuditEntry,
    name: str,
    *,
    target: str | None = None,
    ttl_s: int | None = None,
    limit: int | None = None,
    queues: frozenset[int] | None = None,
) -> None:
    """Redrive dead-letter records to their origin, or to ``target``.  Replies with their number.

    ``ttl_s`` None is the default of the destination, 0 never expires.  ``queues`` are the queue_ids
    that records may return to; None: all.
    """
    queue = core.find_queue(name)
    if target is not None:
        core.find_queue(target)
    if queues is not None:
        queues |= {queue.queue_id}  # of the records themselves
    options = ActionOptions(ttl_s=ttl_s, target=target, queues=queues)
    QueueAction(core, entry, Action.REDRIVE, queue, options, reply, limit)


def pause(
    core: Broker,
    reply: Callable[[dict[str, Any]], None],
    entry: AuditEntry,
    name: str,
    side: str,
    paused: bool,
) -> None:
    """Pause or resume ``delivery`` or ``publishing`` of a queue, also after a restart.

    Raises:
        RefusedError: ``bad_side`` or ``unknown_queue``.
    """
    if side not in ("delivery", "publishing"):
        raise RefusedError("bad_side", f"side is {side!r}, not delivery or publishing")
    configure(core, reply, entry, name, {f"{side}_paused": paused})


def configure(
    core: Broker,
    reply: Callable[[dict[str, Any]], None],
    entry: AuditEntry,
    name: str,
    changes: Mapping[str, Any],
    *,
    check: Precondition = accept,
) -> None:
    """Change settings of a queue; None restores a default.  Replies with all settings.

    ``check`` is called in the same batch, before anything changes.

    Raises:
        RefusedError: ``unknown_queue``, ``unknown_setting``, ``bad_setting`` with the bound, or
            what ``check`` raises.
    """
    check(core)
    queue = core.find_queue(name)
    check_settings(name, changes)
    if target := changes.get("dead_letter_queue"):
        check_no_cycle(name, target, core.state.registry.configured_dead_letter_queue)
    before = to_dict(queue.settings)
    former = queue.settings.dead_letter_queue
    own = {**queue.row.own, **changes}
    queue.row.own = {key: value for key, value in own.items() if value is not None}
    core.state.registry.configure(queue, former)
    core.state.batch.configured.append(queue.row)
    core.settings_changed(queue, changes)
    after = to_dict(queue.settings)
    if not entry.detail:
        entry.detail = _difference(before, after)
    audit.record(core, entry, 1)
    core.state.batch.replies.append((reply, after))


def _difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    names = [name for name in after if after[name] != before[name]]
    sides = ({name: side[name] for name in names} for side in (before, after))
    return json.dumps(dict(zip(("before", "after"), sides, strict=True)))


def create_queue(core: Broker, reply: Callable[[bool], None], entry: AuditEntry, name: str) -> None:
    """Create a queue.  Replies True, or False if it exists.

    Raises:
        RefusedError: ``bad_name`` or ``too_many_queues``.
    """
    is_new = name not in core.state.queues
    core.destination(name, entry.actor, create=True)
    core.state.registry.get_or_create(name, entry.actor)
    audit.record(core, entry, int(is_new))
    core.state.batch.replies.append((reply, is_new))


def remove_queue(
    core: Broker,
    reply: Callable[[bool], None],
    entry: AuditEntry,
    name: str,
    *,
    check: Precondition = accept,
) -> None:
    """Remove an empty queue; its name stays in the history.  Replies True.

    Raises:
        RefusedError: ``unknown_queue``, ``queue_not_empty``, ``queue_consumed``, ``queue_pinned``,
            or what ``check`` raises.
    """
    check(core)
    queue = core.find_queue(name)
    if queue.row.live_count:
        raise RefusedError("queue_not_empty", f"{name!r} has {queue.row.live_count} messages")
    if queue.consumers:
        raise RefusedError("queue_consumed", f"{name!r} has {len(queue.consumers)} consumers")
    if queue.settings.pinned:
        raise RefusedError("queue_pinned", f"{name!r} is pinned")
    core.state.remove_queue(queue)
    audit.record(core, entry, 1)
    core.state.batch.replies.append((reply, True))


def disconnect(
    core: Broker,
    reply: Callable[[int], None],
    entry: AuditEntry,
    client: int,
    *,
    queues: frozenset[int] | None = None,
) -> None:
    """Close a connection.  Replies with the number of messages that return to their queues.

    If ``queues`` are given, by queue_id, it must consume only these.

    Raises:
        RefusedError: ``unknown_client``: it has no open connection; ``foreign_queue``.
    """
    connection = core.connections.get(client)
    if connection is None:
        raise RefusedError("unknown_client", f"client {client} is not connected")
    consumed = connection.consumers.keys()
    if queues is not None and not (consumed and consumed <= queues):
        raise RefusedError("foreign_queue", f"client {client} also uses queues of others")
    held = sum(len(consumer.held) for consumer in connection.consumers.values())
    audit.record(core, entry, held)
    answers = core.state.batch.replies
    answers.append((connection.peer.end, DISCONNECTED))
    answers.append((reply, held))


def write(
    core: Broker, reply: Callable[[int], None], entry: AuditEntry | None, rows: Sequence[Write]
) -> None:
    """Store rows of the admin's own tables with an audit row.  Replies with the audit number.

    Without an entry there is no audit row, as for the last use of a session or a token.  A
    statement that violates a constraint would stop the broker: check before, or use ON CONFLICT.

    Raises:
        RefusedError: ``bad_value``: SQLite cannot store one of the values.
    """
    check_rows(rows)
    core.state.batch.writes += rows
    if entry is not None:
        audit.record(core, entry, 0 if entry.count else 1)
    core.state.batch.replies.append((reply, len(rows)))


def check_rows(rows: Iterable[Write]) -> None:
    """Check that ``write`` accepts these rows, for a caller that changes something else before.

    Raises:
        RefusedError: ``bad_value``: SQLite cannot store one of the values.
    """
    for row in rows:
        for name, value in row._asdict().items():
            _check_value(name, value)


def _check_value(name: str, value: Any) -> None:
    try:
        if isinstance(value, str):
            value.encode()
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise RefusedError("bad_value", f"{name}: {value} has more than 64 bits")
    except UnicodeEncodeError:
        raise RefusedError("bad_value", f"{name}: the text is not UTF-8") from None


def record_reader(core: Broker, reply: Callable[[None], None], name: str, offset: int) -> None:
    """Store the progress of a history reader, by name; no audit row.  Replies None.

    Only the readers that reported last are kept.

    Raises:
        RefusedError: ``bad_name`` or ``bad_value``.
    """
    if (problem := name_problem(name)) is not None:
        raise RefusedError("bad_name", f"the name of the reader {problem}")
    if not 0 <= offset < 1 << 63:
        raise RefusedError("bad_value", f"offset is {offset}, not 0 to 2^63 - 1")
    batch = core.state.batch
    batch.writes.append(RecordHistoryReader(name, offset, core.state.now.wall_ms, READERS))
    batch.replies.append((reply, None))


def record_only(
    core: Broker, reply: Callable[[None], None], entry: AuditEntry, number: int = 0
) -> None:
    """Store an audit row alone, for a refusal; if it is stored already, add ``number`` to it."""
    audit.record(core, entry, number)
    core.state.batch.replies.append((reply, None))


def decide_clock(
    core: Broker,
    reply: Callable[[None], None],
    entry: AuditEntry,
    away_ms: int,
    number: int,
    *,
    is_right: bool,
) -> None:
    """Decide about the clock; ``number`` was the next number at that start.  Replies None.

    Messages that were moved since then, by a requeue or a forward, got their deadline with the
    move.
    """
    state = core.state
    if is_right:
        changed = list(state.batch.changed)  # they are stored with their values in memory
        for message in {**state.messages, **state.batch.changed}.values():
            if message.deadline_ms is not None and _existed_before(message, number):
                message.deadline_ms -= away_ms
        given = ShiftDeadlines(away_ms, number, json.dumps(changed))
        state.batch.writes.append(given)
        state.note_deadline(state.now.steady_ms)  # check what is due
        # A later change in this batch would be counted in memory and on disk: there is none.
        state.batch.commands = core.limits.batch_commands
    state.batch.counters["clock_doubt_ms"] = 0
    audit.record(core, entry, 1)
    state.batch.replies.append((reply, None))


def _existed_before(message: Message, number: int) -> bool:
    return message.seq < number and message.position < number
