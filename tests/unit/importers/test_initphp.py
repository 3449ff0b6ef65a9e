"""Rows of InitPHP Queue: their target queues, keys, and configurable table names."""

import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from phpmq_lite.client.publishes import KeyedMessage
from phpmq_lite.envelopes import codec
from phpmq_lite.envelopes.dead_letter_record import read_block
from phpmq_lite.importers.initphp import InitphpError, InitphpRow, TableMapping, plan_row, read_rows

NOW_MS = 1_767_225_600_000  # 2026-01-01 00:00:00 UTC
PAYLOAD = codec.encode(
    codec.make("urn:babel:orders:created", {"n": 1}, queue="orders", trace_id="t-1")
    | {"attempts": 2}
)
FAILED = (
    PAYLOAD[:-1] + b',"dead_letter":{"reason":"failed","error":"no \\u00e9","exception":'
    b'"App\\\\Down","failed_at":1749132730000,"original_queue":"orders","attempts":3,"lang":"php"}}'
)

# columns that PdoTransport::createSchema of InitPHP Queue 2 creates in SQLite
JOBS = """CREATE TABLE jobs (id INTEGER PRIMARY KEY AUTOINCREMENT, queue VARCHAR(255) NOT NULL,
urn VARCHAR(255) NOT NULL, trace_id VARCHAR(64) NULL, attempts INT NOT NULL DEFAULT 0,
payload TEXT NOT NULL, available_at DATETIME NOT NULL, reserved_at DATETIME NULL,
created_at DATETIME NOT NULL)"""
JOBS_FAILED = """CREATE TABLE jobs_failed (id INTEGER PRIMARY KEY AUTOINCREMENT,
queue VARCHAR(255) NOT NULL, urn VARCHAR(255) NOT NULL, trace_id VARCHAR(64) NULL,
attempts INT NOT NULL DEFAULT 0, payload TEXT NOT NULL, reason VARCHAR(64) NOT NULL,
failed_at DATETIME NOT NULL, created_at DATETIME NOT NULL)"""


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    made = sqlite3.connect(":memory:")
    made.execute(JOBS)
    made.execute(JOBS_FAILED)
    yield made
    made.close()


def add_job(database: sqlite3.Connection, **columns: Any) -> None:
    given = {
        "queue": "orders", "urn": "urn:babel:orders:created", "payload": PAYLOAD.decode(),
        "available_at": "2025-12-31 23:00:00", "created_at": "2025-12-31 23:00:00",
    } | columns  # fmt: skip
    database.execute(
        f"INSERT INTO jobs ({', '.join(given)}) VALUES ({', '.join('?' * len(given))})",
        list(given.values()),
    )


def job(**members: Any) -> InitphpRow:
    given: dict[str, Any] = {
        "kind": "jobs", "row_id": 1, "queue": "orders", "payload": PAYLOAD,
        "available_ms": NOW_MS - 60_000,
    }  # fmt: skip
    return InitphpRow(**(given | members))


def failed(**members: Any) -> InitphpRow:
    given: dict[str, Any] = {
        "kind": "failed", "row_id": 1, "queue": "orders", "payload": FAILED,
        "reason": "failed", "failed_ms": NOW_MS - 60_000, "attempts": 3,
    }  # fmt: skip
    return InitphpRow(**(given | members))


def place(row: InitphpRow, now_ms: int = NOW_MS) -> tuple[str, float] | None:
    """Return queue and delay of the message sent."""
    message = plan_row(row, now_ms, source="a").message
    if message is None:
        return None
    assert message.ttl_s == 0
    return message.queue, (message.options or {}).get("delay_s", 0)


def planned(row: InitphpRow, source: str = "a") -> KeyedMessage:
    message = plan_row(row, NOW_MS, source=source).message
    assert message is not None
    return message


# -- target queues


def test_job_goes_to_its_queue_byte_for_byte_with_its_attempts() -> None:
    message = planned(job())
    assert (message.queue, message.content, message.ttl_s) == ("orders", PAYLOAD, 0)
    assert json.loads(message.content)["attempts"] == 2


@pytest.mark.parametrize(
    ("ms", "delay_s"), [(60_000, 60), (59_001, 59.001), (1, 0.001), (0, 0), (-6_000, 0)]
)
def test_job_waits_the_rest_of_its_delay(ms: int, delay_s: float) -> None:
    assert place(job(available_ms=NOW_MS + ms)) == ("orders", delay_s)


def test_later_run_sends_a_released_job_to_the_same_queue_under_the_same_key() -> None:
    row = job(available_ms=NOW_MS + 60_000)
    runs = [plan_row(row, now_ms, source="a").message for now_ms in (NOW_MS, NOW_MS + 3_600_000)]
    assert len({(m.queue, m.key, m.content) for m in runs if m is not None}) == 1


@pytest.mark.parametrize(("age_ms", "is_skipped"), [(0, True), (89_999, True), (90_000, False)])
def test_job_held_by_a_worker_is_skipped(age_ms: int, is_skipped: bool) -> None:
    assert (place(job(reserved_ms=NOW_MS - age_ms)) is None) == is_skipped


def test_table_without_times_has_no_delays() -> None:
    assert place(job(available_ms=None)) == ("orders", 0)


def test_failed_job_with_a_block_is_a_record_as_it_is() -> None:
    message = planned(failed())
    assert (message.queue, message.content, message.ttl_s) == ("orders.dlq", FAILED, 0)


@pytest.mark.parametrize(
    ("given", "reason", "detail"),
    [
        ("failed", "failed", "failed"),
        ("unknown_urn", "unknown_urn", "unknown_urn"),
        ("missing_trace_id", "poison", "missing_trace_id"),
        (None, "failed", "failed"),
    ],
)
def test_failed_job_gets_a_block(given: str | None, reason: str, detail: str) -> None:
    message = planned(failed(payload=PAYLOAD, reason=given))
    assert message.content.startswith(PAYLOAD[:-1])
    block = read_block(message.content)
    assert block is not None
    assert (block.reason, block.detail, block.original_queue) == (reason, detail, "orders")
    assert (block.failed_at, block.attempts, block.lang) == (NOW_MS - 60_000, 3, "php")


@pytest.mark.parametrize("payload", [b"", b"\xff\xfe", b"not json", b"[]", b'{"a":1'])
def test_failed_job_without_an_envelope_keeps_its_bytes_in_a_wrapper(payload: bytes) -> None:
    message = planned(failed(payload=payload))
    block = read_block(message.content)
    assert block is not None
    assert (block.reason, block.original_queue) == ("failed", "orders")


def test_plan_reports_the_problem_of_a_payload() -> None:
    assert plan_row(job(), NOW_MS, source="a").problem is None
    assert plan_row(job(payload=b"no"), NOW_MS, source="a").problem == "poison"
    wrong = PAYLOAD.replace(b'"trace_id":"t-1"', b'"trace_id":""')
    assert plan_row(job(payload=wrong), NOW_MS, source="a").problem == "missing_trace_id"


@pytest.mark.parametrize(
    "other",
    [
        job(row_id=2),
        job(queue="mail"),
        job(payload=PAYLOAD.replace(b'"attempts":2', b'"attempts":3')),
        failed(payload=PAYLOAD),
    ],
)
def test_keys_of_different_rows_differ(other: InitphpRow) -> None:
    assert planned(other).key != planned(job()).key
    assert len(planned(other).key) == 64


def test_database_is_part_of_the_key_only_without_a_meta_id() -> None:
    """A copy counts as the same database; equal row numbers of two databases are different rows."""
    assert planned(job(), "a").key == planned(job(), "b").key
    assert planned(job(payload=b"{}"), "a").key != planned(job(payload=b"{}"), "b").key


def test_rows_are_read_in_order_and_in_pages(database: sqlite3.Connection) -> None:
    for _ in range(1_203):
        add_job(database)
    database.execute("DELETE FROM jobs WHERE id % 3 = 0")
    found = [row.row_id for row in read_rows(database, "jobs", TableMapping(), UTC)]
    assert found == [number for number in range(1, 1_204) if number % 3]


def test_times_are_in_the_zone_of_the_php_processes(database: sqlite3.Connection) -> None:
    add_job(database, available_at="2026-01-01 01:00:00", reserved_at="2026-01-01 00:59:59")
    (row,) = read_rows(database, "jobs", TableMapping(), ZoneInfo("Europe/Berlin"))
    assert (row.available_ms, row.reserved_ms) == (NOW_MS, NOW_MS - 1_000)


def test_unix_seconds_are_valid_times(database: sqlite3.Connection) -> None:
    add_job(database, available_at=NOW_MS // 1_000, reserved_at=NOW_MS / 1_000)
    (row,) = read_rows(database, "jobs", TableMapping(), UTC)
    assert (row.available_ms, row.reserved_ms) == (NOW_MS, NOW_MS)


def test_binary_payload_is_read_as_bytes(database: sqlite3.Connection) -> None:
    for payload in (b"\xff\x00", "é"):
        add_job(database, payload=payload)
    found = [row.payload for row in read_rows(database, "jobs", TableMapping(), UTC)]
    assert found == [b"\xff\x00", "é".encode()]


def test_names_may_be_mapped() -> None:
    database = sqlite3.connect(":memory:")
    database.execute('CREATE TABLE "my jobs" (nr INTEGER PRIMARY KEY, "to" TEXT, "bo""dy" TEXT)')
    database.execute("""INSERT INTO "my jobs" VALUES (7, 'orders', '{}')""")
    columns = {"id": "nr", "queue": "to", "payload": 'bo"dy'}
    (row,) = read_rows(database, "jobs", TableMapping("my jobs", columns=columns), UTC)
    assert row == InitphpRow("jobs", 7, "orders", b"{}")
    other = {"id": "x", "queue": "to"}
    layout = TableMapping(failed="my jobs", columns=other, failed_columns=columns)
    assert next(read_rows(database, "failed", layout, UTC)).row_id == 7
    database.close()


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (TableMapping("queue"), "there is no table 'queue'"),
        (
            TableMapping(columns={"payload": "body"}),
            "no column 'body' for payload; found: id, queue",
        ),
        (TableMapping(columns={"reserved_at": "taken"}), "no column 'taken' for reserved_at"),
    ],
)
def test_missing_table_or_column_is_named(
    database: sqlite3.Connection, layout: TableMapping, message: str
) -> None:
    with pytest.raises(InitphpError, match=message):
        list(read_rows(database, "jobs", layout, UTC))


@pytest.mark.parametrize("value", ["soon", b"x", "2026-13-01 00:00:00"])
def test_invalid_time_is_named_with_its_row(database: sqlite3.Connection, value: object) -> None:
    add_job(database, available_at=value)
    with pytest.raises(InitphpError, match="row 1: available_at must be a date and time"):
        list(read_rows(database, "jobs", TableMapping(), UTC))
