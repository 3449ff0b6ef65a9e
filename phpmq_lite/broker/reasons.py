"""Reasons: why a message was settled or returned, and why the broker refuses to store one.

The texts are stored in the history, sent in receipts and used as labels of metrics, so they stay
the same.  They are plain strings, because rows with other types cannot be passed to the writer
process.  An invalid envelope is dead-lettered with a code from ``envelopes/validation.py``.
"""

from typing import Final, NamedTuple

from phpmq_lite.errors import KEY_CONFLICT
from phpmq_lite.model import DATABASE_FULL, DISK_FULL, DISK_LOW
from phpmq_lite.operator_actions import SkipReason

# -- why a message is dead
BY_CLIENT: Final = "client"  # a consumer dead-lettered it
DAMAGED: Final = "crc"
EXPIRED: Final = "expired"
MAX_DELIVERIES: Final = "max_deliveries"
NOT_FORWARDED: Final = "not_forwarded"  # limits.max_queues prevented creation of the target queue

# -- why a message is deleted
DELETED: Final = "delete"
PURGED: Final = "purge"
UNDONE: Final = "undo"  # undoing an action deletes what the action created
REDRIVEN: Final = "redriven"
TAKEN_BACK: Final = "taken back"
REPLACED: Final = "replaced"  # by a publish with its unique key
ERASED: Final = "erase"  # so that its data can be erased

# -- why a held message returns to its queue
ACK_TIMEOUT: Final = "acknowledgement timeout"
CONNECTION_ENDED: Final = "connection ended"  # also counts publishes that waited for their queue


# -- why a message is refused


class Refusal(NamedTuple):
    """Why a queue refuses messages."""

    reason: str  # in receipts and counters
    code: str  # of the RefusedError that operators receive
    skip_reason: SkipReason  # of an action that would store the message


PAUSED: Final = Refusal("paused", "paused", SkipReason.PAUSED)
FULL_OF_MESSAGES: Final = Refusal("queue full: messages", "queue_full", SkipReason.QUEUE_FULL)
FULL_OF_BYTES: Final = Refusal("queue full: bytes", "queue_full", SkipReason.QUEUE_FULL)
SHORTAGE_REFUSALS: Final = {
    DISK_LOW: Refusal(DISK_LOW.reason, DISK_LOW.code, SkipReason.DISK_FULL),
    DISK_FULL: Refusal(DISK_FULL.reason, DISK_FULL.code, SkipReason.DISK_FULL),
    DATABASE_FULL: Refusal(DATABASE_FULL.reason, DATABASE_FULL.code, SkipReason.DATABASE_FULL),
}
TOO_MANY_QUEUES: Final = "too many queues"
KEY_REUSED: Final = KEY_CONFLICT
UNIQUE_KEY_TAKEN: Final = SkipReason.UNIQUE_KEY_TAKEN.value  # of a message that was not forwarded
UNIQUE_KEY_HELD: Final = "unique_key_held"  # a consumer holds the message to replace
BAD_OPTION: Final = "bad_option"

# -- why a command is ignored
INVALID: Final = "invalid"  # its options

_RECORD_SKIP_REASONS: Final = {
    SkipReason.PAUSED: SkipReason.RECORDS_PAUSED,
    SkipReason.QUEUE_FULL: SkipReason.RECORDS_FULL,
    SkipReason.DISK_FULL: SkipReason.RECORDS_DISK_FULL,
    SkipReason.DATABASE_FULL: SkipReason.RECORDS_DATABASE_FULL,
}


def refusal_of_records(refusal: Refusal) -> Refusal:
    """Return the refusal of a queue whose dead-letter queue refuses records."""
    return Refusal(
        f"dead-letter queue {refusal.reason}",
        refusal.code,
        _RECORD_SKIP_REASONS[refusal.skip_reason],
    )
