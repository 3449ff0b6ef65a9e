"""Reading a database from another process removes nothing, whatever the state of its WAL."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.sqlite.integrity.startup import has_admin, open_stopped
from phpmq_lite.storage.sqlite.integrity.wal_check import HEADER_BYTES, has_commits

Spoil = Callable[[bytearray], None]


def spoil_header(wal: bytearray) -> None:
    wal[5] ^= 1


def spoil_first_frame(wal: bytearray) -> None:
    wal[HEADER_BYTES + 100] ^= 1


def cut_in_first_frame(wal: bytearray) -> None:
    del wal[HEADER_BYTES + 100 :]


def empty(wal: bytearray) -> None:
    wal.clear()


def nothing(wal: bytearray) -> None:
    """Leave it as it is."""


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Path]:
    """Return a folder as ``kill -9`` leaves it: a row is in the database, another in the WAL."""
    made = tmp_path / "made.db"
    with closing(sqlite3.connect(made, isolation_level=None)) as connection:
        for text in ("PRAGMA journal_mode=WAL", "CREATE TABLE t (x)", "INSERT INTO t VALUES (1)",
                     "PRAGMA wal_checkpoint(TRUNCATE)", "INSERT INTO t VALUES (2)"):  # fmt: skip
            connection.execute(text).fetchall()
        folder = tmp_path / "data"
        folder.mkdir(mode=0o700)
        for ending in ("", "-wal", "-shm"):
            content = made.with_name(made.name + ending).read_bytes()
            folder.joinpath(f"phpmq.db{ending}").write_bytes(content)
        yield folder


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return the inode and content of each file."""
    return {path.name: (path.stat().st_ino, path.read_bytes()) for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("spoil", "rows"),
    [(nothing, 2), (spoil_header, 1), (spoil_first_frame, 1), (cut_in_first_frame, 1), (empty, 1)],
)
def test_reading_keeps_the_log(killed: Path, spoil: Spoil, rows: int) -> None:
    """On close, SQLite removes a WAL without commits, and the evidence of damage with it."""
    wal = killed / "phpmq.db-wal"
    raw = bytearray(wal.read_bytes())
    spoil(raw)
    wal.write_bytes(raw)
    before = state(killed)
    with open_stopped(killed / "phpmq.db") as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (rows,)
    assert state(killed) == before
    with wal.open("rb") as file:
        assert has_commits(file) == (rows == 2)


def test_question_for_an_admin_leaves_a_running_broker_alone(tmp_path: Path) -> None:
    """Its log may change at any moment, so it is not read."""
    with closing(DataFolder.open(tmp_path / "data")) as folder:
        assert has_admin(folder.database)
    assert not has_admin(folder.database)
