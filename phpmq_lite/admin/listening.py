"""Serves the admin on sockets that listen already."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterable
from contextlib import AsyncExitStack

from aiohttp import web

from phpmq_lite.admin.access.headers import head_all
from phpmq_lite.admin.context import CONTEXT
from phpmq_lite.admin.doors import Door
from phpmq_lite.logs import is_quiet


async def open_admin(
    stack: AsyncExitStack,
    app: web.Application,
    sockets: Iterable[socket.socket],
    tls: ssl.SSLContext | None,
) -> None:
    """Answer who connects; the first of ``sockets`` is the control socket.

    ``tls`` None: plain http.  Unix sockets never have TLS.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    make = head_all(runner)
    _limit_log()
    doors = app[CONTEXT].doors
    watch = asyncio.create_task(doors.run())
    stack.callback(watch.cancel)
    loop = asyncio.get_running_loop()
    for number, one in enumerate(sockets):
        context = None if one.family == socket.AF_UNIX else tls
        server = await loop.create_server(
            lambda is_counted=number > 0: Door(doors, make(), is_counted=is_counted),
            sock=one,
            ssl=context,
            ssl_handshake_timeout=None if context is None else doors.patience.head_s,
            backlog=128,
        )
        stack.callback(server.close)


def _limit_log() -> None:
    """Limit the lines of aiohttp about requests that it cannot parse: a peer can cause them."""
    name = "aiohttp.server"
    logger = logging.getLogger(name)
    if not logger.filters:
        logger.addFilter(lambda _record: not is_quiet(name))
