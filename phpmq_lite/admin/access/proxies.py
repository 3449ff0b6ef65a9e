"""Behind a proxy: what it says of the browser counts, if its address is trusted.

``X-Forwarded-For``, ``-Proto`` and ``-Host`` of anybody else are not looked at.
"""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any, Final

from aiohttp import web

FORWARDED: Final = ("X-Forwarded-For", "Forwarded", "X-Real-IP", "Via")
_LONGEST: Final = 20  # proxies in a row

Networks = Sequence[IPv4Network | IPv6Network]


def is_forwarded(request: web.BaseRequest) -> bool:
    """Tell whether some proxy has left a sign, trusted or not."""
    return any(name in request.headers for name in FORWARDED)


def as_browser_sent(request: web.Request, trusted: Networks) -> web.Request:
    """Give the request as the browser sent it: remote address, scheme and host before the proxy.

    From an address that is not trusted it stays as it is.
    """
    if not trusted or not _is_in(request.remote or "", trusted):
        return request
    changes: dict[str, Any] = {}
    remote = _browser(request.headers.getall("X-Forwarded-For", []), trusted)
    if remote:
        changes["remote"] = remote
    scheme = _last(request, "X-Forwarded-Proto").lower()
    if scheme in ("http", "https"):
        changes["scheme"] = scheme
    host = _last(request, "X-Forwarded-Host")
    if host:
        changes["host"] = host
    return request.clone(**changes) if changes else request


def _browser(headers: Sequence[str], trusted: Networks) -> str:
    """Walk from the nearest proxy outwards to the first address that is not one of ours."""
    steps = [step.strip() for header in headers for step in header.split(",")]
    found = ""
    for step in reversed(steps[-_LONGEST:]):
        address = _without_port(step)
        if not _is_address(address):
            break
        found = address
        if not _is_in(address, trusted):
            break
    return found


def _last(request: web.BaseRequest, name: str) -> str:
    """Give what the nearest proxy added; what stands before it may be the browser's invention."""
    headers = request.headers.getall(name, [])
    return headers[-1].rpartition(",")[2].strip() if headers else ""


def _without_port(text: str) -> str:
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _is_in(text: str, networks: Networks) -> bool:
    if not _is_address(text):
        return False
    address = ip_address(text)
    mapped = getattr(address, "ipv4_mapped", None) or address
    return any(mapped in network for network in networks)
