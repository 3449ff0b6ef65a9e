"""Non-blocking sockets with a buffer, for the blocking client."""

import selectors
import socket
import ssl as tls
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from phpmq_lite.client.core import ConnectionOptions, EndedAtOnceError
from phpmq_lite.client.publishes import PROBE_S
from phpmq_lite.os_process import reset_after_fork
from phpmq_lite.sockets import Dialer, prepare

_READ_BYTES: Final = 65_536
_READS: Final = 16  # reads after which the conditions and time limits of calls are checked
_WRITE_BYTES: Final = 262_144
# A signal that arrives just before a system call, or in another thread, does not interrupt it.
# The signal's Python handler then runs only after the call, so this limits each call's time.
SIGNAL_S: Final = 1.0
_WOULD_BLOCK: Final = (BlockingIOError, tls.SSLWantReadError, tls.SSLWantWriteError)


def deadline_after(timeout_s: float | None) -> float | None:
    """Return the monotonic time at which a timeout ends, or None if there is none."""
    return None if timeout_s is None else time.monotonic() + timeout_s


def seconds_left(deadline: float | None) -> float | None:
    """Return how long it is until a deadline, at least 0, or None if there is none."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def open_stream(
    options: ConnectionOptions, dialer: Dialer, timeout_s: float | None, *, is_probed: bool = False
) -> "BufferedSocket":
    """Return a connected socket, or raise OSError; a probed one stays open for ``PROBE_S``."""
    deadline = deadline_after(timeout_s)
    if options.address.path:
        plain = socket.socket(socket.AF_UNIX)
        plain.settimeout(timeout_s)
        try:
            plain.connect(options.address.path)
        except BaseException:
            plain.close()
            raise
    else:
        plain = dialer.connect(timeout_s)
        prepare(plain)
    try:
        if is_probed:
            _check_stays_open(plain)
        if options.ssl is None:
            return BufferedSocket(plain)
        left_s = seconds_left(deadline)
        plain.settimeout(left_s if left_s is None else max(left_s, 0.001))
        name = options.server_hostname or options.address.host
        return BufferedSocket(options.ssl.wrap_socket(plain, server_hostname=name))
    except BaseException:
        plain.close()
        raise


def _check_stays_open(plain: socket.socket) -> None:
    """Raise ConnectionError if the peer closes the connection within ``PROBE_S``."""
    plain.settimeout(PROBE_S)
    with suppress(TimeoutError):
        if not plain.recv(1, socket.MSG_PEEK):
            raise EndedAtOnceError("the broker has closed the connection")


class BufferedSocket:
    """A buffered non-blocking socket.  Each method raises OSError if the connection is lost.

    Not thread-safe, except that other methods may be called while one thread is in :meth:`wait`.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._selector = selectors.DefaultSelector()
        self._selector.register(connected, selectors.EVENT_READ)
        self._parts: list[bytes] = []
        self._sending = memoryview(b"")
        self._is_sending = False
        self._has_more = False  # whether more data may be readable without waiting
        self.buffered = 0  # total number of bytes that were to be sent
        self.sent = 0  # total number of bytes that the socket has accepted
        self.failure: OSError | None = None  # met by a thread that does not read; see ``send``
        reset_after_fork(self)

    @property
    def unsent(self) -> int:
        """The number of bytes that the socket has not accepted yet."""
        return self.buffered - self.sent

    def buffer(self, data: bytes) -> None:
        """Add ``data`` to the buffer for the next :meth:`send`."""
        self._parts.append(data)
        self.buffered += len(data)

    def send(self) -> None:
        """Send as much buffered data as the socket accepts without blocking."""
        if self.failure is not None:
            raise self.failure
        if self._is_sending:  # a destructor or a signal handler has interrupted this method
            return
        self._is_sending = True
        try:
            while self._sending or self._parts:
                if not self._sending:
                    parts, self._parts = self._parts, []
                    self._sending = memoryview(b"".join(parts))
                sent = self._socket.send(self._sending[:_WRITE_BYTES])
                self._sending = self._sending[sent:]
                self.sent += sent
        except _WOULD_BLOCK:
            return
        finally:
            self._is_sending = False

    def receive(self) -> Iterator[bytes]:
        """Yield up to 1 MiB that has arrived; raise ConnectionError if it has ended."""
        self._has_more = False
        for _ in range(_READS):
            try:
                data = self._socket.recv(_READ_BYTES)
            except _WOULD_BLOCK:
                return
            if not data:
                raise ConnectionError("the broker has closed the connection")
            yield data
        self._has_more = True

    def watch(self, *, wakes: bool = False) -> None:
        """Set what else ends :meth:`wait`: sendable unsent data, or with ``wakes`` anything."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.unsent or wakes else 0)
        self._selector.modify(self._socket, events)

    def wait(self, timeout_s: float | None) -> None:
        """Wait up to 1 s for what :meth:`watch` has set."""
        limit_s = 0.0 if self._has_more else SIGNAL_S
        self._selector.select(limit_s if timeout_s is None else min(timeout_s, limit_s))

    def half_close(self) -> None:
        """Stop sending; the broker then reads the remaining data and closes the connection."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket immediately.  Safe to call twice."""
        self._selector.close()
        self._socket.close()

    forked = close  # closes the descriptors of the child; those of the parent remain
