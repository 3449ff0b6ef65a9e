"""Functions that determine where a request comes from, even behind trusted proxies."""

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import web

from phpmq_lite.server.addresses import parse_address
from phpmq_lite.settings import Settings

# The socket is in the data folder and has mode 0600, so only the broker's user can connect.
CONTROL_SOCKET: Final = "control.sock"
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def is_control(request: web.BaseRequest) -> bool:
    """Return whether a request came over the control socket and so needs no other checks."""
    if is_relayed(request):
        return False
    name = local_name(request)
    return isinstance(name, str) and name.rpartition("/")[2] == CONTROL_SOCKET


def is_relayed(request: web.BaseRequest) -> bool:
    """Return whether another broker relays the connection of a request."""
    transport = request.transport
    return transport is not None and transport.get_extra_info("relay") is not None


def local_name(request: web.BaseRequest) -> object:
    """Return the connection's local address: a path, or a tuple that begins with the host."""
    transport = request.transport
    name = transport.get_extra_info("sockname") if transport is not None else None
    return name.decode(errors="replace") if isinstance(name, bytes) else name


def host_name(host: str) -> str:
    """Return the host name from a Host header, in lowercase and without port or brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    if host.count(":") > 1:  # an IPv6 address without brackets, as in settings and socket addresses
        return host.lower().removeprefix("::ffff:")
    return host.partition(":")[0].lower().removesuffix(".")


def known_hosts(settings: Settings) -> list[str]:
    """Return the host names allowed by ``admin.hosts`` and ``admin.public_url``."""
    public = urlsplit(settings.admin.public_url).hostname
    return [*settings.admin.hosts, *([public] if public else [])]


def is_known_host(request: web.BaseRequest, hosts: Iterable[str]) -> bool:
    """Return whether the Host header is accepted (``docs/operate/security.md``, section 5).

    Loopback hosts, the connection's local address, and the names in ``hosts`` are accepted.
    """
    given = request.headers.getall("Host", [])
    if len(given) != 1:
        return False
    name = host_name(request.host)  # a trusted proxy may have forwarded the original host
    if name in LOOPBACK_NAMES or name in {host_name(host) for host in hosts}:
        return True
    local = local_name(request)
    return isinstance(local, tuple) and name == host_name(str(local[0]))


FORWARDED: Final = ("X-Forwarded-For", "Forwarded", "X-Real-IP", "Via")
_LONGEST: Final = 20  # maximum number of chained proxies

Networks = Sequence[IPv4Network | IPv6Network]


def is_forwarded(request: web.BaseRequest) -> bool:
    """Return whether any proxy, trusted or not, forwarded the request."""
    return any(name in request.headers for name in FORWARDED)


def as_browser_sent(request: web.Request, trusted: Networks) -> web.Request:
    """Return the request with the address, scheme and host that the browser used.

    A request from an untrusted address is returned unchanged.
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
    """Return the first address, starting at the nearest proxy, that is not a trusted proxy."""
    steps = [step.strip() for header in headers for step in header.split(",")]
    found = ""
    for step in reversed(steps[-_LONGEST:]):
        address = _without_port(step)
        if parse_address(address) is None:
            break
        found = address
        if not _is_in(address, trusted):
            break
    return found


def _last(request: web.BaseRequest, name: str) -> str:
    """Return the value set by the nearest proxy; the browser may have forged earlier values."""
    headers = request.headers.getall(name, [])
    return headers[-1].rpartition(",")[2].strip() if headers else ""


def _without_port(text: str) -> str:
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _is_in(text: str, networks: Networks) -> bool:
    address = parse_address(text)
    return address is not None and any(address in network for network in networks)


def address_of(request: web.BaseRequest) -> str:
    """Return the browser's address for the audit log, even if a trusted proxy is in between."""
    return "control" if is_control(request) else (request.remote or "local")


def is_from_here(request: web.BaseRequest) -> bool:
    """Return whether a request comes from this machine, over loopback or a Unix socket."""
    if is_forwarded(request) or is_relayed(request):
        return False
    local = local_name(request)
    if isinstance(local, str):
        return True
    return isinstance(local, tuple) and _is_loopback(local[0]) and _is_loopback(request.remote)


def _is_loopback(text: object) -> bool:
    address = parse_address(str(text))
    return address is not None and address.is_loopback
