"""CSRF checks and security headers (``docs/operate/security.md``, sections 4, 6 and 7)."""

import asyncio
import hmac
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.web_protocol import ERROR

from phpmq_lite.admin.http.body import FORMS, read_form_field
from phpmq_lite.admin.http.headers import media_type_of
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.source import is_control

CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "X-CSRF-Token"
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}


def _is_own_origin(origin: str, host: str, *, is_secure: bool) -> bool:
    """Return whether an origin is our own; accept ``https`` because a proxy may hide the scheme."""
    parts = urlsplit(origin)
    if parts.scheme not in _DEFAULT_PORTS or (is_secure and parts.scheme != "https"):
        return False
    port = _DEFAULT_PORTS[parts.scheme]
    own, other = host.lower(), parts.netloc.lower()
    return own.removesuffix(f":{port}") == other.removesuffix(f":{port}")


def origin_of(url: str) -> str:
    """Return a URL's origin as browsers write it, for example ``https://mq.example``."""
    parts = urlsplit(url)
    port = _DEFAULT_PORTS.get(parts.scheme, "")
    return f"{parts.scheme}://{parts.netloc.lower().removesuffix(f':{port}')}"


def check_site(request: web.Request, *, needs_origin: bool, public_url: str = "") -> None:
    """Refuse requests from pages on other sites (``docs/operate/security.md``, section 4).

    Raises:
        Problem: 403, naming the origin and the setting that would allow it.
    """
    if is_control(request):
        return
    origin = request.headers.get("Origin")
    if origin is None:
        if needs_origin:
            raise Problem(
                403,
                "no_origin",
                "The request was refused because it has no Origin header.",
                field="Origin",
            )
    elif not _is_ours(request, origin, public_url):
        raise Problem(
            403,
            "foreign_origin",
            f"The request comes from {origin!r}, but this page is at {request.host!r}. "
            "Behind a proxy, set admin.public_url to the address that browsers use, or forward the "
            "Host header and add the host to admin.hosts.",
            field="Origin",
        )
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None and site not in ("same-origin", "none"):
        raise Problem(
            403, "cross_site", f"The request was refused because it is {site}.",
            field="Sec-Fetch-Site",
        )  # fmt: skip


def _is_ours(request: web.Request, origin: str, public_url: str) -> bool:
    try:
        if public_url and origin_of(origin) == origin_of(public_url):
            return True
        return _is_own_origin(origin, request.host, is_secure=request.secure)
    except ValueError:  # the origin is malformed, for example with empty brackets
        return False


def check_media(request: web.Request, *media: str) -> None:
    """Raise a 415 ``Problem`` if a request's content type is not one of ``media``.

    A page on another site can send JSON only after a preflight request.  A DELETE without a
    body needs no content type, because DELETE always requires a preflight request.
    """
    if request.method == "DELETE" and not request.can_read_body:
        return
    if media_type_of(request) not in media:
        raise Problem(
            415,
            "media_type",
            f"The content type {media_type_of(request)[:50]!r} is not accepted here.",
            field="Content-Type",
            bound=" or ".join(media),
        )


def check_header(request: web.Request, token: str) -> None:
    """Refuse an API call that lacks the session's CSRF token, which our pages' scripts send.

    Raises:
        Problem: 403.
    """
    if not _is_token(request.headers.get(CSRF_HEADER, ""), token):
        raise Problem(
            403,
            "no_token",
            f"A call that uses a session cookie must send the session's token in {CSRF_HEADER}. "
            "Programs should send an API token instead: Authorization: Bearer phpmq_…",
            field=CSRF_HEADER,
        )


async def check_form(request: web.Request, token: str) -> None:
    """Read a form, and refuse it unless it was sent by one of our pages.

    Raises:
        Problem: 415 for other content types, 403 if the token is missing or belongs to another
            session, or an error from reading the form.
    """
    if media_type_of(request) not in FORMS:
        raise Problem(
            415, "media_type", "This address accepts only form submissions.", field="Content-Type",
            bound=" or ".join(sorted(FORMS)),
        )  # fmt: skip
    given = await read_form_field(request, CSRF_FIELD)
    if not _is_token(given, token):
        raise Problem(
            403,
            "stale_form",
            "This form does not belong to your session, or the broker has restarted since the page "
            "was loaded. Nothing was changed. Send it again, or reload the page.",
            field=CSRF_FIELD,
        )


def _is_token(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())


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
