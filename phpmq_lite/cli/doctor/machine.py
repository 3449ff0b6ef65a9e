"""The machine: open files, memory and clock."""

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from phpmq_lite.admin.base import formats
from phpmq_lite.cli.findings import Finding, as_root, bad, ok, warn
from phpmq_lite.server.admission import files_problem, most_files, open_files
from phpmq_lite.server.backpressure import memory_bound
from phpmq_lite.settings import Settings
from phpmq_lite.storage.data_folder import read_meta

_EARLIEST_MS: Final = 1_735_689_600_000  # 2025: before it there was no such program
_LATEST_MS: Final = 4_102_444_800_000  # 2100: nobody will ever run it then
_AHEAD_MS: Final = 60_000  # that a data folder may be from the future
_TIMEX_BYTES: Final = 512  # more than the kernel's struct timex has
_UNSYNCHRONISED: Final = 5  # TIME_ERROR of adjtimex(2)


def look(settings: Settings, pid: str | None) -> Iterator[Finding]:
    """Look at what the machine gives; where a broker runs, at what it was given."""
    limits = settings.limits
    files = open_files()
    with suppress(OSError, ValueError):  # of another account, or its pid is another's name
        files = open_files(int(pid)) if pid else files
    yield files_finding(limits.connections, limits.http_connections, files, most_files())
    yield memory_finding(limits.memory, memory_bound(limits.memory), _memory_bytes())
    now_ms = time.time_ns() // 1_000_000
    made_ms = read_meta(settings.data).created_at if settings.data.is_dir() else 0
    yield clock_finding(now_ms, made_ms, is_clock_kept())


def files_finding(
    connections: int, http_connections: int, files: int | None, hard: int | None = None
) -> Finding:
    """Judge how many files may be open: each connection is one.

    ``hard`` is how far this account may raise the number by itself; None: as far as it likes.
    """
    name = "open files"
    if files is None:
        return ok(name, "any number")
    problem = files_problem(connections, http_connections, files, hard)
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
