"""The SDK's transport over PHPMQ, and the events that a worker logs or hands to a hook."""

import json
import logging
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from types import TracebackType
from typing import Any, Final, Literal

from babelqueue.transport import ReceivedMessage, Transport

from phpmq_lite import errors
from phpmq_lite.client.session import Backoff, Delivery
from phpmq_lite.envelopes import codec, dead_letter_record
from phpmq_lite.envelopes.dead_letter_record import DeadLetterBlock
from phpmq_lite.envelopes.handlers import JobContext
from phpmq_lite.envelopes.idempotency import IdempotencyDecision, IdempotencyStore, idempotency_key
from phpmq_lite.envelopes.retry_delays import RetryDelays
from phpmq_lite.envelopes.verdict import EmptyListData, EnvelopeProblem, Verdict, judge
from phpmq_lite.envelopes.worker_connection import Settlement, WorkerConnection
from phpmq_lite.errors import ClientError, LocalProtocolError

EventLevel = Literal["info", "warning", "error"]
EventHook = Callable[[EventLevel, str, Mapping[str, Any]], None]
"""Called with level, event and context: queue, urn, trace_id, message_id, attempt, delay_s, reason.

What is not known is not there; never a content.
"""

EventName = Literal[
    "job.ack",  # handled and acknowledged
    "job.retry",  # failed, a copy waits for its next run
    "job.released",  # back in the queue as it was: reason unknown_urn, in_flight, shutdown …
    "job.dead_letter",  # failed for good, unknown or malformed: it has a record
    "job.dropped",  # acknowledged without having been handled, as the settings wish
    "job.duplicate",  # handled before: acknowledged without a run
    "job.warning",  # outdated members of an envelope; each warning once
    "reserve.failed",  # no message could be taken; the worker tries again
    "process.failed",  # a job could not be ended, or its handler ended the worker
    "worker.started",
    "worker.stopping",  # reason: stopped, exit, jobs, runtime, memory, orphaned, empty
]

_log = logging.getLogger("phpmq_lite.worker")
_LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def log_event(level: EventLevel, event: str, context: Mapping[str, Any]) -> None:
    """Write an event to the logger ``phpmq_lite.worker``: the hook where no other is given."""
    told = " ".join(f"{name}={value}" for name, value in context.items())
    _log.log(_LEVELS[level], "%s %s", event, told)


class WorkerEvents:
    """Hands events to a hook; what the hook raises is logged and ends nothing."""

    __slots__ = ("hook",)

    def __init__(self, hook: EventHook = log_event) -> None:
        self.hook = hook

    def emit(self, level: EventLevel, event: EventName, **context: Any) -> None:
        """Tell an event; members that are None are left out."""
        known = {name: value for name, value in context.items() if value is not None}
        try:
            self.hook(level, event, known)
        except Exception:
            _log.exception("the hook failed at %s", event)


ATTEMPTS_LIMIT: Final = 1 << 31
RELEASE_S: Final = 5.0  # what cannot be handled now comes again after this
DEAD_SUFFIX: Final = ".dlq"
RETRY_SUFFIX: Final = ".retry"
QUEUE_BYTES: Final = 255  # of a name, .retry included: else the next try comes without a delay
_ENDED_LIMIT: Final = 10_000  # message ids
_ERROR_CHARACTERS: Final = 2_000  # of an exception's text in a record
_TRACEBACK_LINES: Final = 20
_UNSUPPORTED: Final = "unsupported_schema_version"

StopReason = Callable[[int], str | None]  # jobs taken so far -> why to end now


@dataclass(slots=True)
class WorkerJob:
    """A message from ``pop`` to its end."""

    delivery: Delivery
    verdict: Verdict
    attempts: int  # clamped, as the limits use it
    taken_s: float  # monotonic
    claim: str | None = None  # the key, where it is claimed
    is_started: bool = False
    is_handled: bool = False
    is_ended: bool = False
    error: BaseException | None = None  # what the handler raised

    @property
    def message_id(self) -> str:
        """The broker's id."""
        return self.delivery.message_id


class PhpmqTransport(Transport):
    """Feeds an SDK app from a queue; one message at a time, on one connection.

    ``delays`` decides about retries where it is given, else what the app says.  ``why_stop`` is
    asked before each job, and ``stop`` then called with the reason.
    """

    classifies_poison = True  # the app sees valid bodies only

    def __init__(
        self,
        link: WorkerConnection,
        events: WorkerEvents | None = None,
        *,
        delays: RetryDelays | None = None,
        claims: IdempotencyStore | None = None,
        claim_by: Literal["meta.id", "trace_id"] = "meta.id",
        empty_list_data: EmptyListData = "php",
        dead_letter_queue: str | None = None,
        release_s: float = RELEASE_S,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.link = link
        self.events = events or WorkerEvents()
        self.delays = delays
        self.claims = claims
        self.dead_letter_queue = dead_letter_queue  # empty: NAME.dlq
        self.why_stop: StopReason = _never
        self.when_empty: Callable[[], str | None] = lambda: None
        self.stop: Callable[[str], None] = _ignore
        self.jobs = 0  # taken so far, malformed ones too
        self._claim_by = claim_by
        self._empty_list_data: EmptyListData = empty_list_data
        self._release_s = release_s
        self._now_ms = now_ms
        self._monotonic = monotonic
        self._sleep = sleep
        self._job: WorkerJob | None = None  # the last one handed out
        self._ended: OrderedDict[str, Settlement] = (
            OrderedDict()
        )  # oldest first: they are done for good
        self._pause = Backoff(0.5, 10.0)  # after an end that failed
        self._warned: set[tuple[str, str]] = set()
        self._is_away = False

    # -- the SDK's transport

    def publish(self, queue: str, body: str) -> None:
        """Publish an envelope, confirmed.

        Raises:
            EnvelopeError: no consumer would handle it; nothing was sent.
            PublishRefusedError, ConnectionLostError, TimeoutError: as ``WorkerConnection.confirm``.
        """
        content = _utf8(body)
        codec.decode(content, "never")  # raises; what is sent are the bytes as they came
        self.publish_content(queue, content)

    def publish_content(self, queue: str, content: bytes, key: bytes | None = None) -> None:
        """Publish bytes as they are, confirmed; a ``key`` makes a repetition harmless."""
        self.link.confirm(queue, content, 0, key)

    def pop(self, queue: str, timeout: float = 1.0) -> ReceivedMessage | None:
        """Take the next message that may be handled; None where none came in time."""
        self._job = None
        try:
            return self._pop(queue, timeout)
        except (ClientError, OSError) as error:
            self._tell_away(queue, error)
        except Exception as error:  # whatever it is, the SDK's loop must not end by it
            self._tell("error", "reserve.failed", queue, reason=_named(error), exception=_trace())
            self.link.give_back(queue)
            self._sleep(min(timeout, self._pause.next_s()))
        return None

    def ack(self, message: ReceivedMessage) -> None:
        """End a job: it was handled, or the app drops it."""
        job = _job_of(message)
        if job.is_handled:
            self._claimed(job, is_done=True)
            self._end(job, Settlement.ACK)
            self._tell_job("info", "job.ack", job)
            return
        self._claimed(job, is_done=False)
        self._end(job, Settlement.ACK)
        reason = "failed" if job.error is not None else "unknown_urn"
        self._tell_job("warning", "job.dropped", job, reason=reason)

    def redeliver(self, message: ReceivedMessage, body: str, delay: float) -> None:
        """Have a job come again: a retry where ``attempts`` grew, else as it was."""
        job = _job_of(message)
        if job.is_handled:  # the time to shut down was over just when its handler returned
            self.ack(message)
            return
        self._claimed(job, is_done=False)
        if _attempts_in(body, job.attempts) > job.attempts:
            self._safely(job, lambda: self._retry(job, delay))
        elif delay > 0:
            self._safely(job, lambda: self._release(job, delay, "unknown_urn"))
        elif job.is_started:
            self._end(job, Settlement.REQUEUE)
            self._tell_job("warning", "job.released", job, reason="interrupted")
        else:
            job.is_ended = True
            self.link.give_back(job.delivery.queue)
            self._tell_job("info", "job.released", job, reason="shutdown")

    def dead_letter(self, message: ReceivedMessage, queue: str, body: str) -> None:
        """Write the record of a job, then end it: 001 with a key, 007, 006."""
        job = _job_of(message)
        self._claimed(job, is_done=False)
        sent = json.loads(body)
        block, attempts = sent["dead_letter"], _clamped(sent["attempts"])
        self._safely(job, lambda: self._bury(job, queue, block, attempts))

    def close(self) -> None:
        """Close the connection: what has not ended goes back to its place.  May be repeated."""
        job, self._job = self._job, None
        is_open = job is not None and not job.is_ended
        if job is not None and is_open:
            self._claimed(job, is_done=False)
        self.link.close(is_tidy=not is_open)

    # -- what handlers are given

    def begin(self) -> JobContext:
        """Note that the handler of the last job starts; give data of its own."""
        job = self._job
        if job is None:
            raise RuntimeError("no message is being handled")
        job.is_started = True
        envelope = codec.decode(job.delivery.body, self._empty_list_data)
        envelope["attempts"] = job.attempts
        return JobContext(envelope, job.delivery.queue, job.message_id)

    def done(self) -> None:
        """Note that the handler has returned."""
        if self._job is not None:
            self._job.is_handled = True

    def failed(self, error: BaseException) -> None:
        """Note what the handler raised."""
        job = self._job
        if job is None:
            return
        job.error = error
        if isinstance(error, SystemExit):  # ends the worker; the message goes back
            self._tell_job("error", "process.failed", job, reason=_named(error))

    # -- taking

    def _pop(self, queue: str, timeout_s: float) -> ReceivedMessage | None:
        until = self._monotonic() + timeout_s
        while True:
            reason = self.why_stop(self.jobs)
            if reason is not None:
                self.stop(reason)
                return None
            # The whole time, also behind what was put aside: "none came" means that it is empty.
            delivery = self.link.take(queue, timeout_s)
            self._is_away = False
            if delivery is None:
                reason = self.when_empty()
                if reason is not None:
                    self.stop(reason)
                return None
            message = self._examine(delivery)
            if message is not None or self._monotonic() >= until:
                return message

    def _examine(self, delivery: Delivery) -> ReceivedMessage | None:
        """Give what may be handled; all else is ended here."""
        how = self._ended.get(delivery.message_id)
        if how is not None:  # its end was lost with a connection
            self.link.end(delivery, how)
            self._tell(
                "info", "job.duplicate", delivery.queue,
                message_id=delivery.message_id, reason="ended before",
            )  # fmt: skip
            return None
        self.jobs += 1
        verdict = judge(delivery.body, self._empty_list_data)
        index = verdict.index
        attempts = _clamped(index.attempts if index else 0)
        job = WorkerJob(delivery, verdict, attempts, self._monotonic())
        if verdict.problem is not None:
            problem = verdict.problem
            self._safely(job, lambda: self._quarantine(job, problem))
            return None
        self._warn(delivery.queue, verdict)
        if not self._may_run(job):
            return None
        self._job = job
        content = dead_letter_record.with_attempts(
            delivery.body, attempts
        )  # the SDK counts on from these
        return ReceivedMessage(content.decode(), delivery.queue, job)

    def _may_run(self, job: WorkerJob) -> bool:
        if self.claims is None:
            return True
        key = idempotency_key(
            codec.decode(job.delivery.body, self._empty_list_data), self._claim_by
        )
        if key is None:
            return True
        # Several queues may each have a copy: one file of claims serves the workers of all.
        key = f"{job.delivery.queue}\0{key}"
        answer = self.claims.claim(key)
        if answer is IdempotencyDecision.DONE:
            self._end(job, Settlement.ACK)
            self._tell_job("info", "job.duplicate", job, reason="handled before")
        elif answer is IdempotencyDecision.IN_FLIGHT:
            self._safely(job, lambda: self._release(job, self._release_s, "in_flight"))
        else:
            job.claim = key
        return answer is IdempotencyDecision.RUN

    def _warn(self, queue: str, verdict: Verdict) -> None:
        for warning in verdict.warnings:
            if (queue, warning) not in self._warned and len(self._warned) < _ENDED_LIMIT:
                self._warned.add((queue, warning))
                self._tell("warning", "job.warning", queue, reason=warning)

    # -- ends; each may raise ClientError

    def _retry(self, job: WorkerJob, delay_s: float) -> None:
        attempt = job.attempts + 1
        if self.delays is not None:
            delay_s = self.delays.after(attempt)
        content = dead_letter_record.with_attempts(job.delivery.body, attempt)
        self._copy(job, content, delay_s, attempt)
        self._tell_job(
            "warning", "job.retry", job,
            attempt=attempt, delay_s=round(delay_s, 3), **_described(job.error),
        )  # fmt: skip

    def _release(self, job: WorkerJob, delay_s: float, reason: str) -> None:
        self._copy(job, job.delivery.body, delay_s, job.attempts)
        self._tell_job("warning", "job.released", job, delay_s=delay_s, reason=reason)

    def _copy(self, job: WorkerJob, content: bytes, delay_s: float, attempts: int) -> None:
        """Publish what runs later, under a key that stores it once, then acknowledge."""
        queue, key = job.delivery.queue, f"{job.message_id}:{attempts}".encode()
        if delay_s > 0 and len((queue + RETRY_SUFFIX).encode()) <= QUEUE_BYTES:
            self.link.confirm(queue + RETRY_SUFFIX, content, ceil(delay_s), key)
        else:
            self.link.confirm(queue, content, self._left_s(job), key)
        self._end(job, Settlement.ACK)

    def _quarantine(self, job: WorkerJob, problem: EnvelopeProblem) -> None:
        """Put a malformed body aside, on its first delivery."""
        block = self._block(job, "poison", job.attempts, problem.detail, None, problem.reason)
        self._put_aside(job, self._dead_queue(job), job.delivery.body, block)
        self._tell_job(
            "warning", "job.dead_letter", job, reason=problem.reason, error=problem.detail
        )

    def _bury(self, job: WorkerJob, queue: str, told: Mapping[str, Any], attempts: int) -> None:
        """Put a job aside whose tries are used up, or whose URN nobody handles."""
        error = None if told["error"] is None else str(told["error"])[:_ERROR_CHARACTERS]
        block = self._block(job, told["reason"], attempts, error, told["exception"], None)
        content = dead_letter_record.with_attempts(job.delivery.body, attempts)
        self._put_aside(job, queue, content, block)
        self._tell_job(
            "error", "job.dead_letter", job,
            **({"attempt": attempts} | _described(job.error) | {"reason": told["reason"]}),
        )  # fmt: skip

    def _put_aside(
        self, job: WorkerJob, queue: str, content: bytes, block: DeadLetterBlock
    ) -> None:
        """Publish the record, wait for the receipt, send 006.

        Without a record of ours the broker writes one: for a version that nobody here can read
        (its bytes stay as they are, so no block could name the message), and for what is too
        long with its block.  What dies in a dead-letter queue gets none.
        """
        is_ours = block.detail != _UNSUPPORTED and not job.delivery.queue.endswith(DEAD_SUFFIX)
        if is_ours:
            try:
                made = dead_letter_record.build_record(content, block)
                self.link.confirm(queue, made, 0, f"{job.message_id}:dead".encode())
            except LocalProtocolError as error:
                self._tell_job("warning", "process.failed", job, reason=_named(error))
        self._end(job, Settlement.DEAD_LETTER)

    def _block(
        self, job: WorkerJob, reason: str, attempts: int, error: str | None,
        exception: str | None, detail: str | None,
    ) -> DeadLetterBlock:  # fmt: skip
        return DeadLetterBlock(
            reason=reason,
            original_queue=job.delivery.queue,
            failed_at=self._now_ms(),
            attempts=attempts,
            error=error,
            exception=exception,
            detail=detail,
            message_id=job.message_id,
        )

    def _end(self, job: WorkerJob, how: Settlement) -> None:
        job.is_ended = True
        self.link.end(job.delivery, how, self._left_s(job))
        if how is not Settlement.REQUEUE:
            self._ended[job.message_id] = how
            if len(self._ended) > _ENDED_LIMIT:
                self._ended.popitem(last=False)

    def _left_s(self, job: WorkerJob) -> int:
        """Give the seconds to live of a message now; at least 1, for 0 is for ever."""
        if not job.delivery.ttl_s:
            return 0
        return max(1, ceil(job.delivery.ttl_s - (self._monotonic() - job.taken_s)))

    def _dead_queue(self, job: WorkerJob) -> str:
        return self.dead_letter_queue or job.delivery.queue + DEAD_SUFFIX

    def _safely(self, job: WorkerJob, act: Callable[[], None]) -> None:
        """Do it; where it fails the message goes back as it is, after a pause that grows."""
        try:
            act()
        except Exception as error:  # a full queue, a lost connection: the SDK must go on
            self._tell_job("error", "process.failed", job, reason=_named(error))
            if not job.is_ended:
                self._sleep(self._pause.next_s())
                self._end(job, Settlement.REQUEUE)
        else:
            self._pause.reset()

    def _claimed(self, job: WorkerJob, *, is_done: bool) -> None:
        """End the claim of a job; trouble with the store keeps no message from its end."""
        if self.claims is None or job.claim is None:
            return
        key, job.claim = job.claim, None
        try:
            if is_done:
                self.claims.remember(key)
            else:
                self.claims.forget(key)
        except Exception as error:  # whatever a store of the user's may raise
            self._tell_job("error", "process.failed", job, reason=_named(error))

    # -- telling

    def _tell_away(self, queue: str, error: Exception) -> None:
        """Tell once per outage; what is tried again each second would fill the log."""
        if not self._is_away:
            self._is_away = True
            self._tell("error", "reserve.failed", queue, reason=_named(error))

    def _tell(self, level: EventLevel, event: EventName, queue: str, **context: Any) -> None:
        self.events.emit(level, event, queue=queue, **context)

    def _tell_job(
        self, level: EventLevel, event: EventName, job: WorkerJob, **context: Any
    ) -> None:
        index = job.verdict.index
        self.events.emit(
            level,
            event,
            queue=job.delivery.queue,
            urn=index.urn if index else None,
            trace_id=index.trace_id if index else None,
            message_id=job.message_id,
            **({"attempt": job.attempts} | context),
        )


def _never(_jobs: int) -> str | None:
    return None


def _ignore(_reason: str) -> None:
    """Go on: nobody asked to be stopped."""


def _job_of(message: ReceivedMessage) -> WorkerJob:
    job = message.handle
    if not isinstance(job, WorkerJob):
        raise TypeError("this message was not taken by this transport")
    return job


def _clamped(attempts: int | None) -> int:
    return min(max(attempts or 0, 0), ATTEMPTS_LIMIT)


def _attempts_in(body: str, otherwise: int) -> int:
    """Read ``attempts`` of what the SDK would send again."""
    found = json.loads(body).get("attempts")
    return found if type(found) is int else otherwise


def _utf8(body: str) -> bytes:
    try:
        return body.encode()
    except UnicodeEncodeError as error:
        raise errors.EnvelopeError(
            f"half of a surrogate pair at character {error.start}"
        ) from error


def _named(error: BaseException) -> str:
    text = str(error)[:_ERROR_CHARACTERS]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _trace() -> str:
    return traceback.format_exc(limit=-_TRACEBACK_LINES)


def _described(error: BaseException | None) -> dict[str, Any]:
    """Say what a handler raised, with the end of its traceback."""
    if error is None:
        return {"reason": "unknown_urn"}
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and _is_around(frames):
        frames = frames.tb_next  # the SDK's and ours say nothing about the handler
    lines = traceback.format_exception(type(error), error, frames, limit=-_TRACEBACK_LINES)
    return {"reason": "failed", "error": _named(error), "exception": "".join(lines)}


def _is_around(frame: TracebackType) -> bool:
    name = frame.tb_frame.f_globals.get("__name__", "")
    return str(name).partition(".")[0] in ("babelqueue", "phpmq_lite")
