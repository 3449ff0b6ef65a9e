"""``import beanstalkd`` from a real beanstalkd into a real broker."""

import json
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from phpmq_lite.cli.main import root_command
from phpmq_lite.client import connect_blocking
from phpmq_lite.envelopes.dead_letter_record import read_block, redrive_content
from phpmq_lite.importers.beanstalkd import BeanstalkdClient, JobGroup
from tests.support.beanstalkd import (
    BeanstalkdServer,
    beanstalkd_process,
    needs_beanstalkd,
    wait_until,
)
from tests.support.fork_server import BrokerProcess, ForkedProcess, broker_process
from tests.support.socket_client import AdminApi, take_all

pytestmark = needs_beanstalkd
_numbers = count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("import") / "data", "--admin", "127.0.0.1:0") as it:
        yield it


@pytest.fixture
def source(tmp_path: Path) -> Iterator[BeanstalkdServer]:
    folder = tmp_path / "binlog"
    folder.mkdir()
    with beanstalkd_process(folder) as it:
        yield it


@pytest.fixture
def tube() -> str:
    """A tube, and so a queue, of this test alone."""
    return f"tube-{next(_numbers)}"


def run(broker: BrokerProcess, source: BeanstalkdServer, *flags: str) -> Result:
    where = [source.address, "--url", f"phpmq://{broker.phpmq[0]}", "-o", "jsonl"]
    line = ["import", "beanstalkd", *where, *flags]
    return CliRunner().invoke(root_command, line, catch_exceptions=False)


def take(broker: BrokerProcess, queue: str) -> list[tuple[bytes, int]]:
    """Take what a queue has: bodies and seconds left."""
    return [(dispatch.content, dispatch.ttl_s or 0) for dispatch in take_all(broker, queue)]


def fill(source: BeanstalkdServer, tube: str) -> None:
    """Put two ready jobs of one priority round one of a higher, one delayed, one buried."""
    source.put(tube, b"second")
    source.put(tube, b"first", priority=1)
    source.put(tube, b"third \r\n\x00\xff")
    source.put(tube, b"later", delay_s=3_600)
    (buried,) = source.put(tube, b"broken")
    source.bury(buried)


def assert_all_arrived(broker: BrokerProcess, queue: str) -> None:
    """Look for what ``fill`` has put, each once and in the order of the priorities."""
    assert [body for body, _ in take(broker, queue)] == [b"first", b"second", b"third \r\n\x00\xff"]
    ((later, left_s),) = take(broker, f"{queue}.retry")
    assert later == b"later"
    assert 3_500 < left_s <= 3_600
    ((record, _),) = take(broker, f"{queue}.dlq")
    block = read_block(record)
    assert block is not None
    assert redrive_content(record) == b"broken"  # what a redrive publishes
    assert (block.original_queue, block.detail, block.attempts) == (queue, "buried", 1)


def states(source: BeanstalkdServer) -> dict[str, int]:
    """Count the jobs of beanstalkd by state."""
    stats = source.server.ask([b"stats"])[0].body.decode()
    lines = [line.partition(": ") for line in stats.splitlines()]
    found = {name.removeprefix("current-jobs-"): int(n) for name, _, n in lines if "-jobs-" in name}
    return {state: found[state] for state in ("ready", "delayed", "buried", "reserved")}


def test_copy_arrives_by_priority_and_leaves_beanstalkd_as_it_was(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str
) -> None:
    fill(source, tube)
    before = states(source)
    done = run(broker, source)
    assert done.exit_code == 0
    assert done.stderr == (
        "the jobs remain in beanstalkd; use --move to delete stored jobs there\n5 stored\n"
    )
    assert_all_arrived(broker, tube)
    assert states(source) == before == {"ready": 3, "delayed": 1, "buried": 1, "reserved": 0}
    assert source.server.tubes() == ["default", tube]
    jobs = source.server.read_jobs(
        [(JobGroup(tube, 0, 0), job_id) for job_id in range(1, 6)], is_held=False
    )
    assert [job and job.reserves for job in jobs] == [0, 0, 0, 0, 1]  # the last by ``fill``


def test_move_empties_beanstalkd(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str
) -> None:
    fill(source, tube)
    done = run(broker, source, "--move")
    assert done.exit_code == 0
    assert done.stderr == "5 deleted from beanstalkd; 0 left\n5 stored\n"
    assert_all_arrived(broker, tube)
    assert sum(states(source).values()) == 0


def test_delay_is_over_where_the_job_belongs(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str
) -> None:
    """The shortest delay: a second in ``.retry``, then the queue of the tube has it."""
    source.put(tube, b"soon", delay_s=1)
    with (
        connect_blocking(broker.phpmq[0]) as client,
        client.consume(tube, timeout_s=30.0) as deliveries,
    ):
        assert run(broker, source, "--move").exit_code == 0
        delivery = next(deliveries)
        delivery.ack()
    assert delivery.body == b"soon"


def test_second_copy_stores_nothing_twice(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str
) -> None:
    fill(source, tube)
    for _ in range(3):
        assert run(broker, source).exit_code == 0
    assert_all_arrived(broker, tube)


def test_job_that_a_worker_has_stays_with_it(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str
) -> None:
    (held, free) = source.put(tube, b"held", b"free")
    source.server.ask([b"reserve-job %d" % held])
    done = run(broker, source, "--move")
    assert done.exit_code == 0
    assert done.stderr == (
        "1 deleted from beanstalkd; 1 left\n"
        "1 skipped: reserved by a worker; run the import again later\n1 stored\n"
    )
    assert [body for body, _ in take(broker, tube)] == [b"free"]
    assert source.server.ask([b"delete %d" % held, b"delete %d" % free])[0].words == [b"DELETED"]


def test_chosen_tube_goes_to_the_queue_of_another_name(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str
) -> None:
    source.put(tube, b"wanted")
    source.put("other", b"left")
    done = run(broker, source, "--move", "--tube", tube, "--map", f"{tube}={tube}.new")
    assert done.exit_code == 0
    assert [body for body, _ in take(broker, f"{tube}.new")] == [b"wanted"]
    assert (take(broker, tube), take(broker, "other")) == ([], [])
    assert states(source)["ready"] == 1


def test_dry_run_shows_everything_and_changes_nothing(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str
) -> None:
    fill(source, tube)
    (held,) = source.put(tube, b"held")
    source.server.ask([b"reserve-job %d" % held])
    before = states(source)
    done = run(broker, source, "--dry-run", "--move", "--url", "phpmq://127.0.0.1:1")
    assert done.exit_code == 0
    assert done.stderr.endswith("5 would be published\n")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    shown = [(row["state"], row["target"].removeprefix(tube), row["found"]) for row in rows]
    assert shown == [
        ("ready", "", 3), ("delayed", ".retry", 1), ("buried", ".dlq", 1), ("reserved", "", 1)
    ]  # fmt: skip
    assert [row["held"] for row in rows] == [0, 0, 0, 1]
    assert states(source) == before


def test_journal_leaves_out_what_an_earlier_run_stored(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str, tmp_path: Path
) -> None:
    """And a move deletes that, too."""
    journal = ["--journal", str(tmp_path / "journal")]
    source.put(tube, b"old")
    assert run(broker, source, *journal).exit_code == 0
    source.put(tube, b"new")
    assert run(broker, source, *journal, "--dry-run").stderr.endswith("1 would be published\n")
    done = run(broker, source, *journal, "--move")
    assert done.stderr == "2 deleted from beanstalkd; 0 left\n1 stored\n"
    assert [body for body, _ in take(broker, tube)] == [b"old", b"new"]


def test_copy_under_another_name_is_none_for_the_move(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str, tmp_path: Path
) -> None:
    """A move that took the rehearsal for done would delete jobs that their queue never had."""
    journal = ["--journal", str(tmp_path / "journal")]
    source.put(tube, b"wanted")
    assert run(broker, source, *journal, "--map", f"{tube}={tube}.rehearsal").exit_code == 0
    assert run(broker, source, *journal, "--move").exit_code == 0
    assert [body for body, _ in take(broker, tube)] == [b"wanted"]


def test_binlog_that_was_read_again_leaves_no_job_out(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str
) -> None:
    """After a restart ids go on and its counters do not: ``total-jobs`` is 0."""
    ids = source.put(tube, *[b"%d" % number for number in range(50)])
    source.server.delete(ids[1:-1])
    source.stop()
    source.start()
    assert run(broker, source, "--move").exit_code == 0
    assert [body for body, _ in take(broker, tube)] == [b"0", b"49"]


def test_beanstalkd_that_drains_is_moved_too(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str
) -> None:
    """It takes no job, so that nobody learns the newest id."""
    ids = source.put(tube, *[b"%d" % number for number in range(50)])
    source.server.delete(ids[:-1])
    source.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: source.server.ask([b"put 1 0 1 0\r\n"])[0].words == [b"DRAINING"])
    assert run(broker, source, "--move").exit_code == 0
    assert [body for body, _ in take(broker, tube)] == [b"49"]


def test_ids_of_a_new_beanstalkd_are_no_repetition(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str, tmp_path: Path
) -> None:
    """The same id in the same tube, and with ``--move`` it would be lost."""
    assert source.put(tube, b"same") == [1]
    assert run(broker, source, "--move").exit_code == 0
    folder = tmp_path / "another"
    folder.mkdir()
    with beanstalkd_process(folder) as another:
        assert another.put(tube, b"same") == [1]
        assert run(broker, another, "--move").exit_code == 0
    assert [body for body, _ in take(broker, tube)] == [b"same", b"same"]


def test_job_that_cannot_be_stored_stays_ready_and_the_rest_goes_on(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str, tmp_path: Path
) -> None:
    source.put(tube, b"x" * 2_000, b"small")
    config = tmp_path / "limits.toml"
    config.write_text("[limits]\nmax_content = 1024\n")
    done = run(broker, source, "--move", "--config", str(config))
    assert done.exit_code == 1
    assert f"job 1 of tube {tube}: " in done.stderr
    assert done.stderr.endswith("1 stored\nError: messages that could not be stored: 1\n")
    assert [body for body, _ in take(broker, tube)] == [b"small"]
    wait_until(lambda: states(source) == {"ready": 1, "delayed": 0, "buried": 0, "reserved": 0})


def test_queue_that_takes_nothing_is_told_in_ten_lines(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str
) -> None:
    source.put(tube, *[b"%d" % number for number in range(300)])
    with connect_blocking(broker.phpmq[0]) as client:
        client.publish_confirmed(tube, b"makes the queue")
    AdminApi(broker.admin[0]).pause(tube, "publish")
    done = run(broker, source, "--move")
    assert done.exit_code == 1
    refused = [line for line in done.stderr.splitlines() if line.endswith("refused: paused")]
    assert len(refused) == 10
    assert done.stderr.endswith("0 stored\nError: messages that could not be stored: 300\n")
    wait_until(lambda: states(source)["ready"] == 300)


def test_jobs_of_an_older_beanstalkd_are_moved_without_a_reservation(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(source, tube)
    begin = BeanstalkdClient.__init__

    def older(self: BeanstalkdClient, *given: Any) -> None:
        begin(self, *given)
        self.can_reserve = False

    monkeypatch.setattr(BeanstalkdClient, "__init__", older)
    done = run(broker, source, "--move")
    assert done.stderr.startswith("this beanstalkd cannot reserve jobs by id")
    assert done.exit_code == 0
    assert_all_arrived(broker, tube)


def test_beanstalkd_that_goes_away_is_an_error_and_what_it_had_is_moved_later(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored here, and not deleted there when it went: such a job comes twice."""
    source.put(tube, b"once or twice")

    delete = BeanstalkdClient.delete

    def gone(self: BeanstalkdClient, job_ids: list[int]) -> int:
        source.stop()
        return delete(self, job_ids)

    with monkeypatch.context() as patch:
        patch.setattr(BeanstalkdClient, "delete", gone)
        done = run(broker, source, "--move")
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: beanstalkd")
    source.start()
    assert run(broker, source, "--move").exit_code == 0
    assert [body for body, _ in take(broker, tube)] == [b"once or twice"] * 2


def test_move_that_is_killed_loses_nothing_and_is_gone_on_with(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str, tmp_path: Path
) -> None:
    jobs = 8_000
    bodies = [b"%d" % number for number in range(jobs)]
    source.put(tube, *bodies)
    left = jobs
    with (tmp_path / "stderr").open("w") as stderr:
        for _ in range(3):
            mover = ForkedProcess(
                [
                    "phpmq_lite", "import", "beanstalkd", source.address,
                    "--url", f"phpmq://{broker.phpmq[0]}", "--move",
                ],
                stderr=stderr,
            )  # fmt: skip
            wait_until(lambda before=left: sum(states(source).values()) < before)  # type: ignore[misc]
            mover.kill()
            mover.wait(10)
            wait_until(lambda: states(source)["reserved"] == 0)
            left = states(source)["ready"]
    assert 0 < left < jobs
    done = run(broker, source, "--move")
    assert done.exit_code == 0
    assert sum(states(source).values()) == 0
    assert [body for body, _ in take(broker, tube)] == bodies


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--tube", "none"], 3, "beanstalkd has no tube 'none'"),
        (["--map", "none=some"], 3, "beanstalkd has no tube 'none'"),
        (["--map", "none"], 2, "'none' is not a valid mapping; use TUBE=QUEUE"),
        (["--url", "phpmq://127.0.0.1:1"], 1, "127.0.0.1:1"),
    ],
)
def test_what_is_missing_is_named(
    broker: BrokerProcess,
    source: BeanstalkdServer,
    tube: str,
    flags: list[str],
    code: int,
    message: str,
) -> None:
    source.put(tube, b"stays")
    done = run(broker, source, *flags)
    assert done.exit_code == code
    assert message in done.stderr
    assert states(source)["ready"] == 1


def test_address_of_no_beanstalkd_is_named(broker: BrokerProcess) -> None:
    for address, message in (
        ("127.0.0.1:1", "beanstalkd at 127.0.0.1:1: "),
        (broker.phpmq[0], "beanstalkd closed the connection"),
        ("127.0.0.1:port", "is not a valid address"),
        ("unix:/tmp/socket", "is not a valid address; use HOST:PORT"),
    ):
        done = CliRunner().invoke(root_command, ["import", "beanstalkd", address])
        assert done.exit_code != 0
        assert message in done.stderr
