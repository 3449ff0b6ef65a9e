"""Tells the service manager how the broker is: systemd's sd_notify(3), without a library.

Where nobody wants to be told there is no ``Manager``: ``NOTIFY_SOCKET`` is not set.
"""

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Self

_EACH_S: Final = 5.0  # from one message to the next, without a watchdog
_A_PERIOD: Final = 4  # messages in the time after which the watchdog bites


class Manager:
    """Whoever started this process and listens on a socket of datagrams."""

    def __init__(self, address: str, watchdog_s: float = 0.0) -> None:
        """Take a path, or an abstract name behind ``@``; ``watchdog_s`` 0: there is no watchdog."""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.each_s = min(_EACH_S, watchdog_s / _A_PERIOD) if watchdog_s else _EACH_S

    @classmethod
    def of(cls, environment: Mapping[str, str], pid: int) -> Self | None:
        """Read who wants to be told; None: nobody.  A watchdog may be another process's."""
        address = environment.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return None
        is_ours = environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        period_us = environment.get("WATCHDOG_USEC", "") if is_ours else ""
        return cls(address, int(period_us) / 1_000_000 if period_us.isdecimal() else 0.0)

    def tell(self, **assignments: object) -> None:
        """Send ``READY=1`` and the like, or do not: no reason to wait, or to stop working."""
        lines = (f"{name}={' '.join(str(value).split())}" for name, value in assignments.items())
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)  # the loop goes on where a manager does not read
            sender.sendto("\n".join(lines).encode(), self._address)
