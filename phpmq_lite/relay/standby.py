"""A standby's side: hands the connections that it accepts to the active broker.

An HTTP connection whose first request is for one of ``OWN_PATHS`` stays here, with all its later
requests, so that health checks and metrics describe the broker that was asked.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Literal

from phpmq_lite.logs import get_logger
from phpmq_lite.protocol.frames import Revision
from phpmq_lite.relay.handshake import (
    END,
    MAX_TEXT,
    AdmittedStream,
    RelayedClient,
    RelayError,
    RelaySecret,
    address_of,
    encode_chunk,
    send_request,
)
from phpmq_lite.server.addresses import is_loopback, parse_endpoint
from phpmq_lite.server.admission import Admission
from phpmq_lite.server.backpressure import UNANSWERED, WriteProgress, is_unanswered
from phpmq_lite.server.counters import RelayCounters
from phpmq_lite.server.listeners import Kind
from phpmq_lite.server.tls import certificate_subject
from phpmq_lite.sockets import Dialer, prepare

OWN_PATHS: Final = frozenset({"/livez", "/readyz", "/startupz", "/metrics"})
WAIT_S: Final = 2.0  # how long a client waits for an active broker
HEAD_S: Final = 10.0  # time allowed for the first line of an HTTP connection
MAX_LINE: Final = 8 << 10  # bytes; a longer first line is left to the active broker
_RETRY_S: Final = 0.1
_WRITE_S: Final = 30.0  # time in which a client must read something
_MAX_HANDSHAKES: Final = 16  # at a time
_READ_BYTES: Final = 256 << 10
_CHECK_S: Final = 15.0  # between two checks for clients whose machines are gone
_log = get_logger(__name__)

Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]  # a connection to the active broker


class Relay:
    """Relays connections to the active broker that ``set_active`` names.

    ``name`` is how the active broker shows this one; ``base_path`` is the setting of the admin.
    Listeners call ``accept`` for each connection; see ``ClientConnection``.
    """

    def __init__(
        self, name: str, secret: RelaySecret, counters: RelayCounters, base_path: str = ""
    ) -> None:
        self.name = name
        self.counters = counters
        self.address: str | None = None  # of the active broker's relay listener
        self.connections: set[ClientConnection] = set()
        self.accept = partial(ClientConnection, self)
        self.is_ended = False  # whether this broker is active now
        self._is_away = False  # whether no client can be relayed at the moment
        self._epoch = 0
        self._base_path = base_path
        self._key = secret.key
        self._tls = secret.client_context()
        self._changed = asyncio.Event()
        self._handshakes = asyncio.Semaphore(_MAX_HANDSHAKES)
        self._checked_at_s = 0.0

    def set_active(self, epoch: int, address: str | None) -> None:
        """Set the active broker; ``address`` is None if no broker is active.

        After a change, all relayed connections are closed, so that no client stays attached to a
        broker that is stopped or isolated.
        """
        if (epoch, address) == (self._epoch, self.address):
            return
        self._epoch, self.address = epoch, address
        if closed := self._abort_relayed():
            _log.info("relayed_connections_closed", count=len(closed), epoch=epoch, active=address)
        self._changed.set()
        self._changed = asyncio.Event()

    def end_dead(self, now_s: float) -> None:
        """Close connections to machines that no longer answer; looks at most every 15 s."""
        if now_s < self._checked_at_s + _CHECK_S:
            return
        self._checked_at_s = now_s
        for connection in tuple(self.connections):
            if is_unanswered(connection.transport):
                address = connection.address
                _log.info("relayed_connection_closed", address=address, reason=UNANSWERED)
                connection.abort()

    async def end(self) -> None:
        """Close the relayed connections; this broker, active now, serves those that wait."""
        self.is_ended = True
        self._changed.set()
        await asyncio.gather(*self._abort_relayed(), return_exceptions=True)

    async def close(self) -> None:
        """Close all connections; the listeners must be closed first."""
        ending = [connection.abort() for connection in self.connections]
        await asyncio.gather(*ending, return_exceptions=True)

    def _abort_relayed(self) -> "list[asyncio.Task[None]]":
        return [
            connection.abort() for connection in self.connections if connection.link is not None
        ]

    def is_own(self, line: bytes) -> bool:
        """Return whether this broker itself answers an HTTP request with this first line."""
        words = line.decode("latin-1").split(" ")
        path = words[1].partition("?")[0] if len(words) > 1 else ""
        return path.removeprefix(self._base_path) in OWN_PATHS

    async def connect(self, client: RelayedClient) -> Link:
        """Connect to the active broker; raise RelayError if this fails for ``WAIT_S``."""
        failure = RelayError("no_active_broker", "no broker is active")
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                while not self.is_ended:
                    if self.address is None:
                        await self._changed.wait()
                        continue
                    failure = RelayError("unreachable", f"{self.address} does not answer")
                    try:
                        return await self._open_link(client, self._epoch, self.address)
                    except RelayError as error:
                        failure = error
                    except (EOFError, OSError) as error:
                        failure = RelayError("unreachable", f"{self.address}: {error}")
                    await asyncio.sleep(_RETRY_S)
        if not self._is_away and not self.is_ended:  # once, although each client connects again
            broker, reason = {"epoch": self._epoch, "active": self.address}, str(failure)
            _log.warning("active_broker_away", **broker, reason=reason)
        self._is_away = True
        raise failure

    async def _open_link(self, client: RelayedClient, epoch: int, address: str) -> Link:
        endpoint = parse_endpoint(address)
        if endpoint is None:
            raise RelayError("unreachable", "the active broker has no relay listener")
        tls = None if is_loopback(endpoint) else self._tls
        async with self._handshakes:
            connected = await Dialer(endpoint.host, endpoint.port).connect_async()
            prepare(connected)
            name = endpoint.host if tls is not None else None
            reader, writer = await asyncio.open_connection(
                sock=connected, ssl=tls, server_hostname=name
            )
            try:
                await send_request(reader, writer.write, self._key, epoch, client)
            except BaseException:
                writer.transport.abort()
                raise
        if (epoch, address) != (self._epoch, self.address):
            writer.transport.abort()
            raise RelayError("unreachable", "another broker became active")
        if self._is_away:
            _log.warning("active_broker_reached", epoch=self._epoch, active=self.address)
        self._is_away = False
        return reader, writer


class ClientConnection(AdmittedStream):
    """The connection of a client, to be relayed.

    ``own`` makes the protocol that serves it if this broker becomes active while it waits.  That of
    an HTTP connection is its ``fallback``, too, which answers health checks, and everything while
    no broker is active.  It must admit its connection by the same ``admission``, which counts a
    host by the name that ``name_of`` returns.
    """

    def __init__(
        self,
        relay: Relay,
        admission: Admission,
        kind: Kind,
        protocol: Revision | Literal["http"],
        own: Callable[[], asyncio.Protocol],
        name_of: Callable[[str | None], str | None] = lambda host: host,
    ) -> None:
        super().__init__(admission, relay.connections, relay.counters, name_of)
        self.link: asyncio.StreamWriter | None = None  # to the active broker
        self._relay = relay
        self._kind = kind
        self._protocol = protocol
        self._own = own

    def abort(self) -> asyncio.Task[None]:
        """Close the connection, and that to the active broker; return the task to wait for."""
        self.transport.abort()
        if self.link is not None:
            self.link.transport.abort()
        self.task.cancel()
        return self.task

    async def run(self) -> None:
        """Relay the connection until both sides have closed it."""
        relay, received = self._relay, b""
        if self._protocol == "http":
            async with asyncio.timeout(HEAD_S):
                received = await self._first_line()
            self.is_silent = False
            if relay.address is None or relay.is_own(received):
                await self._hand_over(received)
                return
        try:
            reader, self.link = await relay.connect(self._describe())
        except RelayError as error:
            if not relay.is_ended:
                if self._protocol != "http":
                    raise
                self.report(error)
            await self._hand_over(received)
        else:
            await self._copy(received, reader, self.link)

    async def _first_line(self) -> bytes:
        received = b""
        while b"\n" not in received and len(received) < MAX_LINE:
            data = await self.reader.read(_READ_BYTES)
            if not data:
                raise EOFError
            received += data
        return received

    async def _hand_over(self, received: bytes) -> None:
        """Serve the connection here, as if it had been accepted just now."""
        with suppress(TimeoutError):
            async with asyncio.timeout(0):  # only what has arrived
                while data := await self.reader.read(_READ_BYTES):
                    received += data
        if self.transport.is_closing():
            return
        self.leave()
        inner = self._own()
        self.transport.set_protocol(inner)
        inner.connection_made(self.transport)
        if received:
            inner.data_received(received)
        if self.reader.at_eof() and not inner.eof_received():
            self.transport.close()

    def _describe(self) -> RelayedClient:
        transport = self.transport
        if transport.get_extra_info("relay") is not None:
            raise RelayError("already_relayed", "the connection came through another relay")
        return RelayedClient(
            protocol=self._protocol,
            transport=self._kind,
            relay=self._relay.name,
            peer=address_of(transport, "peername"),
            local=address_of(transport, "sockname"),
            subject=certificate_subject(transport)[:MAX_TEXT],
        )

    async def _copy(
        self, received: bytes, reader: asyncio.StreamReader, link: asyncio.StreamWriter
    ) -> None:
        """Copy both ways until the active broker closes the link, then close the connection."""
        counters, loop, progress = self.counters, asyncio.get_running_loop(), WriteProgress()
        counters.open += 1
        counters.opened += 1
        sending = loop.create_task(self._send_chunks(received, link))
        writer = asyncio.StreamWriter(self.transport, self, self.reader, loop)
        try:
            while data := await reader.read(_READ_BYTES):
                counters.bytes_out += len(data)
                writer.write(data)
                await self._drain(writer, progress)
            writer.close()
            async with asyncio.timeout(_WRITE_S):
                await writer.wait_closed()
        finally:
            counters.open -= 1
            sending.cancel()
            link.close()

    async def _drain(self, writer: asyncio.StreamWriter, progress: WriteProgress) -> None:
        """Wait while the client reads; raise TimeoutError if it reads nothing for ``_WRITE_S``."""
        while True:
            try:
                async with asyncio.timeout(_WRITE_S):
                    await writer.drain()
            except TimeoutError:
                if not progress.has_progress(self.transport):
                    raise
            else:
                return

    async def _send_chunks(self, received: bytes, link: asyncio.StreamWriter) -> None:
        """Send the client's data to the active broker; close the link if the client has left."""
        try:
            data = received or await self.reader.read(_READ_BYTES)
            while data:
                self.is_silent = False
                self.counters.bytes_in += len(data)
                link.write(encode_chunk(data))
                await link.drain()
                data = await self.reader.read(_READ_BYTES)
            link.write(END)
        except OSError:
            link.close()
