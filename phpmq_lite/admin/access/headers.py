"""The headers on every response, and those of a download (``security.md`` 6 and 7)."""

from typing import Final

from aiohttp import web

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


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Put the security headers on a response; to be connected to ``on_response_prepare``."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("Cache-Control", "no-store")


def as_download(name: str) -> dict[str, str]:
    """Give the headers of a file that no browser shows or runs; ``name`` is our own text."""
    return {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Content-Security-Policy": _SANDBOX,
    }
