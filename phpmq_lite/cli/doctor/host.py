"""Checks of the host: its data folder, disk, open files, memory and clock."""

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

from phpmq_lite.admin import formats
from phpmq_lite.cli.doctor.findings import Finding, as_root, bad, ok, ok_if, refusal_of, warn
from phpmq_lite.errors import SettingsError, StartRefusedError
from phpmq_lite.server.addresses import CONTROL_SOCKET, parse_endpoint
from phpmq_lite.server.admission import max_open_files, open_files, open_files_problem
from phpmq_lite.server.backpressure import memory_bound
from phpmq_lite.service.startup_checks import disk_space_bounds
from phpmq_lite.settings import Settings
from phpmq_lite.storage.atomic_files import PRIVATE_FOLDER, create_private, sync_file
from phpmq_lite.storage.data_folder import DataFolder, check_rights, read_meta
from phpmq_lite.storage.disk_space import DiskSpace
from phpmq_lite.storage.mounts import check_local, file_system

NAME: Final = "data folder"
_VOLATILE: Final = {
    "tmpfs": "in memory: all data is lost when the machine restarts",
    "ramfs": "in memory: all data is lost when the machine restarts",
    "overlay": "a container layer, which is deleted with the container",
}
_SYNCS: Final = 9
_SYNC_BYTES: Final = b"x" * 4_096  # about the number of bytes that a small commit writes to the WAL
_SLOW_MS: Final = 100.0


class FolderAccess(NamedTuple):
    """The owner and permissions of a folder, which may not exist yet."""

    path: Path
    me: int  # user id of the current process
    owner: int | None = None  # None if the folder does not exist
    mode: int = PRIVATE_FOLDER
    can_write: bool = True  # refers to the parent if the folder does not exist
    strangers: tuple[str, ...] = ()  # names of files in the folder that other accounts own


def check_data_folder(settings: Settings, pid: str | None) -> Iterator[Finding]:
    """Check the data folder's permissions, file system and disk."""
    path = settings.data.absolute()
    try:
        check_rights(path)
        parse_endpoint(f"unix:{path / CONTROL_SOCKET}")
    except (StartRefusedError, SettingsError) as error:
        yield bad(NAME, str(error), "choose another folder with --data, or data in the settings")
        return
    yield folder_access_finding(folder_access(path), pid)
    if settings.store.url:  # it contains only the control socket and results of the pipeline
        return
    refusal = refusal_of(lambda: check_local(path), StartRefusedError)
    is_allowed = settings.storage.allow_network_fs
    yield file_system_finding(file_system(path), refusal, is_allowed=is_allowed)
    if path.is_dir() and os.access(path, os.W_OK | os.X_OK):
        try:
            yield sync_finding(statistics.median(measure_syncs_ms(path)))
        except OSError as error:
            hint = as_root("dmesg") + ", which shows the reason"
            yield bad("disk", f"cannot write to {path}: {error.strerror}", hint)
    bounds = replace(disk_space_bounds(settings), max_bytes=0, ballast_bytes=0)  # without a reserve
    space = DiskSpace(nearest_existing(path), bounds)
    space.measure(0)
    shortage = "" if space.shortage is None else space.shortage.detail
    yield disk_space_finding(space.free_bytes, bounds.free_bytes, shortage)


def folder_access(path: Path) -> FolderAccess:
    me = os.geteuid()
    if not path.exists():
        above = nearest_existing(path)
        return FolderAccess(path, me, can_write=os.access(above, os.W_OK | os.X_OK))
    status = path.stat()
    folder = DataFolder.open_unlocked(path) if os.access(path, os.R_OK | os.X_OK) else None
    files = () if folder is None else (folder.database, folder.wal, folder.shm, folder.meta_file)
    owned = [file for file in files if file.exists()]
    strangers = (file.name for file in owned if file.stat().st_uid != status.st_uid)
    can_write = os.access(path, os.R_OK | os.W_OK | os.X_OK)
    mode = stat.S_IMODE(status.st_mode)
    return FolderAccess(path, me, status.st_uid, mode, can_write, tuple(strangers))


def folder_access_finding(rights: FolderAccess, pid: str | None) -> Finding:
    """Return a finding about a folder's permissions; ``pid`` is the broker that uses the folder."""
    path, owner, me = rights.path, rights.owner, account_name(rights.me)
    other = "; or choose another folder with --data"
    if owner is None and rights.can_write:
        return ok(NAME, f"{path} does not exist yet", "the broker creates it at startup")
    if owner is None:
        hint = as_root(f"install -d -m 700 -o {me} {path}") + other
        return bad(NAME, f"{path} does not exist, and {me} cannot create it", hint)
    name = account_name(owner)
    whose, as_owner = f"{path} (owner {name})", as_root(f"sudo -u {name} phpmq-lite doctor")
    if rights.strangers:
        text = f"{whose} contains files owned by another account: {', '.join(rights.strangers)}"
        return bad(NAME, text, as_root(f"chown -R {name} {path}"))
    if not rights.can_write:
        return bad(NAME, f"{me} cannot use {whose}", as_owner + other)
    if rights.me != owner:
        hint = f"{as_owner}: that account has the broker's permissions"
        return warn(NAME, f"{whose}, checked as {me}", hint)
    if rights.mode & (stat.S_IRWXG | stat.S_IRWXO):
        text = f"{path} is accessible to other users (mode {rights.mode:04o})"
        return warn(NAME, text, f"chmod 700 {path}; the broker also does this at startup")
    return ok(NAME, f"{path}, {f'in use by pid {pid}' if pid else 'no broker is running'}")


def account_name(number: int) -> str:
    """Return the name of an account, or its user id if it has no name on this machine."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def nearest_existing(path: Path) -> Path:
    """Return a folder or, if it does not exist, its nearest existing parent."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def file_system_finding(
    kind: str | None, refusal: str = "", *, is_allowed: bool = False
) -> Finding:
    """Return a finding about a file system; ``refusal`` states why the broker would reject it."""
    name = "file system"
    if refusal and not is_allowed:
        return bad(name, refusal, "the broker refuses to start (exit code 1)")
    if refusal:
        text = f"{kind}, a network file system, allowed by storage.allow_network_fs"
        hint = "its locks are unreliable: a second broker on another machine may go unnoticed"
        return warn(name, text, hint)
    if kind in _VOLATILE:
        hint = "put the data folder on a disk or a volume"
        return warn(name, f"{kind} is {_VOLATILE[kind]}", hint)
    return ok(name, kind or "unknown on this system")


def measure_syncs_ms(path: Path) -> list[float]:
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
    text = f"writes and syncs 4 KiB in {took_ms:.{0 if took_ms >= 10 else 2}f} ms"
    hint = "each confirmed message waits that long: use a faster disk, or one that is not shared"
    return ok_if(took_ms < _SLOW_MS, "disk", text, hint)


def disk_space_finding(free: int, least: int, shortage: str) -> Finding:
    """Return a finding about free disk space; ``shortage`` states why publishing is stopped."""
    text = f"{formats.format_size(free)} free"
    if shortage:
        hint = "free up space, move the folder to another disk, or lower storage.free_bytes"
        return bad("space", f"{text}: {shortage}", hint)
    if least:
        text += f"; publishing stops below {formats.format_size(least)}"
    hint = "free up space, or lower history.days and history.bytes"
    return ok_if(free >= 3 * least, "space", text, hint)


_EARLIEST_MS: Final = 1_735_689_600_000  # start of 2025, before this program existed
_LATEST_MS: Final = 4_102_444_800_000  # start of 2100
_AHEAD_MS: Final = 60_000  # how far in the future the data folder's creation time may be
_TIMEX_BYTES: Final = 512  # larger than the kernel's struct timex
_UNSYNCHRONISED: Final = 5  # TIME_ERROR, as returned by adjtimex(2)


def check_machine(settings: Settings, pid: str | None) -> Iterator[Finding]:
    """Check the memory, the clock, and the limit on open files (the broker's if it is running)."""
    files, memory = open_files(), settings.limits.memory
    with suppress(OSError, ValueError):  # the broker belongs to another account or pid namespace
        files = open_files(int(pid)) if pid else files
    yield open_files_finding(settings, files, max_open_files())
    ram = 0
    with suppress(OSError, ValueError):
        ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield memory_finding(memory, memory_bound(memory), ram)
    now_ms = time.time_ns() // 1_000_000
    made_ms = read_meta(settings.data).created_at if settings.data.is_dir() else 0
    yield clock_finding(now_ms, made_ms, is_clock_synchronized())


def open_files_finding(settings: Settings, files: int | None, hard: int | None = None) -> Finding:
    """Return a finding about the limit on open files, which this account can raise to ``hard``."""
    name = "open files"
    if files is None:
        return ok(name, "no limit")
    problem = open_files_problem(settings, files, hard)
    if problem is not None:
        return warn(name, *problem)
    connections = settings.limits.connections
    return ok(name, f"{files:,} files may be open, enough for {connections:,} connections")


def memory_finding(setting: int, bound: int, machine: int) -> Finding:
    """Return a finding about ``limits.memory``, of which a container allows ``bound`` bytes."""
    name, memory = "memory", f"limits.memory ({formats.format_size(setting)})"
    ram = formats.format_size(machine)
    if bound < setting:
        text = f"the container's limit leaves {formats.format_size(bound)} of {memory}"
        hint = "publishers wait above that: raise the container's limit, or lower limits.memory"
        return warn(name, text, hint)
    if machine and setting > machine * 3 // 4:
        text = f"{memory} is more than three quarters of the {ram} of RAM here"
        return warn(name, text, "lower limits.memory; otherwise, the system may kill the broker")
    return ok(name, f"{memory} of {ram} RAM" if machine else memory)


def clock_finding(now_ms: int, made_ms: int, is_synchronized: bool | None) -> Finding:
    """Return a finding about the clock; ``made_ms`` is the data folder's creation time, or 0."""
    name, now = "clock", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_ms / 1_000))
    if not _EARLIEST_MS < now_ms < _LATEST_MS:
        hint = as_root("date -s TIME") + " before messages are stored with wrong times"
        return bad(name, f"{now} is not plausible", hint)
    if now_ms < made_ms - _AHEAD_MS:
        text = f"{now}, but the data folder was created "
        text += f"{formats.format_duration(made_ms - now_ms)} later"
        hint = as_root("date -s TIME") + "; `phpmq-lite clock show` shows what the broker detected"
        return bad(name, text, hint)
    if is_synchronized is False:
        hint = as_root("systemctl enable --now systemd-timesyncd") + " (or chrony)"
        return warn(name, f"{now}, not synchronized by a time service", hint)
    return ok(name, f"{now}, synchronized by a time service" if is_synchronized else now)


def is_clock_synchronized() -> bool | None:
    """Return whether a time service synchronizes the clock, or None if this is unknown."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _UNSYNCHRONISED
