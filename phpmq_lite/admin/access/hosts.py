"""Known hosts: by which names this machine may be called (``docs/security.md`` 5)."""

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from phpmq_lite.settings import Settings

CONTROL_SOCKET: Final = "control.sock"  # in the data folder, 0600: its peer owns the broker
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def is_control(request: web.BaseRequest) -> bool:
    """Tell whether a request came over the control socket, which needs no more checks."""
    name = local_name(request)
    return isinstance(name, str) and name.rpartition("/")[2] == CONTROL_SOCKET


def local_name(request: web.BaseRequest) -> object:
    """Give the local address of the connection: a path, or a tuple with the host first."""
    transport = request.transport
    name = transport.get_extra_info("sockname") if transport is not None else None
    return name.decode(errors="replace") if isinstance(name, bytes) else name


def host_name(host: str) -> str:
    """Give the name in a Host header without its port, in lower case, brackets off."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    if host.count(":") > 1:  # IPv6 as settings and sockets write it
        return host.lower().removeprefix("::ffff:")
    return host.partition(":")[0].lower().removesuffix(".")


def known_hosts(settings: Settings) -> list[str]:
    """Give the names that the settings allow."""
    public = urlsplit(settings.admin.public_url).hostname
    return [*settings.admin.hosts, *([public] if public else [])]


def is_known_host(request: web.BaseRequest, hosts: Iterable[str]) -> bool:
    """Tell whether the Host header names this machine (``docs/security.md`` 5).

    That is loopback, the local address of this connection, or one of ``hosts``.
    """
    given = request.headers.getall("Host", [])
    if len(given) != 1:
        return False
    name = host_name(request.host)  # a trusted proxy may have told another one
    if name in LOOPBACK_NAMES or name in {host_name(host) for host in hosts}:
        return True
    local = local_name(request)
    return isinstance(local, tuple) and name == host_name(str(local[0]))
