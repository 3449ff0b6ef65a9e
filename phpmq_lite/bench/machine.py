"""Where it is measured: processor, versions, and the file system of the data."""

import os
import platform
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from phpmq_lite import __version__, installation
from phpmq_lite.storage.data_folder import MOUNTS, mount_of, parse_mounts


@dataclass(slots=True, frozen=True)
class Machine:
    """What figures depend on besides the code."""

    broker: str  # our version
    build: str | None  # compiled, or pure Python; None where the broker may be another's
    cpu: str
    cores: int
    kernel: str
    python: str
    sqlite: str
    file_system: str  # of the data


def describe_machine(folder: Path, *, is_own: bool) -> Machine:
    """Look around; ``folder`` is where the data lies, ``is_own`` a broker that is started here."""
    return Machine(
        broker=__version__,
        build=installation.kind() if is_own else None,
        cpu=_cpu_name(),
        cores=os.cpu_count() or 1,
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        sqlite=sqlite3.sqlite_version,
        file_system=file_system(folder) or "unknown",
    )


def file_system(folder: Path) -> str | None:
    """Return the kind of file system, ``ext4`` or ``tmpfs``; None where it is not known (macOS)."""
    try:
        text = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    mount = mount_of(str(folder.resolve()), parse_mounts(text))
    return mount.kind if mount is not None else None


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
