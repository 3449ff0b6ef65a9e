"""The outbox on disk and a relay in a separate process, against a real broker."""

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from phpmq_lite.cli.main import root_command
from phpmq_lite.client import connect_blocking
from phpmq_lite.envelopes.outbox import Outbox, create_tables
from tests.support.fork_server import BrokerProcess, ForkedProcess, broker_process
from tests.support.killed_relay import PLACES
from tests.support.socket_client import AdminApi, take_contents

URN = "urn:babel:orders:created"
ROWS = 60


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE sale (n INTEGER)")
        create_tables(connection)
    return path


def sell(database: Path, queue: str, *numbers: int) -> None:
    """Store each sale and its envelope in one transaction."""
    with closing(sqlite3.connect(database)) as connection:
        outbox = Outbox(connection, queue=queue)
        for number in numbers:
            with connection:
                connection.execute("INSERT INTO sale VALUES (?)", (number,))
                outbox.publish(URN, {"n": number})


def run(*arguments: str) -> Result:
    return CliRunner().invoke(root_command, ["outbox", *arguments], catch_exceptions=False)


def relay(broker: BrokerProcess, database: Path, *flags: str) -> Result:
    where = ["--url", f"phpmq://{broker.phpmq[0]}", "--database", str(database)]
    return run("relay", "--once", *flags, *where)


def stored(broker: BrokerProcess, queue: str) -> list[int]:
    """Consume the messages of a queue; return ``data.n`` of each, in order."""
    return [json.loads(content)["data"]["n"] for content in take_contents(broker, queue)]


def bodies(database: Path) -> list[bytes]:
    with closing(sqlite3.connect(database)) as connection:
        return [row[0] for row in connection.execute("SELECT body FROM phpmq_outbox ORDER BY seq")]


def test_relay_publishes_committed_rows_byte_for_byte(
    broker: BrokerProcess, database: Path, queue: str
) -> None:
    sell(database, queue, 1, 2)
    with closing(sqlite3.connect(database)) as connection:
        Outbox(connection, queue=queue).publish(URN, {"n": 3})  # never committed
    done = relay(broker, database)
    assert (done.exit_code, done.stderr) == (0, "2 published\n")
    with connect_blocking(broker.phpmq[0]) as client, client.consume(queue) as deliveries:
        assert [next(deliveries).body, next(deliveries).body] == bodies(database)
    assert relay(broker, database).stderr == "0 published\n"


@pytest.mark.parametrize(
    ("change", "name", "reason"),
    [
        (
            "body = zeroblob(9000000)",
            "{queue}",
            "content is 9000000 bytes; the limit is 8388608 (limits.max_content)",
        ),
        ("queue = ''", "", "a queue name must have 1 to 255 bytes, not 0"),
    ],
    ids=["large", "no queue"],
)
def test_refused_row_stays_and_status_shows_it(
    broker: BrokerProcess, database: Path, queue: str, change: str, name: str, reason: str
) -> None:
    """Our writers would refuse such a row; another program wrote it."""
    sell(database, queue, 1, 2, 3)
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(f"UPDATE phpmq_outbox SET {change} WHERE seq = 2")
    done = relay(broker, database)
    assert done.exit_code == 1
    target = name.format(queue=queue)
    assert f" for {target or 'no queue'} was not published: {reason}\n2 published\n" in done.stderr
    assert done.stderr.endswith("Error: 1 row left; `phpmq-lite outbox status` has details\n")
    assert stored(broker, queue) == [1, 3]
    (row,) = map(json.loads, run("status", "--database", str(database)).stdout.splitlines())
    assert (row["queue"], row["waiting"], row["failing"]) == (target, 1, 1)
    assert row["error"] == reason


def test_row_above_the_brokers_limit_is_named_and_the_others_are_published(
    tmp_path: Path, database: Path
) -> None:
    sell(database, "orders", 1, 2, 3)
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE phpmq_outbox SET body = zeroblob(200000) WHERE seq = 2")
    flags = ("--set", "limits.max_content=100000", "--admin", "127.0.0.1:0")
    with broker_process(tmp_path / "data", *flags) as broker:
        done = relay(broker, database)
        assert done.exit_code == 1
        assert "content is 200000 bytes; the limit is 100000 (limits.max_content)" in done.stderr
        assert stored(broker, "orders") == [1, 3]


def test_paused_queue_keeps_its_rows_and_its_order(
    broker: BrokerProcess, database: Path, queue: str
) -> None:
    other = f"{queue}.other"
    sell(database, queue, 1)
    assert relay(broker, database).exit_code == 0  # creates the queue
    admin = AdminApi(broker.admin[0])
    admin.pause(queue, "publish")
    sell(database, queue, 2, 3)
    sell(database, other, 4)
    done = relay(broker, database)
    assert done.exit_code == 1
    assert "1 published\n" in done.stderr
    assert "paused" in done.stderr
    admin.resume(queue, "publish")
    assert relay(broker, database).exit_code == 0
    assert (stored(broker, queue), stored(broker, other)) == ([1, 2, 3], [4])


def killed(
    broker: BrokerProcess, database: Path, place: str, times: int, *, is_mutant: bool = False
) -> int:
    """Run a relay that is killed at a place; return its exit code."""
    program = ["tests.support.killed_relay", place, str(times), *(["mutant"] if is_mutant else [])]
    flags = [*program, "--", "outbox", "relay", "--once"]
    return start_relay(broker, database, *flags).wait(60)


def start_relay(broker: BrokerProcess, database: Path, *arguments: str) -> ForkedProcess:
    """Start a process that relays; it appends its messages to a log."""
    where = ["--url", f"phpmq://{broker.phpmq[0]}", "--database", str(database)]
    with log_of(database).open("a", encoding="utf-8") as log:
        return ForkedProcess([*arguments, *where], stderr=log)


def log_of(database: Path) -> Path:
    """Return the file of the messages of the relays."""
    return database.with_name("relay.log")


@pytest.mark.parametrize("place", PLACES)
def test_killed_relay_publishes_each_row_once_and_in_order(
    broker: BrokerProcess, database: Path, queue: str, place: str
) -> None:
    sell(database, queue, *range(ROWS))
    for times in (1, 2, 3):
        assert killed(broker, database, place, times) == -signal.SIGKILL
    assert relay(broker, database).exit_code == 0
    assert stored(broker, queue) == list(range(ROWS))


@pytest.mark.parametrize("place", ["half sent", "sent", "answered"])
def test_kill_detects_a_relay_with_other_keys_each_time(
    broker: BrokerProcess, database: Path, queue: str, place: str
) -> None:
    """The test above fails for a relay without stable keys."""
    sell(database, queue, *range(ROWS))
    assert killed(broker, database, place, 1, is_mutant=True) == -signal.SIGKILL
    assert relay(broker, database).exit_code == 0
    assert len(stored(broker, queue)) > ROWS


def test_two_relays_at_once_publish_each_row_once_and_in_order(
    broker: BrokerProcess, database: Path, queue: str
) -> None:
    queues = [f"{queue}.{number}" for number in range(3)]
    for name in queues:
        sell(database, name, *range(40))
    program = ["tests.support.killed_relay", "nowhere", "1", "--"]
    command = [*program, "outbox", "relay", "--interval", "0.01"]
    relays = [start_relay(broker, database, *command) for _ in range(2)]
    try:
        assert [stored_when_complete(broker, name, 40) for name in queues] == [list(range(40))] * 3
    finally:
        for process in relays:
            process.terminate()
        codes = [process.wait(30) for process in relays]
    assert codes == [0, 0]
    lines = log_of(database).read_text(encoding="utf-8").splitlines()
    assert sum(int(line.split()[0]) for line in lines) == 120


def stored_when_complete(broker: BrokerProcess, queue: str, count: int) -> list[int]:
    """Wait for ``count`` messages, and for another second in case of duplicates."""
    with connect_blocking(broker.phpmq[0]) as client:
        found: list[int] = []
        with client.consume(queue, timeout_s=30.0) as deliveries:
            while len(found) < count:
                delivery = next(deliveries)
                found.append(json.loads(delivery.body)["data"]["n"])
                delivery.ack()
        for delivery in client.consume(queue, timeout_s=1.0):
            found.append(json.loads(delivery.body)["data"]["n"])
            delivery.ack()
    return found


def test_relay_continues_when_the_broker_returns(tmp_path: Path, database: Path) -> None:
    with broker_process(tmp_path / "data", "--admin", "127.0.0.1:0") as broker:
        command = ["phpmq_lite", "outbox", "relay", "--interval", "0.01"]
        process = start_relay(broker, database, *command)
        try:
            sell(database, "orders", 1)
            first = stored_when_complete(broker, "orders", 1)
            broker.kill()
            sell(database, "orders", 2, 3)
            broker.start()
            second = stored_when_complete(broker, "orders", 2)
        finally:
            process.terminate()
            code = process.wait(60)
    assert (first, second) == ([1], [2, 3])
    lost, again, published = log_of(database).read_text(encoding="utf-8").splitlines()
    address = f"127.0.0.1:{broker.port}"
    assert (code, published) == (0, "3 published")
    assert lost.startswith(f"the connection to {address} is lost (")
    assert again == f"connected to {address} again"


def test_missing_table_is_named_and_can_be_created(broker: BrokerProcess, tmp_path: Path) -> None:
    path = tmp_path / "empty.sqlite"
    sqlite3.connect(path).close()
    path.touch()
    done = relay(broker, path)
    assert (done.exit_code, done.stderr) == (
        1,
        "Error: empty.sqlite contains no table phpmq_outbox; `phpmq-lite outbox init` creates it\n",
    )
    assert run("init", "--database", str(path)).exit_code == 0
    assert relay(broker, path).stderr == "0 published\n"
    assert run("status", "--database", str(path), "-o", "table").stderr == "no rows are waiting\n"


def test_file_that_is_not_a_database_is_reported_in_one_line(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear broker, " * 100)
    done = relay(broker, path)
    assert (done.exit_code, done.stderr) == (1, "Error: letter.txt: file is not a database\n")


@pytest.mark.parametrize("table", ["a b", "a;b"])
def test_invalid_table_name_is_a_usage_error(
    broker: BrokerProcess, database: Path, table: str
) -> None:
    assert relay(broker, database, "--table", table).exit_code == 2


def test_relay_without_a_broker_ends_with_an_error(database: Path) -> None:
    done = run("relay", "--once", "--url", "phpmq://127.0.0.1:1", "--database", str(database))
    assert done.exit_code == 1
    assert "cannot connect" in done.stderr
