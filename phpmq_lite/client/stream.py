"""A socket of the blocking client that never blocks by itself: writing cannot starve reading."""

import selectors
import socket
import ssl as tls
from collections.abc import Iterator
from typing import Final

from phpmq_lite.client.target import Target

_READ_BYTES: Final = 65_536
_WRITE_BYTES: Final = 262_144
# A signal that comes just before the system call, or to another thread, wakes nobody: its
# handler runs once the call is over.
_SIGNAL_S: Final = 1.0
_WOULD_BLOCK: Final = (BlockingIOError, tls.SSLWantReadError, tls.SSLWantWriteError)


def open_stream(
    target: Target,
    ssl: tls.SSLContext | None,
    server_hostname: str | None,
    timeout_s: float | None,
) -> "Stream":
    """Connect.

    Raises:
        OSError: nobody answers in time, or TLS fails.
    """
    if target.path:
        plain = socket.socket(socket.AF_UNIX)
        plain.settimeout(timeout_s)
        try:
            plain.connect(target.path)
        except BaseException:
            plain.close()
            raise
    else:
        plain = socket.create_connection((target.host, target.port), timeout_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if ssl is None:
        return Stream(plain)
    try:
        return Stream(ssl.wrap_socket(plain, server_hostname=server_hostname or target.host))
    except BaseException:
        plain.close()
        raise


class Stream:
    """Bytes waiting to be sent, and bytes that came.  Every method may raise OSError: it is lost.

    ``unsent`` counts the bytes that the socket has not taken yet.
    """

    __slots__ = ("_parts", "_selector", "_sending", "_socket", "unsent")

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._selector = selectors.DefaultSelector()
        self._selector.register(connected, selectors.EVENT_READ)
        self._parts: list[bytes] = []
        self._sending = memoryview(b"")
        self.unsent = 0

    def put(self, data: bytes) -> None:
        """Have ``data`` sent by the next :meth:`send`."""
        self._parts.append(data)
        self.unsent += len(data)

    def send(self) -> None:
        """Send what the socket takes without waiting."""
        while self.unsent:
            if not self._sending:
                self._sending = memoryview(b"".join(self._parts))
                self._parts.clear()
            try:
                sent = self._socket.send(self._sending[:_WRITE_BYTES])
            except _WOULD_BLOCK:
                return
            self._sending = self._sending[sent:]
            self.unsent -= sent

    def receive(self) -> Iterator[bytes]:
        """Yield what is there without waiting.

        Raises:
            ConnectionError: the broker has closed.
        """
        while True:
            try:
                data = self._socket.recv(_READ_BYTES)
            except _WOULD_BLOCK:
                return
            if not data:
                raise ConnectionError("the broker has closed the connection")
            yield data

    def wait(self, timeout_s: float | None) -> None:
        """Return when there is something to read or room to send what waits; after 1 s anyway."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.unsent else 0)
        self._selector.modify(self._socket, events)
        self._selector.select(_SIGNAL_S if timeout_s is None else min(timeout_s, _SIGNAL_S))

    def half_close(self) -> None:
        """Say that nothing more will be sent; the broker then reads the rest and closes."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close at once.  May be called twice."""
        self._selector.close()
        self._socket.close()
