"""Checks of the host: data folder, disk, open files, memory, clock."""

import ctypes
import os
import pwd
import stat
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from phpmq_lite.admin.base import formats
from phpmq_lite.cli.doctor.findings import Finding, as_root, bad, ok, warn
from phpmq_lite.errors import SettingsError, StartRefusedError
from phpmq_lite.server.addresses import CONTROL_SOCKET, parse_endpoint
from phpmq_lite.server.admission import max_open_files, open_files, open_files_problem
from phpmq_lite.server.backpressure import memory_bound
from phpmq_lite.server.limits_mapping import disk_space_bounds
from phpmq_lite.settings import Settings
from phpmq_lite.storage.atomic_files import PRIVATE_FOLDER, create_private, sync_file
from phpmq_lite.storage.data_folder import (
    DataFolder,
    check_local,
    check_rights,
    file_system,
    locking_pid,
    read_meta,
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


class FolderAccess(NamedTuple):
    """Who may do what with a folder that is there, or is to be made."""

    path: Path
    me: int  # account that looks
    owner: int | None = None  # None: there is no folder yet
    mode: int = PRIVATE_FOLDER
    can_write: bool = True  # into it, or into the one in which it is made
    strangers: tuple[str, ...] = ()  # files of another account than the folder's


def broker_pid(path: Path) -> str | None:
    """Give the pid of the broker that runs on a folder; None where none is seen."""
    try:
        return locking_pid(path)
    except OSError:
        return None


def check_data_folder(settings: Settings, pid: str | None) -> Iterator[Finding]:
    """Look at the folder from outside, then at its disk."""
    path = settings.data.absolute()
    try:
        check_rights(path)
        parse_endpoint(f"unix:{path / CONTROL_SOCKET}")
    except (StartRefusedError, SettingsError) as error:
        yield bad(NAME, str(error), "name another folder: --data, or data in the settings")
        return
    yield folder_access_finding(folder_access(path), pid)
    yield _file_system(path, is_allowed=settings.storage.allow_network_fs)
    if path.is_dir() and os.access(path, os.W_OK | os.X_OK):
        yield _sync(path)
    yield _room(settings, path)


def folder_access(path: Path) -> FolderAccess:
    """Gather who may do what."""
    if not path.exists():
        above = nearest_existing(path)
        return FolderAccess(path, os.geteuid(), can_write=os.access(above, os.W_OK | os.X_OK))
    status = path.stat()
    folder = DataFolder.open_unlocked(path) if os.access(path, os.R_OK | os.X_OK) else None
    known = () if folder is None else (folder.database, folder.wal, folder.shm, folder.meta_file)
    strangers = (one.name for one in known if one.exists() and one.stat().st_uid != status.st_uid)
    return FolderAccess(
        path,
        os.geteuid(),
        status.st_uid,
        stat.S_IMODE(status.st_mode),
        os.access(path, os.R_OK | os.W_OK | os.X_OK),
        tuple(strangers),
    )


def folder_access_finding(rights: FolderAccess, pid: str | None) -> Finding:
    """Judge who may do what; ``pid`` is the broker that runs there."""
    path, owner = rights.path, rights.owner
    if owner is None:
        if not rights.can_write:
            return bad(
                NAME,
                f"{path} is not there, and {account_name(rights.me)} cannot make it",
                as_root(f"install -d -m 700 -o {account_name(rights.me)} {path}")
                + "; or name a folder of yours with --data",
            )
        return ok(NAME, f"{path} is not there yet", "the first start makes it")
    whose = f"{path} of {account_name(owner)}"
    if rights.strangers:
        return bad(
            NAME,
            f"{whose} has files of another account: {', '.join(rights.strangers)}",
            as_root(f"chown -R {account_name(owner)} {path}"),
        )
    if not rights.can_write:
        return bad(
            NAME,
            f"{account_name(rights.me)} cannot use {whose}",
            as_root(f"sudo -u {account_name(owner)} phpmq-lite doctor")
            + "; or name a folder of yours with --data",
        )
    if rights.me != owner:
        return warn(
            NAME,
            f"{whose}, looked at as {account_name(rights.me)}",
            as_root(f"sudo -u {account_name(owner)} phpmq-lite doctor")
            + ": it sees what the broker sees",
        )
    if rights.mode & (stat.S_IRWXG | stat.S_IRWXO):
        return warn(
            NAME,
            f"{path} is open to others, mode {rights.mode:04o}",
            f"chmod 700 {path}; the next start does it too",
        )
    return ok(NAME, f"{path}, {f'in use by pid {pid}' if pid else 'no broker runs'}")


def account_name(number: int) -> str:
    """Give the name of an account, or its number where it has none here."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def nearest_existing(path: Path) -> Path:
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
        return sync_finding(statistics.median(measure_syncs_ms(path)))
    except OSError as error:
        return bad(
            "disk",
            f"cannot write to {path}: {error.strerror}",
            as_root("dmesg") + ": the log of the system says why",
        )


def measure_syncs_ms(path: Path) -> list[float]:
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
    bounds = replace(disk_space_bounds(settings), max_bytes=0, ballast_bytes=0)  # makes no ballast
    space = DiskSpace(nearest_existing(path), bounds)
    space.measure(0)
    shortage = "" if space.shortage is None else space.shortage.detail
    return disk_space_finding(space.free_bytes, bounds.free_bytes, shortage)


def disk_space_finding(free: int, least: int, shortage: str) -> Finding:
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


_EARLIEST_MS: Final = 1_735_689_600_000  # 2025: before it there was no such program
_LATEST_MS: Final = 4_102_444_800_000  # 2100: nobody will ever run it then
_AHEAD_MS: Final = 60_000  # that a data folder may be from the future
_TIMEX_BYTES: Final = 512  # more than the kernel's struct timex has
_UNSYNCHRONISED: Final = 5  # TIME_ERROR of adjtimex(2)


def check_machine(settings: Settings, pid: str | None) -> Iterator[Finding]:
    """Look at what the machine gives; where a broker runs, at what it was given."""
    limits = settings.limits
    files = open_files()
    with suppress(OSError, ValueError):  # of another account, or its pid is another's name
        files = open_files(int(pid)) if pid else files
    yield open_files_finding(limits.connections, limits.http_connections, files, max_open_files())
    yield memory_finding(limits.memory, memory_bound(limits.memory), _memory_bytes())
    now_ms = time.time_ns() // 1_000_000
    made_ms = read_meta(settings.data).created_at if settings.data.is_dir() else 0
    yield clock_finding(now_ms, made_ms, is_clock_kept())


def open_files_finding(
    connections: int, http_connections: int, files: int | None, hard: int | None = None
) -> Finding:
    """Judge how many files may be open: each connection is one.

    ``hard`` is how far this account may raise the number by itself; None: as far as it likes.
    """
    name = "open files"
    if files is None:
        return ok(name, "any number")
    problem = open_files_problem(connections, http_connections, files, hard)
    if problem is not None:
        return warn(name, *problem)
    return ok(name, f"{files:,} may be open, enough for {connections:,} connections")


def memory_finding(setting: int, bound: int, machine: int) -> Finding:
    """Judge ``limits.memory``: ``bound`` is what a container leaves of it, ``machine`` the RAM."""
    name, wanted = "memory", f"limits.memory, {formats.format_size(setting)}"
    if bound < setting:
        return warn(
            name,
            f"a container's limit leaves {formats.format_size(bound)} of {wanted}",
            "publishers wait from there on: raise the limit of the container, or lower "
            "limits.memory",
        )
    if machine and setting > machine * 3 // 4:
        return warn(
            name,
            f"{wanted}, is more than three quarters of the "
            f"{formats.format_size(machine)} of this machine",
            "lower limits.memory, before the system ends the process",
        )
    return ok(name, f"{wanted}, of {formats.format_size(machine)}" if machine else wanted)


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0


def clock_finding(now_ms: int, made_ms: int, kept: bool | None) -> Finding:
    """Judge the clock; ``made_ms`` is when the data folder was made, 0 where there is none.

    ``kept``: whether a time service keeps it right; None where the system does not tell.
    """
    name, shown = "clock", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_ms / 1_000))
    if not _EARLIEST_MS < now_ms < _LATEST_MS:
        return bad(
            name,
            f"{shown} cannot be",
            as_root("date -s TIME") + ", before messages get their times",
        )
    if now_ms < made_ms - _AHEAD_MS:
        made = formats.format_duration(made_ms - now_ms)
        return bad(
            name,
            f"{shown}, and the data folder was made {made} later",
            as_root("date -s TIME") + "; `phpmq-lite clock` tells what a broker makes of it",
        )
    if kept is False:
        return warn(
            name,
            f"{shown}, and no time service keeps it right",
            as_root("systemctl enable --now systemd-timesyncd") + " (or chrony)",
        )
    return ok(name, f"{shown}, kept right by a time service" if kept else shown)


def is_clock_kept() -> bool | None:
    """Ask the kernel whether a time service keeps the clock right (adjtimex(2), which only reads).

    None where it does not tell.
    """
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _UNSYNCHRONISED
