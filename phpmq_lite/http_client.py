"""HTTP client of a broker's API; executors of Spark have only the standard library."""

import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urlsplit

from phpmq_lite.sockets import Dialer, prepare

RETRY_DELAYS_S: Final = (0.5, 1, 2, 4, 8)  # a restarting broker is back within seconds
BUSY_TIMEOUT_S: Final = 600  # maximum wait for a busy broker, which runs only two exports at a time
_WAIT_MAX_S: Final = 30

Query = Iterable[tuple[str, str | int]]


class NotConnectedError(OSError):
    """There is no connection for the ``reason``, so the broker has not received the request."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(*reason.args)
        self.reason = reason


class Attempts:
    """When a failed attempt of a call is repeated; by default, never.

    ``delays_s`` are the pauses between attempts. While the broker responds with 503 and a number of
    seconds, the client waits as long as it says, up to ``busy_s`` in total.
    """

    def __init__(
        self,
        delays_s: Iterable[float] = (),
        busy_s: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._delays_s = tuple(delays_s)
        self._left_s = busy_s
        self._sleep = sleep
        self.reset()

    def reset(self) -> None:
        """Allow all attempts again, because the last one made progress."""
        self._next_delays_s = iter(self._delays_s)

    def pause(self) -> bool:
        """Wait before the next attempt, and return True; return False if none is left."""
        delay_s = next(self._next_delays_s, None)
        if delay_s is not None:
            self._sleep(delay_s)
        return delay_s is not None

    def pause_if_busy(self, response: HTTPResponse) -> bool:
        """Wait as long as a busy broker says; return False if it is not, or for too long."""
        retry_after = response.getheader("Retry-After", "")
        wait_s = min(max(float(retry_after), 0.1), _WAIT_MAX_S) if retry_after.isdigit() else 0.0
        if response.status != 503 or not 0 < wait_s <= self._left_s:
            return False
        self._left_s -= wait_s
        self._sleep(wait_s)
        return True


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request; unless repeatable, it is sent again only if the broker never received it."""

    method: str
    path: str
    query: Query = ()
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_repeatable: bool = True


class HttpClient:
    """Sends requests to a broker, each on a connection of its own.

    ``path`` is that of the broker's control socket, which is used instead of TCP. ``timeout_s``
    limits how long the client waits for the connection and for more bytes.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        path: Path | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float | None = None,
        attempts: Callable[[], Attempts] = Attempts,
    ) -> None:
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._prefix = parts.path.rstrip("/")
        self._dialer = Dialer(self._host, parts.port or (443 if is_tls else 80))
        self._tls = tls or ssl.create_default_context() if is_tls else None
        self._path = path
        self._headers = {"Accept": "*/*", **headers}
        self._timeout_s = timeout_s
        self.attempts = attempts

    def send(self, request: HttpRequest) -> HTTPResponse:
        """Return the response once its head has arrived; the caller has to close it.

        Raises:
            NotConnectedError: the last attempt found no broker.
            OSError, HTTPException: the broker did not respond to it.
        """
        attempts = self.attempts()
        while True:
            try:
                response = self._send_once(request)
            except (OSError, HTTPException) as error:
                reason = error.reason if isinstance(error, NotConnectedError) else None
                may_repeat = request.is_repeatable or reason is not None
                is_untrusted = isinstance(reason, ssl.SSLCertVerificationError)
                if is_untrusted or not may_repeat or not attempts.pause():
                    raise
                continue
            if not attempts.pause_if_busy(response):
                return response
            response.close()

    def _send_once(self, request: HttpRequest) -> HTTPResponse:
        query = "?" + urlencode(list(request.query)) if request.query else ""
        target = self._prefix + request.path + query
        kind = HTTPConnection if self._tls is None else HTTPSConnection
        connection = kind(self._host, self._port)  # the class decides about the port in Host
        connection.sock = self._connect()
        try:
            # A broker that refuses a large request may respond before it has received everything.
            with suppress(BrokenPipeError, ConnectionResetError):
                headers = {**self._headers, **request.headers}
                connection.request(request.method, target, request.content, headers)
            return connection.getresponse()
        finally:
            if connection.sock is not None:
                connection.sock.close()  # in fact, once the response is closed

    def _connect(self) -> socket.socket:
        connection: socket.socket | None = None
        try:
            if self._path is None:
                connection = self._dialer.connect(self._timeout_s)
                prepare(connection)
            else:
                connection = socket.socket(socket.AF_UNIX)
                connection.connect(str(self._path))
            connection.settimeout(self._timeout_s)
            if self._tls is None:
                return connection
            return self._tls.wrap_socket(connection, server_hostname=self._host)
        except OSError as error:
            if connection is not None:
                connection.close()
            raise NotConnectedError(error) from error
