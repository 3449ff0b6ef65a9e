"""The shim applied to programs that are not brokers."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.shim import Kind, Op, Shim, read_log
from tests.faults.shimmed_broker import NEEDS_SHIM

pytestmark = [pytest.mark.faults, NEEDS_SHIM]

_PROGRAM = """
import os, shutil, socket, sqlite3, sys, time
folder = sys.argv[1]

def tried(act):
    try:
        return act()
    except OSError as error:
        return -error.errno
    except sqlite3.Error as error:
        return error.sqlite_errorname

def new(name):
    return os.open(os.path.join(folder, name), os.O_RDWR | os.O_CREAT)

"""


@pytest.fixture
def shim(tmp_path: Path) -> Shim:
    made = Shim(tmp_path)
    made.data.mkdir()
    return made


def _run(shim: Shim, body: str) -> list[str]:
    """Run a program with the shim; return its output in lines."""
    command = [sys.executable, "-c", _PROGRAM + body, str(shim.data)]
    done = subprocess.run(command, env=shim.env(), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("length", [1, 20, 41, 50])
def test_log_is_read_after_a_record_that_a_kill_cut_off(tmp_path: Path, length: int) -> None:
    """The process that was not killed goes on writing."""
    shim, log = Shim(tmp_path), tmp_path / "log"
    shim.record(log)
    sizes = [0]
    for text in ("first", "second, cut off", "third", "fourth"):
        shim.mark(text)
        sizes.append(log.stat().st_size)
    content = log.read_bytes()
    log.write_bytes(content[: sizes[1] + length] + content[sizes[2] :])
    assert sizes[1] + length < sizes[2]
    assert [record.content for record in read_log(log)] == [b"first", b"third", b"fourth"]


def test_log_has_files_names_and_replies_in_their_order(shim: Shim, tmp_path: Path) -> None:
    shim.record(tmp_path / "log")
    _run(
        shim,
        """
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
client.send(b"ask")
server.recv(10)
fd = new("one")
os.pwrite(fd, b"abc", 5)
os.fsync(fd)
server.send(b"answer")
os.ftruncate(fd, 2)
os.rename(folder + "/one", folder + "/two")
os.fsync(os.open(folder, os.O_RDONLY))
os.unlink(folder + "/two")
open("/dev/null", "w").write("elsewhere")
""",
    )
    shim.mark("behind")
    found = [(record.kind, record.offset, record.content) for record in read_log(tmp_path / "log")]
    assert found == [
        (Kind.ACCEPTED, 0, b""),
        (Kind.RECEIVED, 0, b"ask"),
        (Kind.OPENED, 0, b"one"),
        (Kind.WRITTEN, 5, b"abc"),
        (Kind.SYNC_BEGUN, 0, b""),
        (Kind.SYNC_ENDED, 0, b""),
        (Kind.SENT, 0, b"answer"),
        (Kind.TRUNCATED, 2, b""),
        (Kind.RENAMED, 0, b"one\0two"),
        (Kind.OPENED, 0, b""),
        (Kind.SYNC_BEGUN, 0, b""),
        (Kind.SYNC_ENDED, 0, b""),
        (Kind.UNLINKED, 0, b"two"),
        (Kind.CLOSED, 0, b""),
        (Kind.MARKED, 0, b"behind"),
    ]


@pytest.mark.parametrize(("is_sticky", "expected"), [(False, "1 -5 1 1"), (True, "1 -5 -5 -5")])
def test_nth_call_fails(shim: Shim, is_sticky: bool, expected: str) -> None:
    shim.fail(Op.WRITE, 2, errno.EIO, is_sticky=is_sticky)
    assert _run(
        shim,
        """
fd = new("one")
print(*(tried(lambda: os.write(fd, b"x")) for _ in range(4)))
print(tried(lambda: os.fsync(fd)), os.path.getsize(folder + "/one"))
""",
    ) == [expected, "None 1" if is_sticky else "None 3"]
    assert shim.failed == (3 if is_sticky else 1)
    assert shim.counts()[Op.WRITE] == 4


def test_only_files_with_the_name_fail(shim: Shim) -> None:
    shim.fail(Op.SYNC, 1, errno.EIO, is_sticky=True, name="-wal")
    assert _run(
        shim, "print(*(tried(lambda: os.fsync(new(name))) for name in ('a.db', 'a.db-wal')))"
    ) == ["None -5"]


def test_quota_is_a_full_disk(shim: Shim) -> None:
    """Allocated blocks can be rewritten; a write that does not fit is cut, the next one fails."""
    shim.quota_bytes = 3 * 4096
    lines = _run(
        shim,
        """
fd = new("one")
print(os.pwrite(fd, bytes(10_000), 0), os.pwrite(fd, bytes(10_000), 10_000))
print(tried(lambda: os.pwrite(fd, b"x", 12_288)), os.pwrite(fd, b"x", 0), tried(lambda: new("two")))
print(os.statvfs(folder).f_bavail, shutil.disk_usage(folder).total)
print(tried(lambda: os.posix_fallocate(fd, 0, 20_000)))
os.ftruncate(fd, 4096)
print(os.statvfs(folder).f_bavail, tried(lambda: os.write(new("two"), b"x")))
database = sqlite3.connect(folder + "/three")
print(tried(lambda: database.execute("CREATE TABLE big AS SELECT zeroblob(10000)")))
""",
    )
    assert lines == ["10000 2288", "-28 1 -28", "0 12288", "-28", "2 1", "SQLITE_FULL"]


def test_read_only_folder_rejects_changes(shim: Shim) -> None:
    (shim.data / "one").write_bytes(b"x")
    shim.is_read_only = True
    assert _run(
        shim,
        """
print(tried(lambda: new("one")), tried(lambda: os.unlink(folder + "/one")),
      tried(lambda: os.mkdir(folder + "/two")))
print(open(folder + "/one").read())
""",
    ) == [f"-{errno.EROFS} -{errno.EROFS} -{errno.EROFS}", "x"]


@pytest.mark.parametrize("offset_ms", [-86_400_000, -1, 3_600_999])
def test_only_the_wall_clock_is_set(shim: Shim, offset_ms: int) -> None:
    shim.clock_offset_ms = offset_ms
    before_ms, steady_s = time.time() * 1_000, time.monotonic()
    wall, steady = _run(shim, "print(time.time() * 1_000)\nprint(time.monotonic())")
    assert 0 <= float(wall) - offset_ms - before_ms < 60_000
    assert 0 <= float(steady) - steady_s < 60


def test_sync_takes_longer(shim: Shim) -> None:
    shim.delay_sync_ms = 100
    (seconds,) = _run(
        shim, "fd = new('one')\nat = time.monotonic()\nos.fsync(fd)\nprint(time.monotonic() - at)"
    )
    assert float(seconds) >= 0.1


def test_other_folders_are_unaffected(shim: Shim, tmp_path: Path) -> None:
    shim.is_read_only = True
    shim.fail(Op.WRITE, 1, errno.EIO, is_sticky=True)
    _run(shim, f"open({os.fspath(tmp_path / 'data-2')!r}, 'w').write('x')")
    assert (tmp_path / "data-2").read_text() == "x"
    assert shim.counts()[Op.WRITE] == 0
