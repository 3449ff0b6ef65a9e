"""Reads a live beanstalkd: which jobs it has, and what becomes of each.

``stats-job`` and ``peek`` leave a job as it is, but nothing lists the ids.  So every id there ever
was is asked for, many in one go: a client that waits for each answer takes a round trip for each.
Only the newest id has to be learned by a command that changes something for a moment: ``put``.
"""

import hashlib
import socket
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import BinaryIO, Final, NamedTuple

from phpmq_lite.client.address import BrokerAddress
from phpmq_lite.client.publish_each import KeyedMessage
from phpmq_lite.envelopes.dead_letter_record import DeadLetterBlock, build_record
from phpmq_lite.errors import PhpmqError, os_reason

DEFAULT_PORT: Final = 11_300
STATES: Final = ("ready", "delayed", "buried", "reserved")  # in the order in which they are moved
READY, RESERVED = STATES[0], STATES[3]
PROBE_TUBE: Final = "phpmq-lite-import"
_PROBE_S: Final = 86_400  # nobody takes the probe: it is delayed until long after it is deleted
_TIMEOUT_S: Final = 30.0
_IDS_AT_ONCE: Final = 2_000
_LONGEST_LINE: Final = 1_024
_WITH_BODY: Final = {b"OK", b"FOUND", b"RESERVED"}


class BeanstalkdError(PhpmqError):
    """It is no beanstalkd, is gone, or does not do what it is asked."""


class BeanstalkdReply(NamedTuple):
    """The words of an answer's line, and what follows it."""

    words: list[bytes]
    body: bytes = b""


class JobGroup(NamedTuple):
    """Jobs that are moved together; lots sort in the order in which they are moved."""

    tube: str
    place: int  # of the state in STATES
    priority: int  # 0 is the most urgent

    @property
    def state(self) -> str:
        """What its jobs were when they were looked for."""
        return STATES[self.place]


@dataclass(slots=True, frozen=True)
class BeanstalkdJob:
    """A job as it is now."""

    job_id: int
    tube: str
    state: str
    delay_s: int  # until it is ready
    reserves: int  # how often a worker had it
    body: bytes = b""


class BeanstalkdClient:
    """A connection on which many commands are sent before their answers are read."""

    def __init__(self, send: Callable[[bytes], object], reader: BinaryIO) -> None:
        self._send = send
        self._reader = reader
        stats = _fields(self.expect(b"OK", b"stats").body)
        try:
            self.instance = stats["id"]  # of this process of beanstalkd: its ids begin anew
            self.max_job_bytes = int(stats["max-job-size"])
        except (KeyError, ValueError):
            raise BeanstalkdError("beanstalkd: its stats have no id or no max-job-size") from None
        self.can_reserve = self.ask([b"reserve-job 0"])[0].words[0] == b"NOT_FOUND"

    def ask(self, commands: Sequence[bytes]) -> list[BeanstalkdReply]:
        """Send commands in one go, read the answer of each.

        Raises:
            BeanstalkdError: the connection ended, or this is no beanstalkd.
        """
        try:
            self._send(b"".join(command + b"\r\n" for command in commands))
            return [self._read() for _ in commands]
        except OSError as error:
            raise BeanstalkdError(f"beanstalkd: {os_reason(error)}") from None

    def expect(self, word: bytes, command: bytes) -> BeanstalkdReply:
        """Send a command that has one good answer."""
        (answer,) = self.ask([command])
        if answer.words[0] != word:
            said = b" ".join(answer.words).decode("ascii", "replace")
            raise BeanstalkdError(f"beanstalkd answered {said!r} to {command.decode()!r}")
        return answer

    def _read(self) -> BeanstalkdReply:
        line = self._reader.readline(_LONGEST_LINE)
        words = line.split()
        if not line.endswith(b"\r\n") or not words:
            raise BeanstalkdError(
                "what answers is no beanstalkd" if line else "beanstalkd closed the connection"
            )
        if words[0] not in _WITH_BODY or not words[-1].isdigit():
            return BeanstalkdReply(words)
        size = int(words[-1])
        body = self._reader.read(size + 2)
        if len(body) != size + 2:
            raise BeanstalkdError("beanstalkd closed the connection")
        return BeanstalkdReply(words, body[:-2])

    def tubes(self) -> list[str]:
        """List the tubes."""
        lines = self.expect(b"OK", b"list-tubes").body.decode().splitlines()
        return [line.removeprefix("- ") for line in lines if line.startswith("- ")]

    def jobs(self) -> int:
        """Count the jobs of all tubes."""
        stats = _fields(self.expect(b"OK", b"stats").body)
        return sum(int(stats[f"current-jobs-{state}"]) for state in STATES)

    def newest_id(self) -> int | None:
        """Learn the id of the newest job, by a job of our own that is deleted at once.

        None: it is draining and takes no job, ours neither.
        """
        put = b"put 4294967295 %d 60 0\r\n" % _PROBE_S
        answer = self.ask([b"use " + PROBE_TUBE.encode(), put])[1]
        if len(answer.words) < 2:
            return None
        probe = int(answer.words[1])
        self.ask([b"delete %d" % probe, b"use default"])
        return probe - 1

    def look(self, job_ids: Iterable[int]) -> Iterator[tuple[JobGroup, int]]:
        """Tell in which lots jobs are; those that are not there are left out."""
        for answer in self.ask([b"stats-job %d" % job_id for job_id in job_ids]):
            if answer.words[0] == b"OK":
                stats = _fields(answer.body)
                place = STATES.index(stats["state"])
                yield JobGroup(stats["tube"], place, int(stats["pri"])), int(stats["id"])

    def take(
        self, wanted: Sequence[tuple[JobGroup, int]], *, is_held: bool
    ) -> list[BeanstalkdJob | None]:
        """Read jobs; None for one that is not there any more.

        ``is_held``: reserve the ready ones, so that no worker gets them until they are deleted
        or we are gone.  Others are left as they are: a reserved job of a connection that ends is
        ready, whatever it was before.
        """
        commands = []
        for lot, job_id in wanted:
            read = b"reserve-job" if is_held and lot.state == READY else b"peek"
            commands += [b"stats-job %d" % job_id, b"%s %d" % (read, job_id)]
        answers = self.ask(commands)
        return [_taken(*answers[at : at + 2]) for at in range(0, len(answers), 2)]

    def delete(self, job_ids: Sequence[int]) -> int:
        """Delete jobs; count those that were still there and that nobody else has."""
        answers = self.ask([b"delete %d" % job_id for job_id in job_ids])
        return sum(answer.words[0] == b"DELETED" for answer in answers)


@contextmanager
def connect_beanstalkd(target: BrokerAddress) -> Iterator[BeanstalkdClient]:
    """Open a connection; at its end all that was reserved on it is ready again.

    Raises:
        BeanstalkdError: nobody listens there, or it is no beanstalkd.
    """
    try:
        connection = socket.create_connection((target.host, target.port), _TIMEOUT_S)
    except OSError as error:
        raise BeanstalkdError(f"beanstalkd at {target}: {os_reason(error)}") from None
    with connection, connection.makefile("rb") as reader:
        yield BeanstalkdClient(connection.sendall, reader)


def find_jobs(server: BeanstalkdClient, tubes: Sequence[str] = ()) -> "dict[JobGroup, array[int]]":
    """Find the ids of all jobs, or of those in the tubes; lots and ids in the order of the move.

    Jobs that come while it runs are not in it.
    """
    newest = server.newest_id()
    total = server.jobs()
    lots: defaultdict[JobGroup, array[int]] = defaultdict(lambda: array("Q"))
    seen = 0
    for ids in _all_ids(newest):
        if seen >= (server.jobs() if newest is None else total):
            break
        for lot, job_id in server.look(ids):
            seen += 1
            if lot.tube == PROBE_TUBE:  # of a run that was killed
                server.delete([job_id])
            elif not tubes or lot.tube in tubes:
                lots[lot].append(job_id)
    return {lot: array("Q", sorted(lots[lot])) for lot in sorted(lots)}


def _all_ids(newest: int | None) -> Iterator[range]:
    """Yield ids in pieces: from the newest down, or up without an end where that is not known."""
    if newest is None:
        return (range(first, first + _IDS_AT_ONCE) for first in count(1, _IDS_AT_ONCE))
    return (
        range(last, max(0, last - _IDS_AT_ONCE), -1) for last in range(newest, 0, -_IDS_AT_ONCE)
    )


def plan_job(job: BeanstalkdJob, queue: str, *, instance: str, now_ms: int) -> KeyedMessage | None:
    """Decide what becomes of a job; pure.  None: a worker has it now.

    The key is made of what never changes: a second run stores nothing twice, unless the job goes to
    another queue by then, since a broker knows its keys by queue.
    """
    key = job_key(job, queue, instance)
    if job.state == RESERVED:
        return None
    if job.state == "delayed":
        return KeyedMessage(f"{queue}.retry", job.body, max(1, job.delay_s), key)
    if job.state == "buried":
        block = DeadLetterBlock(
            reason="failed",
            original_queue=queue,
            failed_at=now_ms,  # beanstalkd does not tell when it was buried
            attempts=job.reserves,
            error="buried in beanstalkd",
            detail="buried",
        )
        return KeyedMessage(f"{queue}.dlq", build_record(job.body, block), 0, key)
    return KeyedMessage(queue, job.body, 0, key)


def job_key(job: BeanstalkdJob, queue: str, instance: str) -> bytes:
    """Give the key of a job.

    ``queue``: a journal must not take a rehearsal in another queue for the move.
    ``instance``: a beanstalkd that starts without its binlog gives out its ids anew.
    """
    whole = f"{instance} {job.job_id} {job.tube} {queue}"
    return hashlib.sha256(whole.encode()).hexdigest().encode()


def _taken(stats: BeanstalkdReply, content: BeanstalkdReply) -> BeanstalkdJob | None:
    if stats.words[0] != b"OK":
        return None
    found = _fields(stats.body)
    if content.words[0] not in _WITH_BODY and found["state"] != RESERVED:
        return None
    return BeanstalkdJob(
        int(found["id"]),
        found["tube"],
        found["state"],
        int(found["time-left"]),
        int(found["reserves"]),
        content.body,
    )


def _fields(yaml: bytes) -> dict[str, str]:
    """Read what ``stats`` and ``stats-job`` answer: flat, one ``name: value`` a line."""
    pairs = (line.partition(": ") for line in yaml.decode("utf-8", "replace").splitlines())
    return {name: value.strip('"') for name, sign, value in pairs if sign}
