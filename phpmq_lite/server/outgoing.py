"""From the end of a batch to the bytes of one write to one connection."""

from phpmq_lite.broker.queue import Connection
from phpmq_lite.model import Message, Receipt
from phpmq_lite.server.inspector import Side


def encode(
    side: Side,
    connection: Connection | None,
    dispatches: list[Message],
    receipts: list[Receipt],
    now_ms: int,
) -> tuple[list[bytes], list[Message]]:
    """Give the pieces to write, dispatches first, and the messages whose deadline has passed.

    What the connection does not hold any more, or has got already, is left out.  ``now_ms`` is on
    the steady scale.
    """
    parts: list[bytes] = []
    late: list[Message] = []
    append = None  # the first dispatch fixes how the connection is written to
    for message in dispatches:
        body, holder = message.body, message.holder
        if body is None or holder is None or holder.connection is not connection:
            continue  # sent already, or a later batch took it away again
        deadline_ms = message.deadline_ms
        if deadline_ms is None:
            ttl_s = 0
        elif deadline_ms > now_ms:
            ttl_s = (deadline_ms - now_ms + 999) // 1_000
        else:
            late.append(message)
            continue
        if append is None:
            append = side.dispatcher
        append(parts, holder.queue.name, body, message.message_id, ttl_s)
        message.body = None  # on disk; a redelivery loads it
        message.is_sent = True
    for receipt in receipts:
        side.append_receipts(parts, receipt.queue, receipt.keys, receipt.reason)
    return parts, late
