"""The books of a soak say what the database has and what it lacks."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from phpmq_lite.installation import migrations_folder
from phpmq_lite.storage.data_folder import DATABASE
from phpmq_lite.storage.migrate import migrate
from tests.soak.ledger import SoakLedger, key_of


def store(data: Path, rows: dict[int, bytes]) -> None:
    """Put bodies into a database, which is made where there is none."""
    with closing(sqlite3.connect(data / DATABASE, isolation_level=None)) as database:
        migrate(database, migrations_folder())
        database.executemany("INSERT INTO body VALUES (?, ?)", rows.items())


@pytest.fixture
def books() -> SoakLedger:
    """Two messages, both confirmed."""
    made = SoakLedger()
    for _ in range(2):
        made.confirm(made.new())
    return made


async def test_everything_confirmed_is_found(books: SoakLedger, tmp_path: Path) -> None:
    store(tmp_path, {7: key_of(1) + b"body", 9: key_of(2)})
    await books.compare(tmp_path)
    assert books.offences == []
    assert books.dispatch(key_of(1), 7) == 1


async def test_lost_message_is_an_offence(books: SoakLedger, tmp_path: Path) -> None:
    store(tmp_path, {7: key_of(1)})
    await books.compare(tmp_path)
    assert books.offences == ["message 2 was confirmed and is lost"]
    assert books.counts["lost"] == 1


async def test_message_stored_twice_is_an_offence(books: SoakLedger, tmp_path: Path) -> None:
    store(tmp_path, {7: key_of(1), 8: key_of(2), 9: key_of(1)})
    await books.compare(tmp_path)
    assert books.offences == ["message 1 is stored twice, as 7 and 9"]


async def test_message_refused_and_stored_is_an_offence(books: SoakLedger, tmp_path: Path) -> None:
    books.refuse(books.new(), "disk full")
    store(tmp_path, {7: key_of(1), 8: key_of(2), 9: key_of(3)})
    await books.compare(tmp_path)
    assert books.offences == ["message 3 was refused and is stored"]


def test_message_that_comes_after_its_end_is_an_offence(books: SoakLedger) -> None:
    books.dispatch(key_of(1), 7)
    books.dispatch(key_of(1), 7)
    assert (books.counts["duplicates"], books.offences) == (1, [])
    books.end([1])
    books.dispatch(key_of(1), 7)
    assert books.offences == ["message 1 was dispatched after its end was stored"]


def test_message_that_was_requeued_is_no_duplicate(books: SoakLedger) -> None:
    books.dispatch(key_of(1), 7)
    books.requeue(1)
    books.dispatch(key_of(1), 7)
    assert books.counts["duplicates"] == 0


def test_strange_message_is_an_offence(books: SoakLedger) -> None:
    books.dispatch(key_of(3), 7)
    assert len(books.offences) == 1
