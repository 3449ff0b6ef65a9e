"""Faults in the files and the clock of a broker, and a log of all changes of these files.

``shim.c`` is preloaded into the broker and interposes the calls of the C library; both sides map
one control file, so everything can be changed while the broker runs::

    shim = Shim(tmp_path, data)
    broker = BrokerProcess(data, env=shim.env())
    shim.fail(Op.SYNC, nth=3, error=errno.EIO)
    shim.delay_sync_ms = 200

It affects only files below the data folder, and only ``CLOCK_REALTIME``.

``python -m tests.faults.shim MODULE ARGUMENT…`` runs a module in a process that was forked after
the shim had been preloaded without a control file, see ``shimmed_broker.py``.
"""

import ctypes
import fcntl
import hashlib
import mmap
import os
import runpy
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

IS_AVAILABLE: Final = sys.platform == "linux" and shutil.which("gcc") is not None
SOURCE: Final = Path(__file__).with_name("shim.c")
CONTROL: Final = "PHPMQ_SHIM_CONTROL"
_NO_LIMIT: Final = -1


class Op(IntEnum):
    """Calls that are counted and can be made to fail."""

    OPEN = 0
    WRITE = 1
    SYNC = 2  # of a file or of a folder
    TRUNCATE = 3
    RENAME = 4
    UNLINK = 5
    ALLOCATE = 6


class _Layout(ctypes.Structure):
    """``struct control`` of ``shim.c``."""

    _fields_ = (
        ("log_serial", ctypes.c_uint64),
        ("is_read_only", ctypes.c_uint64),
        ("delay_sync_ms", ctypes.c_int64),
        ("quota_bytes", ctypes.c_int64),
        ("clock_offset_ms", ctypes.c_int64),
        ("fail_op", ctypes.c_int64),
        ("fail_nth", ctypes.c_int64),
        ("fail_errno", ctypes.c_int64),
        ("fail_is_sticky", ctypes.c_int64),
        ("fail_seen", ctypes.c_uint64),
        ("failed", ctypes.c_uint64),
        ("counts", ctypes.c_uint64 * len(Op)),
        ("fail_name", ctypes.c_char * 64),
        ("folder", ctypes.c_char * 1024),
        ("log", ctypes.c_char * 1024),
        ("failed_name", ctypes.c_char * 64),
        ("failed_pid", ctypes.c_uint64),
    )


class _Field:
    """An integer of the control file."""

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, shim: "Shim", _owner: type) -> int:
        return int(getattr(shim._layout, self._name))

    def __set__(self, shim: "Shim", value: int) -> None:
        setattr(shim._layout, self._name, value)


class Shim:
    """The control file, in ``folder``, of a broker with the data folder ``data``.

    ``data`` need not exist yet.  Attributes may be set at any time.
    """

    delay_sync_ms = _Field()  # additional duration of each fsync
    is_read_only = _Field()  # every change of a file fails with EROFS, as after a remount
    clock_offset_ms = _Field()  # of the broker's wall clock; its steady clocks are unchanged

    def __init__(self, folder: Path, data: Path | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.data = (data or folder / "data").resolve()
        self.control = folder / f"{self.data.name}.shim"
        self.control.write_bytes(bytes(ctypes.sizeof(_Layout)))
        with self.control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), ctypes.sizeof(_Layout))
        self._layout = _Layout.from_buffer(self._map)
        self._layout.folder = os.fsencode(self.data)
        self._layout.quota_bytes = _NO_LIMIT
        self._layout.fail_op = -1
        self._serial = 0

    def env(self, others: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of a broker that uses this shim."""
        given = os.environ if others is None else others
        return {**given, "LD_PRELOAD": str(library()), CONTROL: str(self.control)}

    # -- the log

    def record(self, log: Path) -> None:
        """Log to a new file, see ``read_log``; call it before the broker starts."""
        log.unlink(missing_ok=True)
        self._layout.log = os.fsencode(log)
        self._serial += 1
        self._layout.log_serial = self._serial

    def stop_recording(self) -> None:
        self._layout.log_serial = 0

    def mark(self, text: str) -> None:
        """Add a record of our own to the log."""
        content = text.encode()
        header = _HEADER.pack(_MAGIC, Kind.MARKED, os.getpid(), 0, 0, 0, len(content))
        with Path(os.fsdecode(self._layout.log)).open("ab", buffering=0) as log:
            log.write(header + content)

    # -- faults

    def fail(
        self, op: Op, nth: int, error: int, *, is_sticky: bool = False, name: str = ""
    ) -> None:
        """Fail the ``nth`` call from now on (1 is the next), and all later ones if ``is_sticky``.

        After a sticky EROFS, the folder is read-only.
        ``name``: count only calls for files whose name below the folder contains it.
        """
        layout = self._layout
        layout.fail_op = -1
        layout.fail_seen = layout.failed = 0
        layout.failed_name, layout.failed_pid = b"", 0
        layout.fail_nth, layout.fail_errno = nth, error
        layout.fail_is_sticky, layout.fail_name = is_sticky, name.encode()
        layout.fail_op = op

    def heal(self) -> None:
        """Remove all faults: failing calls, quota, delay, and the read-only state."""
        self._layout.fail_op = -1
        self.quota_bytes = None
        self.delay_sync_ms = 0
        self.is_read_only = False

    @property
    def failed(self) -> int:
        return int(self._layout.failed)

    @property
    def failed_name(self) -> str:
        """Name below the folder of the file whose call failed first."""
        return os.fsdecode(self._layout.failed_name)

    @property
    def failed_pid(self) -> int:
        """Pid of the process whose call failed first, or 0."""
        return int(self._layout.failed_pid)

    def counts(self) -> dict[Op, int]:
        """Return the number of calls of each kind, over all lives, including failed ones."""
        return {op: int(self._layout.counts[op]) for op in Op}

    @property
    def quota_bytes(self) -> int | None:
        """Maximum size of the folder, in blocks of 4 KiB; writes beyond it fail with ENOSPC."""
        value = int(self._layout.quota_bytes)
        return None if value == _NO_LIMIT else value

    @quota_bytes.setter
    def quota_bytes(self, value: int | None) -> None:
        self._layout.quota_bytes = _NO_LIMIT if value is None else value

    @property
    def used_bytes(self) -> int:
        """Present size of the folder, as the quota counts it."""
        sizes = [path.stat().st_size for path in self.data.rglob("*") if path.is_file()]
        return sum(-(-size // 4096) * 4096 for size in sizes)


def library() -> Path:
    """Compile ``shim.c``, once for each content and account; return the library.

    Raises:
        RuntimeError: the compiler failed; the message has its output.
    """
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"phpmq-shim-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    built = folder / f"shim-{digest}.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not built.exists():
            fresh = built.with_suffix(".new")
            command = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(fresh), str(SOURCE), "-ldl"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"gcc: {done.stderr}")
            fresh.replace(built)
    return built


def attach(control: Path) -> None:
    """Pass this control file to the shim, which was preloaded without one.

    Raises:
        RuntimeError: the shim is not preloaded, or the file cannot be mapped.
    """
    shim: Any = ctypes.CDLL(None)
    if not hasattr(shim, "shim_attach") or shim.shim_attach(os.fsencode(control)):
        raise RuntimeError(f"no preloaded shim can use {control}")


# -- reading the log


class Kind(IntEnum):
    OPENED = 1  # content: the name; is_new
    WRITTEN = 2
    TRUNCATED = 3
    SYNC_BEGUN = 4
    SYNC_ENDED = 5
    RENAMED = 6  # content: old name, 0, new name
    UNLINKED = 7
    MADE_FOLDER = 8
    ALLOCATED = 9  # the file reaches at least to ``offset``
    ACCEPTED = 10
    SENT = 11
    RECEIVED = 12
    CLOSED = 13
    MARKED = 14
    SYNC_FAILED = 15


_MAGIC: Final = 0x8F1D63A9C2E7045B  # as in shim.c
_HEADER: Final = struct.Struct("=QIIIIQQ")


@dataclass(slots=True, frozen=True)
class Record:
    kind: Kind
    owner: tuple[int, int]  # process, and number of an open file or a connection
    flags: int
    offset: int
    content: bytes

    @property
    def is_new(self) -> bool:
        """Whether this open created the file."""
        return bool(self.flags & 1)

    @property
    def is_emptied(self) -> bool:
        """Whether this open truncated the file."""
        return bool(self.flags & 2)


def read_log(path: Path) -> Iterator[Record]:
    """Yield the records in order, without those that a kill cut off.

    Another process may have written records after one that was cut off.
    """
    mark = _MAGIC.to_bytes(8, sys.byteorder)
    with ExitStack() as stack:
        file = stack.enter_context(path.open("rb"))
        if not path.stat().st_size:
            return
        log = stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        at = 0
        while at + _HEADER.size <= len(log):
            _, kind, pid, number, flags, offset, length = _HEADER.unpack_from(log, at)
            start = at + _HEADER.size
            end = start + (0 if kind in (Kind.TRUNCATED, Kind.ALLOCATED) else length)
            following = log.find(mark, end, end + 2 * len(mark))
            if following >= 0 or 0 <= len(log) - end < len(mark):
                yield Record(Kind(kind), (pid, number), flags, offset, log[start:end])
                at = following if following >= 0 else len(log)
            else:  # cut off
                at = log.find(mark, at + len(mark))
                if at < 0:
                    return


if __name__ == "__main__":
    attach(Path(os.environ[CONTROL]))
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
