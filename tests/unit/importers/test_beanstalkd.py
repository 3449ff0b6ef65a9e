"""Jobs of beanstalkd: the commands sent, the order of jobs, and their target queues."""

import io
import json
import re
from array import array
from collections.abc import Callable
from dataclasses import replace

import pytest

from phpmq_lite.client.publishes import KeyedMessage
from phpmq_lite.envelopes.dead_letter_record import read_block
from phpmq_lite.importers.beanstalkd import (
    PROBE_TUBE,
    BeanstalkdClient,
    BeanstalkdError,
    BeanstalkdJob,
    JobGroup,
    find_jobs,
    plan_job,
    rank_jobs,
    rank_priorities,
)

STATS = b"---\nid: 5fe2\nmax-job-size: 65535\n"
JOB = BeanstalkdJob(7, "mails", "ready", 0, 2, b"body")


class Script(io.BytesIO):
    """A peer without a socket that answers each command."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        super().__init__()
        self.asked: list[bytes] = []
        self._answer = answer

    def sendall(self, data: bytes) -> None:
        """Accept commands as a socket would, and buffer the answers."""
        commands = data.replace(b" 0\r\n\r\n", b" 0\r\n").split(b"\r\n")[:-1]  # put has no body
        at = self.tell()
        self.seek(0, io.SEEK_END)
        for command in commands:
            self.asked.append(command)
            self.write(self._answer(command))
        self.seek(at)


def ok(body: bytes) -> bytes:
    return b"OK %d\r\n%s\r\n" % (len(body), body)


class Jobs:
    """Answers of a beanstalkd with these jobs: id -> tube, state and priority."""

    def __init__(self, jobs: dict[int, tuple[str, str, int]], *, probe: int = 0) -> None:
        self.jobs = jobs
        self.probe = probe  # id of the next job; 0 while draining

    def __call__(self, command: bytes) -> bytes:
        verb, *rest = command.decode().split()
        if verb == "stats":
            counts = {"ready": 0, "reserved": 0, "delayed": 0, "buried": 0}
            for _, state, _ in self.jobs.values():
                counts[state] += 1
            return ok(STATS + b"".join(b"current-jobs-%s: %d\n" % (state.encode(), n)
                                       for state, n in counts.items()))  # fmt: skip
        if verb == "put":
            return b"INSERTED %d\r\n" % self.probe if self.probe else b"DRAINING\r\n"
        if verb == "stats-job" and int(rest[0]) in self.jobs:
            tube, state, priority = self.jobs[int(rest[0])]
            found = f"id: {rest[0]}\ntube: {tube}\nstate: {state}\npri: {priority}\n"
            return ok(f"---\n{found}".encode())
        return b"USING x\r\n" if verb == "use" else b"NOT_FOUND\r\n"


def opened(answer: Callable[[bytes], bytes]) -> tuple[BeanstalkdClient, Script]:
    script = Script(answer)
    return BeanstalkdClient(script.sendall, script), script


def ids_of(server: BeanstalkdClient) -> list[int]:
    return [job_id for job_ids in find_jobs(server).values() for job_id in job_ids]


def test_jobs_come_by_tube_state_priority_and_id() -> None:
    jobs = {
        3: ("b", "ready", 5),
        4: ("a", "buried", 0),
        5: ("a", "delayed", 0),
        6: ("a", "ready", 9),
        7: ("a", "ready", 1),
        8: ("a", "ready", 9),
        9: ("a", "reserved", 0),
    }
    server, _ = opened(Jobs(jobs, probe=11))
    assert ids_of(server) == [7, 6, 8, 5, 4, 9, 3]
    assert list(find_jobs(server, ["b"])) == [JobGroup("b", 0, 5)]


@pytest.mark.parametrize("probe", [30_000, 0])
def test_search_ends_with_the_last_job(probe: int) -> None:
    """The search goes down from the newest job, or up if the newest is unknown."""
    server, script = opened(Jobs({25_000: ("a", "ready", 0)}, probe=probe))
    assert ids_of(server) == [25_000]
    assert len(script.asked) < 27_000


def test_search_does_not_end_early_when_a_job_goes_while_it_runs() -> None:
    jobs = Jobs({1: ("a", "ready", 0), 9_000: ("a", "ready", 0)}, probe=9_001)

    def answer(command: bytes) -> bytes:
        said = jobs(command)
        if command == b"stats-job 9000":
            jobs.jobs.pop(9_000)
        return said

    server, _ = opened(answer)
    assert ids_of(server) == [1, 9_000]


def test_leftover_probe_job_is_deleted_and_not_moved() -> None:
    server, script = opened(Jobs({4: (PROBE_TUBE, "delayed", 0)}, probe=6))
    assert find_jobs(server) == {}
    assert script.asked[-1] == b"delete 4"
    assert b"delete 6" in script.asked


def test_only_ready_jobs_are_reserved() -> None:
    """A reserved job whose connection ends becomes ready, whatever its state before."""
    server, script = opened(Jobs({}))
    wanted = [(JobGroup("a", place, 0), place + 1) for place in range(4)]
    assert server.read_jobs(wanted, is_held=True) == [None] * 4
    asked = [command for command in script.asked if re.match(b"(peek|reserve-job [1-9])", command)]
    assert asked == [b"reserve-job 1", b"peek 2", b"peek 3", b"peek 4"]


def test_old_beanstalkd_without_reserve_job_is_detected() -> None:
    assert opened(Jobs({}))[0].can_reserve
    old, _ = opened(lambda command: b"UNKNOWN_COMMAND\r\n" if b"reserve" in command else ok(STATS))
    assert not old.can_reserve


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "closed the connection"),
        (b"OK 9\r\nshort", "closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n", "answered 'HTTP/1.1 400 Bad Request' to 'stats'"),
        (b"-ERR unknown command\n", "is not beanstalkd"),
        (b"\r\n", "is not beanstalkd"),
        (ok(b"---\nuptime: 1\n"), "lack id or max-job-size"),
    ],
)
def test_other_server_is_reported(answer: bytes, message: str) -> None:
    with pytest.raises(BeanstalkdError, match=message):
        opened(lambda _: answer)


def planned(
    job: BeanstalkdJob, queue: str = "mails", instance: str = "x", now_ms: int = 0
) -> KeyedMessage:
    message = plan_job(job, queue, instance=instance, now_ms=now_ms)
    assert message is not None
    return message


def test_ready_job_goes_to_its_queue_byte_for_byte() -> None:
    message = planned(JOB, "mail.out")
    assert (message.queue, message.content, message.ttl_s) == ("mail.out", b"body", 0)


@pytest.mark.parametrize(("delay_s", "options"), [(90, {"ttl_s": 0, "delay_s": 90}), (0, None)])
def test_delayed_job_waits_in_its_queue(delay_s: int, options: object) -> None:
    message = planned(replace(JOB, state="delayed", delay_s=delay_s))
    assert (message.queue, message.ttl_s, message.options) == ("mails", 0, options)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({1024: 3}, {1024: 128}),
        ({0: 1, 1024: 3, 4_294_967_295: 2}, {0: 127, 1024: 128, 4_294_967_295: 129}),
        ({5: 9, 7: 1, 6: 1}, {5: 128, 6: 129, 7: 130}),
        (dict.fromkeys(range(200), 1), {n: min(255, 128 + n) for n in range(200)}),
        ({**dict.fromkeys(range(200), 1), 200: 2}, {n: max(0, n - 72) for n in range(201)}),
    ],
)
def test_priorities_keep_their_order(counts: dict[int, int], expected: dict[int, int]) -> None:
    assert rank_priorities(counts) == expected


def test_priorities_are_ranked_for_each_queue() -> None:
    groups = {
        JobGroup("a", 0, 5): array("Q", [1, 2]),
        JobGroup("b", 1, 3): array("Q", [3]),
        JobGroup("c", 0, 9): array("Q", [4]),
    }
    ranks = rank_jobs(groups, {"a": "both", "b": "both", "c": "own"}.__getitem__)
    assert ranks == {("both", 3): 127, ("both", 5): 128, ("own", 9): 128}
    message = plan_job(JOB, "both", instance="x", now_ms=0, priority=127)
    assert message is not None
    assert message.options == {"ttl_s": 0, "priority": 127}


def test_buried_job_becomes_a_dead_letter() -> None:
    message = planned(replace(JOB, state="buried"), now_ms=5)
    block = read_block(message.content)
    assert block is not None
    assert json.loads(message.content)["raw"] == "body"
    assert (message.queue, message.ttl_s) == ("mails.dlq", 0)
    assert (block.reason, block.detail) == ("failed", "buried")
    assert (block.attempts, block.failed_at) == (2, 5)


def test_reserved_job_is_left_to_its_worker() -> None:
    assert plan_job(replace(JOB, state="reserved"), "mails", instance="x", now_ms=0) is None


def test_key_depends_on_the_job_but_not_on_its_state() -> None:
    def key(job: BeanstalkdJob, instance: str = "x", queue: str = "q") -> bytes:
        message = planned(job, queue, instance)
        assert len(message.key) == 64
        return message.key

    same = {key(JOB), key(replace(JOB, state="delayed")), key(replace(JOB, reserves=9))}
    assert len(same) == 1
    others = [replace(JOB, job_id=8), replace(JOB, tube="other")]
    assert len({key(JOB), key(JOB, "y"), key(JOB, queue="other"), *map(key, others)}) == 5
