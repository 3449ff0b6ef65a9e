"""Read-only connections are closed whatever happens to the readers."""

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from phpmq_lite.errors import ReadTooLongError, StorageError
from phpmq_lite.storage.read.read_pool import read_owner
from phpmq_lite.storage.sqlite.read_connections import SqliteReaders

ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
HOSTILE = "a" * 1_900 + "b"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    database = tmp_path / "some.db"
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA journal_mode=wal")
    connection.close()
    return database


def assert_all_end(before: set[threading.Thread]) -> None:
    """Join the threads: an ending one may still be alive."""
    for thread in {*threading.enumerate()} - before:
        thread.join(10)
        assert not thread.is_alive(), thread


async def ask(readers: SqliteReaders) -> None:
    assert await readers.run("one", "SELECT 1", {}) == [(1,)]


@pytest.mark.parametrize("turns", range(4))
async def test_close_leaves_no_thread_of_a_cancelled_read(path: Path, turns: int) -> None:
    """A remaining thread would reply to a loop that is already closed."""
    before = {*threading.enumerate()}
    readers = SqliteReaders(path, count=1)
    reading = asyncio.create_task(ask(readers))
    for _ in range(turns):
        await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await readers.close()
    assert_all_end(before)


async def test_read_without_memory_for_a_thread_fails_and_the_next_one_works(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    readers = SqliteReaders(path, count=1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(StorageError, match="for reading: can't start new thread"):
            await ask(readers)
    await ask(readers)
    await readers.close()


async def test_close_waits_for_a_starting_read(path: Path) -> None:
    before = {*threading.enumerate()}
    readers = SqliteReaders(path, count=2)
    reading = [asyncio.create_task(ask(readers)) for _ in range(2)]
    await asyncio.sleep(0)
    await readers.close()
    assert_all_end(before)
    await asyncio.gather(*reading)
    await ask(readers)  # opens another one
    await readers.close()


@pytest.mark.parametrize("count", [1, 3])
async def test_close_interrupts_reads_that_run_or_wait(path: Path, count: int) -> None:
    """Otherwise a stop would wait up to an hour for the search of a user."""
    readers = SqliteReaders(path, count=1, limit_s=3_600)
    await ask(readers)
    reading = [asyncio.create_task(readers.run("all", ENDLESS, {})) for _ in range(count)]
    await asyncio.sleep(0)
    await readers.close()
    for read in reading:
        with pytest.raises(StorageError, match="the broker is stopping"):
            await read
    await ask(readers)
    await readers.close()


@pytest.mark.parametrize(
    "text",
    [
        "SELECT matches_glob(CAST(:body AS BLOB), :glob)",
        "SELECT has_text(CAST(:body AS BLOB), CAST(:text AS BLOB))",
        "SELECT in_time() FROM (SELECT matches_glob(CAST(:body AS BLOB), :glob))",
        ENDLESS + " WHERE :body <> :glob OR :text = ''",
    ],
)
async def test_read_stops_within_a_function(path: Path, text: str) -> None:
    """SQLite checks the time only between two rows, and these statements have one row."""
    readers = SqliteReaders(path, count=1, limit_s=0.001)
    given = {"body": "a" * (8 << 20), "glob": f"*{HOSTILE}*", "text": HOSTILE}
    with pytest.raises(ReadTooLongError):
        await readers.run("hostile", text, given)
    await readers.close()


async def test_reads_of_one_do_not_hold_up_those_of_another(path: Path) -> None:
    readers = SqliteReaders(path, count=1)
    done: list[str] = []

    async def read(owner: str) -> None:
        read_owner.set(owner)
        await ask(readers)
        done.append(owner)

    await asyncio.gather(*(read(owner) for owner in [*["busy"] * 20, "other"]))
    assert done.index("other") <= 2
    await readers.close()
