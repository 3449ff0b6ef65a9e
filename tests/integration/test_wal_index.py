"""The index of a WAL has the number of committed frames; a damaged one is ignored."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from phpmq_lite.errors import DataDamagedError
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.sqlite.integrity.startup import has_admin
from phpmq_lite.storage.sqlite.integrity.wal_check import (
    check_wal,
    committed_frames,
    scan_wal_files,
)


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


def test_index_has_the_number_of_committed_frames(folder: DataFolder) -> None:
    found = scan_wal_files(folder.wal, folder.shm)
    assert found.known_frames == found.frames > 0
    assert not found.is_damaged


def test_index_of_another_wal_is_ignored(folder: DataFolder) -> None:
    assert committed_frames(folder.shm, b"8 others") == 0


def test_damaged_or_missing_index_is_ignored(folder: DataFolder) -> None:
    whole = folder.shm.read_bytes()
    assert committed_frames(folder.shm, salts(folder)) > 0
    flipped = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(96)]
    for content in (*flipped, b"", b"short", bytes(4_096)):
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


def test_check_for_an_admin_before_the_start_keeps_the_index(folder: DataFolder) -> None:
    """SQLite rebuilds the index when it opens the file, which would hide the damage."""
    raw = bytearray(folder.wal.read_bytes())
    raw[-10] ^= 1
    folder.wal.write_bytes(raw)
    has_admin(folder.database)
    with pytest.raises(DataDamagedError, match="is intact up to frame"):
        check_wal(folder)


def test_missing_last_frame_is_refused(folder: DataFolder) -> None:
    raw = folder.wal.read_bytes()
    folder.wal.write_bytes(raw[: -(24 + 4_096)])  # a whole frame: what is left looks perfect
    with pytest.raises(DataDamagedError, match="but had 6 committed frames"):
        check_wal(folder)


def test_frames_missing_in_the_index_are_normal(folder: DataFolder) -> None:
    """The broker was killed after it wrote the frames and before it wrote the index."""
    with closing(sqlite3.connect(folder.database, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint=0")
        index = folder.shm.read_bytes()
        connection.execute("INSERT INTO t VALUES (5)")
        wal, database = folder.wal.read_bytes(), folder.database.read_bytes()
    folder.database.write_bytes(database)
    folder.wal.write_bytes(wal)
    folder.shm.write_bytes(index)
    assert not check_wal(folder).is_damaged
