"""The broker's Prometheus metrics, which ``docs/reference/metrics.md`` describes."""

import asyncio
import platform
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final, Literal

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
from phpmq_lite.admin.monitoring.limits import LimitUsage
from phpmq_lite.admin.monitoring.metric_series import BOUNDS_S, OTHER, HttpCounters, QueueSeries
from phpmq_lite.envelopes.validation import REASONS
from phpmq_lite.errors import StorageError
from phpmq_lite.server.counters import BATCH_BOUNDS, COMMIT_BOUNDS_S
from phpmq_lite.server.status import BrokerStatus
from phpmq_lite.storage.disk_space import DATABASE_FULL, DISK_FULL, DISK_LOW, measure_disk
from phpmq_lite.storage.read.database_size import measure_database
from phpmq_lite.storage.sqlite.standby.lag import StandbyState
from phpmq_lite.storage.store_status import StoreStatus

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SIDES: Final = {"delivery": "delivery_paused", "publishing": "publishing_paused"}

# Exported bounds for wait and hold times, in ms.  All are bucket edges, so counts are exact.
SPANS_MS: Final = tuple(1 << power for power in range(0, 28, 2))

_SOURCES: Final = ("http", "ui", "cli")  # sources of messages other than tcp
_QUEUE_COUNTERS: Final = {  # keys in ``QueueSeries.counts``, by metric
    "publishes_deduplicated": "deduplicated",
    "messages_dispatched": "dispatched",
    "messages_redelivered": "redelivered",
    "messages_acked": "acked",
    "messages_forwarded": "forwarded",
    "messages_returned": "returned",
    "messages_deleted": "deleted",
    "messages_restored": "restored",
}
_QUEUE_GAUGES: Final = {  # keys in ``QueueSeries.gauges``, by metric
    "queue_dead_letters": "dead",
    "queue_bytes": "bytes",
    "queue_consumers": "consumers",
    "queue_credit": "credit",
}
_REFUSALS: Final = {  # label values, keyed by the core's reason for a refusal
    "paused": "paused",
    "queue full: messages": "queue_full",
    "queue full: bytes": "queue_full",
    "too many queues": "too_many_queues",
    "connection ended": "connection_ended",
    DISK_FULL[1]: DISK_FULL[0],
    DISK_LOW[1]: DISK_LOW[0],
    DATABASE_FULL[1]: DATABASE_FULL[0],
}
# Exported even if 0, because Prometheus does not see the first value of a series as an increase.
_KNOWN_DEATHS: Final = ("client", "crc", "expired", "max_deliveries", "not_forwarded")
_KNOWN_REFUSALS: Final = ("database_full", "disk_full", "draining", "paused", "too_large")


@dataclass(slots=True, frozen=True)
class MetricReadings:
    """All values of a scrape except those of queues; a value that could not be read is None."""

    status: BrokerStatus  # its queues are not used
    http: HttpCounters
    version: str
    now_ms: int
    files: Mapping[str, int] | None = None  # size in bytes, keyed by file name
    disk_free: int | None = None
    history_rows: int | None = None
    history_offset: int | None = None
    removed: int | None = None
    streams: int = 0
    exports: int = 0  # number of running exports
    export_ends: Mapping[str, int] = field(default_factory=dict)  # ended exports, by outcome
    login_failures: int = 0
    limits: Sequence[LimitUsage] = ()
    backup_at: int = 0  # when the newest backup was made, in Unix ms; 0 if there is none
    backup_failed: bool = False  # whether the most recent backup failed
    scrub_at: int = 0  # when the last complete scrub ended, in Unix ms; 0 if never
    damage: int = 0  # number of damaged bodies and structural faults found
    standby: StandbyState | None = None  # None without a standby


@dataclass(slots=True, frozen=True)
class MetricDefinition:
    """The definition of a metric, used for the scrape and the reference page."""

    kind: Literal["counter", "gauge", "histogram", "info"]
    name: str  # without the prefix phpmq_ and a suffix such as _total
    help: str
    labels: tuple[str, ...] = ()
    value: Callable[[MetricReadings], float | None] | None = None  # only for metrics without labels

    @property
    def full_name(self) -> str:
        """The metric's full name, with its prefix and suffix, as used in samples."""
        return f"phpmq_{self.name}{_SUFFIXES.get(self.kind, '')}"

    def family(self) -> Any:
        """Return a metric family without samples."""
        return _FAMILIES[self.kind](f"phpmq_{self.name}", self.help, labels=self.labels)


_SUFFIXES: Final = {"counter": "_total", "info": "_info"}
_FAMILIES: Final[dict[str, Callable[..., Metric]]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
    "info": InfoMetricFamily,
}
_QUEUE: Final = ("queue",)
_D = MetricDefinition
_Value = Callable[[MetricReadings], float | None]


def _of_file(value: _Value) -> _Value:
    """Omit the metric if the database is not a file of this machine."""
    return lambda r: value(r) if r.status.store.has_file else None


def _of_server(value: Callable[[StoreStatus], float | None]) -> _Value:
    """Omit the metric if the database is a file of this machine."""
    return lambda r: None if r.status.store.has_file else value(r.status.store)


METRICS: Final[dict[str, tuple[MetricDefinition, ...]]] = {  # metrics, by section of their page
    "Messages, by `queue`": (
        _D("counter", "messages_published", "Stored messages; source is tcp, http, ui or cli",
           ("queue", "source")),
        _D("counter", "publishes_deduplicated",
           "Publish requests not stored again because their key was already stored", _QUEUE),
        _D("counter", "messages_dispatched", "Messages dispatched to consumers", _QUEUE),
        _D("counter", "messages_redelivered", "Repeated dispatches of a message", _QUEUE),
        _D("counter", "messages_acked", "Acknowledged messages", _QUEUE),
        _D("counter", "messages_requeued",
           "Messages moved to the end of their queue, by a client or operator", ("queue", "by")),
        _D("counter", "messages_returned",
           "Messages returned to their position after a timeout, a lost connection or new credit",
           _QUEUE),
        _D("counter", "messages_expired",
           "Expired messages; the label dispatched is yes or never", ("queue", "dispatched")),
        _D("counter", "messages_forwarded", "Expired messages moved to another queue", _QUEUE),
        _D("counter", "messages_dead",
           "Dead-lettered messages; the reasons client, expired, max_deliveries, not_forwarded and "
           "crc (damaged body) are always exported, other reasons after their first message",
           ("queue", "reason")),
        _D("counter", "messages_quarantined",
           "Messages dead-lettered for their envelope's verdict, such as poison or missing_meta",
           ("queue", "reason")),
        _D("counter", "messages_deleted", "Deleted or purged messages", _QUEUE),
        _D("counter", "messages_restored", "Deleted messages that were restored", _QUEUE),
        _D("gauge", "queue_messages", "Live messages; state is ready or dispatched",
           ("queue", "state")),
        _D("gauge", "queue_dead_letters", "Records in the queue's dead-letter queue", _QUEUE),
        _D("gauge", "queue_bytes", "Total size of the bodies of live messages", _QUEUE),
        _D("gauge", "queue_oldest_deliverable_age_seconds",
           "Age of the first ready message; absent if there is none", _QUEUE),
        _D("gauge", "queue_consumers", "Number of consumers", _QUEUE),
        _D("gauge", "queue_credit", "Messages that consumers can accept now", _QUEUE),
        _D("gauge", "queue_paused",
           "1 if delivery or publishing is paused; for ~other, the number of paused queues",
           ("queue", "side")),
        _D("gauge", "queue_for_dead_letters",
           "1 for a dead-letter queue (its name ends in .dlq, or another queue names it); absent "
           "for other queues and ~other", _QUEUE),
        _D("histogram", "wait_seconds", "Time from publishing to first dispatch", _QUEUE),
        _D("histogram", "hold_seconds", "Time from dispatch to settlement", _QUEUE),
    ),
    "Clients and publishers": (
        _D("gauge", "clients", "Open PHPMQ connections", value=lambda r: len(r.status.clients)),
        _D("counter", "clients_opened", "Accepted PHPMQ connections",
           value=lambda r: r.status.clients_opened),
        _D("counter", "clients_closed", "Closed PHPMQ connections", ("reason",)),
        _D("gauge", "readers_paused",
           "Connections not being read; reason is memory, resident, unstored, receipts, queue, "
           "disk or ending", ("reason",)),
        _D("counter", "publishes_refused",
           "Refused publish requests; reason is paused, queue_full, too_many_queues, too_large, "
           "disk_full, database_full, draining or connection_ended", ("reason",)),
        _D("counter", "protocol_errors", "Connections that violated the protocol", ("code",)),
        _D("counter", "acks_ignored",
           "Ignored commands; reason is foreign, settled, unknown or wrong_queue", ("reason",)),
        _D("counter", "network_bytes", "Bytes on PHPMQ connections; direction is in or out",
           ("direction",)),
        _D("gauge", "relayed_connections",
           "Open connections that a standby relays to the active broker; both brokers count them",
           value=lambda r: r.status.relay.open),
        _D("counter", "relayed_connections_opened", "Connections that were relayed",
           value=lambda r: r.status.relay.opened),
        _D("counter", "relayed_bytes", "Bytes that a standby has relayed; direction is in or out",
           ("direction",)),
        _D("counter", "relays_refused",
           "Connections that were not relayed; reason is no_active_broker, unreachable, refused, "
           "authentication, epoch, not_active, preamble, not_admitted or already_relayed",
           ("reason",)),
    ),
    "The broker": (
        _D("info", "build", "Always 1; build is compiled or pure Python",
           ("version", "python", "sqlite", "build")),
        _D("gauge", "ready", "1 if the broker accepts messages",
           value=lambda r: r.status.is_ready and not r.status.is_draining),
        _D("gauge", "start_time_seconds", "Unix time at which the broker started",
           value=lambda r: r.status.started_at / 1_000),
        _D("gauge", "event_loop_lag_seconds", "Event loop delay, measured once a second",
           value=lambda r: r.status.loop_lag_ms / 1_000),
        _D("gauge", "inbox_commands", "Commands waiting for the next transaction",
           value=lambda r: r.status.inbox),
        _D("gauge", "held_messages", "Messages held by consumers", value=lambda r: r.status.held),
        _D("gauge", "held_bytes", "Total size of the bodies of held messages",
           value=lambda r: r.status.held_bytes),
        _D("gauge", "window_messages", "Ready messages in memory",
           value=lambda r: r.status.window_messages),
        _D("gauge", "body_cache_bytes", "Total size of the bodies in memory",
           value=lambda r: r.status.body_cache_bytes),
        _D("histogram", "commit_seconds", "Duration of a transaction, including its fsync"),
        _D("histogram", "commit_batch_size",
           "Messages created, dispatched or settled in a transaction"),
        _D("gauge", "db_bytes",
           "Size of the database files: database, wal and shm; on PostgreSQL only database",
           ("file",)),
        _D("gauge", "disk_free_bytes",
           "Free space on the disk that holds the database; not on PostgreSQL",
           value=_of_file(lambda r: r.disk_free)),
        _D("gauge", "publishing_stopped",
           "1 if publishing is refused or waits for space (storage.free_bytes, storage.max_bytes)",
           value=lambda r: bool(r.status.shortage)),
        _D("gauge", "storing_stopped", "1 if nothing can be stored",
           value=lambda r: bool(r.status.write_problem)),
        _D("gauge", "ballast",
           "1 if the full-disk reserve exists (storage.ballast_bytes); not on PostgreSQL",
           value=_of_file(lambda r: r.status.has_ballast)),
        _D("gauge", "history_rows", "Settled messages in the history",
           value=lambda r: r.history_rows),
        _D("gauge", "history_offset", "Last offset in the history",
           value=lambda r: r.history_offset),
        _D("counter", "retention_removed",
           "Settled messages removed by retention since the database was created",
           value=lambda r: r.removed),
        _D("gauge", "backup_last_success_timestamp_seconds",
           "Unix time of the last backup; 0 if none; not on PostgreSQL",
           value=_of_file(lambda r: r.backup_at / 1_000)),
        _D("gauge", "backup_failed", "1 after a failed backup; not on PostgreSQL",
           value=_of_file(lambda r: r.backup_failed)),
        _D("gauge", "scrub_last_success_timestamp_seconds",
           "Unix time of the last complete scrub; 0 if none; not on PostgreSQL",
           value=_of_file(lambda r: r.scrub_at / 1_000)),
        _D("gauge", "standby_failing",
           "1 if Litestream is not running or its target fails; only with a standby",
           value=lambda r: bool(r.standby.problem) if r.standby else None),
        _D("gauge", "standby_lag_seconds",
           "Age of the oldest commit that the replica may lack, at most; only with a standby",
           value=lambda r: r.standby.lag_s if r.standby else None),
        _D("gauge", "standby_lag_bytes",
           "Bytes of the write-ahead log that the replica lacks; only with a standby",
           value=lambda r: r.standby.lag_bytes if r.standby else None),
        _D("gauge", "standby_lag_messages",
           "Published messages that the replica may lack, at most; only with a standby",
           value=lambda r: r.standby.lag_messages if r.standby else None),
        _D("gauge", "damage_found",
           "Damaged bodies and structural faults in the database; alert above 0; not on PostgreSQL",
           value=_of_file(lambda r: r.damage)),
    ),
    "PostgreSQL": (
        _D("gauge", "store_active", "1 if this broker is active, 0 if it is a standby",
           value=_of_server(lambda store: store.is_active)),
        _D("gauge", "store_epoch", "Number of the epoch, which each takeover by a broker raises",
           value=_of_server(lambda store: store.epoch)),
        _D("gauge", "store_replicas_required", "How many replicas must confirm each commit",
           value=_of_server(lambda store: store.replicas_required)),
        _D("gauge", "store_replicas",
           "How many replicas can confirm commits; alert if not above store_replicas_required",
           value=_of_server(lambda store: store.replicas_ready)),
        _D("gauge", "store_replica_lag_bytes",
           "Bytes of the write-ahead log that a replica has not flushed; without the right "
           "pg_monitor, the lag is absent", ("replica",)),
        _D("gauge", "store_replica_lag_seconds",
           "How long a replica takes to flush, or has not answered while it lags", ("replica",)),
        _D("gauge", "store_asynchronous",
           "1 if the last commit was confirmed without a quorum (store.allow_asynchronous)",
           value=_of_server(lambda store: store.asynchronous is not None)),
        _D("counter", "store_asynchronous_commits", "Commits confirmed without a quorum",
           value=_of_server(lambda store: store.asynchronous_commits)),
        _D("counter", "store_reconnects",
           "New connections after failovers of the database and broken connections",
           value=_of_server(lambda store: store.reconnects)),
        _D("counter", "store_unknown_batches",
           "Batches of unknown outcome, which were found in the database or stored again",
           value=_of_server(lambda store: store.unknown_batches)),
        _D("gauge", "store_oldest_transaction_seconds",
           "Age of the oldest transaction that keeps VACUUM from removing rows",
           value=_of_server(lambda s: s.server.oldest_transaction_s if s.server else None)),
    ),
    "Limits": (
        _D("gauge", "limit",
           "Each limit on the System page (connections, held, memory, streams, …), in bytes, in "
           "seconds or as a count", ("limit",)),
        _D("gauge", "limit_used", "Current usage of the limit, if it is one number", ("limit",)),
        _D("counter", "limit_reached", "Number of times that the limit was exceeded", ("limit",)),
        _D("gauge", "clock_doubt_seconds",
           "How far the clock was ahead at startup, until an operator decides whether it is "
           "right; 0 if no decision is pending", value=lambda r: r.status.clock_doubt_ms / 1_000),
        _D("counter", "clock_jumps",
           "Wall clock changes, including any during the last downtime",
           value=lambda r: r.status.clock_jumps),
    ),
    "The admin": (
        _D("counter", "http_requests", "HTTP responses; route is a name, not a path",
           ("route", "method", "status")),
        _D("histogram", "http_request_seconds", "Duration of HTTP requests, excluding streams",
           ("route",)),
        _D("gauge", "sse_streams", "Pages with live updates", value=lambda r: r.streams),
        _D("gauge", "exports_running", "Running exports to Spark, at most two",
           value=lambda r: r.exports),
        _D("counter", "exports",
           "Ended exports to Spark, by outcome: whole; stalled (the reader read nothing for "
           "5 min, or needed more than 10 min); left (the reader disconnected); broken (the broker "
           "failed); or busy (refused because two were running)", ("end",)),
        _D("counter", "login_failures", "Refused logins", value=lambda r: r.login_failures),
        _D("counter", "audit_rows", "Rows written to the audit log", ("action",)),
    ),
}  # fmt: skip
_DEFINITIONS: Final = {each.name: each for some in METRICS.values() for each in some}


def _family(name: str) -> Any:
    return _DEFINITIONS[name].family()


async def render_metrics(readings: MetricReadings, groups: Sequence[QueueSeries]) -> bytes:
    """Return all metrics as text, letting other tasks run between metric families."""
    parts = []
    for family in metric_families(readings, groups):
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_FamilyCollector(family))
        parts.append(generate_latest(registry))
        await asyncio.sleep(0)
    return b"".join(parts)


class _FamilyCollector(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def metric_families(readings: MetricReadings, groups: Sequence[QueueSeries]) -> Iterator[Metric]:
    """Yield all metric families, omitting values that could not be read."""
    for definition in _DEFINITIONS.values():
        if definition.value is not None and (value := definition.value(readings)) is not None:
            family = definition.family()
            family.add_metric((), value)
            yield family
    yield from _broker(readings)
    yield from _messages(groups)
    yield from _queues(groups, readings.now_ms)
    yield from _histograms(groups)
    yield from _clients(readings.status)
    yield from _http(readings)
    yield from _limits(readings.limits)
    if not readings.status.store.has_file:
        yield from _replicas(readings.status.store)


def _broker(readings: MetricReadings) -> Iterator[Metric]:
    status, build = readings.status, _family("build")
    build.add_metric([readings.version, platform.python_version(), sqlite3.sqlite_version,
                      installation.build_kind()], {})  # fmt: skip
    yield build
    for name, bounds, counts, total in (
        ("commit_seconds", COMMIT_BOUNDS_S, status.commit_counts, status.commit_s_sum),
        ("commit_batch_size", BATCH_BOUNDS, status.batch_counts, status.batch_sum),
    ):
        histogram_ = _family(name)
        histogram_.add_metric((), _rows(bounds, counts or [0] * (len(bounds) + 1)), total)
        yield histogram_
    if readings.files is not None:
        yield _add_counts(_family("db_bytes"), readings.files)


def _messages(groups: Sequence[QueueSeries]) -> Iterator[Metric]:
    published, requeued = _family("messages_published"), _family("messages_requeued")
    expired, dead = _family("messages_expired"), _family("messages_dead")
    quarantined = _family("messages_quarantined")
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
    for metric, key in _QUEUE_COUNTERS.items():
        counter = _family(metric)
        for group in groups:
            counter.add_metric([group.label], group.counts[key])
        yield counter


def _queues(groups: Sequence[QueueSeries], now_ms: int) -> Iterator[Metric]:
    existing = [group for group in groups if group.is_alive]
    messages, paused = _family("queue_messages"), _family("queue_paused")
    age = _family("queue_oldest_deliverable_age_seconds")
    for_dead_letters = _family("queue_for_dead_letters")
    for group in existing:
        if group.gauges["is_dead_letter_queue"] and group.label != OTHER:  # ~other mixes both kinds
            for_dead_letters.add_metric([group.label], 1)
        for state in ("ready", "dispatched"):
            messages.add_metric([group.label, state], group.gauges[state])
        for side, key in SIDES.items():
            paused.add_metric([group.label, side], group.gauges[key])
        if group.oldest_at is not None:
            age.add_metric([group.label], max(0, now_ms - group.oldest_at) / 1_000)
    yield from (messages, paused, age, for_dead_letters)
    for metric, key in _QUEUE_GAUGES.items():
        gauge = _family(metric)
        for group in existing:
            gauge.add_metric([group.label], group.gauges[key])
        yield gauge


def _histograms(groups: Sequence[QueueSeries]) -> Iterator[Metric]:
    for kind in ("wait", "hold"):
        family = _family(f"{kind}_seconds")
        for group in groups:
            counts: Sequence[int] = getattr(group, kind)
            sums = [0, *accumulate(counts)]
            if not sums[-1]:
                continue  # otherwise, 200 unused queues would add thousands of lines
            rows = [(f"{at / 1_000:g}", float(sums[_below(at)])) for at in SPANS_MS]
            # The exact sum is unknown, so each value is assumed to be its bucket's upper edge.
            total_s = sum(n * histogram.upper_ms(i) for i, n in enumerate(counts) if n) / 1_000
            family.add_metric([group.label], [*rows, ("+Inf", float(sums[-1]))], total_s)
        yield family


@cache
def _below(at_ms: int) -> int:
    return sum(histogram.upper_ms(index) < at_ms for index in range(histogram.BUCKETS))


def _clients(status: BrokerStatus) -> Iterator[Metric]:
    traffic = {"in": status.bytes_in, "out": status.bytes_out}
    refused = Counter(dict.fromkeys(_KNOWN_REFUSALS, 0))
    for reason, count in (status.refused or {}).items():
        refused[_REFUSALS.get(reason, reason.replace(" ", "_"))] += count
    closed: Counter[str] = Counter()
    for reason, count in (status.closed or {}).items():
        closed[reason.partition(":")[0]] += count
    for name, counts in (
        ("network_bytes", traffic),
        ("readers_paused", limits.count_paused_readers(status)),
        ("clients_closed", closed),
        ("protocol_errors", status.protocol_errors),
        ("acks_ignored", status.acks_ignored),
        ("publishes_refused", refused),
        ("relayed_bytes", {"in": status.relay.bytes_in, "out": status.relay.bytes_out}),
        ("relays_refused", status.relay.refused),
        ("audit_rows", status.audited),
    ):
        yield _add_counts(_family(name), counts or {})


def _http(readings: MetricReadings) -> Iterator[Metric]:
    http = readings.http
    requests = _family("http_requests")
    for (route, method, status), count in sorted(http.requests.items()):
        requests.add_metric([route, method, str(status)], count)
    yield requests
    seconds = _family("http_request_seconds")
    for route, taken in sorted(http.seconds.items()):
        seconds.add_metric([route], _rows(BOUNDS_S, taken.counts), taken.total_s)
    yield seconds
    yield _add_counts(_family("exports"), readings.export_ends)


def _limits(limits: Sequence[LimitUsage]) -> Iterator[Metric]:
    bound, used, reached = map(_family, ("limit", "limit_used", "limit_reached"))
    for limit in limits:
        bound.add_metric([limit.key], limit.bound)
        if limit.used is not None:
            used.add_metric([limit.key], limit.used)
        if limit.reached is not None:
            reached.add_metric([limit.key], limit.reached)
    yield from (bound, used, reached)


def _replicas(store: StoreStatus) -> Iterator[Metric]:
    replicas = store.server.replicas if store.server else ()
    for metric, value in (
        ("store_replica_lag_bytes", attrgetter("lag_bytes")),
        ("store_replica_lag_seconds", attrgetter("lag_s")),
    ):
        lags: dict[str, float] = {}  # the highest, if several replicas have the same name
        for one in replicas:
            if (lag := value(one)) is not None:
                lags[one.name] = max(lag, lags.get(one.name, 0))
        yield _add_counts(_family(metric), lags)


def _add_counts(family: Any, counts: Mapping[str, float]) -> Any:
    for key, count in sorted(counts.items()):
        family.add_metric([key], count)
    return family


def _rows(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return the cumulative count for each upper bound, as Prometheus expects."""
    names = [*(f"{bound:g}" for bound in bounds), "+Inf"]
    return list(zip(names, map(float, accumulate(counts)), strict=True))


async def answer_metrics(request: web.Request) -> web.StreamResponse:
    """Return the metrics in Prometheus text format, omitting values that cannot be read."""
    context = context_of(request)
    async with context.labels.lock:
        groups = await _read_queues(context)
        shown = [group for group in groups if _is_shown(request, group)]
        text = await render_metrics(await _readings(context), shown)
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})


def _is_shown(request: web.Request, group: QueueSeries) -> bool:
    """Return whether the caller can see a series; ``~other`` requires access to all queues."""
    if group.label == OTHER:
        return not identity_of(request).queues
    return may_use(request, group.label.removeprefix("~"))


async def _read_queues(context: Context) -> Sequence[QueueSeries]:
    """Read all queues in slices, and then the publish times of their first ready messages."""
    labels, limit = context.labels, context.settings.metrics.max_queues
    waiting: list[int] = []
    labels.begin()
    for some in context.engine.queue_slices():
        labels.add(some, limit)
        waiting += [queue.queue_id for queue in some if queue.ready]
        await asyncio.sleep(0)
    labels.end()
    with suppress(StorageError):  # if the ages cannot be read, they are omitted
        labels.set_oldest(await context.reader.oldest_ready(waiting))
    return labels.groups()


def _maintenance(context: Context) -> dict[str, Any]:
    maintenance = context.maintenance
    if maintenance is None:
        return {}
    newest, state = maintenance.backups.last_manifest, maintenance.scrub.state
    return {
        "backup_at": 0 if newest is None else newest.made_at,
        "backup_failed": maintenance.backups.error is not None,
        "scrub_at": 0 if state.last is None else state.last.ended_at,
        "damage": state.problem_count,
        "standby": maintenance.standby.state if maintenance.standby else None,
    }


async def _readings(context: Context) -> MetricReadings:
    """Return the readings; those from the database are None if the database cannot be read."""
    status = context.engine.summary()
    readings = MetricReadings(
        status=status,
        http=context.http,
        version=context.version,
        now_ms=context.now_ms(),
        streams=context.live.streams,
        exports=context.exports.running,
        export_ends=context.exports.ends,
        login_failures=context.auth.refused_logins.total,
        limits=limits.list_limits(context, status),
        **_maintenance(context),
    )
    store = status.store
    try:
        disk = await measure_disk(context.database)
        stored = await measure_database(context.readers)
    except (StorageError, OSError):
        return readings
    return replace(
        readings,
        files=disk.files if store.has_file else {"database": stored.pages * stored.page_bytes},
        disk_free=disk.free,
        history_rows=stored.history_rows,
        history_offset=stored.history_offset,
        removed=stored.removed,
    )
