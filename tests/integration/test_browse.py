"""Reading a real database: every row as stored, in order, and within limits."""

import hashlib
import re
from collections.abc import AsyncIterator
from dataclasses import fields
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.errors import ReadTooLongError, StorageError
from phpmq_lite.model import State, position_of
from phpmq_lite.storage.read import dead_letter_groups, messages
from phpmq_lite.storage.read.dead_letter_groups import DeadLetterGroups, DeadLetterPage
from phpmq_lite.storage.read.messages import MessageReader, MessageRow
from phpmq_lite.storage.sqlite.read_connections import SqliteReaders
from phpmq_lite.storage.statements import load
from tests.support.copied_readers import readers_of
from tests.support.statement_files import comments
from tests.unit.admin.cases import NOW_MS, Database, add_reader_functions


@pytest.fixture
def database(tmp_path: Path) -> Database:
    made = Database(tmp_path / "phpmq.db")
    add_reader_functions(made.connection)
    made.queue("orders", 1)
    made.queue("mail", 2)
    return made


@pytest.fixture
async def reader(database: Database) -> AsyncIterator[MessageReader]:
    readers = readers_of(database.path)
    yield MessageReader(readers)
    await readers.close()


def seqs(rows: list[MessageRow]) -> list[int]:
    return [row.seq for row in rows]


async def read_row(reader: MessageReader, message_id: str) -> MessageRow:
    row = await reader.message(message_id)
    assert row is not None
    return row


# -- queues


async def test_reader_finds_the_oldest_ready_by_position(
    database: Database, reader: MessageReader
) -> None:
    database.message(1, state=1, published_at=10)
    database.message(1, published_at=30, position=900)  # requeued, so after the next
    database.message(1, published_at=20)
    database.message(2, state=1)
    assert await reader.oldest_ready_at([1, 2, 3]) == {1: 20}


async def test_oldest_ready_message_may_have_any_priority_and_be_blocked(
    database: Database, reader: MessageReader
) -> None:
    """Ages count from when a message became ready, and urgent messages do not hide others."""
    for priority, state, published_at, ready_at in (
        (0, 0, 50, None), (128, 0, 10, 40), (128, 0, 41, None), (200, 0, 30, None), (255, 6, 1, 2),
    ):  # fmt: skip
        columns: dict[str, Any] = {
            "state": state,
            "published_at": published_at,
            "ready_at": ready_at,
        }
        position = position_of(database._next, priority)
        database.message(1, position=position, **columns)
    assert await reader.oldest_ready_at([1]) == {1: 30}
    database.message(1, state=7, published_at=20, group_name="a")
    assert await reader.oldest_ready_at([1]) == {1: 20}


async def test_heads_that_block_others_of_their_groups_are_found(
    database: Database, reader: MessageReader
) -> None:
    for group, state, since in (
        ("a", 6, 30), ("a", 7, None), ("b", 1, 20), ("c", 1, 10), ("c", 7, None), ("d", 0, None),
    ):  # fmt: skip
        database.message(1, state=state, group_name=group, head_since=since)
    rows = await reader.blocking_heads(1)
    assert [(row.group, row.head_since) for row in rows] == [("c", 10), ("a", 30)]
    assert await reader.blocking_heads(2) == []


async def test_pages_of_a_queue_with_priorities_go_both_ways(
    database: Database, reader: MessageReader
) -> None:
    for at in range(9):
        position = position_of(at + 1, (200, 128, 0)[at % 3])
        database.message(1, position=position, state=(0, 1, 6, 7)[at % 4])
    first = await reader.messages(1, limit=5)
    second = await reader.messages(1, after=first[-1].position, limit=5)
    assert seqs([*first, *second]) == [3, 6, 9, 2, 5, 8, 1, 4, 7]
    assert await reader.messages(1, before=second[0].position, limit=5) == first
    assert [row.priority for row in first] == [0, 0, 0, 128, 128]


async def test_reader_pages_through_a_queue_in_both_directions(
    database: Database, reader: MessageReader
) -> None:
    for at in range(7):
        database.message(1 if at != 3 else 2, position=100 - at)
    first = await reader.messages(1, limit=4)
    second = await reader.messages(1, after=first[-1].position, limit=4)
    assert (seqs(first), seqs(second)) == ([7, 6, 5, 3], [2, 1])
    assert await reader.messages(1, before=second[0].position, limit=4) == first


async def test_reader_filters_by_state(database: Database, reader: MessageReader) -> None:
    for at in range(6):
        database.message(1, state=at % 2)
    assert seqs(await reader.messages(1, states=(State.READY,))) == [1, 3, 5]
    assert seqs(await reader.messages(1, states=(State.DISPATCHED,))) == [2, 4, 6]
    assert seqs(await reader.messages(1, states=(State.DISPATCHED,), before=6, limit=1)) == [4]


async def test_reader_never_returns_more_than_a_page(
    database: Database, reader: MessageReader
) -> None:
    for _ in range(messages.PAGE_ROWS + 5):
        database.message(1)
    assert len(await reader.messages(1, limit=1_000_000)) == messages.PAGE_ROWS


async def test_row_has_the_names_of_the_clients(database: Database, reader: MessageReader) -> None:
    database.client(3, "10.0.0.1:5")
    database.client(4, "10.0.0.2:6", "unix")
    database.message(1, state=1, publisher=3, consumer=4, deliveries=2)
    (row,) = await reader.messages(1)
    assert (row.publisher_address, row.consumer_kind, row.consumer_address, row.queue) == (
        "10.0.0.1:5", "unix", "10.0.0.2:6", "orders",
    )  # fmt: skip


async def test_deadline_is_in_wall_time(database: Database, reader: MessageReader) -> None:
    database.set_counter("clock_step_ms", 3_600_000)
    database.message(1, deadline_ms=NOW_MS)
    (row,) = await reader.messages(1)
    assert row.deadline_at == NOW_MS + 3_600_000


async def test_reader_counts_soon_expiring_messages(
    database: Database, reader: MessageReader
) -> None:
    for deadline_ms in (None, NOW_MS + 5, NOW_MS + 3, NOW_MS + 900_000):
        database.message(1, deadline_ms=deadline_ms)
    database.message(2, deadline_ms=NOW_MS, state=1)
    assert await reader.expiring(NOW_MS + 600_000) == {1: (2, NOW_MS + 3)}


async def test_preview_is_cut_and_may_be_missing(database: Database, reader: MessageReader) -> None:
    for content in (b"x" * 5_000, b"", None):
        database.message(1, content)
    found = [row.preview for row in await reader.messages(1)]
    assert found == [b"x" * 480, None, None]


# -- one message


async def test_message_is_found_alive_and_settled(
    database: Database, reader: MessageReader
) -> None:
    alive = database.message(1)
    settled = database.settled(1, outcome=4, reason="client")
    live, dead = await read_row(reader, alive), await read_row(reader, settled)
    assert (live.message_id, live.is_alive) == (alive, True)
    assert (dead.message_id, dead.is_alive) == (settled, False)
    assert (dead.offset, State(dead.state), dead.reason) == (1, State.DEAD, "client")


async def test_message_is_not_found_by_its_number_alone(
    database: Database, reader: MessageReader
) -> None:
    known = database.message(1)
    assert await reader.message(known[:16] + "0" * 16) is None
    assert await reader.message("f" * 32) is None
    assert await reader.message("not an id") is None
    assert await reader.was_assigned(known[:16] + "0" * 16)
    assert not await reader.was_assigned("f" * 32)


async def test_record_names_the_message_it_is_about(
    database: Database, reader: MessageReader
) -> None:
    origin = database.settled(1, outcome=4)
    record = database.message(
        2, source_seq=int(origin[:16], 16), source_queue_id=1, source_reason="client"
    )
    row = await read_row(reader, record)
    assert (row.source_id, row.source_queue, row.source_reason) == (origin, "orders", "client")


async def test_large_body_is_cut_and_downloaded_whole(
    database: Database, reader: MessageReader
) -> None:
    content = bytes(range(256)) * 2_000
    row = await read_row(reader, database.message(1, content))
    head, whole = await reader.body(row), await reader.whole_body(row)
    assert head is not None
    assert whole is not None
    assert (head.size, head.content, head.is_whole, head.is_damaged) == (
        len(content), content[: messages.BODY_HEAD_BYTES], False, None,
    )  # fmt: skip
    assert (whole.content, whole.is_whole, whole.is_damaged) == (content, True, False)


async def test_body_up_to_the_limit_is_whole(database: Database, reader: MessageReader) -> None:
    for size in (0, messages.BODY_WHOLE_BYTES):
        row = await read_row(reader, database.message(1, b"x" * size))
        body = await reader.body(row)
        assert body is not None
        assert (len(body.content), body.is_whole) == (size, True)


async def test_damaged_body_is_noticed(database: Database, reader: MessageReader) -> None:
    row = await read_row(reader, database.message(1, b"good"))
    database.connection.execute("UPDATE body SET content = x'00'")
    body = await reader.body(row)
    assert body is not None
    assert body.is_damaged


async def test_body_that_has_left_is_none(database: Database, reader: MessageReader) -> None:
    row = await read_row(reader, database.settled(1, None))
    assert await reader.body(row) is None
    assert await reader.whole_body(row) is None


async def test_events_come_in_order(database: Database, reader: MessageReader) -> None:
    known = database.message(1)
    database.event(known, "return", "connection ended", 5)
    database.event(known, "requeue", None, 9)
    found = await reader.events(int(known[:16], 16))
    assert [(event.kind, event.detail, event.at_ms) for event in found] == [
        ("return", "connection ended", 5),
        ("requeue", None, 9),
    ]


# -- dead letters and history


async def test_dead_letters_are_grouped_by_cause(database: Database, reader: MessageReader) -> None:
    database.queue("orders.dlq", 3)
    database.queue("empty.dlq", 4, live=0)
    block = b'{"a":1,"dead_letter":{"reason":"failed","error":"Key %d is gone"}}'
    for at in range(3):
        database.message(
            3, block % at, source_queue_id=1, source_reason="client", urn="urn:a",
            published_at=NOW_MS - 3_600_000 * (at + 1),
        )  # fmt: skip
    database.message(3, b'{"dead_letter":{"error": "x"}}', source_queue_id=2, source_reason="crc")
    database.message(3, b"\xff\x00")
    database.message(2, block % 7)  # in no dead-letter queue
    found = await DeadLetterGroups(reader._readers).groups(NOW_MS)
    assert (found.scanned, found.total) == (5, 5)
    assert [(g.origin, g.urn, g.reason, g.cause, g.records, sum(g.bars)) for g in found.groups] == [
        (None, None, None, None, 1, 1),
        ("mail", None, "crc", "x", 1, 1),
        ("orders", "urn:a", "client", "Key * is gone", 3, 3),
    ]
    last = found.groups[-1]
    assert (last.first_at, last.last_at) == (NOW_MS - 3 * 3_600_000, NOW_MS - 3_600_000)
    assert last.sample_id == f"{3:016x}{3 * 7919:016x}"
    assert await DeadLetterGroups(reader._readers).groups(
        NOW_MS, queues=frozenset({1})
    ) == DeadLetterPage([], 0, 0)


async def test_group_counts_messages_that_died_again_after_a_redrive(
    database: Database, reader: MessageReader
) -> None:
    database.queue("orders.dlq", 3)
    record = database.message(3, seq=5)
    redriven = database.settled(1, outcome=4, seq=9)
    database.event(redriven, "redrive", record)
    database.event(record, "redrive", redriven)
    database.message(3, source_seq=9, source_queue_id=1, source_reason="client")
    [group, _] = (await DeadLetterGroups(reader._readers).groups(NOW_MS)).groups
    assert (group.origin, group.records, group.died_again) == ("orders", 1, 1)


async def test_grouping_of_many_dead_letters_is_limited(
    database: Database, reader: MessageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_groups, "_SLICE", 20)
    monkeypatch.setattr(dead_letter_groups, "_FIRST_SLICE", 20)
    for queue_id, name in ((3, "a.dlq"), (4, "b.dlq")):
        database.queue(name, queue_id, live=50)
        for _ in range(50):
            database.message(queue_id)
    with monkeypatch.context() as late:
        late.setattr(dead_letter_groups, "monotonic", chain([0.0] * 5, repeat(100.0)).__next__)
        found = await DeadLetterGroups(reader._readers).groups(NOW_MS)
    assert (found.scanned, found.total) == (40, 100)
    assert {group.queue for group in found.groups} == {"a.dlq", "b.dlq"}
    found = await DeadLetterGroups(reader._readers).groups(NOW_MS, limit_s=-1.0)
    assert found.scanned == 20
    # Everything is read unless it takes more than 1.5 s: here, 100 ms for each slice.
    monkeypatch.setattr(dead_letter_groups, "monotonic", count(step=0.1).__next__)
    assert (await DeadLetterGroups(reader._readers).groups(NOW_MS)).scanned == 100


async def test_history_pages_in_both_directions(database: Database, reader: MessageReader) -> None:
    for _ in range(7):
        database.settled(1)
    newest = await reader.history(limit=3)
    older = await reader.history(before=5, limit=3)
    last = await reader.history(before=2, limit=3)
    assert ([r.offset for r in newest.rows], newest.has_more) == ([7, 6, 5], True)
    assert ([r.offset for r in older.rows], older.has_more) == ([4, 3, 2], True)
    assert ([r.offset for r in last.rows], last.has_more) == ([1], False)
    back = await reader.history(after=4, limit=2)
    assert ([r.offset for r in back.rows], back.has_more) == ([6, 5], True)


FILTERS = [
    {"queue_id": 2},
    {"outcome": State.EXPIRED},
    {"outcome": State.ACKED},
    {"queue_id": 1, "outcome": State.ACKED},
    {"queue_id": 1, "outcome": State.DEAD},
    {"since": NOW_MS + 7, "until": NOW_MS + 31},
    {"queue_id": 2, "since": NOW_MS + 7},
    {"until": NOW_MS},
    {"since": NOW_MS + 99},
]


@pytest.mark.parametrize("placed", [0, 1, 23, 40])
@pytest.mark.parametrize("given", FILTERS)
async def test_history_filters_in_both_directions(
    database: Database,
    reader: MessageReader,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    placed: int,
) -> None:
    monkeypatch.setattr(messages, "_HISTORY_SLICE", 3)
    last = (1 << 16) - 20  # half of the rows are in the next block of places
    database.first_offset = last + 1
    for at in range(40):
        database.settled(1 + at % 3 % 2, outcome=2 + at % 7 % 4, settled_at=NOW_MS + at)
    database.connection.execute(
        load("history_index", "sqlite")["index_runs"], {"count": last + placed}
    )
    database.set_counter("placed_upto", last + placed)
    since, until = given.get("since", 0), given.get("until", 1 << 60)
    expected = [
        last + at + 1
        for at in range(40)
        if given.get("queue_id") in (None, 1 + at % 3 % 2)
        and given.get("outcome") in (None, 2 + at % 7 % 4)
        and since <= NOW_MS + at < until
    ]
    found: list[int] = []
    page = await reader.history(**given, limit=4)
    while page.rows:
        found += [row.offset or 0 for row in page.rows]
        page = await reader.history(**given, limit=4, before=found[-1])
    assert found == expected[::-1]
    found = []
    page = await reader.history(**given, limit=4, after=0)
    while page.rows:
        found += [row.offset or 0 for row in page.rows[::-1]]
        page = await reader.history(**given, limit=4, after=found[-1])
    assert found == expected


async def test_history_returns_how_far_it_searched_when_time_runs_out(
    database: Database, reader: MessageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acknowledged rows of all queues have no index, so they are scanned in slices."""
    monkeypatch.setattr(messages, "_HISTORY_SLICE", 2)
    monkeypatch.setattr(messages, "_HISTORY_LIMIT_S", -1.0)
    for _ in range(9):
        database.settled(1, outcome=3)
    page = await reader.history(outcome=State.ACKED)
    assert (page.rows, page.searched_to) == ([], 8)
    found = await reader.history(outcome=State.ACKED, before=page.searched_to)
    assert found.searched_to == 6


async def test_trash_contains_restorable_messages(
    database: Database, reader: MessageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = [database.settled(1 + at % 2, outcome=5) for at in range(6)]
    database.settled(1, outcome=4)
    database.settled(1, None, outcome=5)  # without its body
    restored = database.message(1)
    database.event(deleted[0], "restore", restored)
    database.event(restored, "restore", deleted[0])
    again = database.settled(1, outcome=5)  # restored once, and deleted again
    database.event(again, "restore", deleted[1])
    page = await reader.trash(limit=3)
    assert [row.message_id for row in page.rows] == [again, deleted[5], deleted[4]]
    page = await reader.trash(before=page.next, limit=9)
    assert [row.message_id for row in page.rows] == [deleted[3], deleted[2], deleted[1]]
    assert (page.next, page.is_cut) == (None, False)
    page = await reader.trash(queues=frozenset({2}))
    assert [row.message_id for row in page.rows] == [deleted[5], deleted[3], deleted[1]]
    monkeypatch.setattr(messages, "TRASH_SCANNED", 2)
    page = await reader.trash(queues=frozenset({2}))
    assert ([row.message_id for row in page.rows], page.is_cut) == ([], True)
    page = await reader.trash(queues=frozenset({2}), before=page.next)
    assert [row.message_id for row in page.rows] == [deleted[5]]


# -- several messages


async def test_rows_and_bodies_are_read_by_number(
    database: Database, reader: MessageReader
) -> None:
    database.message(1, b"a")
    database.settled(1, b"b")
    database.message(1, None)
    assert seqs(await reader.rows([3, 9, 1, 2])) == [3, 1, 2]
    assert await reader.bodies([1, 2, 3]) == {1: b"a", 2: b"b"}


async def test_links_name_the_other_messages(database: Database, reader: MessageReader) -> None:
    old, new = database.settled(1, outcome=5), database.message(1)
    database.event(old, "restore", new)
    database.event(new, "restore", old)
    database.event(new, "requeue", "by anna")
    found = await reader.links([1, 2])
    assert [(link.seq, link.kind, link.other_seq) for link in found] == [
        (1, "restore", 2),
        (2, "restore", 1),
    ]


async def test_parts_of_a_body_are_read_alone(database: Database, reader: MessageReader) -> None:
    content = bytes(range(256)) * 10_000
    row = await read_row(reader, database.message(1, content))
    part = await reader.body_part(row, 1_000_000, 300)
    assert part is not None
    assert (part.size, part.content) == (len(content), content[1_000_000:1_000_300])
    past = await reader.body_part(row, 1 << 40, 300)
    assert past is not None
    assert past.content == b""
    assert row.preview == content[:480]
    assert await reader.sha256(row) == hashlib.sha256(content).hexdigest()


async def test_sha256_of_large_bodies_comes_with_the_download(
    database: Database, reader: MessageReader
) -> None:
    large = await read_row(reader, database.message(1, b"x" * (messages.SHA256_BYTES + 1)))
    empty = await read_row(reader, database.message(1, b""))
    gone = await read_row(reader, database.settled(1, None, size=5))
    assert await reader.sha256(large) is None
    assert await reader.sha256(empty) == hashlib.sha256().hexdigest()
    assert await reader.sha256(gone) is None


async def test_empty_history_is_an_empty_page(reader: MessageReader) -> None:
    page = await reader.history()
    assert (page.rows, page.has_more, page.lowest, page.highest) == ([], False, None, None)


# -- the connections


async def test_reader_cannot_write(database: Database, reader: MessageReader) -> None:
    database.message(1)
    await reader.messages(1)
    with pytest.raises(StorageError, match=r"readonly|read-only"):
        await reader._readers.run("writing", "DELETE FROM message", {})


async def test_read_is_stopped_when_it_takes_too_long(database: Database) -> None:
    database.connection.execute(
        "INSERT INTO message (seq, token, queue_id, position, state, published_at, size, crc) "
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 200) "
        "SELECT x, x, 1, x, 0, 0, 0, 0 FROM n"
    )
    readers = SqliteReaders(database.path, limit_s=-1.0)
    with pytest.raises(ReadTooLongError, match="messages_after"):
        await MessageReader(readers).messages(1, limit=200)
    await readers.close()


async def test_reader_reports_a_missing_database(tmp_path: Path) -> None:
    readers = SqliteReaders(tmp_path / "missing.db")
    with pytest.raises(StorageError, match=r"missing\.db"):
        await MessageReader(readers).history()
    assert not (tmp_path / "missing.db").exists()
    await readers.close()


async def test_reader_opens_again_after_a_close(database: Database) -> None:
    readers = readers_of(database.path)
    for _ in range(2):
        assert await MessageReader(readers).messages(1) == []
        await readers.close()


PARAMETERS: dict[str, object] = {"queue_ids": "[1]", "queues": "[1]", "seqs": "[1]"}
STATEMENTS = load("messages", "sqlite")
INDEXES = [
    (name, index)
    for name, comment in comments("messages", "sqlite").items()
    for index in re.findall(r"^-- index(?: of SQLite)?: ([\w ]+)", comment, re.M)
]


def parameters(name: str) -> dict[str, object]:
    """Return a value for each parameter of a statement."""
    names = re.findall(r":(\w+)", STATEMENTS[name])
    return PARAMETERS | {key: 1 for key in names if key not in PARAMETERS}


@pytest.mark.parametrize(("name", "index"), INDEXES)
def test_statement_uses_its_index(database: Database, name: str, index: str) -> None:
    plan = database.connection.execute(f"EXPLAIN QUERY PLAN {STATEMENTS[name]}", parameters(name))
    assert any(index in row[3] for row in plan)


@pytest.mark.parametrize("name", STATEMENTS)
def test_statement_does_not_scan_a_table_of_messages(database: Database, name: str) -> None:
    plan = [
        row[3]
        for row in database.connection.execute(
            f"EXPLAIN QUERY PLAN {STATEMENTS[name]}", parameters(name)
        )
    ]
    scans = [
        step for step in plan if re.match(r"SCAN (m|b|message|body|event|history_run)\b", step)
    ]
    assert [step for step in scans if "INDEX" not in step] == []


ROWS = [
    "by_seq", "by_seqs", "messages_after", "messages_before",
    *(
        f"{kind}_{way}"
        for kind in ("history", "outcome", "acked", "queue", "queue_outcome")
        for way in ("older", "newer")
    ),
]  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_statement_has_the_columns_of_a_row(database: Database, name: str) -> None:
    cursor = database.connection.execute(STATEMENTS[name], parameters(name))
    assert len(cursor.description) == len(fields(MessageRow))
