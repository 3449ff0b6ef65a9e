"""The file check before a start distinguishes damage from states that are valid."""

import shutil
import sqlite3
from pathlib import Path

from phpmq_lite.storage.data_folder import DATABASE, DataFolder
from phpmq_lite.storage.sqlite.integrity.startup import check_files


def _cut_first_write(path: Path) -> None:
    """Leave what a power cut in the first write to a new database does: SQLite will undo it."""
    made = path.parent / "made.db"
    connection = sqlite3.connect(made, isolation_level=None)
    connection.execute("CREATE TABLE one (n)")
    connection.execute("PRAGMA cache_size=1")  # so that pages are written ahead of the COMMIT
    connection.execute("BEGIN")
    connection.execute("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 9999) "
                       "INSERT INTO one SELECT i FROM n")  # fmt: skip
    path.mkdir()
    shutil.copyfile(made, path / DATABASE)
    shutil.copyfile(f"{made}-journal", path / f"{DATABASE}-journal")
    connection.close()


def test_start_goes_on_where_the_first_write_was_cut_off(tmp_path: Path) -> None:
    _cut_first_write(tmp_path / "data")
    folder = DataFolder.open(tmp_path / "data")
    found = check_files(folder)
    assert found.is_structure_due
    assert not list(folder.path.glob("damaged-*"))
    with sqlite3.connect(folder.database) as connection:
        assert connection.execute("SELECT count(*) FROM one").fetchone() == (0,)
    connection.close()
    folder.close()
