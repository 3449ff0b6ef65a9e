"""Limits on the number of connections to the admin interface, and timeouts for slow ones."""

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self, cast

from aiohttp import web

from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.logs import get_logger, is_quiet
from phpmq_lite.model import has_room
from phpmq_lite.server.addresses import parse_address
from phpmq_lite.server.admission import Admission, Network, max_http_connections
from phpmq_lite.server.backpressure import WriteProgress
from phpmq_lite.settings import Settings
from phpmq_lite.sockets import prepare

HEAD: Final = "request took too long to begin"
BODY: Final = "body took too long to arrive"
ANSWER: Final = "response was not read"
_LATE: Final = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_INTERVAL_S: Final = 1.0
_REST_EACH_S: Final = 0.002  # minimum time between two reads of refused bodies
_log = get_logger(__name__)


@dataclass(slots=True, frozen=True)
class SlowClientTimeouts:
    """Timeouts for slow peers, in seconds."""

    head_s: float = 10.0  # maximum time until all headers of a request have arrived
    body_s: float = 30.0
    body_bytes_per_s: int = 8 << 10  # body_s grows by one second for every 8 KiB received
    answer_s: float = 30.0  # maximum time without progress; streams have their own timeouts


class ConnectionLimits:
    """Tracks all connections to the admin interface; ``run`` closes those that are too slow."""

    def __init__(
        self,
        admission: Admission,
        trusted: Sequence[Network] = (),
        timeouts: SlowClientTimeouts | None = None,
    ) -> None:
        self.admission = admission
        self.timeouts = timeouts or SlowClientTimeouts()
        self.ended: Counter[str] = Counter()  # number of slow connections closed, by reason
        self.open: set[LimitedConnection] = set()
        self._working: Counter[str] = Counter()  # number of requests being processed, by caller
        self._paused: deque[LimitedConnection] = deque()  # connections waiting to resume reading
        self._trusted = tuple(trusted)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        limits = settings.limits
        total = max_http_connections(settings)
        admission = Admission(total, limits.http_connections_per_address, total)
        return cls(admission, settings.admin.trusted_proxies)

    def name_of(self, host: str | None) -> str | None:
        """Return the address to count, or None for a trusted proxy, which many clients share."""
        address = None if host is None else parse_address(host)
        is_trusted = address is not None and any(
            address.version == network.version and address in network for network in self._trusted
        )
        return None if is_trusted else host

    @staticmethod
    def log_refusal(name: str | None, refusal: str) -> None:
        if not is_quiet("http_connection_refused"):
            _log.warning("http_connection_refused", address=name, reason=refusal)

    def begin_work(self, caller: str) -> bool:
        """Count a request and return True, or return False if the caller has too many.

        The last fifth of the connections is for callers that use few, as in ``model.has_room``.
        Call ``end_work`` once for each counted request.
        """
        is_counted = has_room(
            self._working[caller], self._working.total(), 1, self.admission.capacity * 4 // 5
        )
        self._working[caller] += is_counted
        return is_counted

    def end_work(self, caller: str) -> None:
        self._working[caller] -= 1
        if not self._working[caller]:
            del self._working[caller]

    def close_slow(self, now_s: float) -> None:
        for limited in list(self.open):
            reason = limited.slow_reason(now_s)
            if reason is not None:
                self.ended[reason] += 1
                limited.end(has_reply=reason != ANSWER and limited.has_begun)

    def resume_in_turn(self, limited: "LimitedConnection") -> None:
        """Add a connection to a queue; every 2 ms, the first one in the queue resumes reading.

        Without this limit, 95 connections that sent refused bodies delayed a batch by 60 ms.
        """
        if not self._paused:
            asyncio.get_running_loop().call_later(_REST_EACH_S, self._read_next)
        self._paused.append(limited)

    def _read_next(self) -> None:
        self._paused.popleft().resume_reading()
        if self._paused:
            asyncio.get_running_loop().call_later(_REST_EACH_S, self._read_next)

    async def run(self) -> None:
        """Check all connections once a second, and close those that are too slow."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_INTERVAL_S)
            self.close_slow(loop.time())


class LimitedConnection(asyncio.Protocol):
    """A connection that passes its data to ``inner``, an aiohttp protocol.

    If ``is_counted`` is False, as for the control socket, no limit on connections applies.
    """

    def __init__(
        self, limits: ConnectionLimits, inner: web.RequestHandler, *, is_counted: bool = True
    ) -> None:
        self._limits = limits
        self._is_counted = is_counted
        self._inner = inner
        self._loop = asyncio.get_running_loop()
        self._name: str | None = None
        self._is_admitted = False
        self._transport: asyncio.Transport
        self._began_at: float | None = None  # when the current request began
        self._bytes = 0  # bytes received since the request began
        self._request: web.BaseRequest | None = None  # request being processed by a handler
        self._caller: str | None = None  # of the current request; None until it is identified
        self._has_login = False  # whether the caller of the last request was logged in
        self._is_refused = False  # whether more of a refused body may still arrive
        self._held: list[bytes] = []  # data of a refused body, not yet passed on
        self._progress = WriteProgress()
        self._stuck_at: float | None = None  # when sending the response last made progress

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or abort it if a limit is reached."""
        self._transport = cast(asyncio.Transport, transport)
        prepare(transport.get_extra_info("socket"))
        peer = transport.get_extra_info("peername")
        self._name = self._limits.name_of(peer[0] if isinstance(peer, tuple) else None)
        refusal = self._limits.admission.admit(self._name, self) if self._is_counted else None
        if refusal is not None:
            self._limits.log_refusal(self._name, refusal)
            self._transport.abort()
            return
        self._is_admitted = True
        self._limits.open.add(self)
        self._began_at = self._loop.time()
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection, and tell ``inner`` that the connection was lost."""
        if self._is_admitted:
            self._limits.open.discard(self)
            if self._is_counted:
                self._limits.admission.leave(self._name, self)
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Record when a request began, and either pass the data on or hold it back."""
        if not self._is_admitted:
            return
        if self._began_at is None:
            self._began_at = self._loop.time()
        self._bytes += len(data)
        # While earlier data is held back, new data must wait as well, so that the order is kept.
        if (self._is_refused or self._held) and not self._transport.is_closing():
            self._transport.pause_reading()
            if not self._held:
                self._limits.resume_in_turn(self)
            self._held.append(data)
            return
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass on any held data, then the end of the data."""
        self.resume_reading()
        self._inner.eof_received()
        return None

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    # -- called by the application

    def take(self, request: web.BaseRequest) -> None:
        """Record that a handler has received a request, whose body may still be arriving."""
        self._request = request
        self._is_refused = False

    def identify(self, caller: str, *, has_login: bool) -> None:
        """Count the request for its caller; raise a 429 ``Problem`` if the share is used up."""
        self._has_login = has_login
        if self._is_counted and not self._limits.begin_work(caller):
            raise Problem(
                429,
                "too_many_requests",
                f"Too many requests are running, most of them from {caller}. Repeat the request "
                "later, or send fewer at a time.",
                field="limits.http_connections",
                bound=f"{self._limits.admission.capacity} connections",
                headers={"Retry-After": "1"},
            )
        self._caller = caller if self._is_counted else None

    def finish(self) -> None:
        """Record that the handler has finished; its response may not have been sent yet."""
        if self._caller is not None:
            self._limits.end_work(self._caller)
            self._caller = None
        self._limits.admission.rest(self)
        self._is_refused = self._request is not None and not self._request.content.is_eof()
        self._request = self._began_at = None
        self._bytes = 0

    # -- called by Admission and ConnectionLimits

    def give_up(self, *, is_full: bool) -> bool:
        """Close the connection if no request is being processed; see ``admission.Place``.

        A request that has not arrived completely does not count, unless its caller has a login.
        """
        request = self._request
        if self._has_login:
            is_idle = is_full and request is None
        else:
            is_idle = request is None or not request.content.is_eof()
        if is_idle:
            self.end(has_reply=False)
        return is_idle

    def resume_reading(self) -> None:
        """Resume reading and pass on the held data."""
        data, self._held = b"".join(self._held), []
        if data and not self._transport.is_closing():
            self._transport.resume_reading()  # first, because data_received may pause reading again
            self._inner.data_received(data)

    def slow_reason(self, now_s: float) -> str | None:
        """Return why the connection must be closed as too slow, or None if it is fast enough."""
        timeouts, request = self._limits.timeouts, self._request
        if request is None and self._is_stuck(now_s):
            return ANSWER
        if self._began_at is None or not self._transport.is_reading():
            return None
        late_s = now_s - self._began_at
        if request is None:
            return HEAD if late_s > timeouts.head_s else None
        if request.content.is_eof():
            return None
        allowed_s = timeouts.body_s + self._bytes / timeouts.body_bytes_per_s
        return BODY if late_s > allowed_s else None

    def _is_stuck(self, now_s: float) -> bool:
        if not self._transport.get_write_buffer_size():
            self._stuck_at = None
        elif self._progress.has_progress(self._transport) or self._stuck_at is None:
            self._stuck_at = now_s
        return (
            self._stuck_at is not None and now_s - self._stuck_at > self._limits.timeouts.answer_s
        )

    @property
    def has_begun(self) -> bool:
        """Return whether at least one byte of an unanswered request has arrived."""
        return self._bytes > 0

    def end(self, *, has_reply: bool) -> None:
        """Close the connection, after sending a 408 response if ``has_reply`` is True."""
        if has_reply and not self._transport.is_closing():
            self._transport.write(_LATE)
            self._transport.close()
        else:
            self._transport.abort()


LIMITS: Final = web.AppKey("connection limits", ConnectionLimits)


def connection_of(request: web.BaseRequest) -> LimitedConnection | None:
    """Return the ``LimitedConnection`` of a request, or None if the server has no limits."""
    protocol = None if request.transport is None else request.transport.get_protocol()
    return protocol if isinstance(protocol, LimitedConnection) else None
