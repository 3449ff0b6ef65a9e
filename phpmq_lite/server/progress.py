"""Whether a peer takes what is written to it, however slowly.

The write buffer alone does not tell: the system takes from it in lumps of megabytes, so it stands
still for minutes while a slow peer reads steadily, and whoever writes a file fills it up again.
"""

import asyncio
import socket
import sys
from typing import Final

_INFO_BYTES: Final = 128
_ACKED: Final = slice(120, 128)  # tcpi_bytes_acked, from Linux 4.1 on; the layout only ever grows


class Progress:
    """What was seen of one connection at the last look."""

    __slots__ = ("_acked", "_unsent")

    def __init__(self) -> None:
        self._acked = 0
        self._unsent = 0

    def is_made(self, transport: asyncio.Transport) -> bool:
        """Tell whether the peer has taken anything since the last call.

        Of TCP on Linux by what the peer's system has acknowledged, else by the write buffer.
        A peer's system takes more once a sixteenth of its own buffer was read.
        """
        unsent, acked = transport.get_write_buffer_size(), acked_bytes(transport)
        is_less = unsent < self._unsent
        is_more = acked is not None and acked > self._acked
        self._unsent, self._acked = unsent, acked or 0
        return is_more if acked is not None else is_less


def acked_bytes(transport: asyncio.Transport) -> int | None:
    """Count what the peer's system has acknowledged; None where the socket does not tell."""
    used = transport.get_extra_info("socket")
    if used is None or sys.platform != "linux":
        return None
    try:
        info = used.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except (OSError, ValueError):  # no TCP; or closed just now, of which uvloop says the second
        return None
    return int.from_bytes(info[_ACKED], sys.byteorder) if len(info) == _INFO_BYTES else None
