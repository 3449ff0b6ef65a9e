"""Where to listen: the texts of the settings as addresses, and whether they reach beyond us."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from phpmq_lite.errors import SettingsError

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_LONGEST_UNIX_PATH: Final = 107  # bytes; the kernel's field has 108 with the final zero


@dataclass(slots=True, frozen=True)
class Endpoint:
    """One address to listen on; port 0 stands for any free one."""

    kind: Literal["tcp", "unix"]
    host: str = ""  # a name or an address, IPv6 without brackets
    port: int = 0
    path: Path = Path()  # of a Unix socket

    def __str__(self) -> str:
        if self.kind == "unix":
            return f"unix:{self.path}"
        return address_text(self.host, self.port)


class PhpmqListener(NamedTuple):
    """An open PHPMQ listener; ``address`` has the real port, and a socket's whole path."""

    address: str
    transport: Literal["tcp", "tls", "unix"]
    has_ttl: bool  # False: for clients of the older revision


def parse_endpoint(text: str) -> Endpoint | None:
    """Read ``HOST:PORT``, ``[IPv6]:PORT`` or ``unix:PATH``; None for ``none``, no listener.

    Raises:
        SettingsError: it is none of these; the caller adds the setting's name.
    """
    text = text.strip()
    if text == "none":
        return None
    if text.startswith("unix:"):
        return _unix_endpoint(text.removeprefix("unix:"))
    host, colon, port = text.rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    if not colon or not is_number or int(port) > 65_535:
        raise SettingsError(f"{text!r} is not HOST:PORT with a port from 0 to 65535, nor unix:PATH")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if ":" not in host or parse_address(host) is None:
            raise SettingsError(f"{text!r} has no IPv6 address in its brackets")
    elif ":" in host:
        raise SettingsError(f"{text!r}: an IPv6 address needs brackets, as in [::1]:{port}")
    elif not host or any(char.isspace() for char in host):
        raise SettingsError(f"{text!r} has no host; 0.0.0.0 and [::] are all addresses of this one")
    return Endpoint("tcp", host, int(port))


def _unix_endpoint(path: str) -> Endpoint:
    if not path or "\0" in path:
        raise SettingsError("unix: needs the path of a socket")
    size = len(path.encode(errors="surrogateescape"))
    if size > _LONGEST_UNIX_PATH:
        raise SettingsError(
            f"{path!r} has {size} bytes, the limit for the path of a socket is {_LONGEST_UNIX_PATH}"
        )
    return Endpoint("unix", path=Path(path))


def parse_address(text: str) -> IpAddress | None:
    """Read an IP address without its zone; None for anything else.

    An IPv4 address in IPv6 clothes (``::ffff:10.0.0.1``) comes back as IPv4.
    """
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def address_text(host: str, port: int) -> str:
    """Write an address as ``parse_endpoint`` reads it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(endpoint: Endpoint) -> bool:
    """Tell whether only this machine can connect; of all names, ``localhost`` alone is trusted."""
    if endpoint.kind == "unix" or endpoint.host.lower() == "localhost":
        return True
    address = parse_address(endpoint.host)
    return address is not None and address.is_loopback
