"""Schedules in memory, and what the ticks of each one cause.

``run_due`` is called at the start of each batch.  The message of a tick, the row of its run and the
time up to which ticks are decided are stored in the batch's transaction, so each tick has exactly
one message, whatever happens in between.  Times are those of the raw wall clock, in Unix ms.
"""

from typing import Any, Final

from phpmq_lite import schedules
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.operator import publishing
from phpmq_lite.broker.operator.publishing import NewMessage
from phpmq_lite.errors import RefusedError
from phpmq_lite.frame_options import PublishOptions
from phpmq_lite.model import AuditEntry, Schedule
from phpmq_lite.writes import RanTicks, ScheduleRun, SetScheduleSeen, TrimScheduleRuns

_TICKS_PER_BATCH: Final = 20  # a tick takes up to 1 ms


def run_due(core: Broker) -> None:
    """Decide on the ticks that are due; the rest of many follows in the next batches."""
    if core.is_clock_doubtful or core.is_draining:
        return
    book, now_ms = core.schedules, core.now.wall_ms
    room = _TICKS_PER_BATCH
    for name in [name for name, at_ms in book.next_at.items() if at_ms <= now_ms]:
        schedule = book.by_name[name]
        if schedule.seen_upto > now_ms:
            see_upto_now(core, schedule)
            continue
        room -= max(1, _decide_ticks(core, schedule, room))
        if room <= 0:
            break
    book.note_next()


def see_upto_now(core: Broker, schedule: Schedule) -> None:
    """Leave the ticks up to now alone, and look up which of the later ones have run.

    There are such if the clock was set back.
    """
    book = core.schedules
    book.next_at.pop(schedule.name, None)  # until they are known
    _set_seen(core, schedule, core.now.wall_ms)

    def resume(rows: list[Any]) -> None:
        if (current := book.by_name.get(schedule.name)) is not None:
            book.ran[current.schedule_id] = {tick_ms for (tick_ms,) in rows}
            book.look_at(current)

    core.batch.queries.append((RanTicks(schedule.schedule_id, schedule.seen_upto), resume))


def _decide_ticks(core: Broker, schedule: Schedule, room: int) -> int:
    """Skip the ticks of a schedule that are due, or run at most ``room``; return how many."""
    book, now_ms = core.schedules, core.now.wall_ms
    ran = book.ran.get(schedule.schedule_id, set())
    due = schedules.due_ticks(schedule, now_ms, ran)
    if due.skipped:
        detail = schedules.describe_skipped(schedule, due)
        _record(core, schedule, due.skipped[-1], "skipped", detail)
        _set_seen(core, schedule, due.skipped[-1])
    for tick_ms in due.run[:room]:
        if _run(core, schedule, tick_ms) is None:
            return _TICKS_PER_BATCH  # its content is validated in the next batch
        _set_seen(core, schedule, tick_ms)
    if len(due.run) > room:
        return room  # the others run in the next batches
    if due.skipped or due.run:
        _set_seen(core, schedule, now_ms)
        before_ms = now_ms - schedules.KEPT_MS
        core.batch.writes.append(
            TrimScheduleRuns(schedule.schedule_id, before_ms, schedules.KEPT_RUNS)
        )
    book.ran[schedule.schedule_id] = {at_ms for at_ms in ran if at_ms > schedule.seen_upto}
    book.find_next(schedule, now_ms)
    return len(due.skipped) + len(due.run)


def run_on_request(
    core: Broker, schedule: Schedule, entry: AuditEntry
) -> str | RefusedError | None:
    """Publish the message of a schedule now; return as ``_run``.

    Its time is not that of a tick, which would be a whole second.
    """
    tick_ms, ran = core.now.wall_ms, core.schedules.ran.setdefault(schedule.schedule_id, set())
    while tick_ms % 1_000 == 0 or tick_ms in ran:
        tick_ms += 1
    ran.add(tick_ms)
    return _run(core, schedule, tick_ms, entry.actor)


def _run(
    core: Broker, schedule: Schedule, tick_ms: int, run_by: str | None = None
) -> str | RefusedError | None:
    """Publish the message of a tick, and store what happened.

    Return the message's id, why it was refused, or None if it must wait for the next batch.
    """
    entry = AuditEntry(f"schedule {schedule.name}", "schedule", "broker", "schedule.tick")
    options = PublishOptions(priority=schedule.priority, group=schedule.group)
    message = NewMessage(schedules.fill(schedule, tick_ms), schedule.ttl_s, options)
    try:
        stored = publishing.publish_at_once(core, entry, schedule.queue, message)
    except RefusedError as error:
        _record(core, schedule, tick_ms, "failed", str(error), None, run_by)
        return error
    if stored is None:
        return None
    message_id = stored.message_id.decode()
    _record(core, schedule, tick_ms, "published", "", message_id, run_by)
    return message_id


def _record(
    core: Broker,
    schedule: Schedule,
    tick_ms: int,
    outcome: str,
    detail: str,
    message_id: str | None = None,
    run_by: str | None = None,
) -> None:
    """Store what happened to a tick, and count it."""
    at_ms, schedule_id = core.now.wall_ms, schedule.schedule_id
    core.schedules.counts[outcome] += 1
    core.batch.writes.append(
        ScheduleRun(schedule_id, tick_ms, at_ms, outcome, detail, message_id, run_by)
    )


def _set_seen(core: Broker, schedule: Schedule, seen_upto: int) -> None:
    schedule.seen_upto = seen_upto
    core.batch.writes.append(SetScheduleSeen(seen_upto, schedule.schedule_id))
