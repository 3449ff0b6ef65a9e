"""With one message in flight: the pages a commit writes, and its counts and numbers."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from phpmq_lite.installation import migrations_folder
from phpmq_lite.storage.migrations import read_migrations
from phpmq_lite.storage.sqlite.history_index import HistoryIndexer
from phpmq_lite.storage.sqlite.integrity.wal_format import read_frames, read_header
from phpmq_lite.storage.sqlite.migrate import migrate, split_statements
from tests.support.core_and_store import Driver

MESSAGES = 60
PAGES = {"body", "history", "history_seq", "message", "message_held"}


def commits(database: Path) -> Iterator[list[int]]:
    """Yield the pages that each commit in the WAL wrote."""
    with database.with_name(f"{database.name}-wal").open("rb") as file:
        header = read_header(file.read(32))
        pages: list[int] = []
        for frame in read_frames(file, header):
            pages.append(frame.page)
            if frame.commit:
                yield pages
                pages = []


def one_by_one(driver: Driver, count: int) -> None:
    """Publish messages; each batch also acknowledges the previous message."""
    client = driver.clients[0]
    for _ in range(count):
        if client.got:
            client.acknowledge("orders", client.got.pop().message_id)
        client.publish("orders", b"x" * 256)
        driver.turn()
        assert len(client.got) == 1


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    """Run a broker with a consumer of one message at a time."""
    made = Driver(tmp_path)
    made.connect().consume("orders", 1)
    made.turn()
    yield made
    made.close()


def test_lone_commit_writes_one_page_of_each_table_and_no_counter(driver: Driver) -> None:
    one_by_one(driver, 1)
    driver.store.checkpoint("TRUNCATE")
    one_by_one(driver, MESSAGES)
    written = list(commits(driver.path))
    assert len(written) == MESSAGES
    assert median(map(len, written)) == len(PAGES)
    roots = dict(driver.rows("SELECT rootpage, name FROM sqlite_schema"))
    found = Counter(roots[page] for pages in written for page in pages if page in roots)
    # The other tables have grown beyond their root pages, which are written less often.
    assert {name for name, count in found.items() if count == MESSAGES} <= PAGES


def test_kill_leaves_correct_counts_and_reuses_no_number(driver: Driver) -> None:
    one_by_one(driver, 10)
    number = driver.core.state.next_number
    assert driver.rows("SELECT value FROM counter WHERE name = 'next_number'") == []
    driver.kill_and_restart()
    row = driver.core.state.queues["orders"].row
    assert driver.core.state.next_number == number
    assert (row.live_count, row.live_bytes) == (1, 256)


def test_number_of_a_requeue_is_not_reused(driver: Driver) -> None:
    one_by_one(driver, 1)
    client = driver.clients[0]
    client.requeue("orders", client.got.pop().message_id)
    driver.turn()
    number = driver.core.state.next_number
    driver.kill_and_restart()
    assert (number, driver.core.state.next_number) == (3, 3)


def test_counts_are_stored_only_if_they_change(driver: Driver) -> None:
    update = "UPDATE queue SET live_count"
    texts: list[str] = []
    one_by_one(driver, 1)
    driver.store.connection.set_trace_callback(texts.append)
    one_by_one(driver, 2)
    assert [text for text in texts if text.startswith(update)] == []
    driver.clients[0].publish("orders", b"more")
    driver.turn()
    assert len([text for text in texts if text.startswith(update)]) == 1
    assert driver.rows("SELECT live_count, live_bytes FROM queue") == [(2, 260)]


# -- databases of the first schema


@pytest.fixture
def old(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database with the schema of the first migration only, and some rows."""
    folder = tmp_path / "first"
    folder.mkdir()
    first = read_migrations(migrations_folder())[0]
    (folder / f"{first.name}.sql").write_text(first.sql, encoding="utf-8")
    connection = sqlite3.connect(tmp_path / "phpmq.db", isolation_level=None)
    migrate(connection, folder)
    for statement in split_statements(
        "INSERT INTO history (seq, token, queue_id, position, outcome, settled_at, published_at,"
        " deliveries, charged, size, crc, urn) VALUES"
        " (3, 1, 1, 3, 2, 9, 8, 1, 0, 10, 7, 'a'), (1, 1, 1, 1, 5, 9, 8, 1, 0, 20, 7, NULL),"
        " (2, 1, 1, 2, 2, 9, 8, 1, 0, 30, 7, NULL);"
        'DELETE FROM history WHERE "offset" = 1;'
        "INSERT INTO receipt (queue_id, key, seq, at_ms) VALUES (1, x'6b', 3, 5);"
        "INSERT INTO counter VALUES ('history_rows', 1), ('history_bytes', 30),"
        " ('deleted_rows', 1), ('deleted_bytes', 20), ('history_lo', 2), ('next_number', 9);"
    ):
        connection.execute(statement)
    yield connection
    connection.close()


def totals(connection: sqlite3.Connection) -> dict[str, int]:
    return dict(connection.execute("SELECT name, value FROM counter"))


def test_history_and_keys_of_the_first_schema_are_kept(old: sqlite3.Connection) -> None:
    before = old.execute("SELECT * FROM history").fetchall()
    migrate(old, migrations_folder())
    assert old.execute("SELECT * FROM history").fetchall() == before
    assert old.execute("SELECT * FROM receipt").fetchall() == [(1, 1, 3, 5, 1, b"k")]
    assert "history_rows" not in totals(old)
    HistoryIndexer().run(old, 0, is_idle=True)
    assert totals(old) == {
        "history_rows": 1, "history_bytes": 30, "deleted_rows": 1, "deleted_bytes": 20,
        "history_lo": 2, "next_number": 9, "placed_upto": 3,
    }  # fmt: skip
    assert old.execute("SELECT next_number FROM line").fetchone() == (9,)
    old.execute("INSERT INTO history SELECT NULL, 4, token, queue_id, position, outcome, reason,"
                " settled_at, ttl_s, deadline_ms, published_at, first_dispatched_at,"
                " last_dispatched_at, deliveries, charged, size, crc, publisher, consumer, urn,"
                " trace_id, meta_id, attempts, source_seq, source_queue_id, source_reason"
                ' FROM history WHERE "offset" = 3')  # fmt: skip
    assert old.execute('SELECT max("offset") FROM history').fetchone() == (4,)
    assert old.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_offsets_restart_if_nothing_of_the_first_schema_is_left(old: sqlite3.Connection) -> None:
    old.execute("DELETE FROM history")
    migrate(old, migrations_folder())
    assert totals(old) == {"next_number": 9}


def test_lowest_offset_of_the_first_schema_precedes_every_new_row(old: sqlite3.Connection) -> None:
    """Offsets of removed newest rows are assigned again and must not be skipped."""
    old.execute('DELETE FROM history WHERE "offset" = 3')
    old.execute("UPDATE counter SET value = 4 WHERE name = 'history_lo'")
    migrate(old, migrations_folder())
    assert old.execute('SELECT max("offset") FROM history').fetchone() == (2,)
    assert totals(old) == {"history_lo": 3, "next_number": 9}
