"""The data folder of a stopped broker, and functions that change it."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.sqlite.integrity.database_check import verify
from phpmq_lite.storage.sqlite.integrity.seal import seal
from tests.support.core_and_store import Driver


def driver_with_history(folder: Path) -> Driver:
    """Return a broker with live, settled and dead messages, one of them held."""
    made = Driver(folder)
    made.publish(b"a", b"b", b"c", b"d")
    worker = made.consume(3)
    first, second, _ = worker.take()
    worker.acknowledge("orders", first.message_id)
    worker.dead_letter("orders", second.message_id)
    made.step()
    made.store.execute("INSERT INTO meta VALUES ('history_id', 'before') ON CONFLICT DO NOTHING")
    return made


def stopped_folder(driver: Driver, path: Path) -> Path:
    """Create a cleanly closed data folder with the messages of a driver."""
    driver.store.checkpoint("TRUNCATE")
    folder = DataFolder.open(path)
    with closing(folder):
        shutil.copyfile(driver.path, folder.database)
        folder.record(has_messages=True)
        seal(folder)
    return folder.path


def problems(path: Path) -> list[str]:
    return [problem for check in verify(path) for problem in check.problems]


def execute_sql(database: Path, sql: str) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE").fetchall()
        connection.execute(sql)


def query_value(database: Path, sql: str) -> object:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(sql).fetchone()[0]


def flip_bit(file: Path, at: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[at] ^= 1
    file.write_bytes(raw)
