"""Uses ``/proc`` to find the process at the other end of a local connection."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final

from phpmq_lite.server.addresses import parse_address

PROC: Final = Path("/proc")
COMMAND_CHARACTERS: Final = 500

_INTERPRETERS: Final = re.compile(
    r"(?:python|pypy|php|node|nodejs|deno|bun|ruby|perl|lua|java|bash|dash|sh|zsh)-?[\d.]*"
)
_SCRIPT: Final = re.compile(
    r"[\w./+~-]+\.(?:pyc?|pyz|php|phar|[mc]?js|ts|rb|pl|lua|sh|jar)", re.IGNORECASE
)
_PATH: Final = re.compile(r"[\w.+~-]*(?:/[\w.+~-]+)+")  # a path, such as that of a script
_NAME: Final = re.compile(r"[\w.]+")  # the name of a module
_CODE: Final = re.compile(r"-[a-zA-Z]*[cer]|--?(?:eval|print|run|classpath|cp)|-p|-E")
_ESTABLISHED: Final = "01"
_LISTENS: Final = "0A"


@dataclass(slots=True, frozen=True)
class PeerProcess:
    """A process; ``command`` omits most arguments, because they may contain passwords."""

    pid: int
    command: str


def split_address(text: str) -> tuple[IPv4Address | IPv6Address, int] | None:
    """Parse an address such as ``127.0.0.1:50000`` or ``::1:50000``; return None for other text."""
    host, _, port = text.rpartition(":")
    address = parse_address(host.strip("[]"))
    return None if address is None or not port.isdecimal() else (address, int(port))


def find_peer(address: str, proc: Path = PROC) -> PeerProcess | None:
    """Return the process that connected from a loopback address, or None if it is not visible."""
    place = split_address(address)
    if place is None or not place[0].is_loopback:
        return None
    inode = None
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            inode = inode or inode_of((proc / "net" / table).read_text("ascii"), *place)
    pid = None if inode is None else _owner(inode, proc)
    return None if pid is None else describe(pid, proc)


def find_listener(port: int, proc: Path = PROC) -> PeerProcess | None:
    """Return the process that listens on a port, at any address, or None if it is not visible."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for inode in listening_sockets((proc / "net" / table).read_text("ascii"), port):
                pid = _owner(inode, proc)
                if pid is not None:
                    return describe(pid, proc)
    return None


def listening_sockets(table: str, port: int) -> Iterator[str]:
    """Yield the inodes of sockets that listen on a port, from a table in ``/proc/net``."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[1].endswith(f":{port:04X}") and fields[3] == _LISTENS:
            yield fields[9]


def inode_of(table: str, host: IPv4Address | IPv6Address, port: int) -> str | None:
    """Return the inode of the socket with this local address, from a table in ``/proc/net``."""
    hosts: list[IPv4Address | IPv6Address] = [host]
    if isinstance(host, IPv4Address):
        hosts.append(IPv6Address(f"::ffff:{host}"))
    # The kernel writes an address as 32-bit words in native byte order.
    words = (
        [host.packed[at : at + 4][::-1] for at in range(0, len(host.packed), 4)] for host in hosts
    )
    addresses = {f"{b''.join(parts).hex().upper()}:{port:04X}" for parts in words}
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[1] in addresses and fields[3] == _ESTABLISHED:
            return fields[9]
    return None


def _owner(inode: str, proc: Path) -> int | None:
    link_text = f"socket:[{inode}]"
    for folder in proc.iterdir():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError):  # skip a process that has ended or belongs to another user
            for link in (folder / "fd").iterdir():
                with suppress(OSError):  # the file has been closed
                    if str(link.readlink()) == link_text:
                        return int(folder.name)
    return None


def describe(pid: int, proc: Path = PROC) -> PeerProcess | None:
    """Return the process with this pid, or None if it has ended or is not visible."""
    try:
        raw = (proc / str(pid) / "cmdline").read_bytes()
    except OSError:
        return None
    arguments = [part.decode(errors="replace") for part in raw.rstrip(b"\0").split(b"\0")]
    return PeerProcess(pid, program_of(arguments))


def program_of(arguments: Sequence[str]) -> str:
    """Return a command line's program and, for an interpreter, its script.

    Other arguments are omitted, because no pattern finds every password (``mysql -phunter2``).
    """
    program = arguments[0].split(maxsplit=1)[0] if arguments[0].strip() else "unknown"
    script = None
    if _INTERPRETERS.fullmatch(program.rpartition("/")[2]):
        script = _script_of(arguments[1:])
    command = program if script is None else f"{program} {script}"
    return command if len(command) <= COMMAND_CHARACTERS else command[:COMMAND_CHARACTERS] + "…"


def _script_of(arguments: Sequence[str]) -> str | None:
    """Return the script that an interpreter's arguments name, or None if that is uncertain."""
    is_value = False  # whether the argument might be the value of the option before it
    for at, argument in enumerate(arguments):
        if argument in ("-m", "-jar"):
            named = "".join(arguments[at + 1 : at + 2])
            is_plain = _NAME.fullmatch(named) or _SCRIPT.fullmatch(named)
            return f"{argument} {named}" if is_plain else None
        if _CODE.fullmatch(argument):
            return None
        if argument.startswith("-"):
            is_value = True
            continue
        if _SCRIPT.fullmatch(argument) or (not is_value and _PATH.fullmatch(argument)):
            return argument
        if not is_value:
            return None
        is_value = False
    return None
