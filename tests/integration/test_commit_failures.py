"""Failed commits: a known failure stores nothing, and the same batch is retried."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.errors import (
    BatchRefusedError,
    NotWritableError,
    OutcomeUnknownError,
    StorageFullError,
)
from phpmq_lite.installation import migrations_folder
from phpmq_lite.model import Batch
from phpmq_lite.storage import disk_space as spaces
from phpmq_lite.storage.disk_space import DiskSpace
from phpmq_lite.storage.sqlite import store as stores
from phpmq_lite.storage.sqlite.errors import translate_errors
from phpmq_lite.storage.sqlite.migrate import migrate, pending
from phpmq_lite.storage.sqlite.store import SqliteStore
from phpmq_lite.storage.sqlite.writer import FEW_COMMANDS, Writer
from tests.support.batch_builders import batch_of_new
from tests.support.stores import commit, make_database, open_store

PAGE = 4_096


def seqs(path: Path) -> list[int]:
    """Return the committed rows."""
    with closing(sqlite3.connect(path)) as reader:
        return [row[0] for row in reader.execute("SELECT seq FROM message ORDER BY seq")]


def is_whole(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as reader:
        return bool(reader.execute("PRAGMA integrity_check").fetchone() == ("ok",))


# -- what is refused, and what is a defect


@pytest.mark.parametrize(
    ("values", "is_refused"),
    [
        ({}, None),
        ({"state": 2}, False),
        ({"state": 5}, False),
        ({"state": 8}, False),
        ({"seq": "a"}, True),
        ({"seq": 1 << 64}, True),
        ({"urn": "\ud800"}, True),
        ({"token": None}, False),
    ],
    ids=str,
)
def test_refusal_is_told_from_a_broken_invariant(
    tmp_path: Path, values: dict[str, Any], is_refused: bool | None
) -> None:
    row = dict.fromkeys(("seq", "token", "position", "published_at", "size", "crc"), 1)
    row |= {"queue_id": 1, "state": 0} | values
    text = f"INSERT INTO message ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
    with closing(open_store(make_database(tmp_path)).connection) as connection:
        connection.execute("BEGIN")
        if is_refused is None:
            connection.execute(text, [*row.values()])
            return
        with (
            pytest.raises(BatchRefusedError if is_refused else OutcomeUnknownError),
            translate_errors(connection),
        ):
            connection.execute(text, [*row.values()])


# -- a full disk


def large(*numbers: int) -> Batch:
    """Return a batch of new messages that take several pages each."""
    batch = batch_of_new(*numbers)
    batch.bodies = [bytes([at % 256]) * 3 * PAGE for at in range(len(numbers))]
    return batch


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 4 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mounting, capture_output=True).returncode:
        pytest.skip("only root can mount a small file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("cache_pages", [10, 2_000])  # written before the COMMIT, or by it
def test_batch_without_disk_space_leaves_nothing_behind(
    small: Path, tmp_path: Path, cache_pages: int, figure: Callable[[str], None]
) -> None:
    """Wherever the space ends, readers and restarts see nothing, and a retry stores it once."""
    copy = tmp_path / "copy"
    full = 0
    for pages in range(0, 60, 3):  # that are free
        for file in small.iterdir():
            file.unlink()
        path = make_database(small)
        store = open_store(path)
        commit(store, large(1))
        store.execute(f"PRAGMA cache_size={cache_pages}")
        with (small / "other").open("wb") as other:
            fill(other.fileno(), small, pages)
        batch = large(*range(2, 14))
        try:
            commit(store, batch)
        except StorageFullError:
            full += 1
            assert not store.connection.in_transaction
            assert seqs(path) == [1]
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(small, copy, ignore=lambda _, names: {"other"} & set(names))
            assert seqs(copy / path.name) == [1]
            assert is_whole(copy / path.name)
            (small / "other").unlink()
            commit(store, batch)
        assert seqs(path) == list(range(1, 14))
        assert is_whole(path)
        store.connection.close()
    figure(f"full at {full} places of one batch: 0 left something behind")
    assert full > 10


def fill(file: int, folder: Path, left_pages: int) -> None:
    """Use all space except a number of pages."""
    found = os.statvfs(folder)
    os.posix_fallocate(file, 0, (found.f_bavail - left_pages) * found.f_frsize)


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Writer]:
    one = Writer(make_database(tmp_path), DiskSpace(tmp_path, sleep=lambda _seconds: None))
    await one.open(1 << 20)
    yield one
    await one.close()


def connection_of(one: Writer) -> sqlite3.Connection:
    assert one._store is not None
    return one._store.connection


@pytest.mark.parametrize(
    "commands", [1, FEW_COMMANDS + 1, 5_001]
)  # in the event loop, in both, in the thread
async def test_batch_waits_for_room_and_is_stored_unchanged(opened: Writer, commands: int) -> None:
    connection = connection_of(opened)
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    assert opened._store is not None
    opened._store.commit_s = 0.0
    connection.execute(f"PRAGMA max_page_count={pages}").fetchone()
    seen: list[str] = []

    def make_room(_seconds: float) -> None:
        assert opened.space.write_problem == "the disk is full"
        seen.append(str(opened.space.write_problem))
        if len(seen) == 3:
            connection.execute("PRAGMA max_page_count=100000").fetchone()

    opened.space._sleep = make_room
    batch = large(*range(1, 20))
    batch.commands = commands
    await opened.commit(batch)
    assert len(seen) == 3
    assert seqs(opened.path) == list(range(1, 20))
    assert opened.space.write_problem is None


async def test_migration_waits_for_room(tmp_path: Path) -> None:
    """Like all writes of a start, it is retried, and blocks nothing else meanwhile."""
    one = Writer(tmp_path / "phpmq.db")
    await one.open(1 << 20)
    connection = connection_of(one)
    connection.execute("PRAGMA max_page_count=12").fetchone()
    seen: list[str | None] = []

    def make_room(_seconds: float) -> None:
        seen.append(one.space.write_problem)
        connection.execute("PRAGMA max_page_count=100000").fetchone()

    one.space._sleep = make_room
    applied = await one.run(lambda store: migrate(store.connection, migrations_folder()))
    assert seen == ["the disk is full"]
    assert applied
    assert pending(connection, migrations_folder()) == []
    await one.close()


async def test_close_does_not_wait_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log remains, and the next start reads it."""
    ends: list[object] = []
    one = Writer(make_database(tmp_path), on_fatal=ends.append)
    await one.open(1 << 20)
    await one.commit(batch_of_new(1))
    monkeypatch.setattr(SqliteStore, "checkpoint", lambda *_: fail(sqlite3.SQLITE_FULL))
    await one.close()
    assert ends == []
    assert seqs(one.path) == [1]


def fail(code: int) -> None:
    error = sqlite3.OperationalError("as SQLite says it")
    error.sqlite_errorcode = code
    raise error


# -- another program


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit how long SQLite waits for a lock to 20 ms."""
    monkeypatch.setitem(stores._PRAGMAS, "busy_timeout", 20)


@pytest.mark.usefixtures("impatient")
async def test_batch_is_kept_while_a_stranger_has_the_lock(opened: Writer) -> None:
    with closing(sqlite3.connect(opened.path, isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        is_known = asyncio.Event()
        loop = asyncio.get_running_loop()

        def tell() -> None:
            loop.call_soon_threadsafe(is_known.set)

        opened.space.on_change = tell
        done = opened.commit(batch_of_new(1))
        await is_known.wait()
        assert opened.space.write_problem == "another program keeps the database locked"
        assert not done.done()
        stranger.execute("ROLLBACK")
        await done
    assert seqs(opened.path) == [1]
    assert opened.space.write_problem is None


@pytest.mark.usefixtures("impatient")
async def test_lock_that_is_never_released_ends_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spaces, "MAX_TROUBLE_S", 0.0)
    ends: list[object] = []
    one = Writer(make_database(tmp_path), on_fatal=ends.append)
    await one.open(1 << 20)
    with closing(sqlite3.connect(one.path, isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        with pytest.raises(NotWritableError, match="locked"):
            await one.commit(batch_of_new(1))
        stranger.execute("ROLLBACK")
    assert len(ends) == 1
    await one.close()
    assert seqs(one.path) == []


# -- unknown outcomes


async def test_nothing_is_written_after_a_failure_of_unknown_outcome(tmp_path: Path) -> None:
    """An fsync is never retried: it would succeed for pages that the kernel has dropped."""
    ends: list[tuple[object, int]] = []
    one = Writer(
        make_database(tmp_path), on_fatal=lambda error: ends.append((error, threading.get_ident()))
    )
    await one.open(1 << 20)

    def break_it(store: SqliteStore) -> None:
        store.connection.set_authorizer(lambda *_: sqlite3.SQLITE_DENY)
        with translate_errors(store.connection):
            store.execute("SELECT 1")

    broken = one.start(break_it)  # as a checkpoint between two batches
    behind = one.commit(batch_of_new(1))
    with pytest.raises(OutcomeUnknownError, match="SQLITE_AUTH"):
        await broken
    with pytest.raises(OutcomeUnknownError, match="SQLITE_AUTH"):
        await behind
    connection_of(one).set_authorizer(None)
    with pytest.raises(OutcomeUnknownError):
        await one.commit(batch_of_new(1))
    assert len(ends) == 1
    assert ends[0][1] != threading.get_ident()  # at once, where it happened
    await one.close()
    assert seqs(one.path) == []


async def test_failure_after_a_commit_has_an_unknown_outcome(
    opened: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteStore, "many", lambda *_: fail(sqlite3.SQLITE_BUSY))
    batch = batch_of_new(1)
    batch.seqs.add(1)
    with pytest.raises(OutcomeUnknownError):
        await opened.commit(batch)
    assert seqs(opened.path) == [1]
