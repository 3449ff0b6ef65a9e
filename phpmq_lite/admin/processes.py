"""Which process is at the other end of a connection from this machine, from ``/proc``.

Reading takes a moment for each process, so it is done in a thread, and only when asked for.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
COMMAND_CHARACTERS: Final = 500
MASK: Final = "•••"

_SECRET: Final = re.compile(
    r"pass|secret|token|key|auth|cred|pwd|cookie|session|signature|bearer", re.IGNORECASE
)
_ASSIGNED: Final = re.compile(r"^(-{0,2}[\w.-]+)=(.*)$", re.DOTALL)
_IN_URL: Final = re.compile(r"(\w+://)[^/@\s]*@")
_OWN_TOKEN: Final = re.compile(r"phpmq_\w+")
_ESTABLISHED: Final = "01"
_LISTENS: Final = "0A"


@dataclass(slots=True, frozen=True)
class Process:
    """A process; ``command`` is its command line, without what looks like a secret."""

    pid: int
    command: str


def split_address(text: str) -> tuple[IPv4Address | IPv6Address, int] | None:
    """Read ``127.0.0.1:50000`` or ``::1:50000`` as sessions write it; None for a Unix socket."""
    host, _, port = text.rpartition(":")
    try:
        return ip_address(host.strip("[]").partition("%")[0]), int(port)
    except ValueError:
        return None


def find(address: str, proc: Path = PROC) -> Process | None:
    """Find the process that connected from a loopback address; None where it cannot be seen."""
    place = split_address(address)
    if place is None or not is_loopback(place[0]):
        return None
    inode = None
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            inode = inode or inode_of((proc / "net" / table).read_text("ascii"), *place)
    pid = None if inode is None else _owner(inode, proc)
    return None if pid is None else describe(pid, proc)


def listener(port: int, proc: Path = PROC) -> Process | None:
    """Find the process that listens on a port, at whatever address; None where it is not seen."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for inode in listening((proc / "net" / table).read_text("ascii"), port):
                pid = _owner(inode, proc)
                if pid is not None:
                    return describe(pid, proc)
    return None


def listening(table: str, port: int) -> Iterator[str]:
    """Yield the sockets that listen on a port, from a table of ``/proc/net``."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[1].endswith(f":{port:04X}") and fields[3] == _LISTENS:
            yield fields[9]


def is_loopback(host: IPv4Address | IPv6Address) -> bool:
    """Tell whether an address is of this machine, also one of IPv4 in the clothes of IPv6."""
    if isinstance(host, IPv6Address) and host.ipv4_mapped is not None:
        return host.ipv4_mapped.is_loopback
    return host.is_loopback


def inode_of(table: str, host: IPv4Address | IPv6Address, port: int) -> str | None:
    """Find the socket whose own end is this address in a table of ``/proc/net``."""
    wanted = {f"{name}:{port:04X}" for name in _kernel_names(host)}
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[1] in wanted and fields[3] == _ESTABLISHED:
            return fields[9]
    return None


def _kernel_names(host: IPv4Address | IPv6Address) -> Iterable[str]:
    """Write an address as the kernel does: words of 32 bits, each in the machine's order."""
    if isinstance(host, IPv6Address) and host.ipv4_mapped is not None:
        host = host.ipv4_mapped
    yield _words(host.packed)
    if isinstance(host, IPv4Address):
        yield _words(IPv6Address(f"::ffff:{host}").packed)


def _words(packed: bytes) -> str:
    return "".join(packed[at : at + 4][::-1].hex().upper() for at in range(0, len(packed), 4))


def _owner(inode: str, proc: Path) -> int | None:
    wanted = f"socket:[{inode}]"
    for folder in proc.iterdir():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError):  # it ended, or belongs to somebody else
            for link in (folder / "fd").iterdir():
                if _target(link) == wanted:
                    return int(folder.name)
    return None


def _target(link: Path) -> str | None:
    """Give what an open file is; None where it was closed meanwhile."""
    try:
        return str(link.readlink())
    except OSError:
        return None


def describe(pid: int, proc: Path = PROC) -> Process | None:
    """Give a process by its number; None where it has ended or cannot be seen."""
    try:
        raw = (proc / str(pid) / "cmdline").read_bytes()
    except OSError:
        return None
    arguments = [part.decode(errors="replace") for part in raw.rstrip(b"\0").split(b"\0")]
    return Process(pid, masked(arguments))


def masked(arguments: Iterable[str]) -> str:
    """Join a command line; what looks like a secret becomes ``•••``."""
    shown: list[str] = []
    is_secret_next = False
    for argument in arguments:
        assigned = _ASSIGNED.match(argument)
        if is_secret_next and not argument.startswith("--"):
            text = MASK
        elif assigned is not None and _SECRET.search(assigned[1]):
            text = f"{assigned[1]}={MASK}"
        else:
            text = _OWN_TOKEN.sub(MASK, _IN_URL.sub(rf"\1{MASK}@", argument))
        is_option = argument.startswith("-") and assigned is None
        is_secret_next = is_option and bool(_SECRET.search(argument))
        shown.append(text)
    line = " ".join(shown)
    return line if len(line) <= COMMAND_CHARACTERS else line[:COMMAND_CHARACTERS] + "…"
