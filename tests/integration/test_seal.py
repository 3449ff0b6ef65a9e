"""Checks of a start before SQLite may write: the seal of a clean stop, and the structure."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from phpmq_lite.errors import DataDamagedError
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.sqlite.integrity.seal import seal
from phpmq_lite.storage.sqlite.integrity.startup import check_files
from tests.support.core_and_store import Driver
from tests.support.stopped_folder import (
    driver_with_history,
    execute_sql,
    flip_bit,
    problems,
    stopped_folder,
)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    with closing(driver_with_history(tmp_path)) as made:
        yield made


@pytest.fixture
def data(driver: Driver, tmp_path: Path) -> Path:
    return stopped_folder(driver, tmp_path / "data")


def test_seal_is_checked_once(data: Path) -> None:
    with closing(DataFolder.open(data)) as folder:
        assert "every byte" in check_files(folder).checks[-1]
        assert folder.meta.seal is None  # it is about to be written
        assert "structure" in check_files(folder).checks[-1]


@pytest.mark.slow
def test_any_flipped_bit_of_a_sealed_database_is_refused(data: Path) -> None:
    database = data / "phpmq.db"
    for at in range(100, database.stat().st_size, 997):
        flip_bit(database, at)
        before = database.read_bytes()
        with (
            closing(DataFolder.open(data)) as folder,
            pytest.raises(DataDamagedError, match="differs from what the broker wrote"),
        ):
            check_files(folder)
        assert database.read_bytes() == before
        (copies,) = data.glob("damaged-*")
        assert (copies / "phpmq.db").read_bytes() == before
        shutil.rmtree(copies)
        flip_bit(database, at)
    assert problems(data) == []


def test_changed_database_is_used_if_the_loss_is_accepted(data: Path) -> None:
    execute_sql(data / "phpmq.db", "UPDATE queue SET created_at = 5")
    with closing(DataFolder.open(data)) as folder:
        done = check_files(folder, accept_loss=True)
        assert folder.meta.seal is None
    assert done.checks[1:] == ["the structure of the database"]
    assert len(list(data.glob("damaged-*"))) == 1


def test_unreadable_database_is_damaged(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_path: Path) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("phpmq_lite.storage.sqlite.integrity.seal.checksum_of", fail)
    with (
        closing(DataFolder.open(data)) as folder,
        pytest.raises(DataDamagedError, match=r"cannot read .*phpmq\.db: Input/output error"),
    ):
        check_files(folder)


def test_database_with_a_wal_is_not_sealed(data: Path) -> None:
    with closing(DataFolder.open(data)) as folder:
        folder.seal(None)
        folder.wal.write_bytes(b"something")
        seal(folder)
        assert folder.meta.seal is None


def test_broken_structure_is_refused_without_a_seal(data: Path) -> None:
    with (data / "phpmq.db").open("r+b") as file:
        file.seek(4_096)
        file.write(b"\xff" * 4_096)
    with closing(DataFolder.open(data)) as folder:
        folder.seal(None)
        before = folder.database.read_bytes()
        with pytest.raises(DataDamagedError, match=r"is damaged: .*; the files were copied to"):
            check_files(folder)
        assert folder.database.read_bytes() == before
        check_files(folder, accept_loss=True)


def test_changed_schema_is_refused(data: Path) -> None:
    """SQLite finds no error, but each batch would fail at a missing column."""
    content = (data / "phpmq.db").read_bytes()
    at = content.index(b"last_dispatched_at")
    with (data / "phpmq.db").open("r+b") as file:
        file.seek(at)
        file.write(b"m")
    with closing(DataFolder.open(data)) as folder:
        folder.seal(None)
        with pytest.raises(DataDamagedError, match="differs from the migrations; the files were"):
            check_files(folder)


def test_invalid_header_is_refused_without_a_seal(data: Path) -> None:
    with (data / "phpmq.db").open("r+b") as file:
        file.seek(16)
        file.write(b"\x01\x01")  # an invalid page size
    with closing(DataFolder.open(data)) as folder:
        folder.seal(None)
        with pytest.raises(DataDamagedError, match="not a database"):
            check_files(folder)


def test_large_database_is_left_to_the_scrub(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phpmq_lite.storage.sqlite.integrity.startup.CHECKED_BYTES", 1)
    with closing(DataFolder.open(data)) as folder:
        folder.seal(None)
        assert check_files(folder).is_structure_due
