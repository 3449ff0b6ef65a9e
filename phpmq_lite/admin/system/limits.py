"""The broker's limits, with the current usage of each and what happens if it is exceeded."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from phpmq_lite.admin import formats
from phpmq_lite.admin.context import Context
from phpmq_lite.admin.messages import selection_store as selections
from phpmq_lite.admin.system.live import STREAMS, WAITS
from phpmq_lite.server.admission import TOO_MANY, TOO_MANY_OF_ADDRESS
from phpmq_lite.server.backpressure import IDLE_S, NOT_READ, NOT_TAKEN, SILENT, TOO_SLOW
from phpmq_lite.server.status import BrokerStatus
from phpmq_lite.settings import Settings

_CLOSED: Final = "closed immediately"
_ENDED: Final = "closed"
_NO_DISPATCH: Final = "the consumer gets no further dispatches"
_SHARED: Final = "queues that hold their share get no dispatches; other queues get up to 25 % more"


@dataclass(slots=True, frozen=True)
class LimitUsage:
    """A limit and its usage; ``used`` and ``reached`` are None if they are not known."""

    key: str  # value of the label in the metrics
    name: str
    bound: int
    then: str  # what happens when the limit is exceeded
    used: int | None = None
    reached: int | None = None  # number of times the limit has been reached since startup
    setting: str = ""  # name of the setting for the limit; empty if the limit is fixed
    unit: str = ""  # "bytes", "s", or empty for a count

    @property
    def share(self) -> float | None:
        """The fraction of the limit that is in use, or None if the usage is unknown."""
        return None if self.used is None else self.used / self.bound

    @property
    def level(self) -> str:
        """The CSS class: ``bad`` at the limit, ``warn`` at 80 % of it or more, otherwise empty."""
        share = self.share or 0.0
        return "bad" if share >= 1 else "warn" if share >= 0.8 else ""

    @property
    def shown(self) -> str:
        """The current usage, formatted for display."""
        return formats.DASH if self.used is None else self._format_value(self.used)

    @property
    def shown_bound(self) -> str:
        """The limit, formatted for display."""
        return self._format_value(self.bound)

    def _format_value(self, value: int) -> str:
        if self.unit == "bytes":
            return formats.format_size(value)
        return formats.format_number(value) + (f" {self.unit}" if self.unit else "")


def count_paused_readers(status: BrokerStatus) -> Counter[str]:
    """Count the connections that the broker is not reading from, grouped by reason."""
    return Counter(
        reason
        for client in status.clients
        for reason in (client.paused_reason or "").split(", ")
        if reason
    )


def list_limits(context: Context, status: BrokerStatus) -> list[LimitUsage]:
    """Return all limits with their current usage."""
    settings = context.settings
    return [
        *_of_connections(settings, status),
        *_of_messages(settings, status),
        *_of_memory(settings, status),
        *_of_admin(context),
    ]


def _of_connections(settings: Settings, status: BrokerStatus) -> Iterator[LimitUsage]:
    most, closed, gate = settings.limits, status.figures.closed, status.gate
    hosts = Counter(client.address.rpartition(":")[0] for client in status.clients)
    yield LimitUsage(
        "connections", "Connections", gate.capacity or most.connections, _CLOSED,
        max(gate.connections, len(status.clients)), gate.refused.get(TOO_MANY, 0),
        "limits.connections",
    )  # fmt: skip
    yield LimitUsage(
        "connections_per_address", "Connections from one address",
        max(most.connections_per_address, most.connections_per_loopback_address), _CLOSED,
        max(hosts.values(), default=0), gate.refused.get(TOO_MANY_OF_ADDRESS, 0),
        "limits.connections_per_address",
    )  # fmt: skip
    yield LimitUsage(
        "silent", "Inactivity when 80 % of connections are in use", IDLE_S, _ENDED,
        reached=closed.get(SILENT, 0), unit="s",
    )  # fmt: skip
    yield LimitUsage(
        "frame_timeout", "Time to send a message", most.frame_timeout_s, _ENDED,
        reached=closed.get(TOO_SLOW, 0), setting="limits.frame_timeout_s", unit="s",
    )  # fmt: skip
    yield LimitUsage(
        "write_timeout", "Time without reading", most.write_timeout_s,
        "closed; messages held by the client return",
        reached=closed.get(NOT_READ, 0) + closed.get(NOT_TAKEN, 0),
        setting="limits.write_timeout_s", unit="s",
    )  # fmt: skip


def _of_messages(settings: Settings, status: BrokerStatus) -> Iterator[LimitUsage]:
    most, refused = settings.limits, status.refused
    held = [held for client in status.clients for _, held in client.queues.values()]
    yield LimitUsage(
        "max_content", "Message content size", most.max_content, "closed; HTTP 413",
        reached=status.figures.protocol_errors["too-large"],
        setting="limits.max_content", unit="bytes",
    )  # fmt: skip
    yield LimitUsage(
        "max_queues", "Queues", most.max_queues,
        "publishing to a new queue is refused, and a forward to one becomes a dead letter",
        status.queue_count, refused.get("too many queues", 0), "limits.max_queues",
    )  # fmt: skip
    yield LimitUsage(
        "receipts", "Remembered publish keys", settings.receipts.limit,
        "the queue that has most forgets its oldest",
        status.publish_keys, status.evicted_keys, "receipts.limit",
    )  # fmt: skip
    yield LimitUsage(
        "credit", "Held by one consumer of a queue", most.credit, _NO_DISPATCH,
        max(held, default=0), setting="limits.credit",
    )  # fmt: skip
    yield LimitUsage(
        "credit_bytes", "Held by one consumer, bytes", most.credit_bytes, _NO_DISPATCH,
        status.consumer_bytes, setting="limits.credit_bytes", unit="bytes",
    )  # fmt: skip
    yield LimitUsage(
        "held", "Held by all consumers", most.held, _SHARED,
        status.held, status.held_times, "limits.held",
    )  # fmt: skip
    yield LimitUsage(
        "held_bytes", "Held by all consumers, bytes", most.held_bytes, _SHARED,
        status.held_bytes, status.held_times, "limits.held_bytes", "bytes",
    )  # fmt: skip


def _of_memory(settings: Settings, status: BrokerStatus) -> Iterator[LimitUsage]:
    most, paused = settings.limits, status.figures.paused
    yield LimitUsage(
        "memory", "Memory of the process", status.brake.bound_bytes or most.memory,
        "data from publishers is read only briefly, once a second",
        status.brake.resident_bytes, status.brake.limit_hits, "limits.memory", "bytes",
    )  # fmt: skip
    yield LimitUsage(
        "body_cache", "Bodies in memory", most.body_cache, "other bodies are read from disk",
        status.body_cache_bytes, setting="limits.body_cache", unit="bytes",
    )  # fmt: skip
    yield LimitUsage(
        "unstored_total", "Received but not stored", most.unstored_total,
        "large messages are read one at a time",
        status.pressure.total_bytes, status.pressure.limit_hits, "limits.unstored_total", "bytes",
    )  # fmt: skip
    yield LimitUsage(
        "unstored_frames", "Not stored, per connection", most.unstored_frames,
        "the connection is not read", reached=paused.get("unstored", 0),
        setting="limits.unstored_frames",
    )  # fmt: skip
    yield LimitUsage(
        "unstored_bytes", "Not stored, per connection, bytes", most.unstored_bytes,
        "the connection is not read", reached=paused.get("unstored", 0),
        setting="limits.unstored_bytes", unit="bytes",
    )  # fmt: skip
    yield LimitUsage(
        "write_buffer", "Unsent data of one connection", most.write_buffer,
        "the connection gets no dispatches and is not read",
        status.unsent_bytes, paused.get("receipts", 0), "limits.write_buffer", "bytes",
    )  # fmt: skip


def _of_admin(context: Context) -> Iterator[LimitUsage]:
    most, memory, live = context.settings.limits, context.memory, context.live
    connections, selected = context.connection_limits, context.actions.selections
    gate = connections.gate
    yield LimitUsage(
        "http_connections", "Connections to the admin", gate.capacity, _CLOSED,
        gate.connections, gate.refused.get(TOO_MANY, 0), "limits.http_connections",
    )  # fmt: skip
    yield LimitUsage(
        "http_connections_per_address", "Admin connections from one address",
        most.http_connections_per_address, _CLOSED, gate.busiest,
        gate.refused.get(TOO_MANY_OF_ADDRESS, 0),
        "limits.http_connections_per_address",
    )  # fmt: skip
    yield LimitUsage(
        "http_memory", "Large requests and responses", most.http_memory,
        "the slowest transfer is closed; others are refused with 429 or 503",
        memory.used, memory.reached, "limits.http_memory", "bytes",
    )  # fmt: skip
    yield LimitUsage(
        "http_slow", "Time to send a request", round(connections.timeouts.head_s),
        "closed with HTTP 408, also for slow bodies", reached=connections.ended.total(), unit="s",
    )  # fmt: skip
    yield LimitUsage(
        "streams", "Pages with live updates", STREAMS, "further pages poll every few seconds",
        live.streams, live.streams_refused,
    )  # fmt: skip
    yield LimitUsage(
        "waits", "Waits for a message", WAITS, "HTTP 429", len(live.waits), live.waits_refused
    )
    yield LimitUsage(
        "selections", "Frozen selections", selections.BYTES_MAX, "the oldest is dropped",
        selected.bytes, selected.dropped, unit="bytes",
    )  # fmt: skip
