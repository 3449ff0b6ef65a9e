"""Security headers of all responses (``docs/operate/security.md``, sections 6 and 7)."""

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
    "Referrer-Policy": "same-origin",  # with "no-referrer", form posts would have "Origin: null"
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "",
}
_SANDBOX: Final = "sandbox; " + HEADERS["Content-Security-Policy"]
HSTS: Final = "max-age=31536000"  # one year, for this host but not its subdomains


async def add_headers(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Set a response's security headers; serves as an ``on_response_prepare`` handler."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers["Server"] = "phpmq-lite"  # hides the versions of Python and aiohttp


def add_headers_everywhere(runner: web.AppRunner) -> web.Server:
    """Also set the security headers on aiohttp's own responses to malformed requests.

    Such requests never reach an application, so ``on_response_prepare`` does not fire for them.
    """
    server = runner.server
    if server is None:
        raise RuntimeError("the runner is not set up")
    make = server.request_factory

    def prepare_with_headers(
        message: Any, payload: Any, protocol: Any, writer: Any, task: Any
    ) -> web.BaseRequest:
        if message is not ERROR:
            return make(message, payload, protocol, writer, task)
        loop = asyncio.get_running_loop()
        return _Unparsed(message, payload, protocol, writer, task, loop)

    server.request_factory = prepare_with_headers
    return server


class _Unparsed(web.BaseRequest):
    """A request that could not be parsed."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        await add_headers(self, response)


def download_headers(name: str) -> dict[str, str]:
    """Return headers that make browsers save a response as ``name``, a trusted file name."""
    return {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Content-Security-Policy": _SANDBOX,
    }
