"""Operations on schedules; see ``queue_operations.py`` for how they are called."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from phpmq_lite import schedules
from phpmq_lite.broker import schedule_runs
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.operator.queue_operations import check_rows
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import AuditEntry, Schedule
from phpmq_lite.writes import DeleteSchedule

_TIMES: Final = ("cron", "timezone")
_KEPT: Final = ("schedule_id", "created_at", "created_by", "changed_at", "changed_by", "seen_upto")
_SHOWN: Final = (
    "cron", "timezone", "queue", "ttl_s", "priority", "group", "missed", "missed_max", "is_enabled",
)  # fmt: skip
ScheduleReply = Callable[[Schedule], None]


def create(core: Broker, reply: ScheduleReply, entry: AuditEntry, new: Schedule) -> None:
    """Store a new schedule, as ``put``.  Raises RefusedError: ``taken``, or as that."""
    if new.name in core.schedules.by_name:
        raise RefusedError("taken", f"there is a schedule named {new.name!r} already")
    put(core, reply, entry, new)


def change(core: Broker, reply: ScheduleReply, entry: AuditEntry, new: Schedule) -> None:
    """Change a schedule, as ``put``.  Raises RefusedError: ``unknown_schedule``, or as that."""
    find(core, new.name)
    put(core, reply, entry, new)


def put(core: Broker, reply: ScheduleReply, entry: AuditEntry, new: Schedule) -> None:
    """Create a schedule and its queue or, if there is one of this name, replace what it says.

    A new one, one with other times, and one that was paused go on with the next tick.  Reply with
    the schedule.  Raises RefusedError: ``too_many_schedules``, ``bad_name``, ``bad_cron``,
    ``bad_timezone``, ``too_large``, or why the queue cannot be created.
    """
    check_room(core, [new.name])
    check(new)
    core.destination(new.queue, entry.actor, create=True)
    _store(core, reply, entry, new)


def pause(
    core: Broker, reply: ScheduleReply, entry: AuditEntry, name: str, *, paused: bool
) -> None:
    """Pause a schedule, or resume it with the next tick.  Reply with the schedule.

    Raises RefusedError: ``unknown_schedule``.
    """
    _store(core, reply, entry, replace(find(core, name), is_enabled=int(not paused)))


def delete(core: Broker, reply: Callable[[None], None], entry: AuditEntry, name: str) -> None:
    """Delete a schedule and the history of its runs.  Raises RefusedError: ``unknown_schedule``."""
    schedule = find(core, name)
    core.schedules.remove(schedule)
    core.batch.writes.append(DeleteSchedule(schedule.schedule_id))
    core.record_audit(entry, 1)
    core.reply(reply, None)


def run_now(core: Broker, reply: Callable[[str], None], entry: AuditEntry, name: str) -> None:
    """Publish the message of a schedule now, whether or not it is paused.

    Its ticks are not affected.  Reply with the id of the message, or with the RefusedError of the
    publish, which is a failed run.  Raises RefusedError: ``unknown_schedule``, ``draining``.
    """
    core.check_not_draining()
    schedule = find(core, name)
    result = schedule_runs.run_on_request(core, schedule, entry)
    if result is None:  # its content is validated in the next batch
        core.run_after_load(partial(run_now, core, reply, entry, name), reply)
        return
    if isinstance(result, str):
        core.record_audit(entry, 1)
    core.reply(reply, result)


def check_room(core: Broker, names: Iterable[str]) -> None:
    """Check that schedules may be created.  Raises RefusedError: ``too_many_schedules``."""
    count, limit = len({*core.schedules.by_name, *names}), schedules.SCHEDULES_MAX
    if count > limit:
        raise RefusedError("too_many_schedules", f"{count} schedules; the limit is {limit}")


def find(core: Broker, name: str) -> Schedule:
    """Return the schedule with a name.  Raises RefusedError: ``unknown_schedule``."""
    schedule = core.schedules.by_name.get(name)
    if schedule is None:
        raise RefusedError("unknown_schedule", f"there is no schedule named {name!r}")
    return schedule


def check(new: Schedule) -> None:
    """Check what a schedule says.

    Raises RefusedError: ``bad_name``, ``bad_cron``, ``bad_timezone``, ``too_large``, ``bad_value``.
    """
    schedules.check_name(new.name)
    schedules.check_times(new.cron, new.timezone)
    if (size := len(new.content)) > schedules.CONTENT_BYTES:
        limit = schedules.CONTENT_BYTES
        raise RefusedError("too_large", f"the content is {size} bytes; the limit is {limit}")
    check_rows([new])


def _store(core: Broker, reply: ScheduleReply, entry: AuditEntry, new: Schedule) -> None:
    book, now_ms = core.schedules, core.now.wall_ms
    old = book.by_name.get(new.name)
    if old is None:
        new.schedule_id = max((of.schedule_id for of in book.by_name.values()), default=0) + 1
        new.created_at, new.created_by, new.seen_upto = now_ms, entry.actor, now_ms
    else:
        new = replace(new, **{name: getattr(old, name) for name in _KEPT})
    if new == old:
        core.reply(reply, old)
        return
    core.registry.get_or_create(core.batch, new.queue, entry.actor)
    new.changed_at, new.changed_by = now_ms, entry.actor
    book.by_name[new.name] = new
    book.next_at.pop(new.name, None)
    core.batch.writes.append(new)
    has_other_times = any(getattr(old, name) != getattr(new, name) for name in _TIMES if old)
    if has_other_times or (old is not None and not (old.is_enabled and new.is_enabled)):
        schedule_runs.see_upto_now(core, new)  # earlier ticks are not missed
    book.look_at(new)
    _record(core, entry, {} if old is None else _shown(old), new)
    core.reply(reply, new)


def _shown(schedule: Schedule) -> dict[str, Any]:
    values = {name: getattr(schedule, name) for name in _SHOWN}
    return values | {"is_enabled": bool(schedule.is_enabled)}


def _record(core: Broker, entry: AuditEntry, before: dict[str, Any], new: Schedule) -> None:
    """Record which fields changed in the audit log; contents are not stored there."""
    after = _shown(new)
    names = [name for name in after if before.get(name, after) != after[name]]
    sides = ({name: side[name] for name in names if name in side} for side in (before, after))
    if not entry.detail:
        entry.detail = json.dumps(dict(zip(("before", "after"), sides, strict=True)))
    core.record_audit(entry, 1)
