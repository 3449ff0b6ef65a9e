"""Read the jobs of a running beanstalkd server and plan how to publish them.

``stats-job`` and ``peek`` do not change a job, but no command lists the ids. We therefore request
every id up to the newest, many in one write, because waiting for each reply would take a round trip
per id. Finding the newest id, however, requires a command with a temporary effect, ``put``.
"""

import hashlib
import socket
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import BinaryIO, Final, NamedTuple

from phpmq_lite.client.core import BrokerAddress
from phpmq_lite.client.publishes import KeyedMessage, PublishFields, check_fields
from phpmq_lite.envelopes.dead_letter_record import DeadLetterBlock, build_record
from phpmq_lite.errors import PhpmqError, os_reason
from phpmq_lite.frame_options import DEFAULT_PRIORITY, HIGHEST_PRIORITY, LOWEST_PRIORITY
from phpmq_lite.queue_settings import dead_letter_name

DEFAULT_PORT: Final = 11_300
STATES: Final = ("ready", "delayed", "buried", "reserved")  # the order in which jobs move
READY, RESERVED = STATES[0], STATES[3]
PROBE_TUBE: Final = "phpmq-lite-import"
_PROBE_S: Final = 86_400  # delay of the probe job, so that no worker receives it
_TIMEOUT_S: Final = 30.0
_IDS_AT_ONCE: Final = 2_000
_LONGEST_LINE: Final = 1_024
_WITH_BODY: Final = {b"OK", b"FOUND", b"RESERVED"}


class BeanstalkdError(PhpmqError):
    """The server is not a beanstalkd server, closed the connection, or rejected a command."""


class BeanstalkdReply(NamedTuple):
    """The words in the first line of a reply, and the body that follows the line."""

    words: list[bytes]
    body: bytes = b""


class JobGroup(NamedTuple):
    """The tube, state and priority of jobs that are moved together; sorts in moving order."""

    tube: str
    state_index: int  # index into STATES
    priority: int  # 0 is the highest priority

    @property
    def state(self) -> str:
        """The state of the jobs when they were found."""
        return STATES[self.state_index]


@dataclass(slots=True, frozen=True)
class BeanstalkdJob:
    """A beanstalkd job in its current state."""

    job_id: int
    tube: str
    state: str
    delay_s: int  # number of seconds until the job is ready
    reserves: int  # number of times that the job has been reserved
    body: bytes = b""


class BeanstalkdClient:
    """A beanstalkd connection that can send many commands before it reads the replies."""

    def __init__(self, send: Callable[[bytes], object], reader: BinaryIO) -> None:
        self._send = send
        self._reader = reader
        stats = _fields(self.expect(b"OK", b"stats").body)
        try:
            self.instance = stats["id"]  # server process id; job ids may be reused after a restart
            self.max_job_bytes = int(stats["max-job-size"])
        except (KeyError, ValueError):
            raise BeanstalkdError("beanstalkd's stats lack id or max-job-size") from None
        self.can_reserve = self.ask([b"reserve-job 0"])[0].words[0] == b"NOT_FOUND"

    def ask(self, commands: Sequence[bytes]) -> list[BeanstalkdReply]:
        """Send all commands in one write and return the replies."""
        try:
            self._send(b"".join(command + b"\r\n" for command in commands))
            return [self._read() for _ in commands]
        except OSError as error:
            raise BeanstalkdError(f"beanstalkd: {os_reason(error)}") from None

    def expect(self, word: bytes, command: bytes) -> BeanstalkdReply:
        """Send a command and return its reply, which must begin with ``word``."""
        (answer,) = self.ask([command])
        if answer.words[0] != word:
            reply = b" ".join(answer.words).decode("ascii", "replace")
            raise BeanstalkdError(f"beanstalkd answered {reply!r} to {command.decode()!r}")
        return answer

    def _read(self) -> BeanstalkdReply:
        line = self._reader.readline(_LONGEST_LINE)
        words = line.split()
        if not line.endswith(b"\r\n") or not words:
            raise BeanstalkdError(
                "the server is not beanstalkd" if line else "beanstalkd closed the connection"
            )
        if words[0] not in _WITH_BODY or not words[-1].isdigit():
            return BeanstalkdReply(words)
        size = int(words[-1])
        body = self._reader.read(size + 2)
        if len(body) != size + 2:
            raise BeanstalkdError("beanstalkd closed the connection")
        return BeanstalkdReply(words, body[:-2])

    def tubes(self) -> list[str]:
        lines = self.expect(b"OK", b"list-tubes").body.decode().splitlines()
        return [line.removeprefix("- ") for line in lines if line.startswith("- ")]

    def jobs(self) -> int:
        """Return the number of jobs in all tubes."""
        stats = _fields(self.expect(b"OK", b"stats").body)
        return sum(int(stats[f"current-jobs-{state}"]) for state in STATES)

    def newest_id(self) -> int | None:
        """Return the newest id, by adding a job and deleting it; None if the server is draining."""
        command = b"put 4294967295 %d 60 0\r\n" % _PROBE_S
        answer = self.ask([b"use " + PROBE_TUBE.encode(), command])[1]
        if len(answer.words) < 2:
            return None
        probe = int(answer.words[1])
        self.ask([b"delete %d" % probe, b"use default"])
        return probe - 1

    def find_groups(self, job_ids: Iterable[int]) -> Iterator[tuple[JobGroup, int]]:
        """Yield the group and id of each job that still exists."""
        for answer in self.ask([b"stats-job %d" % job_id for job_id in job_ids]):
            if answer.words[0] == b"OK":
                stats = _fields(answer.body)
                state_index = STATES.index(stats["state"])
                yield JobGroup(stats["tube"], state_index, int(stats["pri"])), int(stats["id"])

    def read_jobs(
        self, members: Sequence[tuple[JobGroup, int]], *, is_held: bool
    ) -> list[BeanstalkdJob | None]:
        """Return the jobs with the given ids, with None for each job that no longer exists.

        With ``is_held``, ready jobs are reserved, so that no worker receives them until they are
        deleted or the connection ends. Other jobs are not reserved, because a reserved job becomes
        ready when the connection ends, whatever its previous state.
        """
        commands = []
        for group, job_id in members:
            command = b"reserve-job" if is_held and group.state == READY else b"peek"
            commands += [b"stats-job %d" % job_id, b"%s %d" % (command, job_id)]
        answers = self.ask(commands)
        return [_job_from(*answers[at : at + 2]) for at in range(0, len(answers), 2)]

    def delete(self, job_ids: Sequence[int]) -> int:
        """Delete the jobs that no other client has reserved; return how many were deleted."""
        answers = self.ask([b"delete %d" % job_id for job_id in job_ids])
        return sum(answer.words[0] == b"DELETED" for answer in answers)


@contextmanager
def connect_beanstalkd(target: BrokerAddress) -> Iterator[BeanstalkdClient]:
    """Connect to beanstalkd; jobs reserved within the block become ready again when it ends."""
    try:
        connection = socket.create_connection((target.host, target.port), _TIMEOUT_S)
    except OSError as error:
        reason = f"{os_reason(error)}. Start it, or name its HOST:PORT"
        raise BeanstalkdError(f"beanstalkd at {target}: {reason}") from None
    with connection, connection.makefile("rb") as reader:
        yield BeanstalkdClient(connection.sendall, reader)


def find_jobs(
    server: BeanstalkdClient,
    tubes: Sequence[str] = (),
    report: Callable[[int], None] = lambda _count: None,
) -> "dict[JobGroup, array[int]]":
    """Return the ids of jobs, by group in moving order; ``report`` gets the number of new ones."""
    newest = server.newest_id()
    total = server.jobs()
    groups: defaultdict[JobGroup, array[int]] = defaultdict(lambda: array("Q"))
    job_count = 0
    for ids in _all_ids(newest):
        if job_count >= (server.jobs() if newest is None else total):
            break
        before = job_count
        for group, job_id in server.find_groups(ids):
            job_count += 1
            if group.tube == PROBE_TUBE:  # this job is left over from a run that was killed
                server.delete([job_id])
            elif not tubes or group.tube in tubes:
                groups[group].append(job_id)
        report(job_count - before)
    return {group: array("Q", sorted(groups[group])) for group in sorted(groups)}


def _all_ids(newest: int | None) -> Iterator[range]:
    """Yield ranges of ids downward from ``newest`` or, if it is None, upward without end."""
    if newest is None:
        return (range(first, first + _IDS_AT_ONCE) for first in count(1, _IDS_AT_ONCE))
    return (
        range(last, max(0, last - _IDS_AT_ONCE), -1) for last in range(newest, 0, -_IDS_AT_ONCE)
    )


def rank_priorities(counts: Mapping[int, int]) -> dict[int, int]:
    """Return the priority of a message for each priority of jobs, given how many jobs have it.

    The most frequent one is the default.  Beyond 256 of them, jobs share the last ones, which keeps
    their order as well, because they are published in it.
    """
    ranked = sorted(counts)
    usual = ranked.index(max(ranked, key=counts.__getitem__))
    return {
        priority: max(HIGHEST_PRIORITY, min(DEFAULT_PRIORITY + rank - usual, LOWEST_PRIORITY))
        for rank, priority in enumerate(ranked)
    }


def rank_jobs(
    groups: "Mapping[JobGroup, array[int]]", queue_of: Callable[[str], str]
) -> dict[tuple[str, int], int]:
    """Return the priority of a message by its queue and the priority of the job."""
    counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for group, job_ids in groups.items():
        counts[queue_of(group.tube)][group.priority] += len(job_ids)
    return {
        (queue, priority): rank
        for queue, by_priority in counts.items()
        for priority, rank in rank_priorities(by_priority).items()
    }


def plan_job(
    job: BeanstalkdJob, queue: str, *, instance: str, now_ms: int, priority: int = DEFAULT_PRIORITY
) -> KeyedMessage | None:
    """Return the message to publish for a job, or None if a worker has reserved it.

    The key depends only on values that never change, so a second run stores nothing twice, unless
    the target queue has changed, because the broker remembers keys per queue. It includes
    ``queue``, so that the journal distinguishes a rehearsal with another queue, and ``instance``,
    because beanstalkd reuses ids if it restarts without its binlog.
    """
    identity = f"{instance} {job.job_id} {job.tube} {queue}"
    key = hashlib.sha256(identity.encode()).hexdigest().encode()
    if job.state == RESERVED:
        return None
    if job.state == "buried":
        block = DeadLetterBlock(
            reason="failed",
            original_queue=queue,
            failed_at=now_ms,  # beanstalkd does not report when a job was buried
            attempts=job.reserves,
            error="buried in beanstalkd",
            detail="buried",
        )
        return KeyedMessage(dead_letter_name(queue), build_record(job.body, block), 0, key)
    fields: PublishFields = {}
    if job.state == "delayed":
        fields["delay_s"] = job.delay_s
    if priority != DEFAULT_PRIORITY:
        fields["priority"] = priority
    return KeyedMessage(queue, job.body, 0, key, check_fields(0, fields))


def _job_from(stats: BeanstalkdReply, content: BeanstalkdReply) -> BeanstalkdJob | None:
    if stats.words[0] != b"OK":
        return None
    fields = _fields(stats.body)
    if content.words[0] not in _WITH_BODY and fields["state"] != RESERVED:
        return None
    return BeanstalkdJob(
        int(fields["id"]),
        fields["tube"],
        fields["state"],
        int(fields["time-left"]),
        int(fields["reserves"]),
        content.body,
    )


def _fields(yaml: bytes) -> dict[str, str]:
    """Parse the reply to ``stats`` or ``stats-job``, which has one ``name: value`` per line."""
    pairs = (line.partition(": ") for line in yaml.decode("utf-8", "replace").splitlines())
    return {name: value.strip('"') for name, sign, value in pairs if sign}
