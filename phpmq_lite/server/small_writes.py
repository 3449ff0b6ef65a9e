"""Small answers leave at once, past the transport where it has nothing to write.

uvloop writes at the end of its turn, after all else that there is to do: with one message in flight
that is a twentieth of the time until it is received.
"""

import asyncio
import os
import select
from typing import Final

_SMALL_BYTES: Final = 4_096
_ENDED: Final = getattr(select, "POLLRDHUP", 0)  # a reset is always reported


def descriptor_of(transport: asyncio.Transport, kind: str) -> int | None:
    """Give what ``write`` needs; None where the bytes on the socket are not those written."""
    socket = transport.get_extra_info("socket")
    return None if socket is None or kind == "tls" else socket.fileno()


class EndDetector:
    """Asks the system whether the peer of a socket has ended its side.

    The loop reads the end of a connection only after it has handled what is before it; a system
    call of 0.7 µs a write tells at once.
    """

    __slots__ = ("_poll",)

    def __init__(self, descriptor: int) -> None:
        self._poll = select.poll()
        self._poll.register(descriptor, _ENDED)

    @classmethod
    def of(cls, transport: asyncio.Transport) -> "EndDetector | None":
        """Return the detector of a transport; None if it has no socket."""
        socket = transport.get_extra_info("socket")
        return None if socket is None else cls(socket.fileno())

    def has_ended(self) -> bool:
        """Return whether the peer has closed or reset; the socket must still be open here."""
        return bool(self._poll.poll(0))


def write(transport: asyncio.Transport, descriptor: int | None, data: bytes) -> None:
    """Write to a transport that is not closing; in order with what was written before."""
    is_small = len(data) <= _SMALL_BYTES
    if is_small and descriptor is not None and not transport.get_write_buffer_size():
        try:
            sent = os.write(descriptor, data)
        except OSError:
            sent = 0  # the transport meets it too, and knows what to do
        if sent == len(data):
            return
        data = data[sent:]
    transport.write(data)
