"""With one message in flight: the pages a commit writes, and its counts and numbers."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from phpmq_lite.storage.sqlite.integrity.wal_check import read_frames, read_header
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
    number = driver.core.next_number
    assert driver.rows("SELECT value FROM counter WHERE name = 'next_number'") == []
    driver.kill_and_restart()
    row = driver.core.queues["orders"].row
    assert driver.core.next_number == number
    assert (row.live_count, row.live_bytes) == (1, 256)


def test_number_of_a_requeue_is_not_reused(driver: Driver) -> None:
    one_by_one(driver, 1)
    client = driver.clients[0]
    client.requeue("orders", client.got.pop().message_id)
    driver.turn()
    number = driver.core.next_number
    driver.kill_and_restart()
    assert (number, driver.core.next_number) == (3, 3)


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
