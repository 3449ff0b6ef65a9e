"""Functions that determine where a request comes from, even behind trusted proxies."""

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import HttpVersion11, web

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
    if len(request.headers.getall("Host", [])) != 1:
        return False
    name = host_name(request.host)  # a trusted proxy may have forwarded the original host
    if name in LOOPBACK_NAMES or name in {host_name(host) for host in hosts}:
        return True
    local = local_name(request)
    return isinstance(local, tuple) and name == host_name(str(local[0]))


# Headers that proxies add, besides ``X-Forwarded-*``.
_FORWARDED: Final = frozenset(
    {"forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip"}
    | {"cf-connecting-ip", "cf-ray", "cdn-loop", "fastly-client-ip", "fly-client-ip", "x-varnish"}
    | {"x-original-host", "x-original-url", "x-original-uri", "x-amzn-trace-id", "x-scheme"}
    | {"x-envoy-external-address", "x-arr-log-id", "proxy-connection", "surrogate-capability"}
)
# Headers of browsers, of which a page on another site can suppress some, but not all.
_OF_BROWSERS: Final = (
    *("Accept-Language", "Cookie", "Origin", "Referer", "Upgrade-Insecure-Requests"),
    *("Sec-Fetch-Dest", "Sec-Fetch-Mode", "Sec-Fetch-Site"),
)
_LONGEST: Final = 20  # maximum number of chained proxies

Networks = Sequence[IPv4Network | IPv6Network]


def is_forwarded(request: web.BaseRequest) -> bool:
    """Return whether a proxy seems to have forwarded the request.

    A proxy on this machine may add no header, as nginx with ``proxy_pass`` alone.  It then speaks
    HTTP/1.0, or the browser names the proxy in Origin or Referer.
    """
    if request.version < HttpVersion11 or any(
        name.lower() in _FORWARDED or name.lower().startswith("x-forwarded-")
        for name in request.headers
    ):
        return True
    own = {*LOOPBACK_NAMES, host_name(request.host)}
    return any(
        host_name(urlsplit(text).netloc.rpartition("@")[2]) not in own
        for name in ("Origin", "Referer")
        for text in request.headers.getall(name, ())
        if "//" in text
    )


def is_program(request: web.BaseRequest) -> bool:
    """Return whether the request cannot come from a browser, such as that of a health check."""
    is_browser = request.headers.get("User-Agent", "").startswith("Mozilla/")
    return not is_browser and not any(name in request.headers for name in _OF_BROWSERS)


def as_browser_sent(request: web.Request, trusted: Networks) -> web.Request:
    """Return the request with the address, scheme and host that the browser used.

    A request from an untrusted address is returned unchanged.  A Unix socket is trusted: only this
    account can connect to it.
    """
    is_unix = isinstance(local_name(request), str) and not is_relayed(request)
    if is_control(request) or not (is_unix or _is_in(request.remote or "", trusted)):
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
    browser = ""
    for step in reversed(",".join(headers[-_LONGEST:]).rsplit(",", _LONGEST)[-_LONGEST:]):
        address = _without_port(step.strip())
        if parse_address(address) is None:
            break
        browser = address
        if not _is_in(address, trusted):
            break
    return browser


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


def is_from_here(request: web.BaseRequest, *, is_direct: bool = True) -> bool:
    """Return whether a request comes from this machine, over loopback or a Unix socket.

    With ``is_direct``, it must not have been forwarded.
    """
    if is_relayed(request) or (is_direct and is_forwarded(request)):
        return False
    local = local_name(request)
    if isinstance(local, str):
        return True
    return isinstance(local, tuple) and _is_loopback(local[0]) and _is_loopback(request.remote)


def _is_loopback(text: object) -> bool:
    address = parse_address(str(text))
    return address is not None and address.is_loopback
