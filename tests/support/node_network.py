"""Network namespaces that serve as machines: each has an address, and its cable can be cut."""

import atexit
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final, Self

import pytest

_NOWHERE: Final = "02:00:00:00:00:01"  # a hardware address that no node has


def ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise NetworkError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class NetworkError(Exception):
    """The ip command failed."""


@cache
def can_create_namespaces() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    return subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0


class TemporaryServers:
    """Servers that are killed at the end of a ``with`` block, or else when Python exits."""

    def __init__(self) -> None:
        self._cleanup = ExitStack()
        atexit.register(self._cleanup.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all processes, and remove their files and networks."""
        self._cleanup.close()
        atexit.unregister(self._cleanup.close)

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise


class NodeNetwork(TemporaryServers):
    """A bridge, and a network namespace with a cable to it for each node.

    This machine is on the bridge, too: it reaches all nodes, as a client would.  Nothing else is
    reachable from a node.
    """

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self._bridge, subnet = _create_bridge()
        self.addresses = [f"{subnet}.{node + 1}" for node in range(count)]
        self.gateway = f"{subnet}.254"
        self._cleanup.callback(self._remove)
        with self._closed_on_error():
            self._create_nodes()

    def _create_nodes(self) -> None:
        ip("address", "add", f"{self.gateway}/24", "dev", self._bridge)
        ip("link", "set", self._bridge, "up")
        for node, address in enumerate(self.addresses):
            name = self._name(node)
            ip("netns", "add", name)
            ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", name, "master", self._bridge, "up")
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", name, "link", "set", device, "up")

    def _remove(self) -> None:
        for node in range(len(self.addresses)):
            with suppress(NetworkError):  # removed before
                self.kill(node)
                ip("link", "delete", self._name(node))  # at once; the namespace takes longer
                ip("netns", "delete", self._name(node))
        with suppress(NetworkError):
            ip("link", "delete", self._bridge)

    def prefix(self, node: int) -> tuple[str, ...]:
        """Return the words that run a command on a node; the process id is that of the command."""
        return ("ip", "netns", "exec", self._name(node))

    def pids(self, node: int) -> list[int]:
        return [int(word) for word in ip("netns", "pids", self._name(node)).split()]

    def kill(self, node: int) -> None:
        """Kill all processes of a node, as a power cut would."""
        kill_all(lambda: self.pids(node))

    def cut_off(self, node: int) -> None:
        """Unplug a node: packets to and from it are dropped silently."""
        ip("link", "set", self._name(node), "nomaster")

    def separate(self, node: int, others: Sequence[int] | None = None) -> None:
        """Drop the packets between a node and others; this machine still reaches all nodes."""
        for one, other in self._pairs(node, others):
            ip("-n", one, "neighbour", "replace", other, "lladdr", _NOWHERE, "dev", "eth0",
               "nud", "permanent")  # fmt: skip

    def heal(self, node: int) -> None:
        """Undo ``cut_off`` and ``separate``."""
        ip("link", "set", self._name(node), "master", self._bridge)
        for one, other in self._pairs(node):
            with suppress(NetworkError):  # was not separated
                ip("-n", one, "neighbour", "delete", other, "dev", "eth0")

    def _pairs(self, node: int, others: Sequence[int] | None = None) -> list[tuple[str, str]]:
        """Return namespace and address of both ends, for the node and each other."""
        if others is None:
            others = [other for other in range(len(self.addresses)) if other != node]
        return [(self._name(node), self.addresses[other]) for other in others] + [
            (self._name(other), self.addresses[node]) for other in others
        ]

    def _name(self, node: int) -> str:
        return f"{self._bridge}-{node}"


def _create_bridge() -> tuple[str, str]:
    """Create a bridge with an unused number; return its name and its network."""
    for number in range(1, 255):
        name = f"phpmq{number}"
        with suppress(NetworkError):  # another test uses this number
            ip("link", "add", name, "type", "bridge")
            return name, f"10.213.{number}"
    raise AssertionError("all networks for tests are in use")


def kill_all(find: Callable[[], list[int]]) -> None:
    ends_at = time.monotonic() + 20
    while pids := [pid for pid in find() if is_alive(pid)]:
        assert time.monotonic() < ends_at, f"still alive after SIGKILL: {pids}"
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


needs_namespaces = pytest.mark.skipif(
    not can_create_namespaces(), reason="needs root and iproute2 to create network namespaces"
)
