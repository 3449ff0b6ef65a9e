"""From rows of the live table to messages; the order of the columns is ``Message.__init__``'s."""

from collections.abc import Iterable
from typing import Any

from phpmq_lite.model import Message, QueueRow


def message_of(row: tuple[Any, ...]) -> Message:
    """Make a message from the 23 columns of the live table."""
    return Message(*row)


def flat_ready(messages: Iterable[Message]) -> list[Any]:
    """Lay out new messages for ``insert_ready``."""
    flat: list[Any] = []
    for m in messages:
        flat += (
            m.seq, m.token, m.queue_id, m.position, m.published_at, m.size, m.crc, m.publisher
        )  # fmt: skip
    return flat


def flat_sent(messages: Iterable[Message]) -> list[Any]:
    """Lay out new messages for ``insert_sent``."""
    flat: list[Any] = []
    for m in messages:
        flat += (
            m.seq, m.token, m.queue_id, m.position, m.published_at, m.first_dispatched_at,
            m.last_dispatched_at, m.size, m.crc, m.publisher, m.consumer,
        )  # fmt: skip
    return flat


def flat_ready_ttl(messages: Iterable[Message]) -> list[Any]:
    """Lay out new messages for ``insert_ready_ttl``."""
    flat: list[Any] = []
    for m in messages:
        flat += (
            m.seq, m.token, m.queue_id, m.position, m.ttl_s, m.deadline_ms, m.published_at, m.size,
            m.crc, m.publisher,
        )  # fmt: skip
    return flat


def flat_ready_enveloped(messages: Iterable[Message]) -> list[Any]:
    """Lay out new messages for ``insert_ready_enveloped``."""
    flat: list[Any] = []
    for m in messages:
        flat += (
            m.seq, m.token, m.queue_id, m.position, m.ttl_s, m.deadline_ms, m.published_at, m.size,
            m.crc, m.publisher, m.urn, m.trace_id, m.meta_id, m.attempts,
        )  # fmt: skip
    return flat


def flat_plain(messages: Iterable[Message]) -> list[Any]:
    """Lay out new messages for ``insert_plain``: the columns up to ``consumer``."""
    flat: list[Any] = []
    for m in messages:
        flat += (
            m.seq, m.token, m.queue_id, m.position, m.state, m.ttl_s, m.deadline_ms,
            m.published_at, m.first_dispatched_at, m.last_dispatched_at, m.deliveries,
            m.charged, m.size, m.crc, m.publisher, m.consumer,
        )  # fmt: skip
    return flat


def flat_enveloped(messages: Iterable[Message]) -> list[Any]:
    """Lay out new messages for ``insert_enveloped``: the columns up to ``attempts``."""
    flat: list[Any] = []
    for m in messages:
        flat += (
            m.seq, m.token, m.queue_id, m.position, m.state, m.ttl_s, m.deadline_ms,
            m.published_at, m.first_dispatched_at, m.last_dispatched_at, m.deliveries,
            m.charged, m.size, m.crc, m.publisher, m.consumer,
            m.urn, m.trace_id, m.meta_id, m.attempts,
        )  # fmt: skip
    return flat


def flat_whole(messages: Iterable[Message]) -> list[Any]:
    """Lay out new messages for ``insert_whole``: all columns."""
    flat: list[Any] = []
    for m in messages:
        flat += flat_plain((m,))
        flat += (
            m.urn, m.trace_id, m.meta_id, m.attempts,
            m.source_seq, m.source_queue_id, m.source_reason,
        )  # fmt: skip
    return flat


def flat_dispatched(messages: Iterable[Message]) -> list[Any]:
    """Lay out messages on disk for ``dispatch`` and ``settle_dispatched``."""
    flat: list[Any] = []
    for m in messages:
        flat += (m.seq, m.consumer, m.last_dispatched_at)
    return flat


def flat_changed(messages: Iterable[Message]) -> list[Any]:
    """Lay out messages on disk for ``change``: seq and what can change in a life."""
    flat: list[Any] = []
    for m in messages:
        flat += (
            m.seq, m.queue_id, m.position, m.state, m.ttl_s, m.deadline_ms,
            m.first_dispatched_at, m.last_dispatched_at, m.deliveries, m.charged, m.consumer,
        )  # fmt: skip
    return flat


def flat_counts(queues: Iterable[QueueRow]) -> list[int]:
    """Lay out queues for ``update_queue``: those whose counts differ from what was laid out last.

    One message in flight leaves them as they were, batch for batch.
    """
    flat: list[int] = []
    for row in queues:
        counts = row.live_count, row.live_bytes
        if counts != row.stored:
            row.stored = counts
            flat += (row.queue_id, *counts)
    return flat
