"""Prometheus metrics of the broker (``docs/reference/metrics.md``)."""

import asyncio
import platform
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from phpmq_lite import histogram, installation
from phpmq_lite.admin.auth.permissions import may_use
from phpmq_lite.admin.base.context import Context, context_of
from phpmq_lite.admin.base.identity import identity_of
from phpmq_lite.admin.monitoring import limits
from phpmq_lite.admin.monitoring.http_counters import BOUNDS_S, HttpCounters
from phpmq_lite.admin.monitoring.limits import Limit
from phpmq_lite.admin.monitoring.metric_labels import OTHER, QueueSeries
from phpmq_lite.envelopes.verdict import REASONS
from phpmq_lite.errors import StorageError
from phpmq_lite.server.counters import BATCH_BOUNDS, COMMIT_BOUNDS_S
from phpmq_lite.server.status import BrokerStatus
from phpmq_lite.storage.disk_space import DATABASE_FULL, DISK_FULL, DISK_LOW, measure_disk
from phpmq_lite.storage.read.measures import measure_database

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SIDES: Final = {"delivery": "delivery_paused", "publishing": "publishing_paused"}

# Bounds of wait and hold, in ms: edges of the histogram's octaves, so the sums are exact.
SPANS_MS: Final = tuple(1 << power for power in range(0, 28, 2))

_SOURCES: Final = ("http", "ui", "cli")  # of published; the rest came by TCP
_COUNTERS: Final = {  # key in totals -> family, what happened
    "deduplicated": ("publishes_deduplicated", "Publishes whose key was stored before"),
    "dispatched": ("messages_dispatched", "Messages given to consumers"),
    "redelivered": ("messages_redelivered", "Dispatches of a message dispatched before"),
    "acked": ("messages_acked", "Messages acknowledged"),
    "forwarded": ("messages_forwarded", "Messages moved when their time ran out"),
    "returned": ("messages_returned", "Messages put back to their place"),
    "deleted": ("messages_deleted", "Messages deleted or purged"),
    "restored": ("messages_restored", "Deleted messages stored again"),
}
_GAUGES: Final = {  # key in the gauges -> family, what it is
    "dead": ("queue_dead_letters", "Dead-letter records"),
    "bytes": ("queue_bytes", "Bytes of the bodies alive"),
    "consumers": ("queue_consumers", "Consumers"),
    "credit": ("queue_credit", "Free credit of all consumers"),
}
_REFUSALS: Final = {  # reason in the core -> label
    "paused": "paused",
    "queue full: messages": "queue_full",
    "queue full: bytes": "queue_full",
    "too many queues": "too_many_queues",
    "connection ended": "connection_ended",
    DISK_FULL[1]: DISK_FULL[0],
    DISK_LOW[1]: DISK_LOW[0],
    DATABASE_FULL[1]: DATABASE_FULL[0],
}
# Shown with 0 too: the first value of a series is no increase to Prometheus.
_KNOWN_DEATHS: Final = ("client", "crc", "expired", "max_deliveries", "not_forwarded")
_KNOWN_REFUSALS: Final = ("database_full", "disk_full", "draining", "paused", "too_large")


@dataclass(slots=True, frozen=True)
class MetricReadings:
    """What a scrape shows beside the queues; None stands for what could not be read."""

    status: BrokerStatus  # its queues are not looked at
    http: HttpCounters
    version: str
    now_ms: int
    files: Mapping[str, int] | None = None  # bytes, by file
    disk_free: int | None = None
    history_rows: int | None = None
    history_offset: int | None = None
    removed: int | None = None
    streams: int = 0
    exports: int = 0  # that run
    export_ends: Mapping[str, int] = field(default_factory=dict)  # those that ran, by their end
    login_failures: int = 0
    limits: Sequence[Limit] = ()
    backup_at: int = 0  # Unix ms; 0: no backup yet
    backup_failed: bool = False  # the last one
    scrub_at: int = 0  # Unix ms: end of the last look at all bodies; 0: none yet
    damage: int = 0  # bodies and places in the structure that are known to be damaged


async def render_metrics(readings: MetricReadings, groups: Sequence[QueueSeries]) -> bytes:
    """Give all metrics as text, family by family, letting the loop go on in between."""
    parts = []
    for family in metric_families(readings, groups):
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_One(family))
        parts.append(generate_latest(registry))
        await asyncio.sleep(0)
    return b"".join(parts)


class _One(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def metric_families(readings: MetricReadings, groups: Sequence[QueueSeries]) -> Iterator[Metric]:
    """Yield all families."""
    yield from _process(readings)
    yield CounterMetricFamily(
        "phpmq_clock_jumps", "Times the clock was set", value=readings.status.clock_jumps
    )
    yield from _messages(groups)
    yield from _queues(groups, readings.now_ms)
    yield from _histograms(groups)
    yield from _peers(readings.status)
    yield from _storage(readings)
    yield from _http(readings)
    yield from _limits(readings.limits)


# -- the process and its storage


def _process(readings: MetricReadings) -> Iterator[Metric]:
    status = readings.status
    info = InfoMetricFamily("phpmq_build", "What runs")
    info.add_metric([], {
        "version": readings.version,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "build": installation.kind(),
    })  # fmt: skip
    yield info
    for name, text, value in (
        ("phpmq_start_time_seconds", "Unix time of the start", status.started_at / 1_000),
        ("phpmq_event_loop_lag_seconds", "How late the loop is", status.loop_lag_ms / 1_000),
        (
            "phpmq_clock_doubt_seconds",
            "Time away that somebody has to decide about; 0: none",
            status.clock_doubt_ms / 1_000,
        ),
        ("phpmq_inbox_commands", "Commands that wait for a batch", status.inbox),
        ("phpmq_held_messages", "Messages that consumers hold", status.held),
        ("phpmq_held_bytes", "Bytes of their bodies", status.held_bytes),
        ("phpmq_window_messages", "Ready messages in memory", status.window_messages),
        ("phpmq_body_cache_bytes", "Bodies in memory", status.body_cache_bytes),
        ("phpmq_ready", "1: takes messages", status.is_ready and not status.is_draining),
    ):
        yield GaugeMetricFamily(name, text, value=value)


def _storage(readings: MetricReadings) -> Iterator[Metric]:
    status = readings.status
    yield _histogram("phpmq_commit_seconds", "Storing one batch, fsync included",
                     COMMIT_BOUNDS_S, status.commit_counts, status.commit_s_sum)  # fmt: skip
    yield _histogram("phpmq_commit_batch_size", "Messages born, dispatched or settled at once",
                     BATCH_BOUNDS, status.batch_counts, status.batch_sum)  # fmt: skip
    if readings.files is not None:
        files = GaugeMetricFamily("phpmq_db_bytes", "Files of the database", labels=["file"])
        for name, size in readings.files.items():
            files.add_metric([name], size)
        yield files
    for name, text, value in (
        ("phpmq_disk_free_bytes", "Free room beside the database", readings.disk_free),
        ("phpmq_publishing_stopped", "1: no room, publishes are refused", bool(status.shortage)),
        ("phpmq_storing_stopped", "1: nothing can be stored now", bool(status.trouble)),
        ("phpmq_ballast", "1: there is a reserve for a full disk", status.has_ballast),
        ("phpmq_history_rows", "Settled messages that are kept", readings.history_rows),
        ("phpmq_history_offset", "Number of the newest of them", readings.history_offset),
        (
            "phpmq_backup_last_success_timestamp_seconds",
            "Unix time; 0: no backup yet",
            readings.backup_at / 1_000,
        ),
        ("phpmq_backup_failed", "1: the last backup failed", readings.backup_failed),
        (
            "phpmq_scrub_last_success_timestamp_seconds",
            "Unix time; 0: not yet",
            readings.scrub_at / 1_000,
        ),
        ("phpmq_damage_found", "Damaged bodies, and faults of the structure", readings.damage),
    ):
        if value is not None:
            yield GaugeMetricFamily(name, text, value=value)
    if readings.removed is not None:
        yield CounterMetricFamily(
            "phpmq_retention_removed",
            "Settled messages that retention took",
            value=readings.removed,
        )


# -- by queue


def _messages(groups: Sequence[QueueSeries]) -> Iterator[Metric]:
    """What happened to messages."""
    published = _counter("messages_published", "Messages stored", "queue", "source")
    requeued = _counter("messages_requeued", "Messages put at the end of their queue",
                        "queue", "by")  # fmt: skip
    expired = _counter("messages_expired", "Messages whose time ran out", "queue", "dispatched")
    dead = _counter("messages_dead", "Messages that became dead letters", "queue", "reason")
    quarantined = _counter(
        "messages_quarantined", "Of the dead: for the verdict of their envelope", "queue", "reason"
    )
    for group in groups:
        name, counts = group.label, group.counts
        others = {source: counts[f"published_{source}"] for source in _SOURCES}
        published.add_metric([name, "tcp"], counts["published"] - sum(others.values()))
        for source, count in others.items():
            published.add_metric([name, source], count)
        by_operator = counts["requeued_operator"]
        requeued.add_metric([name, "client"], counts["requeued"] - by_operator)
        requeued.add_metric([name, "operator"], by_operator)
        never = counts["expired_never"]
        expired.add_metric([name, "yes"], counts["expired"] - never)
        expired.add_metric([name, "never"], never)
        died = {key.removeprefix("dead ") for key in counts if key.startswith("dead ")}
        for reason in sorted(died.union(_KNOWN_DEATHS)):
            dead.add_metric([name, reason], counts[f"dead {reason}"])
        for reason in REASONS:
            if count := counts[f"dead {reason}"]:
                quarantined.add_metric([name, reason], count)
    yield from (published, requeued, expired, dead, quarantined)
    for key, (family, text) in _COUNTERS.items():
        counter = _counter(family, text, "queue")
        for group in groups:
            counter.add_metric([group.label], group.counts[key])
        yield counter


def _queues(groups: Sequence[QueueSeries], now_ms: int) -> Iterator[Metric]:
    """How the queues are now; a queue that is gone has nothing here."""
    alive = [group for group in groups if group.is_alive]
    messages = _gauge("queue_messages", "Messages alive", "queue", "state")
    paused = _gauge("queue_paused", "Queues paused on this side", "queue", "side")
    age = _gauge("queue_oldest_deliverable_age_seconds", "Age of the first ready message", "queue")
    buried = _gauge("queue_for_dead_letters", "1: a dead-letter queue; no others", "queue")
    for group in alive:
        if group.gauges["is_dead_letter_queue"] and group.label != OTHER:  # there are all kinds
            buried.add_metric([group.label], 1)
        for state in ("ready", "dispatched"):
            messages.add_metric([group.label, state], group.gauges[state])
        for side, key in SIDES.items():
            paused.add_metric([group.label, side], group.gauges[key])
        if group.oldest_at is not None:
            age.add_metric([group.label], max(0, now_ms - group.oldest_at) / 1_000)
    yield from (messages, paused, age, buried)
    for key, (family, text) in _GAUGES.items():
        gauge = _gauge(family, text, "queue")
        for group in alive:
            gauge.add_metric([group.label], group.gauges[key])
        yield gauge


def _histograms(groups: Sequence[QueueSeries]) -> Iterator[Metric]:
    for kind, text, of in (
        ("wait", "From publish to the first dispatch", attrgetter("wait")),
        ("hold", "From a dispatch to the settlement", attrgetter("hold")),
    ):
        family = HistogramMetricFamily(f"phpmq_{kind}_seconds", text, labels=["queue"])
        for group in groups:
            counts = of(group)
            sums = [0, *accumulate(counts)]
            if not sums[-1]:
                continue  # nothing was measured: 200 queues of empty lines help nobody
            rows = [(f"{at / 1_000:g}", float(sums[_below(at)])) for at in SPANS_MS]
            # The sum is not known: each counts with the upper edge of its bucket.
            total_s = sum(n * histogram.upper_ms(i) for i, n in enumerate(counts) if n) / 1_000
            family.add_metric([group.label], [*rows, ("+Inf", float(sums[-1]))], total_s)
        yield family


@cache
def _below(at_ms: int) -> int:
    """Return how many buckets lie whole below ``at_ms``."""
    return sum(histogram.upper_ms(index) < at_ms for index in range(histogram.BUCKETS))


# -- peers and people


def _peers(status: BrokerStatus) -> Iterator[Metric]:
    yield GaugeMetricFamily("phpmq_clients", "Connections", value=len(status.clients))
    yield CounterMetricFamily(
        "phpmq_clients_opened", "Connections taken", value=status.clients_opened
    )
    network = _counter("network_bytes", "Bytes on PHPMQ connections", "direction")
    network.add_metric(["in"], status.bytes_in)
    network.add_metric(["out"], status.bytes_out)
    yield network
    paused = Counter(
        reason
        for client in status.clients
        for reason in (client.paused_reason or "").split(", ")
        if reason
    )
    yield _by(_gauge("readers_paused", "Connections not read", "reason"), paused)
    refused = Counter(dict.fromkeys(_KNOWN_REFUSALS, 0))
    for reason, count in (status.refused or {}).items():
        refused[_REFUSALS.get(reason, reason.replace(" ", "_"))] += count
    closed: Counter[str] = Counter()
    for reason, count in (status.closed or {}).items():
        closed[reason.partition(":")[0]] += count
    for family, text, name, counts in (
        ("clients_closed", "Connections closed", "reason", closed),
        ("protocol_errors", "Connections that broke the grammar", "code", status.protocol_errors),
        ("acks_ignored", "Commands that changed nothing", "reason", status.acks_ignored),
        ("publishes_refused", "Publishes refused", "reason", refused),
        ("audit_rows", "Rows written to the audit", "action", status.audited),
    ):
        yield _by(_counter(family, text, name), counts or {})


def _http(readings: MetricReadings) -> Iterator[Metric]:
    http = readings.http
    requests = _counter("http_requests", "Answers to HTTP requests", "route", "method", "status")
    for (route, method, status), count in sorted(http.requests.items()):
        requests.add_metric([route, method, str(status)], count)
    yield requests
    seconds = HistogramMetricFamily(
        "phpmq_http_request_seconds", "From request to answer, streams left out", labels=["route"]
    )
    for route, taken in sorted(http.seconds.items()):
        seconds.add_metric([route], _rows(BOUNDS_S, taken.counts), taken.total_s)
    yield seconds
    yield GaugeMetricFamily("phpmq_sse_streams", "Pages that are told live", value=readings.streams)
    yield GaugeMetricFamily("phpmq_exports_running", "Exports to Spark", value=readings.exports)
    ends = _counter("exports", "Exports to Spark that ended or were refused", "end")
    yield _by(ends, readings.export_ends)
    yield CounterMetricFamily(
        "phpmq_login_failures", "Logins refused", value=readings.login_failures
    )


def _limits(limits: Sequence[Limit]) -> Iterator[Metric]:
    """What is used of each limit, beside the limit, and how often it was reached."""
    bound = _gauge("limit", "What may be", "limit")
    used = _gauge("limit_used", "What is used of it", "limit")
    reached = _counter("limit_reached", "Times that something was past it", "limit")
    for limit in limits:
        bound.add_metric([limit.key], limit.bound)
        if limit.used is not None:
            used.add_metric([limit.key], limit.used)
        if limit.reached is not None:
            reached.add_metric([limit.key], limit.reached)
    yield from (bound, used, reached)


# -- families


def _counter(family: str, text: str, *names: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"phpmq_{family}", text, labels=names)


def _gauge(family: str, text: str, *names: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"phpmq_{family}", text, labels=names)


def _by(
    metric: CounterMetricFamily | GaugeMetricFamily, counts: Mapping[str, int]
) -> CounterMetricFamily | GaugeMetricFamily:
    for key, count in sorted(counts.items()):
        metric.add_metric([key], count)
    return metric


def _histogram(
    name: str, text: str, bounds: Sequence[float], counts: Sequence[int], total: float
) -> HistogramMetricFamily:
    counts = counts or [0] * (len(bounds) + 1)
    return HistogramMetricFamily(name, text, buckets=_rows(bounds, counts), sum_value=total)


def _rows(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Lay counts out as Prometheus wants them: each with all below it."""
    names = [*(f"{bound:g}" for bound in bounds), "+Inf"]
    return list(zip(names, map(float, accumulate(counts)), strict=True))


async def answer_metrics(request: web.Request) -> web.StreamResponse:
    """Give the metrics in Prometheus's text format; what cannot be read is left out."""
    context = context_of(request)
    async with context.labels.lock:
        groups = await _read_queues(context)
        shown = [group for group in groups if _is_shown(request, group)]
        text = await render_metrics(await _readings(context), shown)
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})


def _is_shown(request: web.Request, group: QueueSeries) -> bool:
    """Show a queue to whoever may see it; the rest as one only to who may see all."""
    if group.label == OTHER:
        return not identity_of(request).queues
    return may_use(request, group.label.removeprefix("~"))


async def _read_queues(context: Context) -> Sequence[QueueSeries]:
    """Take in all queues, in slices, and when the first ready message of each was published."""
    labels, limit = context.labels, context.settings.metrics.max_queues
    waiting: list[int] = []
    labels.begin()
    for some in context.engine.queue_slices():
        labels.add(some, limit)
        waiting += [queue.queue_id for queue in some if queue.ready]
        await asyncio.sleep(0)
    labels.end()
    with suppress(StorageError):  # the ages are left out
        labels.note_oldest(await context.reader.oldest_ready(waiting))
    return labels.groups()


def _care(context: Context) -> dict[str, Any]:
    """Tell of backups and scrub what a scrape shows."""
    care = context.care
    if care is None:
        return {}
    newest, state = care.backups.newest, care.scrub.state
    return {
        "backup_at": 0 if newest is None else newest.made_at,
        "backup_failed": care.backups.error is not None,
        "scrub_at": 0 if state.last is None else state.last.ended_at,
        "damage": state.faults,
    }


async def _readings(context: Context) -> MetricReadings:
    """Read what is shown beside the queues; a database that cannot be read hides nothing else."""
    status = context.engine.summary()
    readings = MetricReadings(
        status=status,
        http=context.http,
        version=context.version,
        now_ms=context.now_ms(),
        streams=context.live.streams,
        exports=context.exports.running,
        export_ends=context.exports.ends,
        login_failures=context.entrance.refusals.total,
        limits=limits.list_limits(context.settings, status, limits.read_http_usage(context)),
        **_care(context),
    )
    try:
        disk = await measure_disk(context.readers.path)
        stored = await measure_database(context.readers)
    except (StorageError, OSError):
        return readings
    return replace(
        readings,
        files=disk.files,
        disk_free=disk.free,
        history_rows=stored.history_rows,
        history_offset=stored.history_offset,
        removed=stored.removed,
    )
