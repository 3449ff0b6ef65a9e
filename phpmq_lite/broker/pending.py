"""Messages that wait for their body, and settlements that wait for the end of a hold."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from phpmq_lite.broker.queue import Connection
from phpmq_lite.model import DUE_AT_ONCE, Message

PENDING_MAX: Final = DUE_AT_ONCE
PENDING_BYTES_MAX: Final = 32 << 20
LATE_MAX: Final = 10_000
LATE_BYTES_MAX: Final = 16 << 20

Settlement = Callable[[Message], object]


class PendingMessages(dict[int, tuple[Message, str]]):
    """Messages waiting for a body or record, with their dead-letter reasons, keyed by seq.

    Those in ``retries`` wait for the body in which the retry counts its attempt.

    Their rows on disk are unchanged.  While this is full, no expired messages are requested,
    because the same rows would be loaded again and again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.size = 0  # total size of the messages' bodies
        self.retries: dict[int, Any] = {}  # seq -> RetryRequest
        self.failures: dict[int, Mapping[str, Any]] = {}  # seq -> what its worker reported
        self._waiting: dict[int, Connection] = {}  # seq -> connection whose later commands wait

    @property
    def is_full(self) -> bool:
        """Return whether no more messages should expire for now."""
        return len(self) >= PENDING_MAX or self.size >= PENDING_BYTES_MAX

    def add(self, message: Message, reason: str) -> None:
        self[message.seq] = (message, reason)
        self.size += message.size

    def delays(self, connection: Connection, seq: int) -> bool:
        """Return whether a message is pending; if so, hold back the connection's later commands."""
        if seq not in self:
            return False
        self._waiting[seq] = connection
        connection.pending.add(seq)
        return True

    def remove(self, message: Message) -> Connection | None:
        """Remove a message; return the connection that waited only for this message, or None."""
        if self.pop(message.seq, None) is None:
            return None
        self.size -= message.size
        connection = self._waiting.pop(message.seq, None)
        if connection is None:
            return None
        connection.pending.discard(message.seq)
        return None if connection.pending else connection


class LateSettlements(dict[int, tuple[Settlement, int]]):
    """Settlements of messages that another connection holds, with their sizes, keyed by seq.

    If the holder acknowledges its message, the entry stays: acknowledging must not look here.  If
    there are too many, the oldest are dropped.
    """

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def keep(self, seq: int, settle: Settlement, size: int) -> None:
        """Keep a settlement of ``size`` bytes until the hold ends, instead of an earlier one."""
        self.take(seq)
        self[seq] = (settle, size)
        self.size += size
        while len(self) > LATE_MAX or self.size > LATE_BYTES_MAX:
            self.take(next(iter(self)))

    def take(self, seq: int) -> Settlement | None:
        """Remove and return the settlement of a message, if there is one."""
        settle, size = self.pop(seq, (None, 0))
        self.size -= size
        return settle
