"""Opens the PHPMQ listeners: TCP, IPv6, TLS and Unix sockets; hands each connection to a protocol.

Connections are accepted here, not by ``create_server``: so who may not connect, or comes too
often, is turned away ahead of the TLS handshake, and a handshake that never ends has its place
counted.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from phpmq_lite.errors import StartRefusedError, os_reason
from phpmq_lite.logs import get_logger, is_quiet
from phpmq_lite.server.addresses import (
    ListenAddress,
    PhpmqListener,
    address_text,
    bind_private,
    bind_tcp,
    check_wide_binds,
    read_endpoints,
    remove_stale,
)
from phpmq_lite.server.admission import Admission
from phpmq_lite.server.tls import HANDSHAKE_S, server_context
from phpmq_lite.settings.model import TcpSettings

__all__ = ["Dispatch", "Factory", "Kind", "Listeners", "check_wide_binds"]

Kind = Literal["tcp", "tls", "unix"]
Dispatch = Literal["ttl", "legacy"]  # the revision that a listener's clients are taken for
Factory = Callable[[str, str], asyncio.Protocol]  # (kind, dispatch) -> a new connection's protocol

_BACKLOG: Final = 1_024  # waiting for us; the kernel may cut it
_SHUTDOWN_S: Final = 5.0  # for a TLS peer to answer the end
_RETRY_S: Final = 1.0  # after a shortage

# A peer without a sign of life for 60 s is asked each 15 s, and given up after 4 silences.
KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", 0)), 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)

_log = get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Listener:
    """One bound socket."""

    socket: socket.socket
    address: str  # with the real port
    kind: Kind
    dispatch: Dispatch
    file: tuple[int, int] | None = None  # device and inode of a Unix socket
    accepting: asyncio.Task[None] | None = None


class Listeners:
    """All PHPMQ listeners of the settings; ``bind`` (or not), ``open`` once, ``close`` once.

    ``factory(kind, dispatch)`` makes the protocol of a connection.  With ``gate``, the place of a
    TLS connection is reserved before its handshake; in any case the protocol calls ``gate.admit``
    in ``connection_made`` and ``gate.leave`` in ``connection_lost``.
    """

    def __init__(self, tcp: TcpSettings, factory: Factory, gate: Admission | None = None) -> None:
        self._settings = tcp
        self._factory = factory
        self._gate = gate
        self.tls: ssl.SSLContext | None = None  # once open, where it is set
        self._is_bound = False
        self._unix: list[tuple[int, ListenAddress, Dispatch]] = []  # with their place in _listeners
        self._listeners: list[_Listener] = []
        self._handshakes: set[asyncio.Task[None]] = set()

    @property
    def addresses(self) -> list[str]:
        """Open listeners as ``HOST:PORT`` or ``unix:PATH``; those of the older revision last."""
        return [listener.address for listener in self._listeners]

    @property
    def opened(self) -> list[PhpmqListener]:
        """Open listeners in the order of ``addresses``, with what a client has to know of each."""
        return [
            PhpmqListener(
                _whole(listener.address), listener.kind, has_ttl=listener.dispatch == "ttl"
            )
            for listener in self._listeners
        ]

    async def bind(self) -> None:
        """Bind the ports and look whether Unix sockets are free; accept on none yet.

        Called before the database is opened: a start that fails here has changed nothing in it.
        The file of a Unix socket appears in ``open``, because clients wait for it.

        Raises:
            SettingsError: an address cannot be read, or TLS cannot be used as set.
            StartRefusedError: an address is taken or not ours.
        """
        tcp = self._settings
        wanted: list[tuple[ListenAddress, Dispatch]] = [
            *((endpoint, "ttl") for endpoint in read_endpoints("tcp.listen", tcp.listen)),
            *(
                (endpoint, "legacy")
                for endpoint in read_endpoints("tcp.legacy_listen", tcp.legacy_listen)
            ),
        ]
        if tcp.tls_cert is not None and tcp.tls_key is not None:
            self.tls = server_context(tcp.tls_cert, tcp.tls_key, tcp.tls_client_ca)
        try:
            for endpoint, dispatch in wanted:
                await self._bind(endpoint, dispatch)
        except BaseException:
            await self.close()
            raise
        self._is_bound = True

    async def open(self) -> None:
        """Accept on all, which are bound first unless they are; where one fails, none stays open.

        Raises:
            SettingsError, StartRefusedError: as ``bind``.
        """
        if not self._is_bound:
            await self.bind()
        try:
            for at, endpoint, dispatch in reversed(self._unix):
                with _refusing(endpoint):
                    self._listeners.insert(at, _bind_unix(endpoint.path, dispatch))
            for listener in self._listeners:
                with _refusing(listener.address):  # another program may listen there by now
                    listener.socket.listen(_BACKLOG)
        except BaseException:
            await self.close()
            raise
        for listener in self._listeners:
            listener.accepting = asyncio.create_task(self._accept(listener))

    async def close(self) -> None:
        """Accept no more and end unfinished handshakes; connections made stay as they are."""
        tasks = [one.accepting for one in self._listeners if one.accepting is not None]
        tasks += self._handshakes
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.socket.close()
            if listener.file is not None:
                _remove_own(Path(listener.address.removeprefix("unix:")), listener.file)
        self._listeners.clear()

    # -- binding

    async def _bind(self, endpoint: ListenAddress, dispatch: Dispatch) -> None:
        with _refusing(endpoint):
            if endpoint.kind == "unix":
                remove_stale(endpoint.path)
                self._unix.append((len(self._listeners), endpoint, dispatch))
            else:
                await self._bind_tcp(endpoint, dispatch)

    async def _bind_tcp(self, endpoint: ListenAddress, dispatch: Dispatch) -> None:
        kind: Kind = "tcp" if self.tls is None else "tls"
        for bound in await bind_tcp(endpoint):
            host, port = bound.getsockname()[:2]
            self._listeners.append(_Listener(bound, address_text(host, port), kind, dispatch))

    # -- accepting

    async def _accept(self, listener: _Listener) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(listener.socket)
            except ConnectionAbortedError:
                continue  # it went before we came
            except OSError as error:  # no descriptors or no memory; others must close first
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
                await self._hand_over(listener, connection)

    async def _secure(
        self, listener: _Listener, connection: socket.socket, host: str | None
    ) -> None:
        """Do the handshake of one connection, in a place of its own."""
        refusal = self._gate.reserve(host) if self._gate is not None else None
        if refusal is not None:
            connection.close()
            if not is_quiet("turned_away"):
                _log.warning("turned_away", address=host, reason=refusal)
            return
        is_made = False
        try:
            is_made = await self._hand_over(listener, connection)
        finally:
            if not is_made and self._gate is not None:
                self._gate.give_up(host)

    async def _hand_over(self, listener: _Listener, connection: socket.socket) -> bool:
        """Give a connection its protocol; tell whether ``connection_made`` was called."""
        try:
            _prepare(connection)
            protocol = self._factory(listener.kind, listener.dispatch)
        except Exception as error:  # the listener goes on for others
            connection.close()
            if not is_quiet("no_session"):
                _log.error(
                    "no_session", listener=listener.address, reason=str(error), exc_info=error
                )
            return False
        secured: dict[str, Any] = {}
        if listener.kind == "tls":
            secured = {
                "ssl": self.tls,
                "ssl_handshake_timeout": HANDSHAKE_S,
                "ssl_shutdown_timeout": _SHUTDOWN_S,
            }
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: protocol, connection, **secured)
        except OSError as error:  # ssl.SSLError and TimeoutError are among them
            if not is_quiet("handshake_failed"):
                _log.warning("handshake_failed", listener=listener.address, reason=str(error))
            return False
        return True


@contextmanager
def _refusing(endpoint: ListenAddress | str) -> Iterator[None]:
    """Turn an error of the system into the reason why a start is refused."""
    try:
        yield
    except OSError as error:
        raise StartRefusedError(f"cannot listen on {endpoint}: {os_reason(error)}") from error


def _bind_unix(path: Path, dispatch: Dispatch) -> _Listener:
    """Bind a Unix socket of mode 0600.  Nobody can connect before ``listen``, which comes later."""
    bound = bind_private(path)
    status = path.stat()
    file = (status.st_dev, status.st_ino)
    return _Listener(bound, f"unix:{path}", "unix", dispatch, file)


def _whole(address: str) -> str:
    """Return the address with the whole path of a Unix socket: clients are in other folders."""
    if not address.startswith("unix:"):
        return address
    return f"unix:{Path(address.removeprefix('unix:')).absolute()}"


def _remove_own(path: Path, file: tuple[int, int]) -> None:
    """Remove our socket, unless another one has taken its name since."""
    with suppress(OSError):  # one that stays is stale, as a killed broker's
        status = path.stat()
        if (status.st_dev, status.st_ino) == file:
            path.unlink()


def _prepare(connection: socket.socket) -> None:
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for level, option, value in KEEPALIVE:
        connection.setsockopt(level, option, value)
