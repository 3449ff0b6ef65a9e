"""The broker's Prometheus metrics, which ``docs/reference/metrics.md`` describes."""

import asyncio
import platform
import sqlite3
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, chain
from typing import Any, Final, Literal, NamedTuple

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from phpmq_lite import histogram, installation, logs
from phpmq_lite.admin.accounts.services import SERVICES
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.context import Context
from phpmq_lite.admin.http.endpoint import Endpoints
from phpmq_lite.admin.messages.arrow_export import EXPORTS
from phpmq_lite.admin.pipeline.history_readers import ReaderView, read_readers
from phpmq_lite.admin.system.facts import LimitUsage, count_paused_readers, list_limits
from phpmq_lite.admin.system.metric_labels import OTHER, DeathCount, MetricLabels, QueueSeries
from phpmq_lite.broker import reasons
from phpmq_lite.envelopes.validation import REASONS
from phpmq_lite.errors import StorageError
from phpmq_lite.model import DATABASE_FULL, DISK_FULL
from phpmq_lite.roles import Role
from phpmq_lite.server.counters import (
    BATCH_BOUNDS,
    COMMIT_BOUNDS_S,
    ConnectionCounters,
    RelayCounters,
)
from phpmq_lite.server.maintenance import Maintenance
from phpmq_lite.server.status import BrokerStatus
from phpmq_lite.storage.backend import Replica, StoreStatus
from phpmq_lite.storage.disk_space import measure_database, measure_disk
from phpmq_lite.storage.sqlite.standby_lag import StandbyState

BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})


class DurationHistogram:
    """A histogram of durations, with a count for each upper bound and one for longer durations."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds


class HttpCounters:
    """Counters of HTTP requests since the broker started."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()  # keyed by route, method, status
        self.seconds: dict[str, DurationHistogram] = {}  # keyed by route

    def add(self, route: str, method: str, status: int, seconds: float | None) -> None:
        """Count a response that took ``seconds``, which is None for a stream."""
        self.requests[route, method if method in _METHODS else "other", status] += 1
        if seconds is not None:
            if route not in self.seconds:
                self.seconds[route] = DurationHistogram()
            self.seconds[route].add(seconds)


HTTP_COUNTERS: Final = web.AppKey("http counters", HttpCounters)
LABELS: Final = web.AppKey("metric labels", MetricLabels)


# -- definitions

endpoints: Final = Endpoints()
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# Exported bounds for wait and hold times, in ms.  All are bucket edges, so counts are exact.
SPANS_MS: Final = tuple(1 << power for power in range(0, 28, 2))

_SOURCES: Final = ("http", "ui", "cli")  # sources of messages other than tcp
_REFUSALS: Final = {  # label values that are not the core's reason for a refusal, with _ for blanks
    row.reason: row.code
    for row in (
        reasons.FULL_OF_MESSAGES,
        reasons.FULL_OF_BYTES,
        *reasons.SHORTAGE_REFUSALS.values(),
    )
}
# Exported even if 0, because Prometheus does not see the first value of a series as an increase.
_KNOWN_DEATHS: Final = (
    reasons.BY_CLIENT,
    reasons.EXPIRED,
    reasons.MAX_DELIVERIES,
    reasons.NOT_FORWARDED,
    reasons.DAMAGED,
)
_KNOWN_REFUSALS: Final = (
    DATABASE_FULL.code,
    DISK_FULL.code,
    "draining",
    reasons.PAUSED.code,
    "too_large",
)


@dataclass(slots=True, frozen=True)
class MetricReadings:
    """All values of a scrape except those of queues; a value that could not be read is None."""

    status: BrokerStatus  # its queues are not used
    context: Context
    now_ms: int
    files: Mapping[str, int] | None = None  # size in bytes, keyed by file name
    disk_free: int | None = None
    history_rows: int | None = None
    history_offset: int | None = None
    removed: int | None = None
    limits: Sequence[LimitUsage] = ()
    readers: Sequence[ReaderView] | None = None  # of the history

    @property
    def standby(self) -> StandbyState | None:
        """The state of the standby, if there is one and it has been read."""
        monitor = self.context.maintenance and self.context.maintenance.standby
        return monitor.state if monitor else None


class _Histogram(NamedTuple):
    buckets: Sequence[tuple[str, float]]  # the cumulative count for each upper bound
    total: float


_Kind = Literal["counter", "gauge", "histogram", "info"]
# Without further labels, a number; otherwise one for each label, or for each tuple of labels.
_Values = float | _Histogram | Mapping[Any, Any] | None
_OfBroker = Callable[[MetricReadings], _Values]
_OfQueue = Callable[[QueueSeries, int], _Values]  # takes the current time in Unix ms


@dataclass(slots=True, frozen=True)
class MetricDefinition:
    """The definition of a metric, used for the scrape and the reference page."""

    kind: _Kind
    name: str  # without the prefix phpmq_ and a suffix such as _total
    help: str
    labels: tuple[str, ...] = ()
    value: _OfBroker | None = None  # returns None if the metric must be omitted
    of_queue: _OfQueue | None = None  # instead, if the first label is "queue"

    @property
    def full_name(self) -> str:
        """The metric's full name, with its prefix and suffix, as used in samples."""
        return f"phpmq_{self.name}{_SUFFIXES.get(self.kind, '')}"


_SUFFIXES: Final = {"counter": "_total", "info": "_info"}
_FAMILIES: Final[dict[str, Callable[..., Any]]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
    "info": InfoMetricFamily,
}
_D = MetricDefinition


def _Q(  # noqa: N802 - like _D
    kind: _Kind, name: str, text: str, values: str | _OfQueue, *labels: str
) -> MetricDefinition:
    """Define a metric by queue; ``values`` may be a key of the counts or gauges of a queue."""
    if isinstance(values, str):
        key, is_count = values, kind == "counter"
        return _Q(kind, name, text, lambda q, _: (q.counts if is_count else q.gauges)[key], *labels)
    return MetricDefinition(kind, name, text, ("queue", *labels), of_queue=values)


def _of_file(value: _OfBroker) -> _OfBroker:
    """Omit the metric if the database is not a file of this machine."""
    return lambda r: value(r) if r.status.store.has_file else None


def _of_maintenance(value: Callable[[Maintenance], float]) -> _OfBroker:
    """Return 0 before the first backup or scrub can begin; omit the metric on PostgreSQL."""
    return _of_file(lambda r: value(r.context.maintenance) if r.context.maintenance else 0)


def _of_server(value: Callable[[StoreStatus], _Values]) -> _OfBroker:
    """Omit the metric if the database is a file of this machine."""
    return lambda r: None if r.status.store.has_file else value(r.status.store)


def _of_limits(value: Callable[[LimitUsage], int | None]) -> _OfBroker:
    return lambda r: {
        usage.text.key: figure for usage in r.limits if (figure := value(usage)) is not None
    }


def _of_readers(value: Callable[[ReaderView, int], float | None]) -> _OfBroker:
    """Return a value for each history reader; ``value`` takes the current time in Unix ms."""
    return lambda r: (
        None if r.readers is None else {view.reader: value(view, r.now_ms) for view in r.readers}
    )


def _published(queue: QueueSeries, _now_ms: int) -> _Values:
    others = {source: queue.counts[f"published_{source}"] for source in _SOURCES}
    return others | {"tcp": queue.counts["published"] - sum(others.values())}


def _split(total: str, name: str, part: str, part_name: str) -> _OfQueue:
    return lambda q, _: {name: q.counts[total] - q.counts[part], part_name: q.counts[part]}


def _deaths(queue: QueueSeries, _now_ms: int) -> _Values:
    died = (key.reason for key in queue.counts if isinstance(key, DeathCount))
    labels = dict.fromkeys((*_KNOWN_DEATHS, *died))  # a set would change their order at each start
    return {reason: queue.counts[DeathCount(reason)] for reason in labels}


def _spans(counts: Sequence[int]) -> _Values:
    """Return a histogram, or None if it is empty: 200 unused queues would add thousands of lines.

    The exact sum is unknown, so each value is assumed to be its bucket's upper edge.
    """
    sums = [0, *accumulate(counts)]
    if not sums[-1]:
        return None
    rows = [(f"{at / 1_000:g}", float(sums[_below(at)])) for at in SPANS_MS]
    total_s = sum(n * histogram.upper_ms(i) for i, n in enumerate(counts) if n) / 1_000
    return _Histogram([*rows, ("+Inf", float(sums[-1]))], total_s)


@cache
def _below(at_ms: int) -> int:
    return sum(histogram.upper_ms(index) < at_ms for index in range(histogram.BUCKETS))


def _histogram(bounds: Sequence[float], counts: Sequence[int], total: float) -> _Histogram:
    names = [*(f"{bound:g}" for bound in bounds), "+Inf"]
    return _Histogram(list(zip(names, map(float, accumulate(counts)), strict=True)), total)


def _refused(readings: MetricReadings) -> _Values:
    refused = Counter(dict.fromkeys(_KNOWN_REFUSALS, 0))
    for reason, count in readings.status.refused.items():
        refused[_REFUSALS.get(reason, reason.replace(" ", "_"))] += count
    return refused


def _closed(readings: MetricReadings) -> _Values:
    closed: Counter[str] = Counter()
    for reason, count in readings.status.counters.closed.items():
        closed[reason.partition(":")[0]] += count
    return closed


def _traffic(counters: ConnectionCounters | RelayCounters) -> _Values:
    return {"in": counters.bytes_in, "out": counters.bytes_out}


def _of_replicas(lag: Callable[[Replica], float | None]) -> _OfBroker:
    """Return the known lags by name; the highest, if several replicas have the same name."""

    def read(store: StoreStatus) -> _Values:
        lags: dict[str, float] = {}
        for replica in store.server.replicas if store.server else ():
            if (value := lag(replica)) is not None:
                lags[replica.name] = max(value, lags.get(replica.name, 0))
        return lags

    return _of_server(read)


METRICS: Final[dict[str, tuple[MetricDefinition, ...]]] = {  # metrics, by section of their page
    "Messages, by `queue`": (
        _Q("counter", "messages_published", "Stored messages; source is tcp, http, ui or cli",
           _published, "source"),
        _Q("counter", "publishes_deduplicated",
           "Publish requests not stored again because their key was already stored",
           "deduplicated"),
        _Q("counter", "messages_dispatched", "Messages dispatched to consumers", "dispatched"),
        _Q("counter", "messages_redelivered", "Repeated dispatches of a message", "redelivered"),
        _Q("counter", "messages_acked", "Acknowledged messages", "acked"),
        _Q("counter", "messages_requeued",
           "Messages moved to the end of their queue, by a client or operator",
           _split("requeued", "client", "requeued_operator", "operator"), "by"),
        _Q("counter", "messages_retried",
           "Attempts that workers reported as failed; the message waits for the next one",
           "retried"),
        _Q("counter", "messages_returned",
           "Messages returned to their position after a timeout, a lost connection or new credit",
           "returned"),
        _Q("counter", "messages_expired",
           "Expired messages, neither forwarded nor dead-lettered; the label dispatched is yes or "
           "never",
           _split("expired", "yes", "expired_never", "never"), "dispatched"),
        _Q("counter", "messages_forwarded", "Messages forwarded when they expired", "forwarded"),
        _Q("counter", "messages_dead",
           f"Dead-lettered messages; the reasons {', '.join(_KNOWN_DEATHS[:-1])} and "
           f"{_KNOWN_DEATHS[-1]} (damaged body) are always exported, other reasons after their "
           "first message",
           _deaths, "reason"),
        _Q("counter", "messages_quarantined",
           "Messages dead-lettered for their envelope's verdict, such as poison or missing_meta",
           lambda q, _: {name: n for name in REASONS if (n := q.counts[DeathCount(name)])},
           "reason"),
        _Q("counter", "messages_deleted", "Deleted or purged messages", "deleted"),
        _Q("counter", "messages_restored", "Deleted messages that were restored", "restored"),
        _Q("gauge", "queue_messages",
           "Live messages; state is ready, scheduled or dispatched",
           lambda q, _: {state: q.gauges[state] for state in ("ready", "scheduled", "dispatched")},
           "state"),
        _Q("gauge", "queue_dead_letters", "Dead-letter records of the queue", "dead"),
        _Q("gauge", "queue_bytes", "Total size of the bodies of live messages", "bytes"),
        _Q("gauge", "queue_oldest_deliverable_age_seconds",
           "How long the oldest ready message has been ready; absent if there is none",
           lambda q, now_ms: (None if (at_ms := q.oldest_ready_at) is None
                              else max(0, now_ms - at_ms) / 1_000)),
        _Q("gauge", "queue_consumers", "Number of consumers", "consumers"),
        _Q("gauge", "queue_credit", "Messages that consumers can accept now", "credit"),
        _Q("gauge", "queue_paused",
           "1 if delivery or publishing is paused; for ~other, the number of paused queues",
           lambda q, _: {side: q.gauges[f"{side}_paused"] for side in ("delivery", "publishing")},
           "side"),
        _Q("gauge", "queue_for_dead_letters",
           "1 for a dead-letter queue (its name ends in .dlq, or another queue names it); absent "
           "for other queues and ~other",
           lambda q, _: 1 if q.gauges["is_dead_letter_queue"] and q.label != OTHER else None),
        _Q("histogram", "wait_seconds", "Time from being ready to first dispatch",
           lambda q, _: _spans(q.wait)),
        _Q("histogram", "hold_seconds", "Time from dispatch to settlement",
           lambda q, _: _spans(q.hold)),
    ),
    "Clients and publishers": (
        _D("gauge", "clients", "Open PHPMQ connections", value=lambda r: len(r.status.clients)),
        _D("counter", "clients_opened", "Accepted PHPMQ connections",
           value=lambda r: r.status.counters.clients_opened),
        _D("counter", "clients_closed", "Closed PHPMQ connections", ("reason",), _closed),
        _D("gauge", "readers_paused",
           "Connections not being read; reason is memory, resident, unstored, receipts, queue, "
           "disk or ending", ("reason",), lambda r: count_paused_readers(r.status)),
        _D("counter", "publishes_refused",
           "Refused publish requests; reason is paused, queue_full, too_many_queues, too_large, "
           "disk_full, database_full, draining, connection_ended, unique_key_held or bad_option",
           ("reason",), _refused),
        _D("counter", "protocol_errors", "Connections that violated the protocol", ("code",),
           lambda r: r.status.counters.protocol_errors),
        _D("counter", "acks_ignored",
           "Ignored commands; reason is foreign, settled, unknown, wrong_queue, scheduled, "
           "repeated, not_held or invalid", ("reason",),
           lambda r: r.status.acks_ignored),
        _D("counter", "network_bytes", "Bytes on PHPMQ connections; direction is in or out",
           ("direction",), lambda r: _traffic(r.status.counters)),
        _D("gauge", "relayed_connections",
           "Open connections that a standby relays to the active broker; both brokers count them",
           value=lambda r: r.status.counters.relay.open),
        _D("counter", "relayed_connections_opened", "Connections that were relayed",
           value=lambda r: r.status.counters.relay.opened),
        _D("counter", "relayed_bytes", "Bytes that a standby has relayed; direction is in or out",
           ("direction",), lambda r: _traffic(r.status.counters.relay)),
        _D("counter", "schedule_runs",
           "Ticks of schedules, by outcome: published, failed or skipped (missed ticks count once)",
           ("outcome",), lambda r: {
               outcome: r.status.schedule_runs.get(outcome, 0)
               for outcome in ("published", "failed", "skipped")
           }),
        _D("counter", "relays_refused",
           "Connections that were not relayed; reason is no_active_broker, unreachable, refused, "
           "authentication, epoch, not_active, preamble, not_admitted or already_relayed",
           ("reason",), lambda r: r.status.counters.relay.refused),
    ),
    "The broker": (
        _D("info", "build", "Always 1; build is compiled or pure Python",
           ("version", "python", "sqlite", "build"), lambda r: {
               (r.context.version, platform.python_version(), sqlite3.sqlite_version,
                installation.build_kind()): {}
           }),
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
        _D("histogram", "commit_seconds", "Duration of a transaction, including its fsync",
           value=lambda r: _histogram(
               COMMIT_BOUNDS_S, r.status.commits.seconds_counts, r.status.commits.seconds_sum)),
        _D("histogram", "commit_batch_size",
           "Messages created, dispatched or settled in a transaction",
           value=lambda r: _histogram(
               BATCH_BOUNDS, r.status.commits.batch_counts, r.status.commits.batch_sum)),
        _D("gauge", "db_bytes",
           "Size of the database files: database, wal and shm; on PostgreSQL only database",
           ("file",), lambda r: r.files),
        _D("gauge", "disk_free_bytes",
           "Free space on the disk that holds the database; not on PostgreSQL",
           value=_of_file(lambda r: r.disk_free)),
        _D("gauge", "publishing_stopped",
           "1 if publishing is refused or waits for space (storage.free_bytes, storage.max_bytes)",
           value=lambda r: bool(r.status.shortage)),
        _D("gauge", "storing_stopped", "1 if nothing can be stored",
           value=lambda r: bool(r.status.write_problem)),
        _D("gauge", "oldest_batch_seconds",
           "Age of the oldest batch that the database has not answered; not ready from 5",
           value=lambda r: r.status.oldest_batch_s),
        _D("counter", "log_lines_dropped",
           "Log lines that were not written, because nobody read them or the disk was full",
           value=lambda _: logs.dropped_lines()),
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
           value=_of_maintenance(
               lambda m: last.made_at / 1_000 if (last := m.backups.last_manifest) else 0)),
        _D("gauge", "backup_failed", "1 after a failed backup; not on PostgreSQL",
           value=_of_maintenance(lambda m: m.backups.error is not None)),
        _D("gauge", "scrub_last_success_timestamp_seconds",
           "Unix time of the last complete scrub; 0 if none; not on PostgreSQL",
           value=_of_maintenance(
               lambda m: last.ended_at / 1_000 if (last := m.scrub.state.last) else 0)),
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
           value=_of_maintenance(lambda m: m.scrub.state.problem_count)),
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
           "pg_monitor, the lag is absent", ("replica",),
           _of_replicas(lambda replica: replica.lag_bytes)),
        _D("gauge", "store_replica_lag_seconds",
           "How long a replica takes to flush, or has not answered while it lags", ("replica",),
           _of_replicas(lambda replica: replica.lag_s)),
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
           "seconds or as a count", ("limit",), _of_limits(lambda usage: usage.measured.bound)),
        _D("gauge", "limit_used", "Current usage of the limit, if it is one number", ("limit",),
           _of_limits(lambda usage: usage.measured.used)),
        _D("counter", "limit_reached", "Number of times that the limit was exceeded", ("limit",),
           _of_limits(lambda usage: usage.measured.reached)),
        _D("gauge", "clock_doubt_seconds",
           "How far the clock was ahead at startup, until an operator decides whether it is "
           "right; 0 if no decision is pending", value=lambda r: r.status.clock_doubt_ms / 1_000),
        _D("counter", "clock_jumps",
           "Wall clock changes, including any during the last downtime",
           value=lambda r: r.status.clock_jumps),
    ),
    "Readers of the history, by `reader`": (
        _D("gauge", "history_reader_behind_rows",
           "Settled messages that the reader, such as an archive, has not read", ("reader",),
           _of_readers(lambda view, _: view.behind)),
        _D("gauge", "history_reader_behind_bytes",
           "Size of their bodies; an estimate if all readers have more than 20,000 unread messages",
           ("reader",),
           _of_readers(lambda view, _: view.behind_bytes)),
        _D("gauge", "history_reader_lag_seconds",
           "Age of the oldest unread message; absent if there is none", ("reader",),
           _of_readers(lambda view, _: view.lag_s)),
        _D("gauge", "history_reader_retention_seconds",
           "Time until retention is expected to remove unread messages, at the current rate; 0 if "
           "it has removed some; absent if none are unread", ("reader",),
           _of_readers(lambda view, _: view.reached_in_s)),
        _D("gauge", "history_reader_report_age_seconds",
           "Time since the reader last reported its position", ("reader",),
           _of_readers(lambda view, now_ms: max(now_ms - view.seen_at, 0) / 1_000)),
    ),
    "The admin": (
        _D("counter", "http_requests", "HTTP responses; route is a name, not a path",
           ("route", "method", "status"), lambda r: {
               (route, method, str(status)): count
               for (route, method, status), count in r.context.app[HTTP_COUNTERS].requests.items()
           }),
        _D("histogram", "http_request_seconds", "Duration of HTTP requests, excluding streams",
           ("route",), lambda r: {
               route: _histogram(BOUNDS_S, taken.counts, taken.total_s)
               for route, taken in r.context.app[HTTP_COUNTERS].seconds.items()
           }),
        _D("gauge", "sse_streams", "Pages with live updates",
           value=lambda r: r.context.live.streams),
        _D("gauge", "exports_running", "Running exports to Spark, at most two",
           value=lambda r: r.context.app[EXPORTS].running),
        _D("counter", "exports",
           "Ended exports to Spark, by outcome: whole; stalled (the reader read nothing for "
           "5 min, or needed more than 10 min); left (the reader disconnected); broken (the broker "
           "failed); or busy (refused because two were running)", ("end",),
           lambda r: r.context.app[EXPORTS].ends),
        _D("counter", "login_failures", "Refused logins",
           value=lambda r: r.context.app[SERVICES].refused_logins.total),
        _D("counter", "audit_rows", "Rows written to the audit log", ("action",),
           lambda r: r.status.audited),
    ),
}  # fmt: skip


# -- a scrape


async def render_metrics(readings: MetricReadings, groups: Sequence[QueueSeries]) -> bytes:
    """Return all metrics as text, letting other tasks run between metric families."""
    parts = []
    for family in metric_families(readings, groups):
        parts.append(generate_latest(_OneFamily(family)))
        await asyncio.sleep(0)
    return b"".join(parts)


class _OneFamily(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def metric_families(readings: MetricReadings, groups: Sequence[QueueSeries]) -> Iterator[Metric]:
    """Yield all metric families, omitting values that could not be read."""
    for definition in chain.from_iterable(METRICS.values()):
        family = _FAMILIES[definition.kind](
            f"phpmq_{definition.name}", definition.help, labels=definition.labels
        )
        if definition.value is not None:
            values = definition.value(readings)
            if values is None:
                continue
            _add(family, [], values)
        elif definition.of_queue is not None:
            for group in groups:
                if group.is_alive or definition.kind != "gauge":
                    _add(family, [group.label], definition.of_queue(group, readings.now_ms))
        yield family


def _add(family: Any, labels: Sequence[str], values: _Values) -> None:
    by_labels = values if isinstance(values, Mapping) else {(): values}
    for key, value in sorted(by_labels.items()):
        if value is not None:
            more = [key] if isinstance(key, str) else key
            arguments = value if isinstance(value, _Histogram) else (value,)
            family.add_metric([*labels, *more], *arguments)


@endpoints.page("/metrics", "metrics", Role.METRICS)
async def answer_metrics(call: Call) -> web.StreamResponse:
    """Return the metrics in Prometheus text format, omitting values that cannot be read."""
    context = call.context
    async with context.app[LABELS].lock:
        groups = [group for group in await _read_queues(context) if _may_see(call, group)]
        text = await render_metrics(await _readings(context), groups)
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})


def _may_see(call: Call, group: QueueSeries) -> bool:
    """Return whether the caller can see a series; ``~other`` requires access to all queues."""
    if group.label == OTHER:
        return not call.identity.queues
    return call.may_use(group.label.removeprefix("~"))


async def _read_queues(context: Context) -> Sequence[QueueSeries]:
    """Read all queues in slices, and then the publish times of their first ready messages."""
    labels, limit = context.app[LABELS], context.settings.metrics.max_queues
    waiting: list[int] = []
    labels.begin()
    for queues in context.broker.queue_slices():
        labels.add(queues, limit)
        waiting += [queue.queue_id for queue in queues if queue.ready]
        await asyncio.sleep(0)
    labels.end()
    with suppress(StorageError):  # if the ages cannot be read, they are omitted
        labels.set_oldest(await context.reader.oldest_ready_at(waiting))
    return labels.groups()


async def _readings(context: Context) -> MetricReadings:
    """Return the readings; those from the database are None if the database cannot be read."""
    status = context.broker.summary()
    readings = MetricReadings(
        status=status, context=context, now_ms=context.now_ms(), limits=list_limits(context, status)
    )
    store = status.store
    try:
        disk = await measure_disk(context.database)
        stored = await measure_database(context.readers)
        readers = await read_readers(context)
    except (StorageError, OSError):
        return readings
    return replace(
        readings,
        files=disk.files if store.has_file else {"database": stored.pages * stored.page_bytes},
        disk_free=disk.free,
        history_rows=stored.history_rows,
        history_offset=stored.history_offset,
        removed=stored.removed,
        readers=readers,
    )
