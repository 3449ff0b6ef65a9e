"""Where the admin listens: the control socket, loopback or wider, with TLS where it is set."""

import logging
import ssl
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from aiohttp import web

from phpmq_lite.admin.access.headers import head_all
from phpmq_lite.errors import StartRefusedError
from phpmq_lite.logs import is_quiet
from phpmq_lite.server.endpoints import Endpoint, parse_endpoint
from phpmq_lite.server.tls import server_context
from phpmq_lite.server.unix_sockets import bind_private
from phpmq_lite.settings import Settings


def tls_of(settings: Settings) -> ssl.SSLContext | None:
    """Give the TLS context of the admin; None where it speaks plain http.

    Raises:
        SettingsError: certificate or key cannot be used; the message names the setting.
    """
    admin = settings.admin
    if admin.tls_cert is None or admin.tls_key is None:
        return None
    return server_context(admin.tls_cert, admin.tls_key, section="admin")


async def open_admin(
    stack: AsyncExitStack, app: web.Application, settings: Settings, control: Path
) -> list[str]:
    """Listen on the control socket and on all addresses of the settings; gives their URLs.

    Raises:
        SettingsError: an address or TLS cannot be used as set.
        StartRefusedError: an address is taken or not ours.
    """
    tls = tls_of(settings)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    head_all(runner)
    _limit_log()
    await _open_unix(stack, runner, control)
    for text in settings.admin.listen:
        endpoint = parse_endpoint(text)
        if endpoint is not None:
            try:
                await _open(stack, runner, endpoint, tls)
            except OSError as error:
                reason = error.strerror or str(error)
                raise StartRefusedError(f"cannot listen on {endpoint}: {reason}") from error
    return [_url(address, is_secure=tls is not None) for address in runner.addresses[1:]]


def _limit_log() -> None:
    """Limit the lines of aiohttp about requests that it cannot parse: a peer can cause them."""
    name = "aiohttp.server"
    logger = logging.getLogger(name)
    if not logger.filters:
        logger.addFilter(lambda _record: not is_quiet(name))


async def _open(
    stack: AsyncExitStack, runner: web.AppRunner, endpoint: Endpoint, tls: ssl.SSLContext | None
) -> None:
    if endpoint.kind == "unix":
        await _open_unix(stack, runner, endpoint.path)
        return
    host, port = endpoint.host, endpoint.port
    await web.TCPSite(runner, host, port, reuse_address=True, ssl_context=tls).start()


async def _open_unix(stack: AsyncExitStack, runner: web.AppRunner, path: Path) -> None:
    bound = bind_private(path)
    stack.callback(path.unlink, missing_ok=True)
    await web.SockSite(runner, bound).start()


def _url(address: Any, *, is_secure: bool) -> str:
    if isinstance(address, str):
        return f"unix:{address}"
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"http{'s' if is_secure else ''}://{host}:{address[1]}/"
