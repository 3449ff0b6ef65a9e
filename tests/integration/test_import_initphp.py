"""``import initphp`` from an SQLite file into a real broker."""

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from phpmq_lite.cli.main import root_command
from phpmq_lite.client import connect_blocking
from phpmq_lite.envelopes import codec, producer
from phpmq_lite.envelopes.dead_letter_record import read_block
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.socket_client import scheduled, take_all, take_contents
from tests.unit.importers.test_initphp import JOBS, JOBS_FAILED

URN = "urn:babel:orders:created"
BLOCK = (
    b',"dead_letter":{"reason":"failed","error":"Payment gateway timeout","exception":"Gateway",'
    b'"failed_at":1749132730000,"original_queue":"orders","attempts":3,"lang":"php"}}'
)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "queue.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(JOBS)
        connection.execute(JOBS_FAILED)
    return path


def at(seconds: float = 0) -> str:
    """Return the time in ``seconds`` from now, as PHP formats it."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S")


def payload(number: int, attempts: int = 0) -> bytes:
    envelope = codec.make(URN, {"n": number}, queue="orders") | {"attempts": attempts}
    return producer.prepare_publish(envelope).content


def insert(database: Path, table: str, **columns: Any) -> None:
    given = {"urn": URN, "created_at": at(-600)} | columns
    names, marks = ", ".join(given), ", ".join("?" * len(given))
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(given.values()))


def add_job(database: Path, queue: str, body: bytes, **columns: Any) -> None:
    """Insert a job that is ready unless ``columns`` say otherwise."""
    given = {"queue": queue, "payload": body.decode(), "available_at": at(-600)} | columns
    insert(database, "jobs", **given)


def fill(database: Path, queue: str) -> list[bytes]:
    """Insert two ready jobs, a delayed, a reserved and two failed ones; return the bodies."""
    bodies = [payload(number, attempts=number % 3) for number in range(6)]
    for body in bodies[:2]:
        add_job(database, queue, body)
    add_job(database, queue, bodies[2], available_at=at(3_600))
    add_job(database, queue, bodies[3], reserved_at=at())
    failed = bodies[4][:-1] + BLOCK
    for body, reason in ((failed, "failed"), (bodies[5], "invalid_data")):
        insert(
            database, "jobs_failed", queue=queue, payload=body.decode(), attempts=3,
            reason=reason, failed_at=at(-60),
        )  # fmt: skip
    bodies[4] = failed
    return bodies


def run(broker: BrokerProcess, database: Path, *flags: str) -> Result:
    where = [
        "import", "initphp", str(database), "--url", f"phpmq://{broker.phpmq[0]}", "-o", "jsonl",
    ]  # fmt: skip
    return CliRunner().invoke(root_command, [*where, *flags], catch_exceptions=False)


def test_jobs_keep_body_attempts_and_delay_and_failed_ones_their_error(
    broker: BrokerProcess, database: Path, queue: str
) -> None:
    bodies = fill(database, queue)
    before = database.read_bytes()
    done = run(broker, database)
    assert done.exit_code == 0
    assert done.stderr == (
        "1 skipped: reserved by a worker; run the import again later\n5 stored\n"
    )
    assert [(job.content, job.ttl_s or 0) for job in take_all(broker, queue)] == [
        (bodies[0], 0), (bodies[1], 0)
    ]  # fmt: skip
    ((content, ready_in_s, priority),) = scheduled(broker, queue)
    assert (content, priority) == (bodies[2], 128)
    assert 3_500 < ready_in_s <= 3_600
    first, second = take_contents(broker, f"{queue}.dlq")
    assert first == bodies[4]
    block = read_block(second)
    assert block is not None
    assert (block.reason, block.detail, block.attempts) == ("poison", "invalid_data", 3)
    assert second.startswith(bodies[5][:-1])
    assert database.read_bytes() == before


def test_second_run_stores_nothing_twice(broker: BrokerProcess, database: Path, queue: str) -> None:
    bodies = fill(database, queue)
    for _ in range(3):
        assert run(broker, database, "--retry-after", "0s").exit_code == 0
    assert take_contents(broker, queue) == [bodies[0], bodies[1], bodies[3]]
    assert [content for content, *_ in scheduled(broker, queue)] == [bodies[2]]
    assert len(take_all(broker, f"{queue}.dlq")) == 2


def test_released_job_returns_to_its_queue_after_its_delay(
    broker: BrokerProcess, database: Path, queue: str
) -> None:
    body = payload(1, attempts=1)
    add_job(database, queue, body, available_at=at(-60))
    with (
        connect_blocking(broker.phpmq[0]) as client,
        client.consume(queue, timeout_s=30.0) as deliveries,
    ):
        assert run(broker, database).exit_code == 0
        delivery = next(deliveries)
        delivery.ack()
    assert delivery.body == body


def test_dry_run_shows_everything_and_does_not_connect(
    broker: BrokerProcess, database: Path, queue: str
) -> None:
    fill(database, queue)
    add_job(database, queue, b"{}")
    done = run(broker, database, "--dry-run", "--url", "phpmq://127.0.0.1:1")
    assert done.exit_code == 0
    assert done.stderr.endswith("6 would be published\n")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    shown = [(row["table"], row["target"].removeprefix(queue), row["found"]) for row in rows]
    assert shown == [("jobs", "", 5), ("jobs_failed", ".dlq", 2)]
    assert [row["held"] for row in rows] == [1, 0]
    assert rows[0]["reasons"] == {"poison": 1}
    assert take_all(broker, queue) == []


def test_journal_skips_jobs_stored_by_an_earlier_run(
    broker: BrokerProcess, database: Path, queue: str, tmp_path: Path
) -> None:
    fill(database, queue)
    journal = str(tmp_path / "journal")
    assert run(broker, database, "--journal", journal).exit_code == 0
    add_job(database, queue, payload(9))
    done = run(broker, database, "--journal", journal, "--dry-run")
    assert done.stderr.endswith("1 would be published\n")
    done = run(broker, database, "--journal", journal)
    assert done.stderr.endswith("1 stored\n")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert sum(row["before"] for row in rows) == 5


def test_import_of_many_jobs_keeps_their_order(
    broker: BrokerProcess, database: Path, queue: str
) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.executemany(
            "INSERT INTO jobs (queue, urn, payload, available_at, created_at)"
            " VALUES (?, '', ?, '2026-01-01', '2026-01-01')",
            [(queue, payload(number).decode()) for number in range(1_700)],
        )
    assert run(broker, database, "--no-failed").stderr == "1,700 stored\n"
    assert [json.loads(body)["data"]["n"] for body in take_contents(broker, queue)] == list(
        range(1_700)
    )


def test_row_that_cannot_be_stored_is_named_and_the_rest_is_imported(
    broker: BrokerProcess, database: Path, queue: str
) -> None:
    for name in (queue, "a" * 300, queue):
        add_job(database, name, payload(1))
    done = run(broker, database)
    assert done.exit_code == 1
    assert "jobs row 2 for aaa" in done.stderr
    assert done.stderr.endswith("2 stored\nError: messages that could not be stored: 1\n")


def test_row_above_the_brokers_limit_is_named_and_the_rest_is_imported(
    tmp_path: Path, database: Path
) -> None:
    for body in (payload(1), b"x" * 200_000, payload(2)):
        add_job(database, "orders", body)
    with broker_process(tmp_path / "data", "--set", "limits.max_content=100000") as broker:
        done = run(broker, database)
    assert done.exit_code == 1
    limit = "content is 200000 bytes; the limit is 100000 (limits.max_content)"
    assert f"jobs row 2 for orders: {limit}" in done.stderr
    assert done.stderr.endswith("2 stored\nError: messages that could not be stored: 1\n")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--table", "queue"], "there is no table 'queue'"),
        (["--column", "payload=body"], "table 'jobs' has no column 'body' for payload"),
        (["--failed-table", "dead"], "there is no table 'dead'"),
    ],
)
def test_missing_table_or_column_is_reported_in_one_line(
    broker: BrokerProcess, database: Path, flags: list[str], message: str
) -> None:
    done = run(broker, database, *flags)
    assert (done.exit_code, done.stdout) == (1, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_nothing_is_imported_if_the_second_table_is_missing(
    broker: BrokerProcess, database: Path, queue: str
) -> None:
    add_job(database, queue, payload(1))
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("DROP TABLE jobs_failed")
    done = run(broker, database)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == (
        "Error: there is no table 'jobs_failed'; found: jobs. Use --failed-table or --no-failed\n"
    )
    assert run(broker, database, "--no-failed").stderr == "1 stored\n"
    assert len(take_all(broker, queue)) == 1


@pytest.mark.parametrize(
    "flags", [["--column", "nonsense=body"], ["--column", "payload"], ["--timezone", "Mars/North"]]
)
def test_wrong_flags_are_usage_errors(
    broker: BrokerProcess, database: Path, flags: list[str]
) -> None:
    assert run(broker, database, *flags).exit_code == 2
