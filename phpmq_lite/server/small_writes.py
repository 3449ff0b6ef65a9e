"""Small answers leave at once, past the transport where it has nothing to write.

uvloop writes at the end of its turn, after all else that there is to do: with one message in flight
that is a twentieth of the time until it is received.
"""

import asyncio
import os
from typing import Final

_SMALL_BYTES: Final = 4_096


def descriptor_of(transport: asyncio.Transport, kind: str) -> int | None:
    """Give what ``write`` needs; None where the bytes on the socket are not those written."""
    socket = transport.get_extra_info("socket")
    return None if socket is None or kind == "tls" else socket.fileno()


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
