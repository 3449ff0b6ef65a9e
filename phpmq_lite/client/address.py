"""Broker addresses: ``HOST:PORT``, ``[::1]:PORT``, or ``unix:PATH``."""

from dataclasses import dataclass
from typing import Final

DEFAULT_PORT: Final = 9100


@dataclass(slots=True, frozen=True)
class BrokerAddress:
    """The TCP address of a broker, or its Unix socket if ``path`` is set."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(
    address: str, port: int | None = None, default: int = DEFAULT_PORT
) -> BrokerAddress:
    """Parse a broker address, using the default port if none is given.

    Raises:
        ValueError: the address or port is invalid.
    """
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        if not path or port is not None:
            raise ValueError(f"{address!r} is not a valid address; use unix:PATH, without a port")
        return BrokerAddress(path=path)
    host, included_port = _split(address)
    if included_port and port is not None:
        raise ValueError(f"{address!r} already has a port; remove port {port}")
    if not host or (included_port and not (included_port.isascii() and included_port.isdigit())):
        raise ValueError(f"{address!r} is not a valid address; use HOST:PORT or unix:PATH")
    number = int(included_port) if included_port else port if port is not None else default
    if not 0 < number < 65_536:
        raise ValueError(f"{number} is not a valid port; use 1 to 65535")
    return BrokerAddress(host, number)


def _split(address: str) -> tuple[str, str]:
    if address.startswith("["):
        host, _, after = address[1:].partition("]")
        return host, after.removeprefix(":")
    if address.count(":") > 1:  # an IPv6 address without brackets
        return address, ""
    host, _, port = address.partition(":")
    return host, port
