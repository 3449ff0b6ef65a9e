"""The data folder and its disk: whose it is, what kind, how fast, and how much room there is."""

import os
import pwd
import stat
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from phpmq_lite.admin.base import formats
from phpmq_lite.cli.findings import Finding, as_root, bad, ok, warn
from phpmq_lite.errors import SettingsError, StartRefusedError
from phpmq_lite.server.addresses import CONTROL_SOCKET, parse_endpoint
from phpmq_lite.server.limits_mapping import space_of
from phpmq_lite.settings import Settings
from phpmq_lite.storage.atomic_files import PRIVATE_FOLDER, create_private, sync_file
from phpmq_lite.storage.data_folder import (
    DataFolder,
    check_local,
    check_rights,
    file_system,
    holder,
)
from phpmq_lite.storage.disk_space import DiskSpace

NAME: Final = "data folder"
_PASSING: Final = {
    "tmpfs": "memory: nothing stays when the machine restarts",
    "ramfs": "memory: nothing stays when the machine restarts",
    "overlay": "the layer of a container, which goes with the container",
}
_SYNCS: Final = 9
_SYNC_BYTES: Final = b"x" * 4_096  # as a small commit adds to the write-ahead log
_SLOW_MS: Final = 100.0


class Rights(NamedTuple):
    """Who may do what with a folder that is there, or is to be made."""

    path: Path
    me: int  # account that looks
    owner: int | None = None  # None: there is no folder yet
    mode: int = PRIVATE_FOLDER
    can_write: bool = True  # into it, or into the one in which it is made
    strangers: tuple[str, ...] = ()  # files of another account than the folder's


def holder_of(path: Path) -> str | None:
    """Give the pid of the broker that runs on a folder; None where none is seen."""
    try:
        return holder(path)
    except OSError:
        return None


def look(settings: Settings, pid: str | None) -> Iterator[Finding]:
    """Look at the folder from outside, then at its disk."""
    path = settings.data.absolute()
    try:
        check_rights(path)
        parse_endpoint(f"unix:{path / CONTROL_SOCKET}")
    except (StartRefusedError, SettingsError) as error:
        yield bad(NAME, str(error), "name another folder: --data, or data in the settings")
        return
    yield rights_finding(rights_of(path), pid)
    yield _file_system(path, is_allowed=settings.storage.allow_network_fs)
    if path.is_dir() and os.access(path, os.W_OK | os.X_OK):
        yield _sync(path)
    yield _room(settings, path)


def rights_of(path: Path) -> Rights:
    """Gather who may do what."""
    if not path.exists():
        above = existing(path)
        return Rights(path, os.geteuid(), can_write=os.access(above, os.W_OK | os.X_OK))
    status = path.stat()
    folder = DataFolder.seen(path) if os.access(path, os.R_OK | os.X_OK) else None
    known = () if folder is None else (folder.database, folder.wal, folder.shm, folder.meta_file)
    strangers = (one.name for one in known if one.exists() and one.stat().st_uid != status.st_uid)
    return Rights(
        path,
        os.geteuid(),
        status.st_uid,
        stat.S_IMODE(status.st_mode),
        os.access(path, os.R_OK | os.W_OK | os.X_OK),
        tuple(strangers),
    )


def rights_finding(rights: Rights, pid: str | None) -> Finding:
    """Judge who may do what; ``pid`` is the broker that runs there."""
    path, owner = rights.path, rights.owner
    if owner is None:
        if not rights.can_write:
            return bad(
                NAME,
                f"{path} is not there, and {account(rights.me)} cannot make it",
                as_root(f"install -d -m 700 -o {account(rights.me)} {path}")
                + "; or name a folder of yours with --data",
            )
        return ok(NAME, f"{path} is not there yet", "the first start makes it")
    whose = f"{path} of {account(owner)}"
    if rights.strangers:
        return bad(
            NAME,
            f"{whose} has files of another account: {', '.join(rights.strangers)}",
            as_root(f"chown -R {account(owner)} {path}"),
        )
    if not rights.can_write:
        return bad(
            NAME,
            f"{account(rights.me)} cannot use {whose}",
            as_root(f"sudo -u {account(owner)} phpmq-lite doctor")
            + "; or name a folder of yours with --data",
        )
    if rights.me != owner:
        return warn(
            NAME,
            f"{whose}, looked at as {account(rights.me)}",
            as_root(f"sudo -u {account(owner)} phpmq-lite doctor")
            + ": it sees what the broker sees",
        )
    if rights.mode & (stat.S_IRWXG | stat.S_IRWXO):
        return warn(
            NAME,
            f"{path} is open to others, mode {rights.mode:04o}",
            f"chmod 700 {path}; the next start does it too",
        )
    return ok(NAME, f"{path}, {f'in use by pid {pid}' if pid else 'no broker runs'}")


def account(number: int) -> str:
    """Give the name of an account, or its number where it has none here."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def existing(path: Path) -> Path:
    """Give the folder itself, or the nearest one above it that is there."""
    return next(one for one in (path, *path.parents) if one.exists())


def _file_system(path: Path, *, is_allowed: bool) -> Finding:
    try:
        check_local(path)
    except StartRefusedError as error:
        return file_system_finding(file_system(path), str(error), is_allowed=is_allowed)
    return file_system_finding(file_system(path))


def file_system_finding(
    kind: str | None, refusal: str = "", *, is_allowed: bool = False
) -> Finding:
    """Judge a kind of file system; ``refusal`` is why a start would not take it."""
    name = "file system"
    if refusal and not is_allowed:
        return bad(name, refusal, "a start is refused with exit code 1")
    if refusal:
        return warn(
            name,
            f"{kind}, of the network, allowed by storage.allow_network_fs",
            "its locks may lie: a second broker on another machine would be noticed too late",
        )
    if kind in _PASSING:
        return warn(
            name, f"{kind} is {_PASSING[kind]}", "put the data folder on a disk, or on a volume"
        )
    return ok(name, kind or "unknown: this system does not tell")


def _sync(path: Path) -> Finding:
    try:
        return sync_finding(statistics.median(syncs_ms(path)))
    except OSError as error:
        return bad(
            "disk",
            f"cannot write to {path}: {error.strerror}",
            as_root("dmesg") + ": the log of the system says why",
        )


def syncs_ms(path: Path) -> list[float]:
    """Add a little to a file and wait for the disk, some times; the file is removed."""
    probe = path / f".doctor-{os.getpid()}"
    file = create_private(probe)
    try:
        took = []
        for _ in range(_SYNCS):
            os.write(file, _SYNC_BYTES)
            began_s = time.perf_counter()
            sync_file(probe)
            took.append((time.perf_counter() - began_s) * 1_000)
        return took
    finally:
        os.close(file)
        probe.unlink()


def sync_finding(took_ms: float) -> Finding:
    """Judge how long the disk takes to store something for good."""
    text = f"stores 4 KiB for good in {took_ms:.{0 if took_ms >= 10 else 2}f} ms"
    if took_ms < _SLOW_MS:
        return ok("disk", text)
    return warn(
        "disk",
        text,
        "each confirmed message waits for it: a faster disk, or "
        "nobody else on it, makes them quicker",
    )


def _room(settings: Settings, path: Path) -> Finding:
    bounds = replace(space_of(settings), max_bytes=0, ballast_bytes=0)  # makes no ballast
    space = DiskSpace(existing(path), bounds)
    space.measure(0)
    shortage = "" if space.shortage is None else space.shortage.detail
    return room_finding(space.free_bytes, bounds.free_bytes, shortage)


def room_finding(free: int, least: int, shortage: str) -> Finding:
    """Judge the room on the disk; ``shortage`` is why publishing stops."""
    text = f"{formats.format_size(free)} free"
    if shortage:
        return bad(
            "room",
            f"{text}: {shortage}",
            "make room, give the folder another disk, or lower storage.free_bytes",
        )
    if free < 3 * least:
        return warn(
            "room",
            f"{text}; publishing stops below {formats.format_size(least)}",
            "make room, or lower history.days and history.bytes",
        )
    return ok(
        "room", f"{text}; publishing stops below {formats.format_size(least)}" if least else text
    )
