"""TCP connections: one time limit for all addresses, options that notice dead peers, TLS errors."""

import errno
import os
import selectors
import socket
import time
from contextlib import suppress
from typing import Any, Final

ADDRESS_DELAY_S: Final = 1.0  # another address is tried if the first has not answered after this
_SIGNAL_S: Final = 1.0  # a signal that arrives just before a system call does not interrupt it

# A peer that sends no data for 60 s is probed every 15 s and dropped after 4 missed probes.
KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", 0)), 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)
# While sent bytes are unacknowledged, the kernel does not probe: it drops a peer after this time.
# Some kernels look only when they retransmit, which can take twice as long: 140 s.
UNACKNOWLEDGED_MS: Final = 70_000


def prepare(connection: Any, *, drops_unread: bool = True) -> None:
    """Set the options of long connections on a TCP socket; leave Unix sockets unchanged.

    With ``drops_unread``, the kernel also drops a peer that is there but reads nothing for 70 s
    (Linux): a broker does not want that of consumers, whose handlers may take longer.
    """
    if connection is None or connection.family == socket.AF_UNIX:
        return
    options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), *KEEPALIVE]
    if drops_unread and hasattr(socket, "TCP_USER_TIMEOUT"):
        options.append((socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS))
    with suppress(OSError):  # the peer has already closed the connection
        for level, option, value in options:
            connection.setsockopt(level, option, value)


class Dialer:
    """Connects to the addresses of a name, beginning with those that failed longest ago."""

    def __init__(self, host: str, port: int) -> None:
        self._name = (host, port)
        self._failed_at: dict[Any, float] = {}  # address -> monotonic time of the last failure

    def connect(self, timeout_s: float | None) -> socket.socket:
        """Return a blocking socket, or raise OSError; addresses are tried 1 s after each other."""
        deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        addresses = self._sort(socket.getaddrinfo(*self._name, type=socket.SOCK_STREAM))
        with selectors.DefaultSelector() as selector:
            try:
                return self._race(selector, addresses, deadline)
            finally:
                for key in list(selector.get_map().values()):
                    key.fileobj.close()  # type: ignore[union-attr]

    async def connect_async(self) -> socket.socket:
        """Like :meth:`connect`, in an event loop and without a time limit."""
        import asyncio  # the blocking client needs neither

        from aiohappyeyeballs import start_connection

        def open_one(info: Any) -> socket.socket:
            self._failed_at[info[4]] = time.monotonic()  # until it answers
            return socket.socket(*info[:3])

        loop = asyncio.get_running_loop()
        addresses = self._sort(await loop.getaddrinfo(*self._name, type=socket.SOCK_STREAM))
        connection = await start_connection(
            addresses, happy_eyeballs_delay=ADDRESS_DELAY_S, socket_factory=open_one
        )
        self._failed_at[connection.getpeername()] = 0.0
        return connection

    def _sort(self, addresses: list[Any]) -> list[Any]:
        """Sort addresses by the time of their last failure; forget those of other answers."""
        self._failed_at = {info[4]: self._failed_at.get(info[4], 0.0) for info in addresses}
        return sorted(addresses, key=lambda info: self._failed_at[info[4]])

    def _race(
        self, selector: selectors.BaseSelector, waiting: list[Any], deadline: float
    ) -> socket.socket:
        error: OSError = TimeoutError("timed out")
        next_at = 0.0
        while waiting or selector.get_map():
            now = time.monotonic()
            if now >= deadline:
                raise TimeoutError("timed out")
            if waiting and (now >= next_at or not selector.get_map()):
                next_at = now + ADDRESS_DELAY_S
                family, kind, protocol, _, address = waiting.pop(0)
                self._failed_at[address] = now  # until it answers
                try:
                    attempt = socket.socket(family, kind, protocol)
                except OSError as failure:  # such as IPv6 in a kernel without it
                    error = failure
                    continue
                attempt.setblocking(False)
                number = attempt.connect_ex(address)
                if number not in (0, errno.EINPROGRESS):
                    attempt.close()
                    error = OSError(number, os.strerror(number))
                    continue
                selector.register(attempt, selectors.EVENT_WRITE, address)
            wait_until = min(deadline, next_at) if waiting else deadline
            for key, _ in selector.select(min(max(0.0, wait_until - now), _SIGNAL_S)):
                attempt = key.fileobj  # type: ignore[assignment]
                selector.unregister(attempt)
                number = attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if not number:
                    self._failed_at[key.data] = 0.0
                    attempt.setblocking(True)
                    return attempt
                attempt.close()
                error = OSError(number, os.strerror(number))
        raise error


ALERT: Final = b"\x15\x03"  # the first bytes of a listener with TLS for a client without it
_TIMES: Final = {9: "is not valid yet", 10: "has expired"}  # by OpenSSL's number
_NAMES: Final = (62, 63, 64)  # another host name, mail address or IP address


def tls_reason(error: OSError, plain: str | None, allow: str = "") -> str | None:
    """Describe why TLS failed and what to do, or return None if something else did.

    ``plain`` is the address to use without TLS, or None if the client did not use TLS; ``allow`` is
    the listener's setting for the addresses that may connect, if it has one.
    """
    if verify := getattr(error, "verify_message", None):  # only TLS errors have these attributes
        verify, code = verify.rstrip("."), getattr(error, "verify_code", 0)
        if code in _NAMES:
            return f"{verify}; connect with a name of the certificate"
        if code in _TIMES:
            return f"its certificate {_TIMES[code]}; renew the tls_cert of the listener"
        return (
            f"its certificate is not trusted ({verify}); name the CA that issued it with --tls-ca "
            "FILE (in Python, ssl=ssl.create_default_context(cafile=FILE))"
        )
    instead = f"use {plain}, or set tls_cert and tls_key of that listener"
    reason = getattr(error, "reason", None)
    if plain is not None and reason == "WRONG_VERSION_NUMBER":
        return f"it does not use TLS; {instead}"
    is_ended = isinstance(error, ConnectionResetError) or reason == "UNEXPECTED_EOF_WHILE_READING"
    if plain is not None and is_ended:
        foreign = allow and f"not allow this address ({allow}), or "
        return f"it ended the TLS handshake: it may {foreign}not use TLS (then {instead})"
    return f"TLS failed: {reason.replace('_', ' ').lower()}" if reason is not None else None


def tls_needed(peer: object) -> str:
    """Describe a listener that answered with a TLS alert."""
    return (
        f"{peer} uses TLS, and this client does not; use phpmqs://{peer}"
        " (in Python, ssl=ssl.create_default_context())"
    )
