"""Notices about problems that require attention, each with a link to the relevant page."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nlargest
from itertools import chain
from math import inf
from typing import Any, Final, Self

from phpmq_lite.admin import formats, trends
from phpmq_lite.admin.dead_letter_queues import dead_letter_queues_named, has_records
from phpmq_lite.admin.formats import count_of
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.context import Context
from phpmq_lite.admin.pipeline.history_readers import ReaderView, read_readers
from phpmq_lite.admin.queues.view import paused_sides
from phpmq_lite.checks import CHECKS, RECENT_MS, Check, Level, asynchronous_text, problems
from phpmq_lite.envelopes.validation import REASONS
from phpmq_lite.server.status import BrokerStatus, QueueStatus
from phpmq_lite.storage.backend import StoreStatus
from phpmq_lite.storage.disk_space import measure_disk
from phpmq_lite.storage.read.activity import COUNT_LIMIT, ConsumerLoad, RecentActivity
from phpmq_lite.storage.read.schedules import ScheduleFailures, ScheduleReader
from phpmq_lite.storage.search.language import verdict_search
from phpmq_lite.storage.sqlite.standby_lag import StandbyState

EXPIRY_NOTICE_MS: Final = 600_000  # messages that expire within this time cause a notice
NOTICES_MAX: Final = 200
_HELD_LONG_MS: Final = 3_600_000  # used for queues without an acknowledgement timeout
_UNHANDLED: Final = (Check.QUARANTINED, Check.DEAD_LETTERS)  # before others of the same level
Measurement = tuple[Check, float, str]  # a value, and the text of the notice if it is too high


@dataclass(slots=True, frozen=True)
class Notice:
    """A notice about a problem; ``route`` and ``values`` determine the URL of its link."""

    check: Check
    level: Level
    subject: str  # the queue, client or component concerned
    text: str
    route: str
    values: dict[str, str]
    go: str  # text of the link

    @classmethod
    def of(cls, check: Check, level: Level, text: str) -> Self:
        """Return a notice about the broker, whose subject and link the table of checks names."""
        row = CHECKS[check]
        return cls(check, level, row.title, text, row.route, {}, row.link)


@dataclass(slots=True, frozen=True)
class AttentionFacts:
    """The facts behind the notices; mappings are keyed by queue id, and times are in Unix ms."""

    now_ms: int
    oldest_ready_at: Mapping[int, int] = field(default_factory=dict)
    expiring: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # number, earliest expiry
    deaths: Mapping[int, Mapping[str, int]] = field(default_factory=dict)  # counts, keyed by reason
    unread: Mapping[int, int] = field(default_factory=dict)  # expired without ever being dispatched
    held: Sequence[ConsumerLoad] = ()
    growth: Mapping[int, int] = field(default_factory=dict)  # of ready messages in the last 5 min
    # queue_id and client number of consumers that extended a hold, which is expected to be long
    extending: Collection[tuple[int, int | None]] = ()
    refused: Mapping[str, int] = field(default_factory=dict)  # recent refusals, by reason
    schedules: Sequence[ScheduleFailures] = ()  # in the last 24 h
    readers: Sequence[ReaderView] = ()
    disk_share: float = 0.0  # fraction of the disk in use
    wal_bytes: int = 0
    wal_limit_bytes: int = 1 << 62
    damage: Sequence[str] = ()  # damage that the scrub found
    backup_error: str | None = None  # why the most recent backup failed, if it did
    backup_age_ms: int | None = None  # None if no backups are scheduled
    backup_each_ms: int = 0
    standby: StandbyState | None = None  # None without a standby


def find_notices(status: BrokerStatus, facts: AttentionFacts) -> list[Notice]:
    """Return up to ``NOTICES_MAX`` notices, beginning with the most severe."""
    notices = list(_of_broker(status, facts))
    # For each queue, the consumer that has held a message for longest.  Claims have no timeout.
    held = {
        load.queue_id: load
        for load in sorted(facts.held, key=lambda load: -load.since_ms)
        if load.client is not None
    }
    since_ms = facts.now_ms - RECENT_MS
    claimed = {
        load.queue_id for load in facts.held if load.client is None and load.since_ms > since_ms
    }
    records = {queue.dead_letter_queue for queue in status.queues if queue.dead}
    named = dead_letter_queues_named(status.queues)
    for queue in status.queues:
        # Do not format notices beyond the limit; for 10,000 queues, that would take 40 ms.
        is_waiting = has_records(queue.name, named)  # dead letters are expected to wait
        is_consumed = bool(queue.consumers) or queue.queue_id in claimed
        only_bad = len(notices) >= NOTICES_MAX
        notices += _of_queue(queue, facts, is_waiting, is_consumed=is_consumed, only_bad=only_bad)
        if not only_bad and (reasons := facts.deaths.get(queue.queue_id)):
            notices += _deaths(queue, reasons, has_records=queue.dead_letter_queue in records)
        load = held.get(queue.queue_id)
        if load is not None and (queue.queue_id, load.client) not in facts.extending:
            notices += _of_holder(queue, load, facts.now_ms)
    notices.sort(key=lambda notice: (-notice.level.rank, notice.check not in _UNHANDLED))
    return notices[:NOTICES_MAX]


# -- the broker


def _of_broker(status: BrokerStatus, facts: AttentionFacts) -> Iterator[Notice]:
    measurements = chain(
        _measure_broker(status, facts),
        _measure_maintenance(facts),
        measure_store(status.store),
        _measure_clock(status),
    )
    for check, level, text in problems(measurements):
        yield Notice.of(check, level, text)
    if total := sum(facts.refused.values()):
        text = f"{count_of(total, 'message', 'messages')} refused in the last hour: "
        notice = Notice.of(Check.REFUSALS, Level.WARN, text + _by_reason(facts.refused))
        if "paused" in facts.refused:
            values = {"has": "paused"}
            notice = replace(notice, route="queues", values=values, go="Paused queues")
        yield notice
    for failures in facts.schedules:
        times = count_of(failures.count, "run", "runs")
        text = f"{times} failed in the last 24 h, most recently: {failures.detail}"
        notice = Notice.of(Check.SCHEDULES, Level.WARN, text)
        subject = f"Schedule {failures.name}"
        yield replace(notice, subject=subject, values={"name": failures.name})
    for reader in facts.readers:
        for check, level, text in problems(_measure_reader(reader, facts.now_ms)):
            notice = Notice.of(check, level, text)
            yield replace(notice, subject=f"Reader {reader.reader}", values={"tab": "readers"})
    for client in status.clients:
        if client.paused_reason:
            text = f"{client.address} is not being read: {client.paused_reason}"
            notice = Notice.of(Check.READERS, Level.WARN, text)
            yield replace(notice, subject=f"Client {client.client}")


def _measure_broker(status: BrokerStatus, facts: AttentionFacts) -> Iterator[Measurement]:
    yield Check.LAST_ERROR, bool(status.last_error), f"Last error: {status.last_error}"
    text = f"Nothing can be stored: {status.write_problem}"
    yield Check.STORING, bool(status.write_problem), text
    if status.shortage:
        yield Check.SHORTAGE, 1, f"Publishing is stopped: {status.shortage.detail}"
    else:
        text = f"{facts.disk_share:.0%} full; publishing stops when the disk is full"
        yield Check.DISK, facts.disk_share, text
    size, limit = formats.format_size(facts.wal_bytes), formats.format_size(facts.wal_limit_bytes)
    text = f"{size} in use; the limit is {limit}. A reader may be preventing truncation"
    yield Check.WAL, facts.wal_bytes / facts.wal_limit_bytes, text


def _measure_maintenance(facts: AttentionFacts) -> Iterator[Measurement]:
    for text in facts.damage:
        yield Check.DAMAGE, 1, text
    if facts.backup_error is not None:
        yield Check.BACKUP_FAILED, 1, f"The last backup failed: {facts.backup_error}"
    elif facts.backup_age_ms is not None:
        age, interval = _duration(facts.backup_age_ms), _duration(facts.backup_each_ms)
        text = f"The newest backup is {age} old; backups are due every {interval}"
        yield Check.BACKUP_AGE, facts.backup_age_ms / facts.backup_each_ms, text
    if (standby := facts.standby) is not None:
        lag = f"{standby.lag_s:.0f} s, {count_of(standby.lag_messages, 'message', 'messages')}"
        problem = standby.problem or "The target is slow"
        text = f"{problem}; a loss of this machine would lose up to {lag}"
        yield Check.STANDBY, inf if standby.problem else standby.lag_s, text


def _measure_clock(status: BrokerStatus) -> Iterator[Measurement]:
    if status.clock_doubt_ms:
        text = (
            f"The clock was {_duration(status.clock_doubt_ms)} ahead at startup; until an operator "
            "decides whether this is right, no message expires because of the difference"
        )
        yield Check.CLOCK_DOUBT, 1, text
        return
    times = "once" if status.clock_jumps == 1 else f"{status.clock_jumps:,} times"
    way = "forward" if status.clock_jump_ms > 0 else "back"
    way += f" by {formats.format_duration(abs(status.clock_jump_ms))}"
    text = f"Changed {times} since startup, most recently {way}; deadlines are unaffected"
    yield Check.CLOCK_JUMPS, status.clock_jumps, text


def _measure_reader(reader: ReaderView, now_ms: int) -> Iterator[Measurement]:
    unread = count_of(reader.behind, "unread message", "unread messages") + " of the history"
    left = _duration(int((reader.reached_in_s or 0) * 1_000))
    text = f"{unread}; retention begins to remove them in {left}"
    if reader.is_reached:
        text = f"{unread}; retention has removed some of them"
    yield Check.READER_LATE, reader.share_left, text
    if reader.behind:
        silent_ms = now_ms - reader.seen_at
        text = f"Has not reported for {_duration(silent_ms)}, with {unread}"
        yield Check.READER_STOPPED, silent_ms / 1_000, text


def measure_replication(store: StoreStatus) -> Iterator[Measurement]:
    """Measure whether commits have a quorum, whether a replica may fail, and how far each lags."""
    if store.asynchronous is not None:
        yield Check.ASYNCHRONOUS, 1, asynchronous_text(store.asynchronous)
    ready, required = store.replicas_ready, store.replicas_required
    if store.server is None or ready is None or not required:
        return
    requirement = f"{count_of(required, 'replica', 'replicas')} must confirm each commit"
    text = f"{requirement}, and only {ready} can: if one more fails, nothing can be stored"
    if ready < required:
        text = f"No quorum: {requirement}, and {ready or 'none'} can"
    yield Check.QUORUM, ready - required, text
    for replica in store.server.replicas:
        lag_s = replica.lag_s or 0
        yield Check.REPLICA_LAG, lag_s, f"Replica {replica.name} is {lag_s:.1f} s behind"


def measure_store(store: StoreStatus) -> Iterator[Measurement]:
    """Measure a PostgreSQL database, except whether anything can be stored."""
    yield from measure_replication(store)
    if store.problem is not None:
        yield Check.DATABASE_STATE, 1, f"Its state cannot be read: {store.problem}"
    if (server := store.server) is None:
        return
    age_s = server.oldest_transaction_s
    text = f"{server.oldest_transaction}: open for {formats.format_duration(round(age_s * 1_000))}"
    yield Check.TRANSACTION, age_s, f"{text}; until it ends, VACUUM cannot remove old rows"
    text = f"{server.connections} of {server.max_connections} connections are in use"
    share = server.connections / max(1, server.max_connections)
    yield Check.CONNECTIONS, share, f"{text}; a broker may be unable to connect"
    if server.disk_bytes:
        text = f"{formats.format_size(server.disk_free)} free on the server's disk"
        share = server.disk_free / server.disk_bytes
        yield Check.SERVER_DISK, share, f"{text}; when it is full, nothing can be stored"


# -- queues


def _of_queue(
    queue: QueueStatus,
    facts: AttentionFacts,
    is_waiting: bool,
    *,
    is_consumed: bool,
    only_bad: bool,
) -> Iterator[Notice]:
    """Yield notices about a queue; if ``is_waiting`` is True, waiting messages cause none."""
    expires = queue.queue_id in facts.expiring and not is_consumed
    # If expired messages are forwarded or dead-lettered, they are not lost.
    is_losing = expires and queue.settings.on_expire == "history"
    if is_losing:
        count, soonest_ms = facts.expiring[queue.queue_id]
        messages = count_of(count, "message expires", "messages expire")
        first = formats.format_ago(soonest_ms, facts.now_ms)
        text = f"{messages} within 10 minutes without a consumer, the first {first}"
        yield from _notice(queue, Check.EXPIRING, count, text)
    yield from _over_limits(queue, facts)
    if only_bad:
        return
    if queue.ready and not is_consumed and not is_losing and not is_waiting:
        text = f"{count_of(queue.ready, 'ready message', 'ready messages')} and no consumer"
        yield from _notice(queue, Check.CONSUMERS, queue.ready, text)
    growth = 0 if queue.delivery_paused or is_waiting else facts.growth.get(queue.queue_id, 0)
    if is_consumed and growth and growth >= queue.ready / 10:
        text = f"Falls behind: {formats.format_number(growth)} ready messages more than 5 min ago"
        yield from _notice(queue, Check.GROWTH, growth, text, tab="charts")
    if paused := paused_sides(queue):
        text = " and ".join(paused).capitalize()
        yield from _notice(queue, Check.PAUSED, len(paused), text)
    if (unread := facts.unread.get(queue.queue_id)) and not is_waiting:
        text = f"{_at_least(unread)} expired in the last 24 h without ever being dispatched"
        yield from _notice(queue, Check.UNREAD, unread, text, tab="history", outcome="expired")


def _deaths(
    queue: QueueStatus, reasons: Mapping[str, int], *, has_records: bool
) -> Iterator[Notice]:
    refused = {reason: count for reason, count in reasons.items() if reason in REASONS}
    others = {reason: count for reason, count in reasons.items() if reason not in REASONS}
    if refused:
        count, q = sum(refused.values()), str(verdict_search(queue.name))
        text = f"{_at_least(count)} quarantined in the last 24 h: {_by_reason(refused)}"
        [notice] = _notice(queue, Check.QUARANTINED, count, text)
        yield replace(notice, route="messages", values={"q": q})
    if others and has_records:
        count = sum(others.values())
        text = f"{_at_least(count)} dead-lettered in the last 24 h: {_by_reason(others)}"
        yield from _notice(queue, Check.DEAD_LETTERS, count, text, tab="dead")


def _over_limits(queue: QueueStatus, facts: AttentionFacts) -> Iterator[Notice]:
    settings, at_ms = queue.settings, facts.oldest_ready_at.get(queue.queue_id)
    if settings.alert_age_s and at_ms is not None:
        age_ms, limit_ms = facts.now_ms - at_ms, settings.alert_age_s * 1_000
        text = f"The oldest ready message has waited for {_duration(age_ms)}; the limit is "
        yield from _notice(queue, Check.AGE, age_ms / limit_ms, text + _duration(limit_ms))
    if settings.alert_messages and queue.ready > settings.alert_messages:
        text = f"{count_of(queue.ready, 'ready message', 'ready messages')}; the limit is "
        text += formats.format_number(settings.alert_messages)
        yield from _notice(queue, Check.BACKLOG, queue.ready - settings.alert_messages, text)


def _of_holder(queue: QueueStatus, holding: ConsumerLoad, now_ms: int) -> Iterator[Notice]:
    """Yield a notice if a client has held a message for more than half the timeout."""
    timeout_ms = queue.settings.ack_timeout_s * 1_000
    held_ms = now_ms - holding.since_ms
    text = f"Client {holding.client} has held a message for {_duration(held_ms)}"
    if timeout_ms > held_ms:
        text += f"; the message returns in {_duration(timeout_ms - held_ms)}"
    share = held_ms / (timeout_ms / 2 or _HELD_LONG_MS)
    yield from _notice(queue, Check.HELD, share, text, tab="consumers")


# -- texts


def _notice(
    queue: QueueStatus, check: Check, value: float, text: str, **values: str
) -> Iterator[Notice]:
    """Yield the notice of a check on a queue, whose link leads to the queue's page."""
    for _, level, _ in problems([(check, value, text)]):
        values = {"q": queue.name} | values
        yield Notice(check, level, queue.name, text, "queue", values, CHECKS[check].link)


def _at_least(count: int) -> str:
    prefix = "At least " if count >= COUNT_LIMIT else ""
    return prefix + formats.format_number(count)


def _by_reason(reasons: Mapping[str, int]) -> str:
    ordered = sorted(reasons.items(), key=lambda item: -item[1])
    return ", ".join(f"{reason} {formats.format_number(count)}" for reason, count in ordered)


def _duration(ms: int) -> str:
    return formats.format_duration(ms, with_seconds=False)


async def read_notices(call: Call, oldest_ready_at: dict[int, int]) -> list[Notice]:
    context, status, now_ms = call.context, call.status, call.now_ms
    activity, since_ms = RecentActivity(context.readers), now_ms - RECENT_MS
    disk = await measure_disk(context.database)
    return find_notices(
        status,
        AttentionFacts(
            now_ms,
            oldest_ready_at=oldest_ready_at,
            expiring=await context.reader.expiring(now_ms + EXPIRY_NOTICE_MS),
            deaths=await activity.deaths(since_ms),
            unread=await activity.unread_expiries(since_ms),
            held=await activity.held() if any(queue.dispatched for queue in status.queues) else (),
            extending=context.broker.extending(),
            growth=_growth(context, status, now_ms // 1_000),
            refused=context.rollups.recently_refused(status.refused),
            schedules=[
                failures
                for failures in await ScheduleReader(context.readers).failures(since_ms)
                if call.may_use(failures.queue)
            ],
            readers=await read_readers(context),
            disk_share=disk.used_share if status.store.has_file else 0.0,
            wal_bytes=disk.files["wal"],
            wal_limit_bytes=context.settings.storage.wal_bytes,
            **_maintenance_facts(context, now_ms),
        ),
    )


def _growth(context: Context, status: BrokerStatus, now_s: int) -> dict[int, int]:
    """Return how much the fullest queues have grown, keyed by queue id."""
    beats = context.rollups.uptime()
    growth = CHECKS[Check.GROWTH].notice
    behind = (queue for queue in status.queues if growth.level(queue.ready) is not Level.OK)
    fullest = nlargest(NOTICES_MAX, behind, key=lambda queue: queue.ready)
    ids = [queue.queue_id for queue in fullest]
    return {key: trends.growth(context.rollups.points(key), beats, now_s) for key in ids}


def _maintenance_facts(context: Context, now_ms: int) -> dict[str, Any]:
    if context.maintenance is None:
        return {}
    backups, standby = context.maintenance.backups, context.maintenance.standby
    newest = backups.last_manifest
    return {
        "standby": standby.state if standby else None,
        "damage": context.maintenance.scrub.state.damage,
        "backup_error": backups.error,
        "backup_age_ms": now_ms - newest.made_at if newest and backups.interval_s else None,
        "backup_each_ms": int(backups.interval_s * 1_000),
    }
