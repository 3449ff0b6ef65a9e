"""Notices about problems that require attention, each with a link to the relevant page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Any, Final

from phpmq_lite.admin import formats, trends
from phpmq_lite.admin.context import Context
from phpmq_lite.admin.dead_letter_queues import dead_letter_queues_named, has_records
from phpmq_lite.admin.formats import count_of
from phpmq_lite.admin.queues.listing import paused_sides, retry_hint
from phpmq_lite.admin.system import view
from phpmq_lite.envelopes.validation import REASONS
from phpmq_lite.server.status import BrokerStatus, QueueStatus
from phpmq_lite.storage.disk_space import measure_disk
from phpmq_lite.storage.read.activity import COUNT_LIMIT, ConsumerLoad, RecentActivity
from phpmq_lite.storage.search.language import verdict_search
from phpmq_lite.storage.sqlite.standby.lag import StandbyState

EXPIRY_NOTICE_MS: Final = 600_000  # messages that expire within this time cause a notice
LATELY_MS: Final = 86_400_000  # recent dead letters and expiries are counted over this period
NOTICES_MAX: Final = 200
_HELD_LONG_MS: Final = 3_600_000  # used for queues without an acknowledgement timeout
BEHIND_MIN: Final = 100  # a smaller growth of ready messages causes no notice
_LOST: Final = ("Envelopes", "Dead letters")  # link texts in notices about unhandled messages
STANDBY_LAG_S: Final = 60.0  # a longer lag causes a notice
_DISK_WARN: Final = 0.85
_DISK_BAD: Final = 0.93


@dataclass(slots=True, frozen=True)
class Notice:
    """A notice about a problem; ``route`` and ``values`` determine the URL of its link."""

    level: str  # "bad" or "warn"
    who: str  # the queue, client or component concerned
    text: str
    route: str
    values: dict[str, str]
    go: str  # text of the link


@dataclass(slots=True, frozen=True)
class AttentionFacts:
    """The facts behind the notices; mappings are keyed by queue id, and times are in Unix ms."""

    now_ms: int
    ages: Mapping[int, int] = field(default_factory=dict)  # publish time of the first ready message
    expiring: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # number, earliest expiry
    deaths: Mapping[int, Mapping[str, int]] = field(default_factory=dict)  # counts, keyed by reason
    unread: Mapping[int, int] = field(default_factory=dict)  # expired without ever being dispatched
    held: Sequence[ConsumerLoad] = ()
    growth: Mapping[int, int] = field(default_factory=dict)  # of ready messages in the last 5 min
    refused: Mapping[str, int] = field(default_factory=dict)  # recent refusals, by reason
    disk_share: float = 0.0  # fraction of the disk in use
    wal_bytes: int = 0
    wal_limit_bytes: int = 1 << 62
    damage: Sequence[str] = ()  # damage that the scrub found
    backup_error: str | None = None  # why the most recent backup failed, if it did
    backup_age_ms: int | None = None  # None if no backups are scheduled
    backup_each_ms: int = 0
    standby: StandbyState | None = None  # None without a standby


def find_notices(status: BrokerStatus, seen: AttentionFacts) -> list[Notice]:
    """Return up to ``NOTICES_MAX`` notices, beginning with the most severe."""
    found = [*_of_broker(status, seen)]
    for client in status.clients:
        if client.paused_reason:
            who = f"Client {client.client}"
            text = f"{client.address} is not being read: {client.paused_reason}"
            found.append(Notice("warn", who, text, "clients", {}, "See clients"))
    # For each queue, the consumer that has held a message for longest.  Claims have no timeout.
    held = {
        one.queue_id: one
        for one in sorted(seen.held, key=lambda one: -one.since_ms)
        if one.client is not None
    }
    since_ms = seen.now_ms - LATELY_MS
    claimed = {o.queue_id for o in seen.held if o.client is None and o.since_ms > since_ms}
    records = {queue.dead_letter_queue for queue in status.queues if queue.dead}
    named = dead_letter_queues_named(status.queues)
    for queue in status.queues:
        # Do not format notices beyond the limit; for 10,000 queues, that would take 40 ms.
        # Dead letters and retries are expected to wait.
        is_waiting = has_records(queue.name, named) or queue.is_retry_queue
        is_consumed = bool(queue.consumers) or queue.queue_id in claimed
        only_bad = len(found) >= NOTICES_MAX
        found += _of_queue(queue, seen, is_waiting, is_consumed=is_consumed, only_bad=only_bad)
        if not only_bad and (reasons := seen.deaths.get(queue.queue_id)):
            found += _deaths(queue, reasons, has_records=queue.dead_letter_queue in records)
        if queue.queue_id in held:
            found += _of_holder(queue, held[queue.queue_id], seen.now_ms)
    # At each level, notices about messages that were not handled come before all others.
    found.sort(key=lambda notice: (notice.level, notice.go not in _LOST))
    return found[:NOTICES_MAX]


# -- the broker


def _of_broker(status: BrokerStatus, seen: AttentionFacts) -> Iterator[Notice]:
    if status.last_error:
        yield Notice("bad", "Broker", f"Last error: {status.last_error}", "system", {}, "System")
    if status.write_problem:
        text = f"Nothing can be stored: {status.write_problem}"
        yield Notice("bad", "Storage", text, "system", {}, "Storage")
    if status.shortage:
        text = f"Publishing is stopped: {status.shortage.detail}"
        yield Notice("bad", "Publishing", text, "system", {}, "Storage")
    elif seen.disk_share >= _DISK_WARN:
        level = "bad" if seen.disk_share >= _DISK_BAD else "warn"
        text = f"{seen.disk_share:.0%} full; publishing stops when the disk is full"
        yield Notice(level, "Disk", text, "system", {}, "Storage")
    if seen.wal_bytes > 2 * seen.wal_limit_bytes:
        size, limit = formats.format_size(seen.wal_bytes), formats.format_size(seen.wal_limit_bytes)
        text = f"{size} in use; the limit is {limit}. A reader may be preventing truncation"
        yield Notice("warn", "Write-ahead log", text, "system", {}, "Storage")
    yield from _maintenance_notices(seen)
    for one in view.store_problems(status.store):
        yield Notice(one.level, one.name, one.text, "system", {}, "Storage")
    standby = seen.standby
    if standby is not None and (standby.problem or standby.lag_s > STANDBY_LAG_S):
        lag = f"{standby.lag_s:.0f} s, {count_of(standby.lag_messages, 'message', 'messages')}"
        problem = standby.problem or "The target is slow"
        text = f"{problem}; a loss of this machine would lose up to {lag}"
        yield Notice("bad", "Standby", text, "system", {}, "System")
    if status.clock_doubt_ms:
        text = (
            f"The clock was {_duration(status.clock_doubt_ms)} ahead at startup; until an operator "
            "decides whether this is right, no message expires because of the difference"
        )
        yield Notice("bad", "Clock", text, "system", {}, "Decide")
    elif status.clock_jumps:
        times = "once" if status.clock_jumps == 1 else f"{status.clock_jumps:,} times"
        way = "forward" if status.clock_jump_ms > 0 else "back"
        way += f" by {formats.format_duration(abs(status.clock_jump_ms))}"
        text = f"Changed {times} since startup, most recently {way}; deadlines are unaffected"
        yield Notice("warn", "Clock", text, "system", {}, "System")
    if total := sum(seen.refused.values()):
        text = f"{count_of(total, 'message', 'messages')} refused in the last hour: "
        text += _by_reason(seen.refused)
        if "paused" in seen.refused:
            yield Notice("warn", "Publishers", text, "queues", {"has": "paused"}, "Paused queues")
        else:
            yield Notice("warn", "Publishers", text, "system", {}, "System")


def _maintenance_notices(seen: AttentionFacts) -> Iterator[Notice]:
    for text in seen.damage:
        yield Notice("bad", "Damage", text, "backups", {}, "Scrub")
    if seen.backup_error is not None:
        text = f"The last backup failed: {seen.backup_error}"
        yield Notice("bad", "Backup", text, "backups", {}, "Backups")
    elif seen.backup_age_ms is not None and seen.backup_age_ms > 2 * seen.backup_each_ms:
        age, each = _duration(seen.backup_age_ms), _duration(seen.backup_each_ms)
        text = f"The newest backup is {age} old; backups are due every {each}"
        yield Notice("warn", "Backup", text, "backups", {}, "Backups")


# -- queues


def _of_queue(
    queue: QueueStatus, seen: AttentionFacts, is_waiting: bool, *, is_consumed: bool, only_bad: bool
) -> Iterator[Notice]:
    """Yield notices about a queue; if ``is_waiting`` is True, waiting messages cause none."""
    expires = queue.queue_id in seen.expiring and not is_consumed
    # If expired messages are forwarded or dead-lettered, they are not lost.
    is_losing = expires and queue.settings.on_expire == "history"
    if is_losing:
        count, soonest_ms = seen.expiring[queue.queue_id]
        messages = count_of(count, "message expires", "messages expire")
        first = formats.format_ago(soonest_ms, seen.now_ms)
        text = f"{messages} within 10 minutes without a consumer, the first {first}"
        yield _notice(queue, "bad", text, "See messages")
    yield from _over_limits(queue, seen)
    if only_bad:
        return
    if queue.ready and not is_consumed and not is_losing and not is_waiting:
        text = f"{count_of(queue.ready, 'ready message', 'ready messages')} and no consumer"
        yield _notice(queue, "warn", text, "See messages")
    grown = 0 if queue.delivery_paused or is_waiting else seen.growth.get(queue.queue_id, 0)
    if is_consumed and grown >= max(BEHIND_MIN, queue.ready / 10):
        text = f"Falls behind: {formats.format_number(grown)} ready messages more than 5 min ago"
        yield _notice(queue, "warn", text, "Charts", tab="charts")
    if paused := paused_sides(queue):
        yield _notice(queue, "warn", " and ".join(paused).capitalize(), "Resume")
    if hint := retry_hint(queue):
        yield _notice(queue, "warn", hint, "Consumers", tab="consumers")
    if (unread := seen.unread.get(queue.queue_id)) and not is_waiting:
        text = f"{_at_least(unread)} expired in the last 24 h without ever being dispatched"
        yield _notice(queue, "warn", text, "History", tab="history", outcome="expired")


def _deaths(
    queue: QueueStatus, reasons: Mapping[str, int], *, has_records: bool
) -> Iterator[Notice]:
    refused = {reason: count for reason, count in reasons.items() if reason in REASONS}
    others = {reason: count for reason, count in reasons.items() if reason not in REASONS}
    if refused:
        count, q = _at_least(sum(refused.values())), str(verdict_search(queue.name))
        text = f"{count} quarantined in the last 24 h: {_by_reason(refused)}"
        yield Notice("warn", queue.name, text, "messages", {"q": q}, "Envelopes")
    if others and has_records:
        count = _at_least(sum(others.values()))
        text = f"{count} dead-lettered in the last 24 h: {_by_reason(others)}"
        yield _notice(queue, "warn", text, "Dead letters", tab="dead")


def _over_limits(queue: QueueStatus, seen: AttentionFacts) -> Iterator[Notice]:
    settings = queue.settings
    at_ms = seen.ages.get(queue.queue_id)
    if settings.alert_age_s and at_ms is not None:
        age_ms, limit_ms = seen.now_ms - at_ms, settings.alert_age_s * 1_000
        if age_ms > limit_ms:
            text = f"The oldest ready message has waited for {_duration(age_ms)}; the limit is "
            yield _notice(queue, "bad", text + _duration(limit_ms), "See messages")
    if settings.alert_messages and queue.ready > settings.alert_messages:
        text = f"{count_of(queue.ready, 'ready message', 'ready messages')}; the limit is "
        text += formats.format_number(settings.alert_messages)
        yield _notice(queue, "bad", text, "See messages")


def _of_holder(queue: QueueStatus, holding: ConsumerLoad, now_ms: int) -> Iterator[Notice]:
    """Yield a notice if a client has held a message for more than half the timeout."""
    timeout_ms = queue.settings.ack_timeout_s * 1_000
    held_ms = now_ms - holding.since_ms
    if held_ms <= (timeout_ms / 2 or _HELD_LONG_MS):
        return
    text = f"Client {holding.client} has held a message for {_duration(held_ms)}"
    if timeout_ms > held_ms:
        text += f"; the message returns in {_duration(timeout_ms - held_ms)}"
    yield _notice(queue, "warn", text, "Consumers", tab="consumers")


# -- texts


def _notice(queue: QueueStatus, level: str, text: str, go: str, **values: str) -> Notice:
    return Notice(level, queue.name, text, "queue", {"q": queue.name} | values, go)


def _at_least(count: int) -> str:
    prefix = "At least " if count >= COUNT_LIMIT else ""
    return prefix + formats.format_number(count)


def _by_reason(reasons: Mapping[str, int]) -> str:
    ordered = sorted(reasons.items(), key=lambda item: -item[1])
    return ", ".join(f"{reason} {formats.format_number(count)}" for reason, count in ordered)


def _duration(ms: int) -> str:
    return formats.format_duration(ms, with_seconds=False)


async def read_notices(
    context: Context, status: BrokerStatus, ages: dict[int, int]
) -> list[Notice]:
    """Read the facts that are not in ``status``, and return the notices."""
    now_ms, signs = context.now_ms(), RecentActivity(context.readers)
    since_ms = now_ms - LATELY_MS
    disk = await measure_disk(context.database)
    return find_notices(
        status,
        AttentionFacts(
            now_ms,
            ages=ages,
            expiring=await context.reader.expiring(now_ms + EXPIRY_NOTICE_MS),
            deaths=await signs.deaths(since_ms),
            unread=await signs.unread_expiries(since_ms),
            held=await signs.held() if any(queue.dispatched for queue in status.queues) else (),
            growth=_growth(context, status, now_ms // 1_000),
            refused=context.rollups.recently_refused(status.refused),
            disk_share=disk.used_share if status.store.has_file else 0.0,
            wal_bytes=disk.files["wal"],
            wal_limit_bytes=context.settings.storage.wal_bytes,
            **_maintenance_facts(context, now_ms),
        ),
    )


def _growth(context: Context, status: BrokerStatus, now_s: int) -> dict[int, int]:
    beats = context.rollups.uptime()
    behind = (queue for queue in status.queues if queue.ready >= BEHIND_MIN)
    some = nlargest(NOTICES_MAX, behind, key=lambda queue: queue.ready)
    ids = [queue.queue_id for queue in some]
    return {key: trends.growth(context.rollups.points(key), beats, now_s) for key in ids}


def _maintenance_facts(context: Context, now_ms: int) -> dict[str, Any]:
    if context.maintenance is None:
        return {}
    made, standby = context.maintenance.backups, context.maintenance.standby
    newest = made.last_manifest
    return {
        "standby": standby.state if standby else None,
        "damage": context.maintenance.scrub.state.damage,
        "backup_error": made.error,
        "backup_age_ms": now_ms - newest.made_at if newest and made.interval_s else None,
        "backup_each_ms": int(made.interval_s * 1_000),
    }
