"""The broker's limits, with the current usage of each and what happens if it is exceeded."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from phpmq_lite.admin import formats
from phpmq_lite.admin.http.context import Context
from phpmq_lite.admin.http.live_feeds import STREAMS, WAITS
from phpmq_lite.admin.messages import selection_store as selections
from phpmq_lite.admin.messages.stores import STORES
from phpmq_lite.admin.slow_clients import LIMITS
from phpmq_lite.server.admission import TOO_MANY, TOO_MANY_OF_ADDRESS
from phpmq_lite.server.backpressure import IDLE_S, NOT_READ, NOT_TAKEN, SILENT, TOO_SLOW
from phpmq_lite.server.status import BrokerStatus
from phpmq_lite.settings import Settings

_CLOSED: Final = "closed immediately"
_ENDED: Final = "closed"
_PAUSED: Final = "the connection is not read"
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


_LIMITS: Final[tuple[tuple[str, str, str, str, str], ...]] = (  # key, name, then, setting, unit
    ("connections", "Connections", _CLOSED, "limits.connections", ""),
    ("connections_per_address", "Connections from one address", _CLOSED,
     "limits.connections_per_address", ""),
    ("silent", "Inactivity when 80 % of connections are in use", _ENDED, "", "s"),
    ("frame_timeout", "Time to send a message", _ENDED, "limits.frame_timeout_s", "s"),
    ("write_timeout", "Time without reading", "closed; messages held by the client return",
     "limits.write_timeout_s", "s"),
    ("max_content", "Message content size", "closed; HTTP 413", "limits.max_content", "bytes"),
    ("max_queues", "Queues",
     "publishing to a new queue is refused, and a forward to one becomes a dead letter",
     "limits.max_queues", ""),
    ("receipts", "Remembered publish keys", "the queue that has most forgets its oldest",
     "receipts.limit", ""),
    ("credit", "Held by one consumer of a queue", _NO_DISPATCH, "limits.credit", ""),
    ("credit_bytes", "Held by one consumer, bytes", _NO_DISPATCH, "limits.credit_bytes", "bytes"),
    ("held", "Held by all consumers", _SHARED, "limits.held", ""),
    ("held_bytes", "Held by all consumers, bytes", _SHARED, "limits.held_bytes", "bytes"),
    ("memory", "Memory of the process", "data from publishers is read only briefly, once a second",
     "limits.memory", "bytes"),
    ("body_cache", "Bodies in memory", "other bodies are read from disk", "limits.body_cache",
     "bytes"),
    ("unstored_total", "Received but not stored", "large messages are read one at a time",
     "limits.unstored_total", "bytes"),
    ("unstored_frames", "Not stored, per connection", _PAUSED, "limits.unstored_frames", ""),
    ("unstored_bytes", "Not stored, per connection, bytes", _PAUSED, "limits.unstored_bytes",
     "bytes"),
    ("write_buffer", "Unsent data of one connection",
     "the connection gets no dispatches and is not read", "limits.write_buffer", "bytes"),
    ("http_connections", "Connections to the admin", _CLOSED, "limits.http_connections", ""),
    ("http_connections_per_address", "Admin connections from one address", _CLOSED,
     "limits.http_connections_per_address", ""),
    ("http_memory", "Large requests and responses",
     "the slowest transfer is closed; others are refused with 429 or 503", "limits.http_memory",
     "bytes"),
    ("http_slow", "Time to send a request", "closed with HTTP 408, also for slow bodies", "", "s"),
    ("streams", "Pages with live updates", "further pages poll every few seconds", "", ""),
    ("waits", "Waits for a message", "HTTP 429", "", ""),
    ("selections", "Frozen selections", "the oldest is dropped", "", "bytes"),
)  # fmt: skip
_Measured = dict[str, tuple[int, int | None, int | None]]  # bound, used and reached, by key


def list_limits(context: Context, status: BrokerStatus) -> list[LimitUsage]:
    """Return all limits with their current usage."""
    settings = context.settings
    measured = _of_connections(settings, status) | _of_messages(settings, status)
    measured |= _of_memory(settings, status) | _of_admin(context)
    return [
        LimitUsage(key, name, bound, then, used, reached, setting, unit)
        for key, name, then, setting, unit in _LIMITS
        for bound, used, reached in [measured[key]]
    ]


def _of_connections(settings: Settings, status: BrokerStatus) -> _Measured:
    limits, closed, admission = settings.limits, status.counters.closed, status.admission
    refused = admission.refused
    hosts = Counter(client.address.rpartition(":")[0] for client in status.clients)
    busiest = max(hosts.values(), default=0)
    per_address = max(limits.connections_per_address, limits.connections_per_loopback_address)
    capacity = admission.capacity or limits.connections
    count = max(admission.connections, len(status.clients))
    not_read = closed.get(NOT_READ, 0) + closed.get(NOT_TAKEN, 0)
    return {
        "connections": (capacity, count, refused.get(TOO_MANY, 0)),
        "connections_per_address": (per_address, busiest, refused.get(TOO_MANY_OF_ADDRESS, 0)),
        "silent": (IDLE_S, None, closed.get(SILENT, 0)),
        "frame_timeout": (limits.frame_timeout_s, None, closed.get(TOO_SLOW, 0)),
        "write_timeout": (limits.write_timeout_s, None, not_read),
    }


def _of_messages(settings: Settings, status: BrokerStatus) -> _Measured:
    limits, too_large = settings.limits, status.counters.protocol_errors["too-large"]
    too_many_queues = status.refused.get("too many queues", 0)
    held = [held for client in status.clients for _, held in client.queues.values()]
    return {
        "max_content": (limits.max_content, None, too_large),
        "max_queues": (limits.max_queues, status.queue_count, too_many_queues),
        "receipts": (settings.receipts.limit, status.publish_keys, status.evicted_keys),
        "credit": (limits.credit, max(held, default=0), None),
        "credit_bytes": (limits.credit_bytes, status.consumer_bytes, None),
        "held": (limits.held, status.held, status.held_times),
        "held_bytes": (limits.held_bytes, status.held_bytes, status.held_times),
    }


def _of_memory(settings: Settings, status: BrokerStatus) -> _Measured:
    limits, paused = settings.limits, status.counters.paused
    limiter, backpressure = status.memory_limiter, status.backpressure
    backpressure_use = backpressure.total_bytes, backpressure.limit_hits
    memory, unstored = limiter.bound_bytes or limits.memory, paused.get("unstored", 0)
    return {
        "memory": (memory, limiter.resident_bytes, limiter.limit_hits),
        "body_cache": (limits.body_cache, status.body_cache_bytes, None),
        "unstored_total": (limits.unstored_total, *backpressure_use),
        "unstored_frames": (limits.unstored_frames, None, unstored),
        "unstored_bytes": (limits.unstored_bytes, None, unstored),
        "write_buffer": (limits.write_buffer, status.unsent_bytes, paused.get("receipts", 0)),
    }


def _of_admin(context: Context) -> _Measured:
    limits, memory, live = context.settings.limits, context.memory, context.live
    connections, selected = context.app[LIMITS], context.app[STORES].selections
    admission, head_s = connections.admission, round(connections.timeouts.head_s)
    too_many = admission.refused.get(TOO_MANY, 0)
    of_address = admission.refused.get(TOO_MANY_OF_ADDRESS, 0)
    per_address = limits.http_connections_per_address
    return {
        "http_connections": (admission.capacity, admission.connections, too_many),
        "http_connections_per_address": (per_address, admission.busiest, of_address),
        "http_memory": (limits.http_memory, memory.used, memory.reached),
        "http_slow": (head_s, None, connections.ended.total()),
        "streams": (STREAMS, live.streams, live.streams_refused),
        "waits": (WAITS, len(live.waits), live.waits_refused),
        "selections": (selections.BYTES_MAX, selected.bytes, selected.dropped),
    }
