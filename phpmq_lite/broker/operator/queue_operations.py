"""Operations on queues, connections and the admin interface's own tables.

The admin runs each function in a batch: ``await engine.run(queue_operations.purge, entry, name)``.
``reply`` is called with the result after the commit.  ``entry`` becomes one row of the audit log,
in the same transaction.  A function that raises RefusedError has changed nothing and stored no row;
use ``record_only`` to store a row for a refusal.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from phpmq_lite.broker import delivery_limits, reasons, transitions
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.operator.message_actions import ActionOptions, QueueAction
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import AuditEntry, Message, NextScheduled, number_of
from phpmq_lite.operator_actions import Action
from phpmq_lite.queue_settings import (
    check_no_cycle,
    check_no_forward_cycle,
    check_settings,
    to_dict,
)
from phpmq_lite.writes import ShiftDeadlines, Write

DISCONNECTED: Final = "disconnected by an operator"

Precondition = Callable[[Broker], None]  # raises if a change is not allowed; runs in the same batch


def accept(_core: Broker) -> None:
    """Accept any change; this is the default for ``check``."""


def purge(
    core: Broker,
    reply: Callable[[int], None],
    entry: AuditEntry,
    name: str,
    *,
    with_dispatched: bool = False,
    limit: int | None = None,
) -> None:
    """Settle a queue's messages, or the ``limit`` oldest, as deleted.  Reply with the count."""
    queue = core.find_queue(name)
    options = ActionOptions(with_dispatched=with_dispatched, delete_reason=reasons.PURGED)
    QueueAction(core, entry, Action.DELETE, options, reply).start(queue, limit)


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
    """Redrive dead-letter records to ``target`` or their original queues.  Reply with the count.

    If ``ttl_s`` is None, the destination's default applies; 0 means no expiry.  ``queues`` contains
    the queue_ids that records may return to; None allows all.
    """
    queue = core.find_queue(name)
    if target is not None:
        core.find_queue(target)
    if queues is not None:
        queues |= {queue.queue_id}  # the queue that contains the records
    options = ActionOptions(ttl_s=ttl_s, target=target, queues=queues)
    QueueAction(core, entry, Action.REDRIVE, options, reply).start(queue, limit)


def pause(
    core: Broker,
    reply: Callable[[dict[str, Any]], None],
    entry: AuditEntry,
    name: str,
    side: str,
    paused: bool,
) -> None:
    """Pause or resume ``delivery`` or ``publishing`` on a queue; the setting survives a restart.

    Raises RefusedError: ``bad_side`` or ``unknown_queue``.
    """
    if side not in ("delivery", "publishing"):
        raise RefusedError("bad_side", f"side is {side!r}; it must be delivery or publishing")
    configure(core, reply, entry, name, {f"{side}_paused": paused})


def configure(
    core: Broker,
    reply: Callable[[dict[str, Any]], None],
    entry: AuditEntry,
    name: str,
    changes: Mapping[str, Any],
    *,
    check: Precondition = accept,
    has_no_cycles: bool = False,
) -> None:
    """Change a queue's settings; a value of None restores the default.  Reply with all settings.

    ``check`` is called in the same batch, before anything changes.  ``has_no_cycles`` tells that
    the caller has checked the settings together with those of other queues.  Raises RefusedError:
    ``unknown_queue``, ``unknown_setting``, ``bad_setting`` with the bound, or any error from
    ``check``.
    """
    check(core)
    queue = core.find_queue(name)
    check_settings(name, changes)
    registry = core.registry
    if (target := changes.get("dead_letter_queue")) and not has_no_cycles:
        check_no_cycle(name, target, registry.configured_dead_letter_queue)
    if "on_expire" in changes and not has_no_cycles:
        value = changes["on_expire"] or registry.default_on_expire(name)
        check_no_forward_cycle(name, value, registry.on_expire_of)
    before, had_groups = to_dict(queue.settings), queue.has_groups
    former = queue.settings.dead_letter_queue
    own = {**queue.row.own, **changes}
    queue.row.own = {key: value for key, value in own.items() if value is not None}
    registry.configure(queue, former)
    core.batch.configured.append(queue.row)
    if "ack_timeout_s" in changes:
        core.ack_timeouts.recheck(core.now.steady_ms)
    queue.start_rate(core.now.steady_ms)
    if had_groups and not queue.has_groups:
        delivery_limits.end_groups(core, queue)
    if "max_deliveries" in changes:
        transitions.dead_letter_exhausted(core, queue.window or (), queue)
    core.request_dispatch(queue)
    registry.settings_changed(core.batch, queue, changes)
    after = to_dict(queue.settings)
    if not entry.detail:
        names = [name for name in after if after[name] != before[name]]
        sides = ({name: side[name] for name in names} for side in (before, after))
        entry.detail = json.dumps(dict(zip(("before", "after"), sides, strict=True)))
    core.record_audit(entry, 1)
    core.reply(reply, after)


def create_queue(core: Broker, reply: Callable[[bool], None], entry: AuditEntry, name: str) -> None:
    """Create a queue.  Reply with True, or with False if the queue already exists.

    Raises RefusedError: ``bad_name`` or ``too_many_queues``.
    """
    is_new = name not in core.queues
    core.destination(name, entry.actor, create=True)
    core.registry.get_or_create(core.batch, name, entry.actor)
    core.record_audit(entry, int(is_new))
    core.reply(reply, is_new)


def remove_queue(
    core: Broker,
    reply: Callable[[bool], None],
    entry: AuditEntry,
    name: str,
    *,
    check: Precondition = accept,
) -> None:
    """Remove an empty queue, but keep its name in the history.  Reply with True.

    Raises RefusedError: ``unknown_queue``, ``queue_not_empty``, ``queue_consumed``,
    ``queue_pinned``, or any error from ``check``.
    """
    check(core)
    queue = core.find_queue(name)
    if queue.row.live_count:
        detail = f"{name!r} has {queue.row.live_count} messages; only empty queues can be removed"
        raise RefusedError("queue_not_empty", detail)
    if queue.consumers:
        detail = f"{name!r} has {len(queue.consumers)} consumers; disconnect them first"
        raise RefusedError("queue_consumed", detail)
    if queue.settings.pinned:
        raise RefusedError("queue_pinned", f"{name!r} is pinned; unpin it before removing it")
    core.remove_queue(queue)
    core.record_audit(entry, 1)
    core.reply(reply, True)


def disconnect(
    core: Broker,
    reply: Callable[[int], None],
    entry: AuditEntry,
    client: int,
    *,
    queues: frozenset[int] | None = None,
) -> None:
    """Close a connection.  Reply with the number of messages that return to their queues.

    If ``queues`` is given (queue_ids), the connection must consume from these queues only.  Raises
    RefusedError: ``unknown_client`` if the client is not connected; ``foreign_queue``.
    """
    connection = core.connections.get(client)
    if connection is None:
        raise RefusedError("unknown_client", f"client {client} is not connected")
    consumed = connection.consumers.keys()
    if queues is not None and not (consumed and consumed <= queues):
        raise RefusedError(
            "foreign_queue", f"client {client} must consume from your queues and no others"
        )
    held = sum(len(consumer.held) for consumer in connection.consumers.values())
    core.record_audit(entry, held)
    core.reply(connection.peer.end, DISCONNECTED)
    core.reply(reply, held)


def write(
    core: Broker, reply: Callable[[int], None], entry: AuditEntry | None, rows: Sequence[Write]
) -> None:
    """Store rows in the admin interface's own tables, plus an audit row.  Reply with the row count.

    Without an entry there is no audit row, for example for the last use of a session or a token.
    Violating a constraint would stop the broker: check the rows first, or use ON CONFLICT.  Raises
    RefusedError: ``bad_value`` if SQLite cannot store one of the values.
    """
    check_rows(rows)
    core.batch.writes += rows
    if entry is not None:
        core.record_audit(entry, 0 if entry.count else 1)
    core.reply(reply, len(rows))


def check_rows(rows: Iterable[Write]) -> None:
    """Check that ``write`` would accept these rows, for callers that change something else first.

    Raises RefusedError: ``bad_value`` if SQLite cannot store one of the values.
    """
    for name, value in ((name, value) for row in rows for name, value in row._asdict().items()):
        try:
            if isinstance(value, str):
                value.encode()
            elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
                raise RefusedError("bad_value", f"{name}: {value} does not fit in 64 bits")
        except UnicodeEncodeError:
            problem = f"{name}: the text cannot be encoded as UTF-8"
            raise RefusedError("bad_value", problem) from None


def record_only(
    core: Broker, reply: Callable[[None], None], entry: AuditEntry, number: int = 0
) -> None:
    """Store only the audit row of a refusal, or add ``number`` to the count of an existing row."""
    core.record_audit(entry, number)
    core.reply(reply, None)


def decide_clock(
    core: Broker,
    reply: Callable[[None], None],
    entry: AuditEntry,
    away_ms: int,
    number: int,
    *,
    is_right: bool,
) -> None:
    """Apply an operator's decision about the clock.  Reply with None.

    ``number`` was the next message number at the start with the doubtful clock.  Messages that were
    requeued or forwarded since then already have a new deadline.
    """
    if is_right:
        changed = list(core.batch.changed)  # these are stored with their in-memory values
        for message in {**core.messages, **core.batch.changed}.values():
            if max(message.seq, number_of(message.position)) < number:
                _shift(core, message, away_ms)
        shift = ShiftDeadlines(away_ms, number, json.dumps(changed))
        core.batch.writes.append(shift)
        core.note_deadline(0)  # check which deadlines have passed
        core.next_scheduled = NextScheduled(0, core.next_scheduled.deliver_at)
        core.batch.accepts_commands = False  # their deadlines would be shifted twice
    core.is_clock_doubtful = False  # dates are compared with the wall clock from now on
    core.batch.counters["clock_doubt_ms"] = 0
    core.record_audit(entry, 1)
    core.reply(reply, None)


def _shift(core: Broker, message: Message, away_ms: int) -> None:
    options = message.options
    if message.deadline_ms is not None:
        message.deadline_ms -= away_ms
    if options.due_ms is not None:
        message.options = options._replace(due_ms=options.due_ms - away_ms)
        core.store_options(message)
