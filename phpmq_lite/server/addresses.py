"""Parses and binds listen addresses, and refuses to listen beyond loopback without opt-in."""

import asyncio
import errno
import ipaddress
import os
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from phpmq_lite.errors import SettingsError
from phpmq_lite.settings import Settings

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

LONGEST_UNIX_PATH: Final = 107  # in bytes; the kernel's field holds 108, including a zero byte


@dataclass(slots=True, frozen=True)
class ListenAddress:
    """An address to listen on; port 0 means any free port."""

    kind: Literal["tcp", "unix"]
    host: str = ""  # host name or IP address; IPv6 without brackets
    port: int = 0
    path: Path = Path()  # path of the Unix socket

    def __str__(self) -> str:
        if self.kind == "unix":
            return f"unix:{self.path}"
        return address_text(self.host, self.port)


class PhpmqListener(NamedTuple):
    """An open PHPMQ listener; ``address`` contains the actual port or the absolute socket path."""

    address: str
    transport: Literal["tcp", "tls", "unix"]
    has_ttl: bool  # False if clients use the older revision


def parse_endpoint(text: str) -> ListenAddress | None:
    """Parse ``HOST:PORT``, ``[IPv6]:PORT`` or ``unix:PATH``; return None for ``none``.

    Raises SettingsError: the text has none of these forms; the caller adds the setting's name.
    """
    text = text.strip()
    if text == "none":
        return None
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path or "\0" in path:
            raise SettingsError("unix: must be followed by a socket path")
        size, limit = len(path.encode(errors="surrogateescape")), LONGEST_UNIX_PATH
        if size > limit:
            detail = f"{size} bytes long; the limit for a socket path is {limit}"
            raise SettingsError(f"{path!r} is {detail}")
        return ListenAddress("unix", path=Path(path))
    host, colon, port = text.rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    if not colon or not is_number or int(port) > 65_535:
        raise SettingsError(f"{text!r} is not HOST:PORT with a port from 0 to 65535, nor unix:PATH")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if ":" not in host or parse_address(host) is None:
            raise SettingsError(f"{text!r} must contain an IPv6 address between the brackets")
    elif ":" in host:
        raise SettingsError(f"{text!r}: an IPv6 address must be in brackets, as in [::1]:{port}")
    elif not host or any(char.isspace() for char in host):
        raise SettingsError(f"{text!r} has no host; use 0.0.0.0 or [::] for all addresses")
    return ListenAddress("tcp", host, int(port))


def parse_address(text: str) -> IpAddress | None:
    """Parse an IP address, dropping its zone; return None if the text is not an address.

    An IPv4-mapped IPv6 address (``::ffff:10.0.0.1``) is returned as IPv4.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return address.ipv4_mapped or ipaddress.IPv6Address(int(address))
    return address


def address_key(address: str | None) -> str:
    """Return what limits per address count by: an IPv4 address, or the /64 of an IPv6 address.

    A /64 is the smallest network of one customer, who may use any of its addresses.  Loopback
    addresses are counted one by one, a Unix socket (None) is ``""``, and a text that is not an
    address is its own key.
    """
    parsed = None if address is None else parse_address(address)
    if parsed is None:
        return address or ""
    if parsed.version == 4 or parsed.is_loopback:
        return str(parsed)
    return str(ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))


def address_text(host: str, port: int) -> str:
    """Format an address so that ``parse_endpoint`` can read it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(endpoint: ListenAddress) -> bool:
    """Return whether only this machine can connect; ``localhost`` is the only trusted name."""
    if endpoint.kind == "unix" or endpoint.host.lower() == "localhost":
        return True
    address = parse_address(endpoint.host)
    return address is not None and address.is_loopback


CONTROL_SOCKET: Final = "control.sock"  # in the data folder; clients of the socket have full access


def read_endpoints(name: str, texts: list[str]) -> list[ListenAddress]:
    """Parse the addresses in setting ``name``, where ``none`` means no listener.

    Raises SettingsError: an address is invalid; the message names the setting.
    """
    try:
        return [endpoint for text in texts if (endpoint := parse_endpoint(text)) is not None]
    except SettingsError as error:
        raise SettingsError(f"{name}: {error}") from None


def listen_addresses(settings: Settings) -> Iterator[tuple[str, ListenAddress]]:
    """Yield the addresses of all listeners, each with the name of its setting.

    Raises SettingsError: an address is invalid; the message names the setting.
    """
    tcp, store = settings.tcp, settings.store
    for name, texts in (
        ("tcp.listen", tcp.listen),
        ("tcp.legacy_listen", tcp.legacy_listen),
        ("admin.listen", settings.admin.listen),
        ("store.relay_listen", [store.relay_listen] if store.url else []),
    ):
        yield from ((name, endpoint) for endpoint in read_endpoints(name, texts))


def check_exposed_listeners(
    settings: Settings, has_admin_user: Callable[[], bool] = lambda: False
) -> None:
    """Refuse listeners that reach beyond loopback without opt-in.

    ``has_admin_user`` reads the database and is called only if its result matters.  Raises
    SettingsError: a listener is refused; the message names setting, address and remedies.
    """
    problems = [*_tcp_problems(settings), *_admin_problems(settings, has_admin_user)]
    if problems:
        raise SettingsError("; ".join(problems))


def _tcp_problems(settings: Settings) -> Iterator[str]:
    tcp = settings.tcp
    is_decided = bool(tcp.allow or tcp.tls_cert or tcp.open)
    for name, endpoint in listen_addresses(settings):
        if name.startswith("tcp.") and not (is_decided or is_loopback(endpoint)):
            yield (
                f"{name} {endpoint} reaches beyond this machine, so any client could read "
                "and publish: list the allowed networks in tcp.allow, set tcp.tls_cert and "
                "tcp.tls_key, or set tcp.open = true"
            )


def _admin_problems(settings: Settings, has_admin_user: Callable[[], bool]) -> Iterator[str]:
    admin = settings.admin
    endpoints = read_endpoints("admin.listen", admin.listen)
    for endpoint in endpoints:
        if endpoint.kind == "unix" and endpoint.path.name == CONTROL_SOCKET:
            yield f"admin.listen {endpoint}: {CONTROL_SOCKET} is reserved for the control socket"
    wide = [endpoint for endpoint in endpoints if not is_loopback(endpoint)]
    if not wide:
        return
    reaches = f"admin.listen {', '.join(map(str, wide))} reaches beyond this machine"
    if not (admin.initial_password_file or has_admin_user()):
        yield (
            f"{reaches} and requires an admin user: set admin.initial_password_file to a file with "
            "the first password, or start on loopback and create a user with "
            "`phpmq-lite user create NAME` or at /setup"
        )
    if not (admin.tls_cert or admin.trusted_proxies or admin.plaintext):
        yield (
            f"{reaches} unencrypted: set admin.tls_cert and admin.tls_key, list the proxy in "
            "admin.trusted_proxies, or set admin.plaintext = true"
        )


# Errors raised when a name resolves to an IPv6 address while IPv6 is disabled.
_MISSING_ADDRESS: Final = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


async def bind_tcp(endpoint: ListenAddress) -> list[socket.socket]:
    """Bind all addresses of a host, skipping any that this machine does not have.

    Raises OSError: an address is in use, or the host has no local address; nothing stays bound.
    """
    addresses = await asyncio.get_running_loop().getaddrinfo(
        endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    missing: OSError | None = None
    bound: list[socket.socket] = []
    for family, address in dict.fromkeys((entry[0], entry[4]) for entry in addresses):
        try:
            bound.append(_bind_address(family, address))
        except OSError as error:
            if error.errno not in _MISSING_ADDRESS:
                for opened in bound:
                    opened.close()
                raise
            missing = error
    if missing is not None and not bound:
        raise missing
    return bound


def _bind_address(family: int, address: Any) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # lets [::] and 0.0.0.0 share a port
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except BaseException:
        bound.close()
        raise
    return bound


def bind_private(path: Path) -> socket.socket:
    """Bind a Unix socket private to this account; the caller must listen on it and unlink it.

    Raises OSError: another program listens there, or the path is not a socket.
    """
    remove_stale(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        bound.bind(str(path))
        path.chmod(0o600)
    except BaseException:
        bound.close()
        raise
    return bound


def remove_stale(path: Path) -> None:
    """Remove a killed broker's socket; raise OSError if a program is listening on the socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, f"{path} exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass  # the backlog is full, so a program is listening
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
