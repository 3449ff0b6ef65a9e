"""CSRF checks (``docs/operate/security.md``, section 4)."""

import hmac
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

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
            detail = "The request was refused because it has no Origin header."
            raise Problem(403, "no_origin", detail, field="Origin")
    elif not _is_ours(request, origin, public_url):
        detail = f"The request comes from {origin!r}, but this page is at {request.host!r}. Behind "
        detail += "a proxy, set admin.public_url to the address that browsers use, or forward the "
        detail += "Host header and add the host to admin.hosts."
        raise Problem(403, "foreign_origin", detail, field="Origin")
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None and site not in ("same-origin", "none"):
        detail = f"The request was refused because it is {site}."
        raise Problem(403, "cross_site", detail, field="Sec-Fetch-Site")


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
    if (type_ := media_type_of(request)) not in media:
        detail, bound = f"The content type {type_[:50]!r} is not accepted here.", " or ".join(media)
        raise Problem(415, "media_type", detail, field="Content-Type", bound=bound)


def check_header(request: web.Request, token: str) -> None:
    """Refuse an API call that lacks the session's CSRF token, which our pages' scripts send.

    Raises:
        Problem: 403.
    """
    if not _is_token(request.headers.get(CSRF_HEADER, ""), token):
        detail = f"A call that uses a session cookie must send the session's token in {CSRF_HEADER}"
        detail += ". Programs should send an API token instead: Authorization: Bearer phpmq_…"
        raise Problem(403, "no_token", detail, field=CSRF_HEADER)


async def check_form(request: web.Request, token: str) -> None:
    """Read a form, and refuse it unless it was sent by one of our pages.

    Raises:
        Problem: 415 for other content types, 403 if the token is missing or belongs to another
            session, or an error from reading the form.
    """
    if media_type_of(request) not in FORMS:
        detail, bound = "This address accepts only form submissions.", " or ".join(sorted(FORMS))
        raise Problem(415, "media_type", detail, field="Content-Type", bound=bound)
    if not _is_token(await read_form_field(request, CSRF_FIELD), token):
        detail = "This form does not belong to your session, or the broker has restarted since the "
        detail += "page was loaded. Nothing was changed. Send it again, or reload the page."
        raise Problem(403, "stale_form", detail, field=CSRF_FIELD)


def _is_token(text: str, token: str) -> bool:
    return hmac.compare_digest(text.encode(errors="replace"), token.encode())
