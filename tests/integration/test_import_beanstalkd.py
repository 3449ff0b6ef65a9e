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
from tests.support.beanstalkd import BeanstalkdServer, beanstalkd_process, needs_beanstalkd
from tests.support.fork_server import BrokerProcess, ForkedProcess
from tests.support.socket_client import AdminApi, scheduled, take_all, take_contents
from tests.support.waiting import until

pytestmark = needs_beanstalkd
_numbers = count(1)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[BeanstalkdServer]:
    folder = tmp_path / "binlog"
    folder.mkdir()
    with beanstalkd_process(folder) as it:
        yield it


@pytest.fixture
def tube() -> str:
    """Return the name of a tube, and so of a queue, that no other test uses."""
    return f"tube-{next(_numbers)}"


def run(broker: BrokerProcess, source: BeanstalkdServer, *flags: str) -> Result:
    where = [source.address, "--url", f"phpmq://{broker.phpmq[0]}", "-o", "jsonl"]
    line = ["import", "beanstalkd", *where, *flags]
    return CliRunner().invoke(root_command, line, catch_exceptions=False)


def fill(source: BeanstalkdServer, tube: str) -> None:
    """Put a ready job of high priority between two others, a delayed and a buried one."""
    source.put(tube, b"second")
    source.put(tube, b"first", priority=1)
    source.put(tube, b"third \r\n\x00\xff")
    source.put(tube, b"later", delay_s=3_600)
    (buried,) = source.put(tube, b"broken")
    source.bury(buried)


def assert_all_arrived(broker: BrokerProcess, queue: str) -> None:
    """Reserve the jobs of ``fill`` once each, in order of priority."""
    rows = AdminApi(broker.admin[0]).get(f"/api/v1/queues/{queue}/messages?state=ready")["items"]
    assert [row["priority"] for row in rows] == [127, 128, 128]
    assert take_contents(broker, queue) == [b"first", b"second", b"third \r\n\x00\xff"]
    ((content, ready_in_s, priority),) = scheduled(broker, queue)
    assert (content, priority) == (b"later", 128)
    assert 3_500 < ready_in_s <= 3_600
    (record,) = take_contents(broker, f"{queue}.dlq")
    block = read_block(record)
    assert block is not None
    assert redrive_content(record) == b"broken"  # what a redrive publishes
    assert (block.original_queue, block.detail, block.attempts) == (queue, "buried", 1)


def states(source: BeanstalkdServer) -> dict[str, int]:
    stats = source.server.ask([b"stats"])[0].body.decode()
    lines = [line.partition(": ") for line in stats.splitlines()]
    found = {name.removeprefix("current-jobs-"): int(n) for name, _, n in lines if "-jobs-" in name}
    return {state: found[state] for state in ("ready", "delayed", "buried", "reserved")}


def test_copy_arrives_by_priority_and_leaves_beanstalkd_unchanged(
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


def test_delayed_job_arrives_in_the_queue_of_its_tube(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str
) -> None:
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


def test_reserved_job_stays_with_its_worker(
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
    assert take_contents(broker, tube) == [b"free"]
    assert source.server.ask([b"delete %d" % held, b"delete %d" % free])[0].words == [b"DELETED"]


def test_selected_tube_is_moved_to_a_mapped_queue(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str
) -> None:
    source.put(tube, b"wanted")
    source.put("other", b"left")
    done = run(broker, source, "--move", "--tube", tube, "--map", f"{tube}={tube}.new")
    assert done.exit_code == 0
    assert take_contents(broker, f"{tube}.new") == [b"wanted"]
    assert (take_all(broker, tube), take_all(broker, "other")) == ([], [])
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
        ("ready", "", 3), ("delayed", "", 1), ("buried", ".dlq", 1), ("reserved", "", 1)
    ]  # fmt: skip
    assert [row["held"] for row in rows] == [0, 0, 0, 1]
    assert states(source) == before


def test_journal_skips_jobs_stored_by_an_earlier_run(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str, tmp_path: Path
) -> None:
    """A move deletes them, too."""
    journal = ["--journal", str(tmp_path / "journal")]
    source.put(tube, b"old")
    assert run(broker, source, *journal).exit_code == 0
    source.put(tube, b"new")
    assert run(broker, source, *journal, "--dry-run").stderr.endswith("1 would be published\n")
    done = run(broker, source, *journal, "--move")
    assert done.stderr == "2 deleted from beanstalkd; 0 left\n1 stored\n"
    assert take_contents(broker, tube) == [b"old", b"new"]


def test_move_ignores_a_copy_to_another_queue(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str, tmp_path: Path
) -> None:
    """Otherwise the move would delete jobs that their own queue never received."""
    journal = ["--journal", str(tmp_path / "journal")]
    source.put(tube, b"wanted")
    assert run(broker, source, *journal, "--map", f"{tube}={tube}.rehearsal").exit_code == 0
    assert run(broker, source, *journal, "--move").exit_code == 0
    assert take_contents(broker, tube) == [b"wanted"]


def test_all_jobs_are_moved_after_beanstalkd_reread_its_binlog(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str
) -> None:
    """After a restart ids continue, but counters do not: ``total-jobs`` is 0."""
    ids = source.put(tube, *[b"%d" % number for number in range(50)])
    source.server.delete(ids[1:-1])
    source.stop()
    source.start()
    assert run(broker, source, "--move").exit_code == 0
    assert take_contents(broker, tube) == [b"0", b"49"]


def test_draining_beanstalkd_is_moved(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str
) -> None:
    """It accepts no job, so the import cannot learn the newest id."""
    ids = source.put(tube, *[b"%d" % number for number in range(50)])
    source.server.delete(ids[:-1])
    source.process.send_signal(signal.SIGUSR1)
    until(lambda: source.server.ask([b"put 1 0 1 0\r\n"])[0].words == [b"DRAINING"])
    assert run(broker, source, "--move").exit_code == 0
    assert take_contents(broker, tube) == [b"49"]


def test_job_ids_of_another_beanstalkd_are_not_duplicates(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str, tmp_path: Path
) -> None:
    """Otherwise a move would lose a job with the same id in the same tube."""
    assert source.put(tube, b"same") == [1]
    assert run(broker, source, "--move").exit_code == 0
    folder = tmp_path / "another"
    folder.mkdir()
    with beanstalkd_process(folder) as another:
        assert another.put(tube, b"same") == [1]
        assert run(broker, another, "--move").exit_code == 0
    assert take_contents(broker, tube) == [b"same", b"same"]


def test_job_that_cannot_be_stored_stays_ready_and_the_rest_is_moved(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str, tmp_path: Path
) -> None:
    source.put(tube, b"x" * 2_000, b"small")
    config = tmp_path / "limits.toml"
    config.write_text("[limits]\nmax_content = 1024\n")
    done = run(broker, source, "--move", "--config", str(config))
    assert done.exit_code == 1
    assert f"job 1 of tube {tube}: " in done.stderr
    assert done.stderr.endswith("1 stored\nError: messages that could not be stored: 1\n")
    assert take_contents(broker, tube) == [b"small"]
    until(lambda: states(source) == {"ready": 1, "delayed": 0, "buried": 0, "reserved": 0})


def test_at_most_ten_refusals_are_listed(
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
    until(lambda: states(source)["ready"] == 300)


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


def test_lost_beanstalkd_is_an_error_and_its_jobs_are_moved_later(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that was stored but not yet deleted is imported twice."""
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
    assert take_contents(broker, tube) == [b"once or twice"] * 2


def test_killed_move_loses_nothing_and_can_be_continued(
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
            until(lambda before=left: sum(states(source).values()) < before)  # type: ignore[misc]
            mover.kill()
            mover.wait(10)
            until(lambda: states(source)["reserved"] == 0)
            left = states(source)["ready"]
    assert 0 < left < jobs
    done = run(broker, source, "--move")
    assert done.exit_code == 0
    assert sum(states(source).values()) == 0
    assert take_contents(broker, tube) == bodies


def test_missing_tube_mapping_or_broker_is_named(
    broker: BrokerProcess, source: BeanstalkdServer, tube: str
) -> None:
    source.put(tube, b"stays")
    for flags, code, message in (
        (["--tube", "none"], 3, "beanstalkd has no tube 'none'"),
        (["--map", "none=some"], 3, "beanstalkd has no tube 'none'"),
        (["--map", "none"], 2, "'none' is not a valid mapping; use TUBE=QUEUE"),
        (["--url", "phpmq://127.0.0.1:1"], 1, "127.0.0.1:1"),
    ):
        done = run(broker, source, *flags)
        assert (flags, done.exit_code) == (flags, code)
        assert message in done.stderr
        assert states(source)["ready"] == 1


def test_wrong_address_of_beanstalkd_is_named(broker: BrokerProcess) -> None:
    for address, message in (
        ("127.0.0.1:1", "beanstalkd at 127.0.0.1:1: "),
        (broker.phpmq[0], "beanstalkd closed the connection"),
        ("127.0.0.1:port", "is not a valid address"),
        ("unix:/tmp/socket", "is not a valid address; use HOST:PORT"),
    ):
        done = CliRunner().invoke(root_command, ["import", "beanstalkd", address])
        assert done.exit_code != 0
        assert message in done.stderr
