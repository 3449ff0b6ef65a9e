"""Opens the PHPMQ listeners (TCP, TLS, Unix sockets) and attaches a protocol to each connection.

Connections are accepted here instead of by ``create_server``, so that connections that are not
allowed are refused before the TLS handshake, and connections in a handshake are counted.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from phpmq_lite.errors import StartRefusedError, os_reason
from phpmq_lite.logs import get_logger, is_quiet
from phpmq_lite.protocol.frames import Revision
from phpmq_lite.server.addresses import (
    ListenAddress,
    PhpmqListener,
    address_text,
    bind_private,
    bind_tcp,
    read_endpoints,
    remove_stale,
)
from phpmq_lite.server.admission import Admission, Handshake
from phpmq_lite.server.tls import ALERT, HANDSHAKE_S, answering_plain, server_context
from phpmq_lite.settings.model import TcpSettings
from phpmq_lite.sockets import prepare

Kind = Literal["tcp", "tls", "unix"]
Factory = Callable[[Kind, Revision], asyncio.Protocol]  # creates the protocol of a connection

_BACKLOG: Final = 1_024  # the kernel may use a lower value
_SHUTDOWN_S: Final = 5.0  # time allowed for a TLS peer to confirm a close
_RETRY_S: Final = 1.0  # pause in accepting after running out of a resource

_log = get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Listener:
    socket: socket.socket
    address: str  # includes the actual port
    kind: Kind
    revision: Revision
    file: tuple[int, int] | None = None  # device and inode of a Unix socket
    accepting: asyncio.Task[None] | None = None


class Listeners:
    """All configured PHPMQ listeners.  Optionally ``bind``, then ``open`` and ``close`` once each.

    ``factory(kind, revision)`` returns the protocol for a connection.  With ``admission``, a TLS
    connection reserves a place before its handshake; the protocol must call ``admission.admit`` in
    ``connection_made`` and ``admission.leave`` in ``connection_lost``.
    """

    def __init__(
        self, tcp: TcpSettings, factory: Factory, admission: Admission | None = None
    ) -> None:
        self._settings = tcp
        self._factory = factory
        self._admission = admission
        self.tls: ssl.SSLContext | None = None  # set by ``bind`` if TLS is configured
        self._is_bound = False
        self._unix: list[tuple[int, ListenAddress, Revision]] = []  # first: index in _listeners
        self._listeners: list[_Listener] = []
        self._handshakes: set[asyncio.Task[None]] = set()

    @property
    def addresses(self) -> list[str]:
        """Addresses of the open listeners (``HOST:PORT``, ``unix:PATH``), older revision last."""
        return [listener.address for listener in self._listeners]

    @property
    def opened(self) -> list[PhpmqListener]:
        """The open listeners, with transport and revision, in the order of ``addresses``."""
        return [
            PhpmqListener(
                _absolute(listener.address), listener.kind, has_ttl=listener.revision == "ttl"
            )
            for listener in self._listeners
        ]

    async def bind(self) -> None:
        """Bind the ports and check that Unix sockets are free, without accepting connections.

        This runs before the database is opened, so a failure here leaves everything unchanged.
        ``open`` creates the Unix sockets, because clients wait for these files to appear.

        Raises:
            SettingsError: an address is invalid, or TLS is misconfigured.
            StartRefusedError: an address is in use or not local.
        """
        tcp = self._settings
        current = read_endpoints("tcp.listen", tcp.listen)
        legacy = read_endpoints("tcp.legacy_listen", tcp.legacy_listen)
        if tcp.tls_cert is not None and tcp.tls_key is not None:
            self.tls = server_context(tcp.tls_cert, tcp.tls_key, tcp.tls_client_ca)
        try:
            for endpoint in current:
                await self._bind(endpoint, "ttl")
            for endpoint in legacy:
                await self._bind(endpoint, "legacy")
        except BaseException:
            await self.close()
            raise
        self._is_bound = True

    async def open(self) -> None:
        """Accept connections on all listeners, binding them if needed; on error, close them all.

        Raises SettingsError, StartRefusedError: see ``bind``.
        """
        if not self._is_bound:
            await self.bind()
        try:
            for at, endpoint, revision in reversed(self._unix):
                with _refuse_start(endpoint):
                    bound, status = bind_private(endpoint.path), endpoint.path.stat()
                    file = (status.st_dev, status.st_ino)
                    listener = _Listener(bound, str(endpoint), "unix", revision, file)
                    self._listeners.insert(at, listener)
            for listener in self._listeners:
                with _refuse_start(listener.address):  # another program may use it by now
                    listener.socket.listen(_BACKLOG)
        except BaseException:
            await self.close()
            raise
        for listener in self._listeners:
            listener.accepting = asyncio.create_task(self._accept(listener))

    async def close(self) -> None:
        """Stop accepting connections and cancel handshakes; established connections stay open."""
        accepting = [item.accepting for item in self._listeners if item.accepting is not None]
        for task in (tasks := [*accepting, *self._handshakes]):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.socket.close()
            if listener.file is not None:
                _remove_own_socket(Path(listener.address.removeprefix("unix:")), listener.file)
        self._listeners.clear()

    # -- binding

    async def _bind(self, endpoint: ListenAddress, revision: Revision) -> None:
        with _refuse_start(endpoint):
            if endpoint.kind == "unix":
                remove_stale(endpoint.path)
                self._unix.append((len(self._listeners), endpoint, revision))
                return
            kind: Kind = "tcp" if self.tls is None else "tls"
            for bound in await bind_tcp(endpoint):
                host, port = bound.getsockname()[:2]
                self._listeners.append(_Listener(bound, address_text(host, port), kind, revision))

    # -- accepting

    async def _accept(self, listener: _Listener) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(listener.socket)
            except ConnectionAbortedError:
                continue  # the client has already disconnected
            except OSError as error:
                # Descriptors or memory have run out, so retry after other connections have closed.
                if not is_quiet("accept_failed"):
                    _log.error("accept_failed", listener=listener.address, reason=str(error))
                await asyncio.sleep(_RETRY_S)
                continue
            host = peer[0] if listener.kind != "unix" else None
            if listener.kind == "tls":
                task = asyncio.create_task(self._secure(listener, connection, host))
                self._handshakes.add(task)
                task.add_done_callback(self._handshakes.discard)
            else:
                await self._attach_protocol(listener, connection)

    async def _secure(
        self, listener: _Listener, connection: socket.socket, host: str | None
    ) -> None:
        """Reserve a place for a connection and complete its TLS handshake."""
        admission, place = self._admission, Handshake()
        refusal = admission.reserve(host, place) if admission is not None else None
        if refusal is not None:
            connection.close()
            if not is_quiet("connection_refused"):
                _log.warning("connection_refused", address=host, reason=refusal)
            return
        is_made = False
        try:
            is_made = await self._attach_protocol(listener, connection)
        finally:
            if admission is not None and is_made:
                admission.end_handshake(place)
            elif admission is not None:
                admission.cancel_reservation(host, place)

    async def _attach_protocol(self, listener: _Listener, connection: socket.socket) -> bool:
        """Attach a protocol to a connection; return whether ``connection_made`` was called."""
        try:
            prepare(connection, drops_unread=False)
            protocol = self._factory(listener.kind, listener.revision)
        except Exception as error:  # keep accepting other connections
            connection.close()
            if not is_quiet("session_failed"):
                _log.error(
                    "session_failed", listener=listener.address, reason=str(error), exc_info=error
                )
            return False
        times = {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": _SHUTDOWN_S}
        secured: dict[str, Any] = {"ssl": self.tls, **times} if listener.kind == "tls" else {}
        loop = asyncio.get_running_loop()
        try:
            async with answering_plain(connection, ALERT) if secured else nullcontext():
                await loop.connect_accepted_socket(lambda: protocol, connection, **secured)
        except OSError as error:  # includes ssl.SSLError and TimeoutError
            if not is_quiet("handshake_failed"):
                _log.warning("handshake_failed", listener=listener.address, reason=str(error))
            return False
        return True


@contextmanager
def _refuse_start(endpoint: ListenAddress | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StartRefusedError(f"cannot listen on {endpoint}: {os_reason(error)}") from error


def _absolute(address: str) -> str:
    if not address.startswith("unix:"):
        return address
    return f"unix:{Path(address.removeprefix('unix:')).absolute()}"


def _remove_own_socket(path: Path, file: tuple[int, int]) -> None:
    with suppress(OSError):  # a socket file left behind counts as stale, as after a kill
        status = path.stat()
        if (status.st_dev, status.st_ino) == file:
            path.unlink()
