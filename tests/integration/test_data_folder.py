"""The data folder on a real disk: its lock, its modes, and databases that went missing."""

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from phpmq_lite.errors import DataDamagedError, OutcomeUnknownError, StartRefusedError
from phpmq_lite.storage import data_folder, mounts
from phpmq_lite.storage.data_folder import DataFolder, prevent_start

HOLDER = """
import sys
from pathlib import Path
from phpmq_lite.storage.data_folder import DataFolder
folder = DataFolder.open(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""
HOLDER_WITH_WRITER = """
import subprocess, sys
from pathlib import Path
from phpmq_lite.storage.data_folder import DataFolder
folder = DataFolder.open(Path(sys.argv[1]))
writer = subprocess.Popen(["sleep", "60"], pass_fds=[folder.lock], stdout=subprocess.DEVNULL)
folder.record_writer(writer.pid)
print(writer.pid, flush=True)
writer.wait()
"""

# A broker that is killed before it has recorded the process that it has started.
STARTER = """
import os
import subprocess
import sys
from pathlib import Path
from phpmq_lite.storage.data_folder import DataFolder
folder = DataFolder.open(Path(sys.argv[1]))
subprocess.Popen(["sleep", "0.3"], pass_fds=[folder.lock])
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def folder(path: Path) -> Iterator[DataFolder]:
    """Open a new data folder; the test may close it."""
    folder = DataFolder.open(path)
    yield folder
    folder.close()


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def make_database(folder: DataFolder) -> None:
    with closing(sqlite3.connect(folder.database)) as connection:
        connection.execute("PRAGMA journal_mode=WAL").fetchall()
        connection.execute("CREATE TABLE t (n)")


# -- lock


def test_broker_waits_for_other_lock_holders(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``doctor`` and other commands hold the lock only briefly, so the start waits."""
    DataFolder.open(path).close()
    looks = ExitStack()
    looks.enter_context(prevent_start(path))
    monkeypatch.setattr("phpmq_lite.storage.data_folder.time.sleep", lambda _s: looks.close())
    DataFolder.open(path).close()


def test_broker_does_not_wait_long_for_a_check(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DataFolder.open(path).close()
    monkeypatch.setattr(data_folder, "_LOCK_S", 0.0)
    with prevent_start(path), pytest.raises(StartRefusedError, match="locked by a check or a"):
        DataFolder.open(path)
    DataFolder.open(path).close()


def test_second_broker_is_refused_with_the_pid_of_the_first(path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(path)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "open\n"
        with pytest.raises(
            StartRefusedError, match=rf"is in use by phpmq-lite \(pid {first.pid}\)\. Stop it or "
        ):
            DataFolder.open(path)
        first.kill()
        first.wait()
    DataFolder.open(path).close()  # a killed broker holds nothing


@pytest.fixture
def writer_of_a_killed_broker(path: Path) -> Iterator[tuple[int, int]]:
    """The pids of a broker that was killed and of its writer process, which holds the lock."""
    command = [sys.executable, "-c", HOLDER_WITH_WRITER, str(path)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as broker:
        assert broker.stdout is not None
        writer = int(broker.stdout.readline())
        broker.kill()
    yield broker.pid, writer
    with suppress(ProcessLookupError):
        os.kill(writer, signal.SIGKILL)


def test_start_is_refused_with_the_pids_of_a_killed_broker_and_its_writer(
    path: Path, writer_of_a_killed_broker: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, writer = writer_of_a_killed_broker
    monkeypatch.setattr(data_folder, "_LOCK_S", 0.1)
    message = rf"process {writer}, which writes for a broker that has ended \(pid {broker}\) or"
    with pytest.raises(StartRefusedError, match=message):
        DataFolder.open(path)


def test_start_waits_for_the_writer_of_a_killed_broker(
    path: Path, writer_of_a_killed_broker: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, writer = writer_of_a_killed_broker
    sleep = time.sleep

    def end_writer(seconds: float) -> None:
        with suppress(ProcessLookupError):
            os.kill(writer, signal.SIGKILL)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", end_writer)
    DataFolder.open(path).close()


def test_start_does_not_wait_for_the_writer_of_a_running_broker(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = DataFolder.open(path)
    first.record_writer(os.getpid())
    monkeypatch.setattr(time, "sleep", None)  # fails if it is called
    with pytest.raises(StartRefusedError, match=rf"in use by phpmq-lite \(pid {os.getpid()}\)\. S"):
        DataFolder.open(path)
    first.close()


def test_broker_waits_for_an_unrecorded_process_of_a_killed_broker(path: Path) -> None:
    command = [sys.executable, "-c", STARTER, str(path)]
    subprocess.run(command, cwd=Path(__file__).parents[2], check=False)
    DataFolder.open(path).close()


def test_folder_opens_again_after_close(path: Path) -> None:
    first = DataFolder.open(path)
    with pytest.raises(StartRefusedError, match=rf"pid {os.getpid()}\)\. Stop it"):
        DataFolder.open(path)
    first.close()
    first.close()
    DataFolder.open(path).close()


def test_lock_is_free_when_the_start_was_refused(path: Path) -> None:
    DataFolder.open(path).close()
    (path / "phpmq.db-wal").write_bytes(b"frames")
    for _ in range(2):
        with pytest.raises(DataDamagedError):
            DataFolder.open(path)


# -- modes


@pytest.mark.usefixtures("open_umask")
def test_nothing_is_open_to_others_under_umask_000(folder: DataFolder, path: Path) -> None:
    with closing(sqlite3.connect(folder.database)) as connection:
        connection.execute("PRAGMA journal_mode=WAL").fetchall()
        connection.execute("CREATE TABLE t (n)")
        folder.record(has_messages=True, is_running=True)
        folder.write_last_error(RuntimeError("x"), 1)
        found = {file.name: mode(file) for file in path.iterdir()}
    names = {"lock", "meta.json", "last_error.json", "phpmq.db", "phpmq.db-wal", "phpmq.db-shm"}
    assert found == dict.fromkeys(names, 0o600)
    assert mode(path) == 0o700


@pytest.mark.usefixtures("open_umask")
def test_permissive_modes_are_tightened(path: Path) -> None:
    path.mkdir()
    for name in ("lock", "phpmq.db", "last_error.json"):
        (path / name).touch()
    DataFolder.open(path).close()
    assert mode(path) == 0o700
    assert {mode(file) for file in path.iterdir()} == {0o600}


def test_folder_shared_by_all_accounts_is_refused(path: Path) -> None:
    path.mkdir()
    path.chmod(0o1777)  # as /tmp
    with pytest.raises(StartRefusedError, match="that only the broker uses"):
        DataFolder.open(path)
    assert mode(path) == 0o1777


def test_folders_above_are_made(tmp_path: Path) -> None:
    DataFolder.open(tmp_path / "a" / "b" / "c").close()
    assert mode(tmp_path / "a" / "b" / "c") == 0o700


def test_file_in_place_of_the_folder_is_refused(path: Path) -> None:
    path.touch()
    with pytest.raises(StartRefusedError, match="is a file"):
        DataFolder.open(path)


def test_folder_that_cannot_be_made_is_refused() -> None:
    with pytest.raises(StartRefusedError, match="cannot use data folder /dev/null/data"):
        DataFolder.open(Path("/dev/null/data"))


# -- file systems


def test_network_file_system_is_refused_unless_allowed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = path.with_name("mountinfo")
    listing.write_text(f"30 22 0:45 / {path.parent} rw - nfs4 nas:/ rw\n", encoding="utf-8")
    monkeypatch.setattr(mounts, "MOUNTS", listing)
    with pytest.raises(StartRefusedError, match=r"\(nfs4\).*--allow-network-fs"):
        DataFolder.open(path)
    assert not path.exists()
    DataFolder.open(path, allow_network_fs=True).close()


def test_any_file_system_is_taken_when_the_system_does_not_tell(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "MOUNTS", path / "nothing here")
    DataFolder.open(path).close()


# -- lost databases


def test_new_folder_has_an_empty_database(folder: DataFolder, path: Path) -> None:
    assert folder.database == path / "phpmq.db"
    assert folder.control_socket == path / "control.sock"
    assert folder.database.stat().st_size == 0
    make_database(folder)
    folder.close()
    DataFolder.open(path).close()


@pytest.mark.parametrize("state", ["missing", "empty"])
def test_lost_database_is_refused_beside_a_wal(folder: DataFolder, path: Path, state: str) -> None:
    folder.wal.write_bytes(b"frames")
    if state == "missing":
        folder.database.unlink()
    folder.close()
    with pytest.raises(DataDamagedError, match=rf"is {state}, but phpmq\.db-wal exists next to it"):
        DataFolder.open(path)
    assert folder.database.exists() == (state == "empty")
    assert folder.wal.read_bytes() == b"frames"


@pytest.mark.parametrize("state", ["missing", "empty"])
def test_lost_database_is_refused_when_there_were_messages(
    folder: DataFolder, path: Path, state: str
) -> None:
    make_database(folder)
    folder.record(has_messages=True)
    folder.database.unlink()
    if state == "empty":
        folder.database.touch()
    with pytest.raises(DataDamagedError, match=rf"is {state}, but meta\.json says"):
        folder.check_database()
    folder.close()
    with pytest.raises(DataDamagedError):
        DataFolder.open(path)


def test_lost_database_is_refused_when_meta_json_cannot_be_read(
    folder: DataFolder, path: Path
) -> None:
    folder.meta_file.write_bytes(b"{")
    folder.database.unlink()
    folder.close()
    with pytest.raises(DataDamagedError, match="says that messages were stored"):
        DataFolder.open(path)


def test_lost_meta_json_is_recreated(folder: DataFolder, path: Path) -> None:
    make_database(folder)
    folder.meta_file.unlink()
    folder.close()
    again = DataFolder.open(path)
    assert again.meta.has_messages
    assert again.meta_file.exists()
    again.close()


def test_foreign_file_in_place_of_the_database_is_refused(folder: DataFolder, path: Path) -> None:
    folder.database.write_bytes(b"no database at all")
    folder.close()
    with pytest.raises(DataDamagedError, match="is not an SQLite database"):
        DataFolder.open(path)


def test_first_write_that_was_cut_off_is_left_to_sqlite(folder: DataFolder, path: Path) -> None:
    folder.database.write_bytes(bytes(4_096))
    (path / "phpmq.db-journal").write_bytes(b"a hot journal")
    folder.close()
    DataFolder.open(path).close()


# -- meta.json and last_error.json


def test_meta_is_kept(folder: DataFolder, path: Path) -> None:
    created_at = folder.meta.created_at
    assert folder.meta == data_folder.DataFolderMetadata(created_at)
    make_database(folder)
    folder.record(has_messages=True, is_running=True)
    folder.close()
    again = DataFolder.open(path)
    assert again.meta == data_folder.DataFolderMetadata(
        created_at, has_messages=True, is_running=True
    )
    again.record(is_running=False)
    assert again.meta == data_folder.DataFolderMetadata(created_at, has_messages=True)
    again.close()


def test_meta_is_written_only_when_it_changed(folder: DataFolder) -> None:
    folder.record(has_messages=True)
    before = folder.meta_file.stat().st_ino
    folder.record(has_messages=True)
    assert folder.meta_file.stat().st_ino == before


def test_meta_stays_whole_when_writing_fails(
    folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = folder.meta_file.read_bytes()

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="Input/output error"):
            folder.record(has_messages=True)
    assert folder.meta_file.read_bytes() == before
    assert not folder.meta.has_messages
    folder.record(has_messages=True)  # the remains of the first attempt are no obstacle
    assert json.loads(folder.meta_file.read_bytes())["has_messages"] is True


def test_last_error_contains_the_code_of_sqlite(folder: DataFolder) -> None:
    assert folder.read_last_error() is None
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute("SELECT nothing")
        except sqlite3.Error as cause:
            error = OutcomeUnknownError("the batch may or may not be stored")
            error.__cause__ = cause
    assert folder.write_last_error(error, 1_700_000_000_000)
    assert folder.read_last_error() == {
        "at_ms": 1_700_000_000_000,
        "error": "OutcomeUnknownError",
        "message": "the batch may or may not be stored",
        "sqlite_errorcode": 1,
        "sqlite_errorname": "SQLITE_ERROR",
        "pid": os.getpid(),
    }


def test_last_error_raises_nothing_when_the_disk_is_gone(folder: DataFolder, path: Path) -> None:
    folder.last_error_file = path / "gone" / "last_error.json"
    assert not folder.write_last_error(RuntimeError("x"), 1)
