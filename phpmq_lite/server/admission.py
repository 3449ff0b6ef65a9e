"""Connection admission: allowed networks, and limits per address and in total."""

import asyncio
import ipaddress
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Protocol, Self

from phpmq_lite.server.addresses import address_key, parse_address
from phpmq_lite.settings import Settings

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

SCARCE_PERCENT: Final = 80  # of all connections: the use from which idle ones may be closed
KEPT_S: Final = 1.0  # how long an idle connection keeps its place while others are free
SPARE_FILES: Final = 64  # file descriptors reserved for the database, readers, admin and listeners

NOT_ALLOWED: Final = "address not in tcp.allow"
TOO_MANY: Final = "too many connections"
TOO_MANY_OF_ADDRESS: Final = "too many connections from this address"


def max_connections(settings: Settings, files: int | None) -> int:
    """Return how many PHPMQ connections ``files`` descriptors allow; None means any number."""
    limit = settings.limits.connections
    if files is None:
        return limit
    return max(1, min(limit, (files - SPARE_FILES) // _files_per_connection(settings)))


def max_http_connections(settings: Settings) -> int:
    """Return how many admin connections are possible in addition to all PHPMQ connections."""
    limit, files = settings.limits.http_connections, open_files()
    if files is None:
        return limit
    each_files = _files_per_connection(settings)
    remaining = files - each_files * max_connections(settings, files) - SPARE_FILES // 2
    return min(limit, max(8, remaining // each_files))


def _files_per_connection(settings: Settings) -> int:
    """Return 2 for a broker that may be a standby, which also connects to the active broker."""
    return 2 if settings.store.url else 1


def open_files_problem(settings: Settings, files: int, hard: int | None) -> tuple[str, str] | None:
    """Describe the problem and its remedy if the open-file limit allows too few connections.

    ``hard`` is the highest limit that this account can set itself; None means no limit.
    """
    limits, places = settings.limits, max_connections(settings, files)
    if places >= limits.connections:
        return None
    connections = limits.connections + limits.http_connections
    needed = _files_per_connection(settings) * connections + SPARE_FILES
    remedy = f"set LimitNOFILE={needed} in the unit, or run `ulimit -n {needed}` before startup"
    if hard is not None and hard < needed:
        remedy = (
            f"this account may open at most {hard:,} files: ask root for LimitNOFILE={needed} in "
            f"the unit or in /etc/security/limits.conf, or set limits.connections = {places}"
        )
    return (
        f"{files:,} files may be open, enough for {places:,} of the {limits.connections:,} "
        "connections in limits.connections",
        remedy,
    )


def open_files(pid: int | None = None) -> int | None:
    """Return how many files a process (default: this one) may open; None means no limit.

    Raises OSError: the process has ended, or belongs to another account.
    """
    if pid is not None and hasattr(resource, "prlimit"):  # only on Linux
        files, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    else:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if files == resource.RLIM_INFINITY else files


def max_open_files() -> int | None:
    """Return the highest limit on open files that this account can set; None means no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY or os.geteuid() == 0 else hard


class Place(Protocol):
    """What holds a place: a connection, or its TLS handshake."""

    def give_up(self, *, is_full: bool) -> bool:
        """Close the connection if it is idle, and return whether it was.

        If places are left (``is_full`` is False), callers with a login keep theirs.
        """


class Handshake:
    """The place of a TLS handshake, which the current task performs."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()

    def give_up(self, *, is_full: bool) -> bool:
        return self._task is not None and self._task.cancel()


class Admission:
    """Counts and limits connections per address, as ``address_key`` tells them apart.

    Unix sockets count as loopback and need no entry in ``allow``; loopback TCP connections do.
    Once ``SCARCE_PERCENT`` of all places, or all of an address, are used, each further connection
    takes the place of that with the longest idle time, so that silent peers keep nobody out.
    While places are left, a connection that has been idle for less than ``KEPT_S`` keeps its own,
    so that peers that reconnect at once do not close those whose request is on its way.
    """

    def __init__(
        self,
        total: int,
        per_address: int,
        per_loopback: int,
        allow: Sequence[Network] = (),
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._per_address = per_address
        self._per_loopback = per_loopback
        self._allow = tuple(allow)  # if empty, all addresses may connect
        self._counts: Counter[str] = Counter()  # connections and reserved places by address
        self._reserved: Counter[str] = Counter()
        # Those that may give up their place, with their address and the time since which they are
        # idle; the longest idle one is first.
        self._places: dict[Place, tuple[str, float]] = {}
        self._now_s = now_s
        self.refused: Counter[str] = Counter()
        self.given_up = 0  # number of idle connections closed to make room

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Create an instance from the settings, respecting the limit on open files."""
        limits = settings.limits
        return cls(
            max_connections(settings, open_files()),
            limits.connections_per_address,
            limits.connections_per_loopback_address,
            settings.tcp.allow,
        )

    @property
    def capacity(self) -> int:
        return self._total

    @property
    def connections(self) -> int:
        """Number of current connections, including TLS handshakes."""
        return self._counts.total()

    @property
    def busiest(self) -> int:
        """Largest number of connections from one address, excluding loopback."""
        others = (count for name, count in self._counts.items() if not _is_loopback(name))
        return max(others, default=0)

    def admit(self, address: str | None, place: Place | None = None) -> str | None:
        """Count a connection and return None, or return the reason for refusing it.

        Call ``leave`` once for each admitted connection.  A reserved place is used first.
        ``place`` may have to give itself up from now on.
        """
        name = address_key(address)
        if self._reserved[name]:
            self._drop(self._reserved, name)
        elif (reason := self._count(address)) is not None:
            return reason
        if place is not None:
            self._places[place] = name, self._now_s()
        return None

    def rest(self, place: Place) -> None:
        """Record that a connection has become idle just now."""
        if (entry := self._places.pop(place, None)) is not None:
            self._places[place] = entry[0], self._now_s()

    def leave(self, address: str | None, place: Place | None = None) -> None:
        """Remove an admitted connection from the count, unless it was closed to make room."""
        if place is None or self._places.pop(place, None) is not None:
            self._drop(self._counts, address_key(address))

    def reserve(self, address: str | None, place: Place | None = None) -> str | None:
        """Reserve a place before a TLS handshake, or return the reason for refusing it.

        Afterwards either the connection calls ``admit``, and the listener ``end_handshake``, or the
        listener calls ``cancel_reservation``.
        """
        reason = self._count(address)
        if reason is None:
            name = address_key(address)
            self._reserved[name] += 1
            if place is not None:
                self._places[place] = name, self._now_s()
        return reason

    def end_handshake(self, place: Place) -> None:
        """Record that a handshake has ended, so that its place is that of a connection, or free."""
        self._places.pop(place, None)

    def cancel_reservation(self, address: str | None, place: Place | None = None) -> None:
        """Release a reserved place whose connection never called ``admit``."""
        name = address_key(address)
        if place is not None and self._places.pop(place, None) is None:
            return  # it was cancelled to make room
        if self._reserved[name]:
            self._drop(self._reserved, name)
            self._drop(self._counts, name)

    def _count(self, address: str | None) -> str | None:
        name = address_key(address)
        if self._allow and address is not None and not self._is_allowed(address):
            reason: str | None = NOT_ALLOWED
        else:
            self._make_room(name)
            reason = self._reason(name)
        if reason is None:
            self._counts[name] += 1
        else:
            self.refused[reason] += 1
        return reason

    def _make_room(self, name: str) -> None:
        reason, used = self._reason(name), self._counts.total()
        if reason is None and used * 100 < self._total * SCARCE_PERCENT:
            return
        until_s = self._now_s() - (KEPT_S if reason is None else 0.0)
        for place, (owner, since_s) in self._places.items():
            if since_s > until_s:
                return
            is_reserved = isinstance(place, Handshake)
            if (reason == TOO_MANY_OF_ADDRESS and owner != name) or (
                is_reserved and not self._reserved[owner]  # its connection was admitted just now
            ):
                continue
            if place.give_up(is_full=reason is not None):
                del self._places[place]
                self._drop(self._counts, owner)
                if is_reserved:
                    self._drop(self._reserved, owner)
                self.given_up += 1
                return

    def _reason(self, name: str) -> str | None:
        if self._counts.total() >= self._total:
            return TOO_MANY
        if self._counts[name] >= (self._per_loopback if _is_loopback(name) else self._per_address):
            return TOO_MANY_OF_ADDRESS
        return None

    def _is_allowed(self, text: str) -> bool:
        address = parse_address(text)
        return address is not None and any(address in network for network in self._allow)

    @staticmethod
    def _drop(counts: Counter[str], name: str) -> None:
        """Decrement an address's count, and delete the entry when the count is zero."""
        counts[name] -= 1
        if counts[name] <= 0:
            del counts[name]


def _is_loopback(name: str) -> bool:
    """Return whether the clients with a key of ``address_key`` are on this machine."""
    address = parse_address(name)
    return not name or (address is not None and address.is_loopback)
