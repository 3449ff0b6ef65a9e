"""Reads cookies, and the headers that name a media type, a charset or an encoding.

A sender chooses none of them: everything is UTF-8 and not compressed, because the time of some
decoders grows with the square of their input.  Reading a header takes time in proportion to its
length; Python's own parser of headers took 70 ms for one of 8 KiB.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web
from aiohttp.web_protocol import ERROR

from phpmq_lite.admin.http.problems import Problem

PLAIN: Final = "identity"
_NO_TYPE: Final = "application/octet-stream"
_CHARACTERS: Final = 1_000  # of a header, in which parameters are looked for
_PARAMETER: Final = re.compile(
    r""";[ \t]*([^\s=;"]++)[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*+)"?|([^\s;"]*+))""", re.DOTALL
)


def parse_parameters(header: str) -> tuple[str, dict[str, str]]:
    """Return the value of a header in lowercase, and its parameters by their names in lowercase.

    If a parameter is repeated, the first one counts.  Parameters beyond 1,000 characters, which
    no browser or library writes, are ignored: a header of 8 KiB kept the event loop for 6 ms.
    """
    parameters: dict[str, str] = {}
    for name, quoted, plain in _PARAMETER.findall(header[:_CHARACTERS]):
        text = re.sub(r"\\(.)", r"\1", quoted) if "\\" in quoted else quoted
        parameters.setdefault(name.lower(), text or plain)
    return header.partition(";")[0].strip().lower(), parameters


def media_type_of(request: web.BaseRequest) -> str:
    """Return the media type of a request's body; use this instead of ``request.content_type``."""
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower() or _NO_TYPE


def boundary_of(content_type: str) -> bytes:
    """Return a multipart type's boundary; raise ValueError if RFC 2046 does not allow it."""
    boundary = parse_parameters(content_type)[1].get("boundary", "")
    if not 1 <= len(boundary) <= 70 or not boundary.isascii():
        raise ValueError("the boundary is missing, not ASCII, or longer than 70 characters")
    return boundary.encode()


def check_encoding(request: web.BaseRequest) -> None:
    """Refuse with 415 a body that is compressed, or in another charset than UTF-8.

    The listener does not decompress bodies: no route needs it, and the result may have any size.
    """
    for header in request.headers.getall("Content-Type", ()):
        check_charset(parse_parameters(header)[1], "the body")
    for encoding in request.headers.getall("Content-Encoding", ()):
        if encoding.strip().lower() != PLAIN:
            raise encoded("The body", encoding)


def check_charset(parameters: Mapping[str, str], part: str) -> None:
    """Refuse with 415 a charset other than UTF-8; ``charset*`` begins with its charset."""
    extended = parameters.get("charset*", "").partition("'")[0]
    for charset in (parameters.get("charset", ""), extended):
        if charset.strip().lower() not in ("", "utf-8", "utf8"):
            detail = f"The charset of {part} is {charset[:50]!r}. Send UTF-8."
            raise Problem(415, "charset", detail, field="charset", bound="utf-8")


def encoded(part: str, encoding: str) -> Problem:
    """Return the problem of a body or a part with an encoding."""
    detail = f"{part} is encoded as {encoding[:50]!r}. Send it uncompressed."
    return Problem(415, "content_encoding", detail, field="Content-Encoding", bound=PLAIN)


def read_cookie(request: web.BaseRequest, name: str) -> str:
    """Return the value of a cookie, or an empty string; use this instead of ``request.cookies``."""
    header = request.headers.get("Cookie", "")
    match = re.search(rf"(?:^|;)[ \t]*{re.escape(name)}=([^;]*)", header)
    return "" if match is None else match[1].strip(' \t"')


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
