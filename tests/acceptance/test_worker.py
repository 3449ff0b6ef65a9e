"""``phpmq-lite worker`` on a running broker: all outcomes of jobs, and killed workers."""

import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.envelopes import dead_letter_record
from tests.support.envelope_cases import CASES, Case, record_of
from tests.support.fork_server import BrokerProcess, ForkedProcess
from tests.support.killing_proxy import KillingProxy, Moment
from tests.support.socket_client import WAIT_S, AdminApi, SocketClient
from tests.support.waiting import until

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parent.parent.parent


def envelope(what: str | None = None, urn: str = "urn:test:do", **data: Any) -> dict[str, Any]:
    """Return an envelope built as another service does, without the code under test."""
    return {
        "job": urn,
        "trace_id": str(uuid.uuid4()),
        "data": {"what": what} | data,
        "meta": {"id": str(uuid.uuid4()), "queue": "q", "lang": "go", "schema_version": 1,
                 "created_at": 1},
        "attempts": 0,
    }  # fmt: skip


def encoded(made: dict[str, Any]) -> bytes:
    """Encode with spaces and an escape, so that the test detects a re-encoding."""
    return json.dumps(made, separators=(", ", ": ")).encode().replace(b"go", b"g\\u006f")


@dataclass
class Crew:
    """Workers of one queue, the runs that their handlers recorded, and their logs."""

    folder: Path
    port: int
    queue: str
    started: list[ForkedProcess] = field(default_factory=list)

    def start(self, *flags: str, port: int | None = None) -> ForkedProcess:
        environment = {
            "TEST_PORT": str(port or self.port),
            "TEST_QUEUE": self.queue,
            "TEST_RUNS": str(self.folder / "runs"),
        }
        arguments = ["phpmq_lite", "worker", "--app", "tests.support.worker_app:app", *flags]
        log = (self.folder / f"log-{len(self.started)}").open("w", encoding="utf-8")
        with log:
            worker = ForkedProcess(
                arguments, stderr=log, env=os.environ | environment, cwd=self.folder
            )
        self.started.append(worker)
        return worker

    def run(self, *flags: str, port: int | None = None) -> int:
        """Run a worker until the queue is empty; return its exit code."""
        return self.start("--stop-when-empty", *flags, port=port).wait(WAIT_S)

    @property
    def runs(self) -> list[dict[str, Any]]:
        file = self.folder / "runs"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """Return the logged events, all or those with this name."""
        logs = [self.folder / f"log-{number}" for number in range(len(self.started))]
        lines = [line for log in logs for line in log.read_text().splitlines(keepends=True)]
        found = [json.loads(line) for line in lines if line[0] == "{" and line[-1] == "\n"]
        return [event for event in found if name in ("", event["event"])]

    def stop(self) -> None:
        for worker in self.started:
            if worker.poll() is None:
                worker.kill()
            worker.wait()


@pytest.fixture
def crew(broker: BrokerProcess, tmp_path: Path, queue: str) -> Iterator[Crew]:
    crew = Crew(tmp_path, broker.port, queue)
    yield crew
    crew.stop()


def live_messages(admin: AdminApi, name: str) -> list[dict[str, Any]]:
    if not admin.queue(name):
        return []
    found: list[dict[str, Any]] = admin.get(f"/api/v1/queues/{name}/messages")["items"]
    return found


def count_of(admin: AdminApi, name: str) -> int:
    """Return how many messages a queue holds, scheduled ones included."""
    figures = admin.queue(name)
    return sum(figures.get(state, 0) for state in ("ready", "scheduled", "dispatched"))


def history_of(admin: AdminApi, name: str) -> list[dict[str, Any]]:
    items = admin.get(f"/api/v1/history?queue={name}&limit=100")["items"]
    return [item for item in items if item["queue"] == name]


def consume_all(peer: SocketClient, name: str, number: int) -> list[bytes]:
    """Consume and acknowledge messages; return their contents."""
    peer.consume(name, number)
    got = peer.dispatches(number)
    peer.ack(*got)
    peer.consume(name, 0)
    peer.barrier()
    return [dispatch.content for dispatch in got]


# -- outcomes


def test_worker_handles_and_acknowledges(crew: Crew, peer: SocketClient, admin: AdminApi) -> None:
    made = [envelope("done") for _ in range(5)]
    peer.store(crew.queue, *map(encoded, made))
    assert crew.run() == 0
    assert [run["id"] for run in crew.runs] == [one["meta"]["id"] for one in made]
    acks = crew.events("job.ack")
    assert [ack["trace_id"] for ack in acks] == [one["trace_id"] for one in made]
    assert {ack["urn"] for ack in acks} == {"urn:test:do"}
    assert live_messages(admin, crew.queue) == []
    assert crew.events()[-1]["reason"] == "empty"


def test_trace_id_is_kept_over_two_hops(crew: Crew, peer: SocketClient) -> None:
    made = envelope("forward")
    peer.store(crew.queue, encoded(made))
    assert crew.run() == 0
    first, second = crew.runs
    assert (first["what"], second["what"]) == ("forward", "hop")
    assert first["trace"] == second["trace"] == made["trace_id"]
    assert second["cause"] == made["meta"]["id"]


@pytest.mark.parametrize("is_old", [False, True], ids=["", "as at the release before"])
def test_failing_job_is_retried_with_growing_delays_then_dead_lettered(
    crew: Crew, peer: SocketClient, admin: AdminApi, is_old: bool
) -> None:
    """The frames that a worker sends to a broker of the release before are understood."""
    made = envelope("fail", big=12345678901234567890, e="1E2")
    peer.store(crew.queue, encoded(made))
    proxy = KillingProxy(crew.port, "", "after", lambda: None, is_old=is_old)
    worker = crew.start("--max-attempts", "3", port=proxy.port)
    until(lambda: crew.events("job.dead_letter"))
    worker.terminate()
    assert worker.wait(WAIT_S) == 0
    proxy.close()
    assert ("Settle" in proxy.seen) != is_old
    runs = crew.runs
    assert [run["attempts"] for run in runs] == [0, 1, 2]
    gaps = [after["at"] - before["at"] for before, after in pairwise(runs)]
    assert all(gap >= delay_s - 0.1 for gap, delay_s in zip(gaps, [1, 2], strict=True))
    (content,) = consume_all(peer, f"{crew.queue}.dlq", 1)
    original = encoded(made | {"attempts": 3})
    assert content.startswith(original[:-1] + b',"dead_letter":{')
    block = dead_letter_record.read_block(content)
    assert block is not None
    assert (block.reason, block.attempts, block.original_queue) == ("failed", 3, crew.queue)
    assert (block.error, block.exception) == ("failed at 2", "ValueError")
    assert [event["delay_s"] for event in crew.events("job.retry")] == [1, 2]
    assert [row["state"] for row in history_of(admin, crew.queue)].count("dead") == 1
    log = (crew.folder / "log-0").read_text()
    assert "2 messages retried, 1 dead-lettered; a signal arrived" in log


# -- URNs without a handler


@pytest.mark.parametrize("strategy", ["fail", "delete", "release", "dead_letter"])
def test_unknown_urn(strategy: str, crew: Crew, peer: SocketClient, admin: AdminApi) -> None:
    content = encoded(envelope(urn="urn:test:nobody"))
    peer.store(crew.queue, content)
    flags = ("--on-unknown", strategy, "--backoff", "0")
    assert crew.run(*flags) == 0
    assert crew.runs == []
    records = live_messages(admin, f"{crew.queue}.dlq")
    assert len(records) == (strategy in ("fail", "dead_letter"))
    assert count_of(admin, crew.queue) == (strategy == "release")
    if records:
        (found,) = consume_all(peer, f"{crew.queue}.dlq", 1)
        block = dead_letter_record.read_block(found)
        assert block is not None
        assert (block.reason, block.attempts) == ("unknown_urn", 4 if strategy == "fail" else 0)
    if strategy == "release":
        assert consume_all(peer, crew.queue, 1) == [content]
    if strategy == "delete":
        assert [event["reason"] for event in crew.events("job.dropped")] == ["unknown_urn"]


# -- malformed


MALFORMED = [case for case in CASES if case.reason is not None]


def test_malformed_message_of_every_reason_is_quarantined_with_its_bytes(
    crew: Crew, peer: SocketClient, admin: AdminApi
) -> None:
    """All cases at once: one record each after the first delivery, no run of a handler."""
    good = encoded(envelope("done"))
    peer.store(crew.queue, *(case.content for case in MALFORMED), good)
    assert crew.run() == 0
    assert len(crew.runs) == 1
    assert live_messages(admin, crew.queue) == []
    events = crew.events("job.dead_letter")
    assert [event["reason"] for event in events] == [case.reason for case in MALFORMED]
    records = consume_all(peer, f"{crew.queue}.dlq", len(MALFORMED))
    for case, found in zip(MALFORMED, records, strict=True):
        _assert_record(case, found, crew.queue)
    assert live_messages(admin, f"{crew.queue}.dlq") == []


def _assert_record(case: Case, found: bytes, queue: str) -> None:
    if case.record == "keep":
        assert found == case.content, case.name
        return
    block_text = found[found.rindex(b'"dead_letter":') + 14 : -1]
    assert found == record_of(case, block_text), case.name
    block = dead_letter_record.read_block(found)
    assert block is not None
    assert (block.reason, block.detail, block.original_queue) == ("poison", case.reason, queue)


def test_version_2_is_kept_byte_for_byte(crew: Crew, peer: SocketClient, admin: AdminApi) -> None:
    made = envelope("done")
    made["meta"]["schema_version"] = 2
    peer.store(crew.queue, encoded(made))
    assert crew.run() == 0
    assert crew.runs == []
    (row,) = history_of(admin, crew.queue)
    assert (row["state"], row["reason"]) == ("dead", "unsupported_schema_version")
    assert consume_all(peer, f"{crew.queue}.dlq", 1) == [encoded(made)]


# -- shutdown


def test_sigterm_lets_the_handler_finish(crew: Crew, peer: SocketClient, admin: AdminApi) -> None:
    peer.store(crew.queue, encoded(envelope("sleep", seconds=1)), encoded(envelope("done")))
    worker = crew.start()
    until(lambda: crew.runs)
    worker.terminate()
    assert worker.wait(WAIT_S) == 0
    assert len(crew.events("job.ack")) == 1
    assert [row["state"] for row in live_messages(admin, crew.queue)] == ["ready"]


def test_sigterm_returns_the_message_after_the_shutdown_timeout(
    crew: Crew, peer: SocketClient, admin: AdminApi
) -> None:
    content = encoded(envelope("sleep", seconds=60))
    peer.store(crew.queue, content, ttl_s=100)
    worker = crew.start("--shutdown-timeout", "0.5")
    until(lambda: crew.runs)
    worker.terminate()
    assert worker.wait(WAIT_S) == 0
    assert [event["reason"] for event in crew.events("job.released")] == ["interrupted"]
    peer.consume(crew.queue, 1)
    (back,) = peer.dispatches(1)
    assert back.content == content
    assert back.ttl_s is not None
    assert 60 < back.ttl_s <= 100
    peer.ack(back)


def test_second_signal_ends_at_once(crew: Crew, peer: SocketClient) -> None:
    content = encoded(envelope("sleep", seconds=60))
    peer.store(crew.queue, content)
    worker = crew.start()
    until(lambda: crew.runs)
    worker.terminate()
    until(lambda: worker.poll() is None)
    time.sleep(0.2)  # signals sent together may merge
    worker.terminate()
    assert worker.wait(10) == 0
    assert consume_all(peer, crew.queue, 1) == [content]


def test_handler_that_exits_returns_the_message(crew: Crew, peer: SocketClient) -> None:
    content = encoded(envelope("exit"))
    peer.store(crew.queue, content)
    assert crew.run() == 3
    assert consume_all(peer, crew.queue, 1) == [content]
    assert "SystemExit" in crew.events("process.failed")[0]["reason"]


@pytest.mark.parametrize(
    ("flags", "runs", "message"),
    [
        (["--once"], 1, "1 message handled; job limit reached"),
        (["--max-jobs", "2"], 2, "2 messages handled; job limit reached"),
        (["--stop-when-empty"], 3, "3 messages handled; the queue is empty"),
    ],
)
def test_worker_ends_at_its_limit(
    crew: Crew, peer: SocketClient, flags: list[str], runs: int, message: str
) -> None:
    peer.store(crew.queue, *(encoded(envelope("done")) for _ in range(3)))
    assert crew.start(*flags).wait(WAIT_S) == 0
    assert len(crew.runs) == runs
    assert message in (crew.folder / "log-0").read_text()


def test_worker_waits_for_a_broker_that_is_away(tmp_path: Path, queue: str) -> None:
    data = tmp_path / "own" / "data"
    data.parent.mkdir()
    broker = BrokerProcess(data, ["--admin", "none"])
    broker.start()
    crew = Crew(tmp_path, broker.port, queue)
    try:
        with SocketClient(broker.port) as peer:
            peer.store(queue, encoded(envelope("done")))
        broker.terminate()
        worker = crew.start()
        until(lambda: crew.events("reserve.failed"))
        broker.start()
        until(lambda: len(crew.events("job.ack")) == 1)
        broker.kill()
        broker.start()
        with SocketClient(broker.port) as peer:
            peer.store(queue, encoded(envelope("done")))
        until(lambda: len(crew.events("job.ack")) == 2)
        worker.terminate()
        assert worker.wait(WAIT_S) == 0
        assert len(crew.events("reserve.failed")) == 2  # once per outage
        assert len(crew.runs) == 2
    finally:
        crew.stop()
        broker.kill()


def test_killed_process_of_a_worker_is_replaced(crew: Crew, peer: SocketClient) -> None:
    supervisor = crew.start("--processes", "2")
    stored = 0

    def pids_of_both() -> set[int] | None:
        """Keep both processes busy until each has handled a message, however late it starts."""
        nonlocal stored
        if len(crew.runs) > stored - 4:
            peer.store(crew.queue, *(encoded(envelope("sleep", seconds=0.2)) for _ in range(4)))
            stored += 4
        pids = {run["pid"] for run in crew.runs}
        return pids if len(pids) == 2 else None

    os.kill(until(pids_of_both).pop(), signal.SIGKILL)
    until(lambda: len({run["id"] for run in crew.runs}) == stored)

    def has_third() -> bool:
        peer.store(crew.queue, encoded(envelope("done")))
        return len({run["pid"] for run in crew.runs}) == 3

    until(has_third)
    supervisor.terminate()
    assert supervisor.wait(WAIT_S) == 0


def test_envelope_is_handled_once_with_a_store(crew: Crew, peer: SocketClient) -> None:
    once = encoded(envelope("done"))
    peer.store(crew.queue, once, once, encoded(envelope("done")))
    assert crew.run("--idempotency", str(crew.folder / "claims.db")) == 0
    assert len(crew.runs) == 2
    assert len(crew.events("job.duplicate")) == 1


# -- killed at each step


@dataclass(frozen=True)
class Step:
    """When the worker is killed: before a frame passes, or right after it."""

    moment: Moment
    frame: str
    is_old: bool = False  # whether the broker is of the release before

    def __str__(self) -> str:
        return f"{self.moment} {self.frame}"


# From the third step on, the first message is not settled, so its handler runs twice.
RETRY_STEPS = [
    (Step("before", "DispatchWithInfo"), 1),  # runs of the first attempt
    (Step("after", "DispatchWithInfo"), None),  # killed before or within the handler
    (Step("before", "Settle"), 2),
    (Step("after", "Settle"), 1),
]
# At a broker of the release before, the frames of a retry are dispatch, 001 of the copy, its 007,
# 004; of a dead letter: dispatch, 001 of the record, its 007, 006.  The key stores them once.
OLD_RETRY_STEPS = [
    (Step("before", "Dispatch", is_old=True), 1),
    (Step("after", "Dispatch", is_old=True), None),
    (Step("before", "Publish", is_old=True), 2),
    (Step("after", "Publish", is_old=True), 2),
    (Step("before", "ReceiptFrame", is_old=True), 2),
    (Step("after", "ReceiptFrame", is_old=True), 2),
    (Step("before", "Acknowledge", is_old=True), 2),
    (Step("after", "Acknowledge", is_old=True), 1),
]
DEAD_STEPS = RETRY_STEPS + [
    (replace(step, frame="DeadLetter") if step.frame == "Acknowledge" else step, runs)
    for step, runs in OLD_RETRY_STEPS
]


def kill_at(crew: Crew, admin: AdminApi, step: Step, *flags: str) -> None:
    """Run a worker behind a proxy that kills it at a step; wait until its message is ready."""
    is_killed = threading.Event()

    def kill() -> None:
        worker.kill()
        worker.wait(WAIT_S)
        is_killed.set()

    proxy = KillingProxy(crew.port, step.frame, step.moment, kill, is_old=step.is_old)
    worker = crew.start(*flags, port=proxy.port)
    try:
        assert is_killed.wait(WAIT_S), f"no {step.frame} among {proxy.seen}"
    finally:
        proxy.close()
    assert worker.returncode == -signal.SIGKILL
    until(lambda: not admin.queue(crew.queue)["dispatched"])


def left_after_kill(
    crew: Crew, peer: SocketClient, admin: AdminApi, step: Step, ending: str, *flags: str
) -> list[bytes]:
    """Kill a worker at a step, run another; return the contents of the only non-empty queue."""
    kill_at(crew, admin, step, *flags)
    if step.is_old:
        proxy = KillingProxy(crew.port, "", step.moment, lambda: None, is_old=True)
        assert crew.run(*flags, port=proxy.port) == 0
        proxy.close()
    else:
        assert crew.run(*flags) == 0
    full = f"{crew.queue}{ending}"
    names = (crew.queue, f"{crew.queue}.retry", f"{crew.queue}.dlq")
    counts = {name: count_of(admin, name) for name in names}
    assert [name for name, count in counts.items() if count] == [full]
    return consume_all(peer, full, counts[full])


@pytest.mark.parametrize(("step", "first_runs"), RETRY_STEPS + OLD_RETRY_STEPS, ids=str)
def test_worker_killed_in_a_retry_loses_nothing(
    step: Step, first_runs: int | None, crew: Crew, peer: SocketClient, admin: AdminApi
) -> None:
    made = envelope("fail")
    peer.store(crew.queue, encoded(made))
    copies = left_after_kill(crew, peer, admin, step, "", "--backoff", "3")
    assert copies == [encoded(made | {"attempts": 1})]  # none lost, none twice
    assert max(run["attempts"] for run in crew.runs) <= 1  # a killed worker counts
    assert len(crew.runs) in ((1, 2) if first_runs is None else (first_runs,))


@pytest.mark.parametrize(("step", "runs"), DEAD_STEPS, ids=str)
def test_worker_killed_in_a_dead_letter_loses_nothing(
    step: Step, runs: int | None, crew: Crew, peer: SocketClient, admin: AdminApi
) -> None:
    made = envelope("fail")
    peer.store(crew.queue, encoded(made))
    (dead,) = left_after_kill(crew, peer, admin, step, ".dlq", "--max-attempts", "1")
    block = dead_letter_record.read_block(dead)
    assert block is not None
    assert (block.reason, block.attempts) == ("failed", 1)
    assert dead_letter_record.redrive_content(dead) == encoded(made)
    assert [row["state"] for row in history_of(admin, crew.queue)] == ["dead"]
    assert len(crew.runs) in ((1, 2) if runs is None else (runs,))


@pytest.mark.sample("after Dispatch", "after ReceiptFrame", "before DeadLetter")
@pytest.mark.parametrize("step", [step for step, _ in DEAD_STEPS], ids=str)
def test_worker_killed_in_a_quarantine_loses_nothing(
    step: Step, crew: Crew, peer: SocketClient, admin: AdminApi
) -> None:
    peer.store(crew.queue, b"no envelope \xff")
    (found,) = left_after_kill(crew, peer, admin, step, ".dlq")
    assert dead_letter_record.redrive_content(found) == b"no envelope \xff"
