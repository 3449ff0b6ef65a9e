"""What the asyncio and the blocking client decide alike, without I/O.

These are addresses, errors, the confirmations of publishes, and whether and when to connect again.
"""

import logging
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from errno import ECONNREFUSED
from socket import gaierror
from typing import TYPE_CHECKING, Final

from phpmq_lite.client.delivery import Delivery, Settler, delivery_of
from phpmq_lite.client.session import ClientSession, ConsumedQueue
from phpmq_lite.errors import ConnectionLostError, os_reason
from phpmq_lite.os_process import reset_after_fork
from phpmq_lite.sockets import tls_reason

if TYPE_CHECKING:
    from ssl import SSLContext  # ssl is slow to import

DEFAULT_PORT: Final = 9100


@dataclass(slots=True, frozen=True)
class BrokerAddress:
    """The TCP address of a broker, or its Unix socket if ``path`` is set."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(
    address: str, port: int | None = None, default: int = DEFAULT_PORT
) -> BrokerAddress:
    """Parse an address, whose port may be missing; raise ValueError if it is invalid."""
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        if not path or port is not None:
            raise ValueError(f"{address!r} is not a valid address; use unix:PATH, without a port")
        return BrokerAddress(path=path)
    if address.startswith("["):
        host, _, included_port = address[1:].partition("]")
    elif address.count(":") > 1:  # an IPv6 address without brackets
        host, included_port = address, ""
    else:
        host, _, included_port = address.partition(":")
    included_port = included_port.removeprefix(":")
    if included_port and port is not None:
        raise ValueError(f"{address!r} already has a port; remove port {port}")
    if not host or (included_port and not (included_port.isascii() and included_port.isdigit())):
        raise ValueError(f"{address!r} is not a valid address; use HOST:PORT or unix:PATH")
    number = int(included_port) if included_port else port if port is not None else default
    if not 0 < number < 65_536:
        raise ValueError(f"{number} is not a valid port; use 1 to 65535")
    return BrokerAddress(host, number)


class Backoff:
    """Delays that double from ``first_s`` to ``longest_s``, each randomly reduced by up to half.

    The random part keeps many clients from reconnecting at the same moment.  ``roll`` returns a
    number from 0 (inclusive) to 1 (exclusive).
    """

    def __init__(
        self,
        first_s: float = 0.1,
        longest_s: float = 10.0,
        roll: Callable[[], float] = random.random,
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._roll = roll
        self._tries = 0

    def next_s(self) -> float:
        """Return the next delay in seconds."""
        doubled = self._first_s * float(1 << min(self._tries, 30))
        self._tries += 1
        return min(doubled, self._longest_s) * (1 - self._roll() / 2)

    def reset(self) -> None:
        """Start again with the first delay after a successful connection."""
        self._tries = 0


class AwayLog:
    """Logs once that a broker is away, and once that it is back."""

    def __init__(self, target: BrokerAddress) -> None:
        self._target = target
        self._is_away = False

    def lost(self, error: OSError | None = None) -> None:
        """Log that a connection which worked was lost, unless it is known."""
        if not self._is_away:
            reason = "" if error is None else f" ({os_reason(error)})"
            _log.warning("the connection to %s is lost%s; trying again", self._target, reason)
        self._is_away = True

    def connected(self) -> None:
        """Log that the broker is back, if it was away."""
        if self._is_away:
            _log.warning("connected to %s again", self._target)
        self._is_away = False


_STABLE_S: Final = 10.0  # connections that last longer reset the reconnection delay
_QUICK_S: Final = 0.5  # a server that refuses all connections ends them within this time
_SILENT_ENDS: Final = 3  # quick ends without an answer, which a warning then explains
_HELLO_ENDS: Final = 2  # in a row: the broker is older and does not know the hello
_OLD_S: Final = 600.0  # for how long it gets no hello

_old_brokers: dict[BrokerAddress, float] = {}  # until when they get no hello, monotonic
_log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class ConnectionOptions:
    """Connection options of a client; see ``connect``."""

    address: BrokerAddress
    ssl: "SSLContext | None"
    server_hostname: str | None
    max_content: int
    reconnect: bool
    backoff: Backoff | None


class EndedAtOnceError(ConnectionError):
    """The peer has closed a connection before anything was sent: it is a proxy without a broker."""


class ClientCore(Settler):
    """What both clients know and decide; their subclasses do the I/O that follows from it."""

    def __init__(self, options: ConnectionOptions) -> None:
        self.options = options
        self.target = options.address
        self.session = ClientSession(options.max_content)
        self._backoff = options.backoff or Backoff()
        self._ended: str | None = "the client is not open"  # why calls fail; None if open
        self.is_closing = False
        self._was_answered = False  # since then, lost connections are taken as temporary
        self._silent_ends = 0
        self._hello_ends = 0
        self._away = AwayLog(options.address)
        reset_after_fork(self)

    def forked(self) -> None:
        """Leave the connection to the parent process: the child can only open a new one."""
        self.session.begin_anew()
        if self._ended is None:
            self._ended = (
                f"the client was opened before process {os.getpid()} was forked, so its connection "
                "belongs to the parent process; open a client in each process, after the fork"
            )

    def raise_if_ended(self) -> None:
        """Raise ConnectionLostError if the client has ended."""
        if self._ended is not None:
            raise ConnectionLostError(self._ended)

    def _end(self, detail: str) -> None:
        """End the client; all unanswered publishes and all later calls fail."""
        if self._ended is None:
            self._ended = detail
        self.session.pending.fail(self._ended)

    def is_probed(self) -> bool:
        """Return whether the next connection must stay open for a while before it is used.

        Then a publish or the hello is why it ends, and not a proxy whose broker is away.
        """
        return self._hello_ends > 0 or self.session.pending.suspect() is not None

    def greet(self) -> bytes:
        """Return the hello to send on a new connection, or nothing for an older broker."""
        until = _old_brokers.get(self.target, 0.0)
        return self.session.greet(sends_hello=time.monotonic() >= until)

    def welcomed(self) -> None:
        """Count on the broker's answer to further hellos."""
        self._hello_ends = 0
        self._was_answered = True

    def hello_ended(self) -> None:
        """Count a connection that ended after the hello; connect again at once afterwards.

        Raises:
            ConnectionLostError: the peer does not speak PHPMQ.
        """
        problem = self.session.protocol_problem(self.target)
        if problem is not None:
            raise ConnectionLostError(problem)
        self._hello_ends += 1
        self._note_silent_end()
        if self._hello_ends >= _HELLO_ENDS:
            self._hello_ends = 0
            _old_brokers[self.target] = time.monotonic() + _OLD_S

    def is_retried(self, error: BaseException) -> bool:
        """Return whether to go on after a first connection that failed, which is noted then.

        A broker that has too many connections ends new ones at once.
        """
        if not isinstance(error, EndedAtOnceError) or not self.options.reconnect:
            return False
        self.note_failure(error)
        return True

    def note_failure(self, error: OSError) -> None:
        """Note why no new connection could be made."""
        if isinstance(error, EndedAtOnceError):
            self._note_silent_end()

    def _note_silent_end(self) -> None:
        if not self._was_answered:
            self._silent_ends += 1
            if self._silent_ends == _SILENT_ENDS:
                _log.warning("%s", self._not_accepted())

    def _connect_error(self, error: OSError) -> ConnectionLostError:
        if isinstance(error, EndedAtOnceError):
            self._silent_ends += 1
            return self._refused()
        plain = None if self.options.ssl is None else f"phpmq://{self.target} (in Python, no ssl)"
        reason = tls_reason(error, plain, "tcp.allow") or os_reason(error)
        if isinstance(error, gaierror):
            reason = f"the name {self.target.host} is unknown ({reason}); check the address"
        elif reason == os.strerror(ECONNREFUSED):
            reason += "; no broker listens there: start it, or correct the port"
        return ConnectionLostError(f"cannot connect to {self.target}: {reason}")

    def _lose_connection(self, connected_s: float, error: OSError | None = None) -> bool:
        """Stop using a lost connection; return whether to connect again after a delay.

        If not, the client has ended.  The delay is reset if the connection was successful; if none
        ever was, a warning is logged.
        """
        session = self.session
        session.lost()
        if session.has_received or connected_s > _STABLE_S:
            self._backoff.reset()
        if session.has_received or connected_s > _QUICK_S:
            self._was_answered = True
            if self.options.reconnect and not self.is_closing:
                self._away.lost(error)
        self._note_silent_end()
        if not self.options.reconnect:
            reason = "" if error is None else f": {os_reason(error)}"
            self._end(f"the connection to {self.target} is lost{reason}")
        return self.options.reconnect

    def _receive(self, data: bytes) -> bool:
        """Process received bytes; end the client and return False if the broker's are invalid."""
        self.session.receive(data)
        problem = self.session.protocol_problem(self.target)
        if problem is not None:
            self._end(problem)
        return problem is None

    def _deliver(self, window: ConsumedQueue) -> Delivery:
        """Return the next message that has been received; raise IndexError if there is none."""
        return delivery_of(self, window.dispatches.popleft(), self.session.generation)

    def _not_accepted(self) -> ConnectionLostError:
        """Return the error of a call that has waited for a connection until its time limit."""
        if self._was_answered or self._silent_ends < _SILENT_ENDS:
            return ConnectionLostError(f"{self.target} did not accept a new connection in time")
        return self._refused()

    def _refused(self) -> ConnectionLostError:
        size = self.session.pending.largest()
        large = f", or have a limits.max_content below the {size} bytes of a message"
        return ConnectionLostError(
            f"{self.target} ended {self._silent_ends} connections without an answer; it may not "
            "allow this address (tcp.allow), or need a client certificate (tcp.tls_client_ca)"
            f"{large if size else ''}"
        )
