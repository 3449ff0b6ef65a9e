"""The ledger of a soak detects lost, repeated and unknown messages."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from phpmq_lite.installation import migrations_folder
from phpmq_lite.storage.data_folder import DATABASE
from phpmq_lite.storage.sqlite.migrate import migrate
from tests.soak.ledger import SoakLedger, key_of


def store(data: Path, rows: dict[int, bytes]) -> None:
    with closing(sqlite3.connect(data / DATABASE, isolation_level=None)) as database:
        migrate(database, migrations_folder())
        database.executemany("INSERT INTO body VALUES (?, ?)", rows.items())


@pytest.fixture
def ledger() -> SoakLedger:
    """Return a ledger with messages 1 and 2 confirmed, and message 3 refused."""
    made = SoakLedger()
    for _ in range(2):
        made.confirm(made.new())
    made.refuse(made.new(), "disk full")
    return made


@pytest.mark.parametrize(
    ("rows", "problems", "lost"),
    [
        ({7: key_of(1) + b"body", 9: key_of(2)}, [], 0),
        ({7: key_of(1)}, ["message 2 was confirmed and is lost"], 1),
        ({7: key_of(1), 8: key_of(2), 9: key_of(1)}, ["message 1 is stored twice, as 7 and 9"], 0),
        ({7: key_of(1), 8: key_of(2), 9: key_of(3)}, ["message 3 was refused and is stored"], 0),
    ],
    ids=["all stored", "lost", "stored twice", "refused and stored"],
)
async def test_ledger_is_compared_with_the_database(
    ledger: SoakLedger, tmp_path: Path, rows: dict[int, bytes], problems: list[str], lost: int
) -> None:
    store(tmp_path, rows)
    await ledger.compare(tmp_path)
    assert (ledger.problems, ledger.counts["lost"]) == (problems, lost)
    assert ledger.dispatch(key_of(1), 7) == 1


def test_message_dispatched_after_it_was_settled_is_a_problem(ledger: SoakLedger) -> None:
    ledger.dispatch(key_of(1), 7)
    ledger.dispatch(key_of(1), 7)
    assert (ledger.counts["duplicates"], ledger.problems) == (1, [])
    ledger.end([1])
    ledger.dispatch(key_of(1), 7)
    assert ledger.problems == ["message 1 was dispatched after its end was stored"]


def test_requeued_message_is_not_a_duplicate(ledger: SoakLedger) -> None:
    ledger.dispatch(key_of(1), 7)
    ledger.requeue(1)
    ledger.dispatch(key_of(1), 7)
    assert ledger.counts["duplicates"] == 0


def test_unknown_message_is_a_problem(ledger: SoakLedger) -> None:
    ledger.dispatch(key_of(4), 7)
    assert len(ledger.problems) == 1
