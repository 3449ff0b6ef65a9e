"""Messages that wait for their body or their record, and the connections that wait for them."""

from typing import Final

from phpmq_lite.broker.queue import Connection
from phpmq_lite.model import Message

MOST: Final = 1_000  # not more than fall due at once, see storage/write/store.py
MOST_BYTES: Final = 32 << 20


class Dying(dict[int, tuple[Message, str]]):
    """By seq: the message, and the reason of its death.

    On disk each is still what it was, so what falls due is not asked for while it is full: the
    same rows would come again and again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.size = 0  # bytes of their bodies
        self._awaited: dict[int, Connection] = {}  # by seq: who gets on when it is dead

    @property
    def is_full(self) -> bool:
        """Tell whether no further message should fall due now."""
        return len(self) >= MOST or self.size >= MOST_BYTES

    def add(self, message: Message, reason: str) -> None:
        """Have a message wait."""
        self[message.seq] = (message, reason)
        self.size += message.size

    def holds_up(self, connection: Connection, seq: int) -> bool:
        """Have a connection's later commands wait for this one; False: it is not dying."""
        if seq not in self:
            return False
        self._awaited[seq] = connection
        connection.dying.add(seq)
        return True

    def end(self, message: Message) -> Connection | None:
        """A message is dead now; give the connection that it held up, if nothing else does."""
        if self.pop(message.seq, None) is None:
            return None
        self.size -= message.size
        connection = self._awaited.pop(message.seq, None)
        if connection is None:
            return None
        connection.dying.discard(message.seq)
        return None if connection.dying else connection
