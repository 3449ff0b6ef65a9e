"""The headers on every response, and those of a download (``docs/security.md`` 6 and 7)."""

import asyncio
from typing import Any, Final

from aiohttp import web
from aiohttp.web_protocol import ERROR

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # never no-referrer: forms would send Origin: null
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "",
}
_SANDBOX: Final = "sandbox; " + HEADERS["Content-Security-Policy"]


HSTS: Final = "max-age=31536000"  # a year; only for this very name


async def add_headers(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Put the security headers on a response; to be connected to ``on_response_prepare``."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers["Server"] = "phpmq-lite"  # and not which Python and aiohttp


def head_all(runner: web.AppRunner) -> web.Server:
    """Have aiohttp put the headers on its own answers too: those to what it cannot parse.

    Such a request has come to no application, so no signal is sent for its answer.
    """
    server = runner.server
    if server is None:
        raise RuntimeError("the runner is not set up")
    make = server.request_factory

    def make_headed(
        message: Any, payload: Any, protocol: Any, writer: Any, task: Any
    ) -> web.BaseRequest:
        if message is not ERROR:
            return make(message, payload, protocol, writer, task)
        loop = asyncio.get_running_loop()
        return _Unparsed(message, payload, protocol, writer, task, loop)

    server.request_factory = make_headed
    return server


class _Unparsed(web.BaseRequest):
    """What stands for a request that could not be parsed."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        await add_headers(self, response)


def as_download(name: str) -> dict[str, str]:
    """Give the headers of a file that no browser shows or runs; ``name`` is our own text."""
    return {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Content-Security-Policy": _SANDBOX,
    }
