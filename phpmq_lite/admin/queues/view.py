"""What the API and the pages show of a queue, and the totals over all queues."""

from collections.abc import Iterable, Mapping
from typing import Final, Self

from pydantic import Field

from phpmq_lite.admin import formats
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.output import PerSecond, ResponseModel
from phpmq_lite.server.status import BrokerStatus, QueueStatus

OLDEST_READ_MAX: Final = 200  # maximum number of queues whose first message is read at once


class QueueView(ResponseModel):
    """A queue with its current statistics."""

    # ``of`` fills each field from the attribute of ``QueueStatus`` with its name, ``of_status``
    # those of the first ready message.  A field added here also appears in ``QueueDetailView``, in
    # the CSV of the list, in the OpenAPI document and in docs/reference.

    queue_id: int = Field(description="queue number")
    name: str = Field(description="queue name")
    ready: int = Field(description="number of ready messages, with those behind their group")
    scheduled: int = Field(description="number of messages that become ready later")
    dispatched: int = Field(description="number of messages held by consumers")
    dead: int = Field(
        description="dead-letter records for this queue; 0 for a dead-letter or retry queue"
    )
    bytes: int = Field(description="total size of live message bodies, in bytes")
    oldest_ready_at: int | None = Field(
        description="since when the oldest ready message is ready, Unix ms; null if none"
    )
    oldest_age_s: float | None = Field(description="how long the oldest one is ready; or null")
    published_per_s: PerSecond = Field(description="messages published per second")
    dispatched_per_s: PerSecond = Field(description="messages dispatched per second")
    acked_per_s: PerSecond = Field(description="messages acknowledged per second")
    consumers: int = Field(description="number of consumers")
    credit: int = Field(description="number of messages that consumers can accept now")
    delivery_paused: bool = Field(description="true if no messages are dispatched")
    publishing_paused: bool = Field(description="true if messages are rejected")

    @classmethod
    def of_status(cls, queue: QueueStatus, oldest_ready_at: int | None, now_ms: int) -> Self:
        age_ms = None if oldest_ready_at is None else max(0, now_ms - oldest_ready_at)
        return cls.of(
            queue,
            oldest_ready_at=oldest_ready_at,
            oldest_age_s=None if age_ms is None else age_ms / 1_000,
        )


async def read_oldest_ready_at(call: Call, queues: Iterable[QueueStatus]) -> dict[int, int]:
    """Return since when the oldest ready message of each queue is ready, by queue_id.

    For many queues, the times come from the last sample, which may be up to 10 s old.
    """
    ready = [queue.queue_id for queue in queues if queue.ready > 0]
    if len(ready) <= OLDEST_READ_MAX:
        return await call.context.reader.oldest_ready_at(ready)
    sampled = call.context.rollups.oldest_ready_at
    return {queue_id: sampled[queue_id] for queue_id in ready if queue_id in sampled}


def queue_cells(queue: QueueStatus, oldest_ready_at: int | None, now_ms: int) -> dict[str, str]:
    """Return the table cells for a queue, keyed by the name of the live field."""
    return {
        "ready": formats.format_number(queue.ready),
        "scheduled": formats.format_number(queue.scheduled),
        "dispatched": formats.format_number(queue.dispatched),
        "dead": formats.format_number(queue.dead),
        "age": _age(oldest_ready_at, now_ms),
        "in": formats.format_rate(queue.published_per_s),
        "out": formats.format_rate(queue.acked_per_s),
        "consumers": formats.format_number(queue.consumers),
        "credit": formats.format_number(queue.credit),
        "bytes": formats.format_size(queue.bytes),
    }


def sum_totals(status: BrokerStatus) -> dict[str, float]:
    """Return the totals over all queues, as shown in the tiles of the overview.

    Dead-letter records count only as dead, not as ready in their own queues.
    """
    queues = status.queues
    return {
        "ready": sum(queue.ready for queue in queues if not queue.is_dead_letter_queue),
        "scheduled": sum(queue.scheduled for queue in queues),
        "dispatched": sum(queue.dispatched for queue in queues),
        "dead": sum(queue.dead for queue in queues),
        "published": sum(queue.published_per_s for queue in queues),
        "acked": sum(queue.acked_per_s for queue in queues),
    }


def overview_tiles(
    status: BrokerStatus, oldest_ready_at: Mapping[int, int], now_ms: int
) -> dict[str, str]:
    """Return the values shown at the top of the overview, keyed by the name of the live field."""
    sums = sum_totals(status)
    dead_letter_ids = {queue.queue_id for queue in status.queues if queue.is_dead_letter_queue}
    oldest = min(
        (at for key, at in oldest_ready_at.items() if key not in dead_letter_ids), default=None
    )
    return {
        "total.ready": formats.format_number(int(sums["ready"])),
        "total.scheduled": formats.format_number(int(sums["scheduled"])),
        "total.dispatched": formats.format_number(int(sums["dispatched"])),
        "total.dead": formats.format_number(int(sums["dead"])),
        "total.age": _age(oldest, now_ms),
        "total.in": formats.format_rate(sums["published"]),
        "total.out": formats.format_rate(sums["acked"]),
        "total.clients": formats.format_number(len(status.clients)),
        "total.queues": formats.format_number(len(status.queues)),
        "total.held": formats.format_size(status.held_bytes),
        "total.commit": f"{status.commits.last_ms:.1f} ms",
        "total.lag": f"{status.loop_lag_ms:.1f} ms",
        "total.up": formats.format_duration(now_ms - status.started_at),
    }


def _age(since_ms: int | None, now_ms: int) -> str:
    if since_ms is None:
        return formats.DASH
    return formats.format_duration(now_ms - since_ms, with_seconds=False)


def paused_sides(queue: QueueStatus) -> list[str]:
    """Return what is paused in a queue: delivery, publishing, both or nothing."""
    sides = {"delivery paused": queue.delivery_paused, "publishing paused": queue.publishing_paused}
    return [text for text, is_paused in sides.items() if is_paused]
