"""Whose page sent a change: ours, or one of another site (``security.md`` 4)."""

from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from phpmq_lite.admin.access.hosts import is_control
from phpmq_lite.admin.problems import Problem

_SAFE_SITES: Final = frozenset({"same-origin", "none"})
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}


def _is_own_origin(origin: str, host: str) -> bool:
    parts = urlsplit(origin)
    if parts.scheme not in _DEFAULT_PORTS:
        return False
    port = _DEFAULT_PORTS[parts.scheme]
    own, other = host.lower(), parts.netloc.lower()
    return own.removesuffix(f":{port}") == other.removesuffix(f":{port}")


def check_site(request: web.Request, *, needs_origin: bool) -> None:
    """Refuse what another site's page sent (``security.md`` 4).

    Raises:
        Problem: 403, naming the origin seen and the setting that would allow it.
    """
    if is_control(request):
        return
    origin = request.headers.get("Origin")
    if origin is None:
        if needs_origin:
            raise Problem(403, "no_origin", "The request names no Origin, so it is refused.")
    elif not _is_own_origin(origin, request.host):
        raise Problem(
            403,
            "foreign_origin",
            f"The request comes from {origin!r}, but this page is at {request.host!r}. "
            "Behind a proxy, pass the Host header on and name the host in admin.hosts.",
            field="Origin",
        )
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None and site not in _SAFE_SITES:
        raise Problem(
            403, "cross_site", f"The request is {site}, so it is refused.", field="Sec-Fetch-Site"
        )


def check_json(request: web.Request) -> None:
    """Let only JSON through: a page of another site cannot send it without being asked first."""
    if request.content_type != "application/json":
        raise Problem(
            415,
            "media_type",
            f"The content type is {request.content_type!r}.",
            field="Content-Type",
            bound="application/json",
        )
