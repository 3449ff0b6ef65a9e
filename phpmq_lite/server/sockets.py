"""Sockets for listeners: every address of a host; nobody can connect before they listen."""

import asyncio
import errno
import socket
from typing import Any, Final

from phpmq_lite.server.endpoints import Endpoint

_NOT_HERE: Final = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}  # IPv6 is off, though the name has it


async def bind_tcp(endpoint: Endpoint) -> list[socket.socket]:
    """Bind every address that the host stands for, but those that this machine lacks.

    Raises:
        OSError: an address is taken or not ours, or there is none; nothing stays bound.
    """
    found = await asyncio.get_running_loop().getaddrinfo(
        endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    missing: OSError | None = None
    bound: list[socket.socket] = []
    for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
        try:
            bound.append(_bind_address(family, address))
        except OSError as error:
            if error.errno not in _NOT_HERE:
                for one in bound:
                    one.close()
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
        if family == socket.AF_INET6:  # [::] beside 0.0.0.0 on one port
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except BaseException:
        bound.close()
        raise
    return bound
