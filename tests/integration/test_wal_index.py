"""The index of a WAL tells of the frames that were committed, and of nothing else."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from phpmq_lite.errors import DataDamagedError
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.integrity.stopped_database import has_admin
from phpmq_lite.storage.integrity.wal_check import check_wal, scan_wal_files
from phpmq_lite.storage.integrity.wal_format import committed_frames


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DataFolder]:
    """A folder as ``kill -9`` leaves it: database, WAL and index of five commits."""
    made = tmp_path / "made.db"
    with (
        closing(sqlite3.connect(made, isolation_level=None)) as connection,
        closing(DataFolder.open(tmp_path / "data")) as folder,
    ):
        for text in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL",
                     "PRAGMA wal_autocheckpoint=0", "CREATE TABLE t (x)"):  # fmt: skip
            connection.execute(text).fetchall()
        for number in range(4):
            connection.execute("INSERT INTO t VALUES (?)", (number,))
        for ending, target in (("", folder.database), ("-wal", folder.wal), ("-shm", folder.shm)):
            target.write_bytes(made.with_name(made.name + ending).read_bytes())
        yield folder


def salts(folder: DataFolder) -> bytes:
    return folder.wal.read_bytes()[16:24]


def test_index_tells_how_many_frames_were_committed(folder: DataFolder) -> None:
    found = scan_wal_files(folder.wal, folder.shm)
    assert found.known_frames == found.frames > 0
    assert not found.is_damaged


def test_index_of_another_wal_tells_nothing(folder: DataFolder) -> None:
    assert committed_frames(folder.shm, b"8 others") == 0


@pytest.mark.parametrize("at", range(96))
def test_index_that_is_damaged_tells_nothing(folder: DataFolder, at: int) -> None:
    raw = bytearray(folder.shm.read_bytes())
    raw[at] ^= 1
    folder.shm.write_bytes(raw)
    assert committed_frames(folder.shm, salts(folder)) == 0


@pytest.mark.parametrize("content", [b"", b"short", bytes(4_096)])
def test_index_of_a_power_cut_tells_nothing(folder: DataFolder, content: bytes) -> None:
    folder.shm.write_bytes(content)
    assert committed_frames(folder.shm, salts(folder)) == 0
    folder.shm.unlink()
    assert committed_frames(folder.shm, salts(folder)) == 0


def test_damage_in_the_last_commit_is_refused(folder: DataFolder) -> None:
    """From the WAL alone it looks like a commit that a power cut tore."""
    raw = bytearray(folder.wal.read_bytes())
    raw[-10] ^= 1
    folder.wal.write_bytes(raw)
    with pytest.raises(DataDamagedError, match="is intact up to frame"):
        check_wal(folder)
    assert folder.wal.read_bytes() == raw
    assert check_wal(folder, accept_loss=True).commits_lost == 1


def test_question_for_an_admin_ahead_of_a_start_leaves_the_index_as_it_is(
    folder: DataFolder,
) -> None:
    """SQLite makes the index anew when it opens the file: then nobody knows of the damage."""
    raw = bytearray(folder.wal.read_bytes())
    raw[-10] ^= 1
    folder.wal.write_bytes(raw)
    has_admin(folder.database)
    with pytest.raises(DataDamagedError, match="is intact up to frame"):
        check_wal(folder)


def test_end_that_is_gone_is_refused(folder: DataFolder) -> None:
    raw = folder.wal.read_bytes()
    folder.wal.write_bytes(raw[: -(24 + 4_096)])  # a whole frame: what is left looks perfect
    with pytest.raises(DataDamagedError, match="but had 6 committed frames"):
        check_wal(folder)


def test_frames_behind_the_index_are_normal(folder: DataFolder) -> None:
    """Killed between the write of the frames and that of the index."""
    with closing(sqlite3.connect(folder.database, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint=0")
        index = folder.shm.read_bytes()
        connection.execute("INSERT INTO t VALUES (5)")
        wal, database = folder.wal.read_bytes(), folder.database.read_bytes()
    folder.database.write_bytes(database)
    folder.wal.write_bytes(wal)
    folder.shm.write_bytes(index)
    assert not check_wal(folder).is_damaged
