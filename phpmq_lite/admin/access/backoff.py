"""How often a password may be tried: per address, and over all unknown ones.

No account is ever locked: that would let a stranger lock the owner out (``docs/security.md`` 2).
"""

import ipaddress
from collections import deque
from typing import Final

TRIES: Final = 5  # a minute from one address
TRIES_OF_UNKNOWN: Final = 20  # a minute over all addresses without a login lately
WINDOW_S: Final = 60.0
KNOWN_S: Final = 30 * 86_400.0


class Backoff:
    """Counts tries; a try that is refused does not count.  Times are seconds, of any clock.

    Memory is bounded by the tries of the last minute, and by the addresses of logins.
    """

    def __init__(self) -> None:
        self._tries: dict[str, deque[float]] = {}  # by address; of the last minute
        self._unknown: deque[float] = deque()
        self._known: dict[str, float] = {}  # address -> last login

    def know(self, address: str, now_s: float) -> None:
        """Note a login: others cannot use up the tries of this address from now on."""
        self._known[key_of(address)] = now_s

    def wait_s(self, address: str, now_s: float) -> float:
        """Count a try and return 0.0; where it comes too soon, return the seconds to wait."""
        self._forget(now_s)
        key = key_of(address)
        is_known = now_s - self._known.get(key, now_s - KNOWN_S) < KNOWN_S
        own = self._tries.setdefault(key, deque())
        waits = [_wait_s(own, TRIES, now_s)]
        if not is_known:
            waits.append(_wait_s(self._unknown, TRIES_OF_UNKNOWN, now_s))
        if max(waits) == 0.0:
            own.append(now_s)
            if not is_known:
                self._unknown.append(now_s)
        elif not own:
            del self._tries[key]
        return max(waits)

    def _forget(self, now_s: float) -> None:
        while self._unknown and now_s - self._unknown[0] >= WINDOW_S:
            self._unknown.popleft()
        for key in list(self._tries):
            tries = self._tries[key]
            while tries and now_s - tries[0] >= WINDOW_S:
                tries.popleft()
            if not tries:
                del self._tries[key]


def _wait_s(tries: deque[float], limit: int, now_s: float) -> float:
    return 0.0 if len(tries) < limit else max(tries[-limit] + WINDOW_S - now_s, 0.001)


def key_of(address: str) -> str:
    """Give what tries count for: an IPv4 address, the /64 of an IPv6 one, else the text."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
