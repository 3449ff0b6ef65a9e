"""Binds the control socket and the admin addresses, without importing heavy modules."""

import asyncio
import os
import socket
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

from phpmq_lite.errors import StartRefusedError, os_reason
from phpmq_lite.server.addresses import LONGEST_UNIX_PATH, bind_private, bind_tcp, parse_endpoint

_BACKLOG: Final = 128  # maximum number of connections waiting to be accepted


async def bind_sockets(
    stack: AsyncExitStack, addresses: Iterable[str], control: Path
) -> list[socket.socket]:
    """Listen on the control socket and all addresses; return the sockets, control socket first.

    ``stack`` closes the sockets and removes the files of Unix sockets.

    Raises:
        SettingsError: an address is invalid.
        StartRefusedError: an address is in use or not local to this machine, or the control
            socket's path is too long.
    """
    if (size := len(os.fsencode(control))) > LONGEST_UNIX_PATH:
        raise StartRefusedError(
            f"the control socket path {control} is {size} bytes long; the limit is "
            f"{LONGEST_UNIX_PATH}. Choose a data folder with a shorter path (--data)"
        )
    bound = [_bind_unix(stack, control)]
    bound[0].listen(_BACKLOG)
    for text in addresses:
        endpoint = parse_endpoint(text)
        if endpoint is None:
            continue
        try:
            if endpoint.kind == "unix":
                opened = [_bind_unix(stack, endpoint.path)]
            else:
                opened = await bind_tcp(endpoint)
                for listener in opened:
                    stack.callback(listener.close)
            for listener in opened:  # until then, another socket could bind the same address
                listener.listen(_BACKLOG)
        except OSError as error:
            raise StartRefusedError(f"cannot listen on {endpoint}: {os_reason(error)}") from error
        bound += opened
    return bound


def _bind_unix(stack: AsyncExitStack, path: Path) -> socket.socket:
    bound = bind_private(path)
    stack.callback(_remove, path)
    stack.callback(bound.close)
    return bound


def _remove(path: Path) -> None:
    with suppress(OSError):  # if the file remains, the next startup replaces it
        path.unlink()


async def wait_for_client(sockets: Sequence[socket.socket], connected: asyncio.Event) -> None:
    """Set ``connected`` when a client connects to one of the sockets, and return once it is set.

    The connection is not accepted.
    """
    loop = asyncio.get_running_loop()
    for listener in sockets:
        loop.add_reader(listener, connected.set)
    try:
        await connected.wait()
    finally:
        for listener in sockets:
            loop.remove_reader(listener)


def url_of(bound: socket.socket, *, is_secure: bool) -> str:
    address = bound.getsockname()
    if isinstance(address, str):
        return f"unix:{address}"
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"http{'s' if is_secure else ''}://{host}:{address[1]}/"
