"""The active broker's side: accepts relayed connections and serves them like its own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Never, cast

from phpmq_lite.errors import SettingsError
from phpmq_lite.relay.handshake import (
    HANDSHAKE_S,
    AdmittedStream,
    ChunkDecoder,
    RelayedClient,
    RelayError,
    RelaySecret,
    read_request,
    send_reply,
)
from phpmq_lite.server.addresses import address_text, is_loopback, parse_address, read_endpoints
from phpmq_lite.server.admission import Admission
from phpmq_lite.server.counters import RelayCounters
from phpmq_lite.server.listeners import Factory, Listeners
from phpmq_lite.settings.model import TcpSettings

# Maximum number of connections in their handshake, in total and from one address.
MAX_HANDSHAKES: Final = 256
MAX_HANDSHAKES_PER_ADDRESS: Final = 64


class RelayListener(Listeners):
    """Listens for standbys; exists only while this broker is, or becomes, the active one.

    ``session`` and ``pages`` return the protocols of PHPMQ and HTTP connections.
    """

    def __init__(
        self,
        address: str,
        secret: RelaySecret,
        session: Factory,
        pages: Callable[[], Awaitable[asyncio.Protocol]],
        counters: RelayCounters,
    ) -> None:
        endpoints = read_endpoints("store.relay_listen", [address])
        host = parse_address(endpoints[0].host) if endpoints else None
        if not endpoints or endpoints[0].kind == "unix" or (host and host.is_unspecified):
            raise SettingsError(
                f"store.relay_listen: {address!r} must be HOST:PORT, with the name or address at "
                "which the other brokers reach this machine"
            )
        admission = Admission(
            MAX_HANDSHAKES, MAX_HANDSHAKES_PER_ADDRESS, MAX_HANDSHAKES_PER_ADDRESS
        )
        super().__init__(
            TcpSettings(listen=[address], legacy_listen=[]),
            lambda _kind, _revision: Handshake(self, admission),
            admission,
        )
        if not is_loopback(endpoints[0]):
            self.tls = secret.server_context()
        self.epoch: int | None = None  # set while this broker serves clients
        self.key = secret.key
        self.counters = counters
        self.handshakes: set[Handshake] = set()
        self._host = endpoints[0].host
        self._session = session
        self._pages = pages

    @property
    def address(self) -> str:
        """The address for ``Relay.set_active``, once the listener is bound."""
        port = self.addresses[0].rpartition(":")[2]
        return address_text(self._host, int(port))

    async def close(self) -> None:
        """Stop accepting connections and end handshakes; established connections stay open."""
        await super().close()
        for handshake in list(self.handshakes):
            handshake.transport.abort()

    async def make_protocol(self, epoch: int, client: RelayedClient) -> asyncio.Protocol:
        """Return the protocol that serves a client; raise RelayError if this must not be."""
        if self.epoch is None:
            raise RelayError("not_active", "this broker is not active")
        if epoch != self.epoch:
            reason = f"the standby knows epoch {epoch}; this is epoch {self.epoch}"
            raise RelayError("epoch", reason)
        if client.protocol == "http":
            return await self._pages()
        return self._session(client.transport, client.protocol)


class Handshake(AdmittedStream):
    """A connection until its standby has authenticated."""

    def __init__(self, listener: RelayListener, admission: Admission) -> None:
        super().__init__(admission, listener.handshakes, listener.counters)
        self._listener = listener

    async def run(self) -> None:
        key, transport = self._listener.key, self.transport
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                transcript, epoch, preamble = await read_request(self.reader, transport.write, key)
        except (EOFError, OSError):
            raise RelayError("authentication", "the peer sent no complete request") from None
        try:
            client = RelayedClient.decode(preamble)
            inner = await self._listener.make_protocol(epoch, client)
        except RelayError as error:
            send_reply(transport.write, key, transcript, str(error))
            transport.close()
            raise
        if transport.is_closing():
            return
        self.leave()
        relayed = RelayedConnection(transport, client, inner, self.counters)
        transport.set_protocol(relayed)
        send_reply(transport.write, key, transcript)
        inner.connection_made(cast(asyncio.Transport, relayed))


class RelayedConnection(asyncio.Protocol):
    """A connection after its handshake, which carries the data of one client.

    It is the protocol of the connection to the standby, and the transport of ``inner``, to which it
    shows the addresses and the TLS of the client.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        client: RelayedClient,
        inner: asyncio.Protocol,
        counters: RelayCounters,
    ) -> None:
        self._decoder = ChunkDecoder()
        self._transport = transport
        self._inner = inner
        self._counters = counters
        self._extra: dict[str, Any] = {
            "peername": client.peer or "",
            "sockname": client.local or "",
            "sslcontext": client.transport == "tls" or None,
            "relay": client,
        }
        counters.open += 1
        counters.opened += 1

    # -- called by the event loop

    def data_received(self, data: bytes) -> None:
        received, is_end = self._decoder.receive(data)
        if received:
            self._inner.data_received(received)
        if is_end and not self._inner.eof_received():
            self._transport.close()  # as the event loop does

    def pause_writing(self) -> None:
        """Pause ``inner``, because the standby does not read."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._counters.open -= 1
        self._inner.connection_lost(exc)

    # -- called by ``inner``

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the client, or else of the connection to the standby."""
        if name in self._extra:
            return self._extra[name]
        return self._transport.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.Protocol:
        return self._inner

    @property
    def _sendfile_compatible(self) -> Never:
        """Prevent ``sendfile``, which needs a transport of the loop; aiohttp copies instead."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
