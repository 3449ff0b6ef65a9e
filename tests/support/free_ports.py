"""Ports for programs that cannot say which one the system gave them."""

import random
import socket
from contextlib import ExitStack
from typing import Final

# Below those that Linux gives to connections and to port 0, so that no test which runs at the same
# time is given one of them before the program listens.
_PORTS: Final = range(10_000, 32_768)


def free_ports(count: int) -> list[int]:
    """Return different ports of 127.0.0.1 at which nothing listens, in no order."""
    found: list[int] = []
    with ExitStack() as held:
        for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
            if len(found) == count:
                break
            try:
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:  # something listens there
                continue
            found.append(port)
    return found
