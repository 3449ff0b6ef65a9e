"""Read-only connections are closed whatever happens to those who read."""

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from phpmq_lite.storage.readers import Readers


@pytest.fixture
def path(tmp_path: Path) -> Path:
    database = tmp_path / "some.db"
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA journal_mode=wal")
    connection.close()
    return database


def assert_all_end(before: set[threading.Thread]) -> None:
    """Of threads that are at their end the last step may be to come."""
    for thread in {*threading.enumerate()} - before:
        thread.join(10)
        assert not thread.is_alive(), thread


async def ask(readers: Readers) -> None:
    assert await readers.run("one", "SELECT 1", {}) == [(1,)]


@pytest.mark.parametrize("turns", range(4))
async def test_close_leaves_no_thread_of_a_read_that_is_given_up(path: Path, turns: int) -> None:
    """However far it had come: a thread left behind answers a loop that is closed by then."""
    before = {*threading.enumerate()}
    readers = Readers(path, count=1)
    reading = asyncio.create_task(ask(readers))
    for _ in range(turns):
        await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await readers.close()
    assert_all_end(before)


async def test_close_waits_for_a_read_that_begins(path: Path) -> None:
    before = {*threading.enumerate()}
    readers = Readers(path, count=2)
    reading = [asyncio.create_task(ask(readers)) for _ in range(2)]
    await asyncio.sleep(0)
    await readers.close()
    assert_all_end(before)
    await asyncio.gather(*reading)
    await ask(readers)  # opens another one
    await readers.close()
