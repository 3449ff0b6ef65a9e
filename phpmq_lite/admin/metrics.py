"""Metrics for Prometheus, made from the status when they are asked for (``admin.md`` 7).

Base units, ``_total``, no label per client or message.
"""

import platform
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from phpmq_lite.server.status import QueueStatus, Status

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
QUEUES_MAX: Final = 200  # with a label of their own
OTHER: Final = "~other"  # all further queues; a queue of this name is escaped, see label()

_COUNTERS: Final = {  # key in totals -> what happened
    "published": "Messages stored",
    "dispatched": "Messages given to consumers",
    "redelivered": "Dispatches of a message that was dispatched before",
    "acked": "Messages acknowledged",
    "requeued": "Messages put at the end of their queue by a consumer",
    "expired": "Messages whose time ran out",
    "forwarded": "Messages moved to another queue when their time ran out",
    "returned": "Messages put back to their place",
    "dead": "Messages that became dead letters",
    "deleted": "Messages deleted or purged",
}
_GAUGES: Final[dict[str, tuple[str, Callable[[QueueStatus], float]]]] = {
    "phpmq_queue_dead_letters": ("Dead-letter records", lambda queue: queue.dead),
    "phpmq_queue_bytes": ("Bytes of the bodies alive", lambda queue: queue.bytes),
    "phpmq_queue_consumers": ("Consumers", lambda queue: queue.consumers),
    "phpmq_queue_credit": ("Free credit of all consumers", lambda queue: queue.credit),
}


def label(name: str) -> str:
    """Give the label of a queue; a name that looks like the rest gets one more ``~``."""
    return f"~{name}" if name.startswith("~") else name


class _Broker(Collector):
    """One scrape."""

    def __init__(
        self,
        status: Status,
        ages: Mapping[int, int],
        requests: Counter[tuple[str, str, int]],
        version: str,
        now_ms: int,
    ) -> None:
        self._status = status
        self._ages = ages
        self._requests = requests
        self._version = version
        self._now_ms = now_ms
        # The oldest keep their label, so that a counter does not move when new queues come.
        known = sorted(status.queues, key=lambda queue: queue.queue_id)
        own, rest = known[:QUEUES_MAX], known[QUEUES_MAX:]
        self._groups = [(label(queue.name), [queue]) for queue in own]
        if rest:
            self._groups.append((OTHER, rest))

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        yield from self._process()
        yield from self._queues()
        yield from self._peers()
        requests = CounterMetricFamily(
            "phpmq_http_requests", "Answers to HTTP requests", labels=["route", "method", "status"]
        )
        for (route, method, status), count in sorted(self._requests.items()):
            requests.add_metric([route, method, str(status)], count)
        yield requests

    def _process(self) -> Iterator[Metric]:
        status = self._status
        build = InfoMetricFamily("phpmq_build", "What runs")
        build.add_metric(
            [],
            {
                "version": self._version,
                "python": platform.python_version(),
                "sqlite": sqlite3.sqlite_version,
            },
        )
        yield build
        for name, text, value in (
            ("phpmq_start_time_seconds", "Unix time of the start", status.started_at / 1_000),
            ("phpmq_event_loop_lag_seconds", "How late the loop is", status.loop_lag_ms / 1_000),
            ("phpmq_last_commit_seconds", "The last commit", status.commit_ms_last / 1_000),
            ("phpmq_inbox_commands", "Commands that wait for a batch", status.inbox),
            ("phpmq_held_messages", "Messages that consumers hold", status.held),
            ("phpmq_held_bytes", "Bytes of their bodies", status.held_bytes),
            ("phpmq_window_messages", "Ready messages in memory", status.window_messages),
            ("phpmq_body_cache_bytes", "Bodies in memory", status.body_cache_bytes),
            ("phpmq_ready", "1: takes messages", status.is_ready and not status.is_draining),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        yield CounterMetricFamily("phpmq_commits", "Transactions stored", value=status.commits)

    def _queues(self) -> Iterator[Metric]:
        for key, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"phpmq_messages_{key}", text, labels=["queue"])
            for name, group in self._groups:
                counter.add_metric([name], sum(queue.totals.get(key, 0) for queue in group))
            yield counter
        messages = GaugeMetricFamily(
            "phpmq_queue_messages", "Messages alive", labels=["queue", "state"]
        )
        paused = GaugeMetricFamily(
            "phpmq_queue_paused", "Queues paused on this side", labels=["queue", "side"]
        )
        age = GaugeMetricFamily(
            "phpmq_queue_oldest_deliverable_age_seconds",
            "Age of the first ready message",
            labels=["queue"],
        )
        for name, group in self._groups:
            messages.add_metric([name, "ready"], sum(queue.ready for queue in group))
            messages.add_metric([name, "dispatched"], sum(queue.dispatched for queue in group))
            paused.add_metric([name, "delivery"], sum(q.delivery_paused for q in group))
            paused.add_metric([name, "publishing"], sum(q.publishing_paused for q in group))
            ages = [self._ages[q.queue_id] for q in group if q.queue_id in self._ages]
            if ages:
                age.add_metric([name], max(0, self._now_ms - min(ages)) / 1_000)
        yield from (messages, paused, age)
        for family, (text, value_of) in _GAUGES.items():
            gauge = GaugeMetricFamily(family, text, labels=["queue"])
            for name, group in self._groups:
                gauge.add_metric([name], sum(value_of(queue) for queue in group))
            yield gauge

    def _peers(self) -> Iterator[Metric]:
        status = self._status
        yield GaugeMetricFamily("phpmq_clients", "Connections", value=len(status.clients))
        yield CounterMetricFamily(
            "phpmq_clients_opened", "Connections taken", value=status.clients_opened
        )
        network = CounterMetricFamily(
            "phpmq_network_bytes", "Bytes on PHPMQ connections", labels=["direction"]
        )
        network.add_metric(["in"], status.bytes_in)
        network.add_metric(["out"], status.bytes_out)
        yield network
        paused: Counter[str] = Counter(c.paused_reason for c in status.clients if c.paused_reason)
        yield _by("phpmq_readers_paused", "Connections not read", "reason", paused, is_gauge=True)
        for family, text, label_name, counts in (
            ("phpmq_clients_closed", "Connections closed", "reason", status.closed),
            ("phpmq_protocol_errors", "Connections that broke the grammar", "code",
             status.protocol_errors),
            ("phpmq_acks_ignored", "Commands that changed nothing", "reason", status.acks_ignored),
            ("phpmq_publishes_refused", "Publishes refused", "reason", status.refused),
        ):  # fmt: skip
            yield _by(family, text, label_name, counts or {})


def _by(
    family: str, text: str, name: str, counts: Mapping[str, int], *, is_gauge: bool = False
) -> Metric:
    kind = GaugeMetricFamily if is_gauge else CounterMetricFamily
    metric = kind(family, text, labels=[name])
    for key, count in sorted(counts.items()):
        metric.add_metric([key], count)
    return metric


def render(
    status: Status,
    ages: Mapping[int, int],
    requests: Counter[tuple[str, str, int]],
    version: str,
    now_ms: int,
) -> bytes:
    """Give all metrics as text; ``ages`` has when the first ready message was published."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Broker(status, ages, requests, version, now_ms))
    return generate_latest(registry)
