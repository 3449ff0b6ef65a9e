"""The server of the admin interface, which accepts connections with or without TLS."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import partial
from typing import Final

from aiohttp import web

from phpmq_lite.admin.http.headers import add_headers_everywhere
from phpmq_lite.admin.slow_clients import LIMITS, ConnectionLimits, LimitedConnection
from phpmq_lite.logs import is_quiet
from phpmq_lite.server.admission import Handshake
from phpmq_lite.server.listeners import Kind
from phpmq_lite.server.tls import answering_plain

_BACKLOG: Final = 128
_ACCEPTED_AT_ONCE: Final = 16
_RETRY_S: Final = 0.1  # delay before accepting connections again after an error
_LINGER_S: Final = 2.0  # maximum time spent reading the rest of a refused body
_READ_BYTES: Final = 64 << 10  # aiohttp pauses reading when it has buffered twice as much
_USE_HTTPS: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"This address uses TLS: use https:// instead of http://.\n"
)

Connect = Callable[[], asyncio.Protocol]  # makes the protocol of a connection
Front = Callable[[Connect, ConnectionLimits, Kind], asyncio.Protocol]


async def open_admin(
    stack: AsyncExitStack,
    app: web.Application,
    sockets: Iterable[socket.socket],
    tls: ssl.SSLContext | None,
    make_front: Front,
) -> Connect:
    """Serve connections to ``sockets``, the first of which must be the control socket.

    Without ``tls``, all sockets use plain HTTP; Unix sockets never use TLS.  ``make_front`` makes
    the protocols of all connections but those to the control socket.  Return what makes the
    protocol of one more connection.
    """
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=2.0,
        auto_decompress=False,  # 11 MiB of compressed zeros would block the event loop for 2 s
        read_bufsize=_READ_BYTES,
        lingering_time=_LINGER_S,
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    make = add_headers_everywhere(runner)
    logger = logging.getLogger("aiohttp.server")
    if not logger.filters:  # it logs malformed requests, which any peer can send
        logger.addFilter(lambda _record: not is_quiet(logger.name))
    limits = app[LIMITS]
    watch = asyncio.create_task(limits.run())
    stack.callback(watch.cancel)
    loop = asyncio.get_running_loop()

    def connect(*, is_counted: bool = True) -> asyncio.Protocol:
        return LimitedConnection(limits, make(), is_counted=is_counted)

    for number, listener in enumerate(sockets):
        kind: Kind = (
            "unix" if listener.family == socket.AF_UNIX else "tcp" if tls is None else "tls"
        )
        accept = partial(make_front, connect, limits, kind)
        if tls is not None and kind == "tls":
            accepting = asyncio.create_task(_accept(listener, tls, limits, accept))
            stack.push_async_callback(_end, accepting)
            continue
        accept = accept if number else partial(connect, is_counted=False)
        # A burst of 128 would take all places before the first of them can send its request.
        server = await loop.create_server(accept, sock=listener, backlog=_ACCEPTED_AT_ONCE)
        listener.listen(_BACKLOG)
        stack.callback(server.close)
    return connect


async def _accept(
    listening: socket.socket, tls: ssl.SSLContext, limits: ConnectionLimits, accept: Connect
) -> None:
    """Accept connections until this task is cancelled, then cancel all pending handshakes."""
    loop = asyncio.get_running_loop()

    async def secure(connection: socket.socket, host: str, protocol: asyncio.Protocol) -> None:
        """Reserve a place, perform the TLS handshake, and start handling requests."""
        name, place = limits.name_of(host), Handshake()
        refusal = limits.admission.reserve(name, place)
        if refusal is not None:
            connection.close()
            limits.log_refusal(name, refusal)
            return
        with ExitStack() as failure, suppress(OSError):  # SSLError and TimeoutError are subclasses
            failure.callback(limits.admission.cancel_reservation, name, place)
            head_s = limits.timeouts.head_s
            async with answering_plain(connection, _USE_HTTPS):
                await loop.connect_accepted_socket(
                    lambda: protocol, connection, ssl=tls, ssl_handshake_timeout=head_s
                )
            failure.pop_all()
            limits.admission.end_handshake(place)

    listening.setblocking(False)
    async with asyncio.TaskGroup() as handshakes:
        while True:
            try:
                connection, peer = await loop.sock_accept(listening)
            except OSError:  # the peer disconnected, or too many files are open
                await asyncio.sleep(_RETRY_S)
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            handshakes.create_task(secure(connection, peer[0], accept()))


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait({task})
