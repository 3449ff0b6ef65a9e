"""PHPMQ transport for the SDK, and the worker events that are logged or passed to a hook."""

import json
import logging
import random
import time
import traceback
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any, Final, Literal

from babelqueue.transport import ReceivedMessage, Transport

from phpmq_lite.client.core import Backoff
from phpmq_lite.client.delivery import Delivery
from phpmq_lite.envelopes import codec, dead_letter_record
from phpmq_lite.envelopes.dead_letter_record import DeadLetterBlock
from phpmq_lite.envelopes.handlers import JobContext
from phpmq_lite.envelopes.idempotency import IdempotencyDecision, IdempotencyStore, idempotency_key
from phpmq_lite.envelopes.job_time import HoldExtender, TimeLimit, limit_of
from phpmq_lite.envelopes.sqlite_file import wall_ms
from phpmq_lite.envelopes.validation import (
    UNSUPPORTED,
    EmptyListData,
    EnvelopeProblem,
    Verdict,
    validate,
)
from phpmq_lite.envelopes.worker_connection import WorkerConnection
from phpmq_lite.errors import ClientError, EnvelopeError, LocalProtocolError
from phpmq_lite.os_process import reset_after_fork
from phpmq_lite.queue_settings import DEAD_LETTER_SUFFIX, dead_letter_name, name_problem, retry_name

DEFAULT_DELAYS_S: Final = (1.0, 5.0, 15.0)
_MOST_DOUBLINGS: Final = 1_000  # more would be pointless: floats overflow near 2^1024


@dataclass(slots=True, frozen=True)
class RetryDelays:
    """Delays in seconds before the second run of a message, the third run and so on.

    If ``steps`` is set, its last value repeats. Otherwise the delay is ``base_s * multiplier^(n -
    1)``, at most ``max_s`` (0 means unlimited). With jitter, a random delay up to that value is
    used, so that messages that failed together do not return together.
    """

    steps: tuple[float, ...] = ()
    base_s: float = 0.0
    multiplier: float = 2.0
    max_s: float = 0.0
    is_jittered: bool = True

    def after(
        self, attempt: int, uniform: Callable[[float, float], float] = random.uniform
    ) -> float:
        """Return the delay in seconds after the failure numbered ``attempt``, starting from 1."""
        if self.steps:
            return self.steps[min(attempt, len(self.steps)) - 1]
        try:
            delay_s = self.base_s * self.multiplier ** min(attempt - 1, _MOST_DOUBLINGS)
        except OverflowError:
            delay_s = float("inf")
        if self.max_s:
            delay_s = min(delay_s, self.max_s)
        return uniform(0.0, delay_s) if self.is_jittered else delay_s


def parse_delays(text: str) -> RetryDelays:
    """Parse delays in seconds, such as ``1,5,15``; raise ValueError if one is not a delay."""
    try:
        steps = tuple(float(part) for part in text.split(","))
    except ValueError:
        steps = (-1.0,)
    if not all(0 <= step < float("inf") for step in steps):
        raise ValueError(
            f"{text!r} is not a comma-separated list of delays in seconds, such as 1,5,15"
        )
    return RetryDelays(steps)


EventLevel = Literal["info", "warning", "error"]
EventHook = Callable[[EventLevel, str, Mapping[str, Any]], None]
"""Receives level, event and context: queue, urn, trace_id, message_id, attempt, delay_s, reason.

Unknown values are omitted. The context never contains message content.
"""

EventName = Literal[
    "job.ack",  # handled and acknowledged
    "job.retry",  # failed; the message waits for its next run
    "job.released",  # requeued unchanged; reason such as unknown_urn, in_flight, shutdown
    "job.dead_letter",  # dead-lettered: failed permanently, unknown URN or malformed
    "job.dropped",  # acknowledged without being handled, as configured
    "job.duplicate",  # handled before; acknowledged without being handled again
    "job.warning",  # an envelope has outdated members; each warning is reported once
    "reserve.failed",  # no message could be received; the worker will try again
    "process.failed",  # a job could not be settled, or a handler stopped the worker
    "worker.started",
    "worker.stopping",  # reason: one of stopped, exit, jobs, runtime, memory, orphaned, empty
]

_log = logging.getLogger("phpmq_lite.worker")
_LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def log_event(level: EventLevel, event: str, context: Mapping[str, Any]) -> None:
    """Log an event to the ``phpmq_lite.worker`` logger. This function is the default hook."""
    details = " ".join(f"{name}={value}" for name, value in context.items())
    _log.log(_LEVELS[level], "%s %s", event, details)


ATTEMPTS_LIMIT: Final = 1 << 31
RELEASE_S: Final = 5.0  # delay before a message that cannot be handled yet is retried
_SETTLED_LIMIT: Final = 10_000  # how many ids of settled messages to remember
_ERROR_CHARACTERS: Final = 2_000  # exception messages in records are truncated to this length
_TRACEBACK_LINES: Final = 20


@dataclass(slots=True)
class WorkerJob:
    """The state of a message from its arrival until it is settled."""

    delivery: Delivery
    verdict: Verdict
    attempts: int  # number of attempts before, between 0 and ATTEMPTS_LIMIT
    received_s: float  # arrival time on the monotonic clock
    claim: str | None = None  # idempotency key; None if not claimed
    is_started: bool = False
    is_handled: bool = False
    is_settled: bool = False
    error: BaseException | None = None  # the exception that the handler raised

    @property
    def message_id(self) -> str:
        """The message id that the broker assigned."""
        return self.delivery.message_id

    @property
    def has_info(self) -> bool:
        """Whether the message comes from a broker that retries and dead-letters it itself."""
        return self.delivery.attempt is not None


class PhpmqTransport(Transport):
    """Transport that feeds an SDK app from a queue, one message at a time over one connection.

    ``delays`` replaces the app's retry delays. ``must_stop`` is called with False before each job
    and with True when the queue is empty; if it returns True, no job follows.
    """

    classifies_poison = True  # tells the SDK that the app receives only valid bodies

    def __init__(
        self,
        link: WorkerConnection,
        hook: EventHook = log_event,
        *,
        delays: RetryDelays | None = None,
        idempotency_store: IdempotencyStore | None = None,
        idempotency_by: Literal["meta.id", "trace_id"] = "meta.id",
        empty_list_data: EmptyListData = "php",
        dead_letter_queue: str | None = None,
        release_s: float = RELEASE_S,
        time_limit_s: float | None = None,
        now_ms: Callable[[], int] = wall_ms,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.link = link
        self.hook = hook
        self.delays = delays
        self.idempotency_store = idempotency_store
        self.dead_letter_queue = dead_letter_queue  # if None, QUEUE.dlq is used
        self.max_attempts: int | None = None  # only shown
        self.time_limit_s = time_limit_s  # of a job; None: see limit_of
        self.time_limits: dict[str, float] = {}  # by URN
        self.must_stop: Callable[[bool], bool] = lambda is_empty: False
        self.jobs = 0  # number of messages received so far, including malformed ones
        self.events = Counter[str]()  # number of events so far, by name
        self._idempotency_by = idempotency_by
        self._empty_list_data: EmptyListData = empty_list_data
        self._release_s = release_s
        self._now_ms = now_ms
        self._monotonic = monotonic
        self._sleep = sleep
        self._job: WorkerJob | None = None  # the job most recently returned by pop
        # Recently settled messages, oldest first, and how: in case that did not arrive.
        self._settled: OrderedDict[str, Callable[[Delivery], None]] = OrderedDict()
        self._holds = HoldExtender(lambda: self.link, monotonic)
        self._limit = TimeLimit()
        self._pause = Backoff(0.5, 10.0)  # pause before a requeue; grows with each failure
        self._warned: set[tuple[str, str]] = set()
        self._is_unreachable = False
        reset_after_fork(self)

    def forked(self) -> None:
        """Leave the message being handled, and its claim, to the parent process."""
        if self._job is not None:
            self._job.claim = None
        self._job = None

    # -- the SDK's transport

    def publish(self, queue: str, body: str) -> None:
        """Publish a valid envelope and wait for its receipt; raise EnvelopeError otherwise."""
        try:
            content = body.encode()
        except UnicodeEncodeError as error:
            raise EnvelopeError(f"lone surrogate at character {error.start}") from error
        codec.decode(content, "never")  # only to validate; the original bytes are sent
        self.link.publish(queue, content)

    def pop(self, queue: str, timeout: float = 1.0) -> ReceivedMessage | None:
        """Return the next message to handle, or None if none arrives within ``timeout``."""
        self._job = None
        try:
            return self._pop(queue, timeout)
        except (ClientError, OSError) as error:
            if not self._is_unreachable:  # only one event for each outage, to keep the log short
                self._is_unreachable = True
                self.emit("error", "reserve.failed", queue, reason=_format_error(error))
        except Exception as error:  # an exception would end the SDK's loop
            trace = traceback.format_exc(limit=-_TRACEBACK_LINES)
            self.emit(
                "error", "reserve.failed", queue, reason=_format_error(error), exception=trace
            )
            self.link.return_messages(queue)
            self._sleep(min(timeout, self._pause.next_s()))
        return None

    def ack(self, message: ReceivedMessage) -> None:
        """Acknowledge a job that was handled or dropped by the app."""
        job = _job_of(message)
        self._finish_claim(job, is_done=job.is_handled)
        self._settle(job, Delivery.ack)
        if job.is_handled:
            self._emit_for("info", "job.ack", job)
        else:
            reason = "failed" if job.error is not None else "unknown_urn"
            self._emit_for("warning", "job.dropped", job, reason=reason)

    def redeliver(self, message: ReceivedMessage, body: str, delay: float) -> None:
        """Retry a job if ``attempts`` was increased; otherwise requeue it unchanged."""
        job = _job_of(message)
        if job.is_handled:  # the handler returned just as the shutdown timeout expired
            self.ack(message)
            return
        self._finish_claim(job, is_done=False)
        attempts = json.loads(body).get("attempts")
        if type(attempts) is int and attempts > job.attempts:
            self._run_or_requeue(job, lambda: self._retry(job, delay))
        elif delay > 0:
            self._run_or_requeue(job, lambda: self._release(job, delay, "unknown_urn"))
        elif job.is_started:
            self._requeue(job)
            self._emit_for("warning", "job.released", job, reason="interrupted")
        else:
            job.is_settled = True
            self.link.return_messages(job.delivery.queue)
            self._emit_for("info", "job.released", job, reason="shutdown")

    def dead_letter(self, message: ReceivedMessage, queue: str, body: str) -> None:
        """Publish a job's dead-letter record, then settle the job."""
        job = _job_of(message)
        self._finish_claim(job, is_done=False)
        record = json.loads(body)
        block, attempts = record["dead_letter"], _clamped(record["attempts"])
        self._run_or_requeue(job, lambda: self._dead_letter(job, queue, block, attempts))

    def close(self) -> None:
        """Close the connection; an unsettled message is requeued. Safe to call twice."""
        job, self._job = self._job, None
        self._holds.close()
        if job is None or job.is_settled:
            self.link.close()
        else:
            self._finish_claim(job, is_done=False)
            self.link.close(is_tidy=False)

    # -- handler context

    def begin(self) -> JobContext:
        """Record that the handler is starting; return its context, with a copy of the data."""
        job = self._job
        if job is None:
            raise RuntimeError("no message is being handled")
        job.is_started = True
        envelope = codec.decode(job.delivery.body, self._empty_list_data)
        envelope["attempts"] = job.attempts
        urn = job.verdict.index.urn if job.verdict.index else None
        limit_s = limit_of(job.delivery, self.time_limits.get(urn or "", self.time_limit_s))
        self._holds.begin(job.delivery, limit_s)
        self._limit.begin(limit_s)
        return JobContext(envelope, job.delivery.queue, job.message_id)

    def done(self) -> None:
        """Record that the handler has returned."""
        self._end_limit()
        if self._job is not None:
            self._job.is_handled = True

    def failed(self, error: BaseException) -> None:
        """Record the exception that the handler raised."""
        self._end_limit()
        job = self._job
        if job is None:
            return
        job.error = error
        if isinstance(error, SystemExit):  # the worker ends, and the message is requeued
            self._emit_for("error", "process.failed", job, reason=_format_error(error))

    def _end_limit(self) -> None:
        self._limit.end()
        self._holds.end()

    # -- receiving

    def _pop(self, queue: str, timeout_s: float) -> ReceivedMessage | None:
        deadline_s = self._monotonic() + timeout_s
        while True:
            if self.must_stop(False):
                return None
            # After a malformed message, continue to wait, because None must mean an empty queue.
            delivery = self.link.receive(queue, timeout_s)
            self._is_unreachable = False
            if delivery is None:
                self.must_stop(True)
                return None
            message = self._validate(delivery)
            if message is not None or self._monotonic() >= deadline_s:
                return message

    def _validate(self, delivery: Delivery) -> ReceivedMessage | None:
        """Return a message that can be handled; settle any other message and return None."""
        settle_again = self._settled.get(delivery.message_id)
        if settle_again is not None:  # another worker held it when it was settled here
            settle_again(delivery)
            context = {"message_id": delivery.message_id, "reason": "already settled"}
            self.emit("info", "job.duplicate", delivery.queue, **context)
            return None
        self.jobs += 1
        verdict = validate(delivery.body, self._empty_list_data)
        index = verdict.index
        # The broker adds 1 to the attempts of an envelope, but not in an opaque queue.
        counted = (index.attempts if index else 0) or 0
        attempts = _clamped(max(counted, (delivery.attempt or 1) - 1))
        job = WorkerJob(delivery, verdict, attempts, self._monotonic())
        if verdict.problem is not None:
            problem = verdict.problem
            self._run_or_requeue(job, lambda: self._quarantine(job, problem))
            return None
        for warning in verdict.warnings:
            key = delivery.queue, warning
            if key not in self._warned and len(self._warned) < _SETTLED_LIMIT:
                self._warned.add(key)
                self.emit("warning", "job.warning", delivery.queue, reason=warning)
        if not self._may_run(job):
            return None
        self._job = job
        # The SDK counts further attempts starting from this value.
        content = dead_letter_record.with_attempts(delivery.body, attempts)
        return ReceivedMessage(content.decode(), delivery.queue, job)

    def _may_run(self, job: WorkerJob) -> bool:
        if self.idempotency_store is None:
            return True
        key = idempotency_key(
            codec.decode(job.delivery.body, self._empty_list_data), self._idempotency_by
        )
        if key is None:
            return True
        # The key includes the queue, because several queues may share one store.
        key = f"{job.delivery.queue}\0{key}"
        decision = self.idempotency_store.claim(key)
        if decision is IdempotencyDecision.DONE:
            self._settle(job, Delivery.ack)
            self._emit_for("info", "job.duplicate", job, reason="already handled")
        elif decision is IdempotencyDecision.IN_FLIGHT:
            self._run_or_requeue(job, lambda: self._release(job, self._release_s, "in_flight"))
        else:
            job.claim = key
        return decision is IdempotencyDecision.RUN

    # -- settling; all of these may raise ClientError

    def _retry(self, job: WorkerJob, delay_s: float) -> None:
        attempt = job.attempts + 1
        if self.delays is not None:
            delay_s = self.delays.after(attempt)
        delivery, failure = job.delivery, _describe_error(job.error)
        if delivery.attempt is None:
            content = dead_letter_record.with_attempts(delivery.body, attempt)
            self._publish_copy(job, content, delay_s, attempt)
        else:
            delivery.retry(
                delay_s,
                error=failure.get("error"),
                exception=job.error,
                limit=self.max_attempts,
            )
            job.is_settled = True
        context = {"attempt": attempt, "delay_s": round(delay_s, 3)} | failure
        self._emit_for("warning", "job.retry", job, **context)

    def _release(self, job: WorkerJob, delay_s: float, reason: str) -> None:
        if job.has_info:
            job.delivery.retry(delay_s, error=reason, failed=False)
            job.is_settled = True
        else:
            self._publish_copy(job, job.delivery.body, delay_s, job.attempts)
        self._emit_for("warning", "job.released", job, delay_s=delay_s, reason=reason)

    def _publish_copy(self, job: WorkerJob, content: bytes, delay_s: float, attempts: int) -> None:
        """Publish a copy for a later run, deduplicated by its key; then acknowledge the message.

        For a broker of an earlier release, which does not know retries.
        """
        queue, key = job.delivery.queue, f"{job.message_id}:{attempts}".encode()
        if delay_s > 0 and name_problem(retry_name(queue)) is None:
            self.link.publish(retry_name(queue), content, ceil(delay_s), key)
        else:
            self.link.publish(queue, content, self._remaining_ttl_s(job), key)
        self._settle(job, Delivery.ack)

    def _quarantine(self, job: WorkerJob, problem: EnvelopeProblem) -> None:
        """Dead-letter a message with a malformed body on its first delivery."""
        queue = self.dead_letter_queue or dead_letter_name(job.delivery.queue)
        if self._leaves_record_to_broker(job, queue):
            end = partial(Delivery.dead_letter, reason=problem.reason, error=problem.detail)
            self._settle(job, end)
        else:
            cause = {"reason": "poison", "error": problem.detail, "detail": problem.reason}
            block = self._block(job, attempts=job.attempts, **cause)
            self._publish_record(job, queue, job.delivery.body, block)
        self._emit_for(
            "warning", "job.dead_letter", job, reason=problem.reason, error=problem.detail
        )

    def _dead_letter(
        self, job: WorkerJob, queue: str, details: Mapping[str, Any], attempts: int
    ) -> None:
        """Dead-letter a job that used up its attempts or has no handler."""
        error = None if details["error"] is None else str(details["error"])[:_ERROR_CHARACTERS]
        cause = {"reason": details["reason"], "error": error}
        exception = details["exception"]
        if self._leaves_record_to_broker(job, queue):
            end = partial(Delivery.dead_letter, **cause, exception=job.error or exception)
            self._settle(job, end)
        else:
            block = self._block(job, attempts=attempts, **cause, exception=exception)
            content = dead_letter_record.with_attempts(job.delivery.body, attempts)
            self._publish_record(job, queue, content, block)
        context = {"attempt": attempts} | _describe_error(job.error) | {"reason": details["reason"]}
        self._emit_for("error", "job.dead_letter", job, **context)

    def _leaves_record_to_broker(self, job: WorkerJob, queue: str) -> bool:
        """Return whether the broker writes the record of a dead letter, in one transaction with it.

        An earlier release keeps no error; and a queue that only the worker knows is its own matter.
        """
        return job.has_info and queue == dead_letter_name(job.delivery.queue)

    def _publish_record(
        self, job: WorkerJob, queue: str, content: bytes, block: DeadLetterBlock
    ) -> None:
        """Publish the record, wait for the receipt, then settle the message as dead.

        The broker writes the record instead if the version is unsupported, because its bytes must
        not change, or if the content with its block is too long. Messages in a dead-letter queue
        get no record.
        """
        writes_record = block.detail != UNSUPPORTED and not job.delivery.queue.endswith(
            DEAD_LETTER_SUFFIX
        )
        if writes_record:
            try:
                record = dead_letter_record.build_record(content, block)
                self.link.publish(queue, record, 0, f"{job.message_id}:dead".encode())
            except LocalProtocolError as error:
                self._emit_for("warning", "process.failed", job, reason=_format_error(error))
        self._settle(job, Delivery.dead_letter)

    def _block(self, job: WorkerJob, **cause: Any) -> DeadLetterBlock:
        queue, message_id = job.delivery.queue, job.message_id
        return DeadLetterBlock(
            original_queue=queue, failed_at=self._now_ms(), message_id=message_id, **cause
        )

    def _settle(self, job: WorkerJob, end: Callable[[Delivery], None]) -> None:
        job.is_settled = True
        end(job.delivery)
        self._settled[job.message_id] = end
        if len(self._settled) > _SETTLED_LIMIT:
            self._settled.popitem(last=False)

    def _requeue(self, job: WorkerJob) -> None:
        """Return a message to the end of its queue, with its remaining time to live."""
        job.is_settled = True
        if job.has_info:
            job.delivery.retry(failed=False)
        else:
            job.delivery.requeue(self._remaining_ttl_s(job))

    def _remaining_ttl_s(self, job: WorkerJob) -> int:
        """Return a job's remaining time to live in seconds (at least 1); 0 if it never expires."""
        if not job.delivery.ttl_s:
            return 0
        return max(1, ceil(job.delivery.ttl_s - (self._monotonic() - job.received_s)))

    def _run_or_requeue(self, job: WorkerJob, action: Callable[[], None]) -> None:
        """Run ``action``; if it fails, requeue the message after an increasing pause."""
        try:
            action()
        except Exception as error:  # for example, the queue is full; the SDK's loop must continue
            self._emit_for("error", "process.failed", job, reason=_format_error(error))
            if not job.is_settled:
                self._sleep(self._pause.next_s())
                self._requeue(job)
        else:
            self._pause.reset()

    def _finish_claim(self, job: WorkerJob, *, is_done: bool) -> None:
        """Complete or release a job's claim; if the store fails, the job is settled anyway."""
        if self.idempotency_store is None or job.claim is None:
            return
        key, job.claim = job.claim, None
        try:
            if is_done:
                self.idempotency_store.remember(key)
            else:
                self.idempotency_store.forget(key)
        except Exception as error:  # a custom store may raise any exception
            self._emit_for("error", "process.failed", job, reason=_format_error(error))

    # -- events

    def emit(self, level: EventLevel, event: EventName, queue: str, **context: Any) -> None:
        """Pass an event to the hook, omitting None values; log exceptions that the hook raises."""
        details = {name: value for name, value in context.items() if value is not None}
        self.events[event] += 1
        try:
            self.hook(level, event, {"queue": queue} | details)
        except Exception:
            _log.exception("the event hook failed for %s", event)

    def _emit_for(
        self, level: EventLevel, event: EventName, job: WorkerJob, **context: Any
    ) -> None:
        index = job.verdict.index
        self.emit(
            level,
            event,
            job.delivery.queue,
            urn=index.urn if index else None,
            trace_id=index.trace_id if index else None,
            message_id=job.message_id,
            **({"attempt": job.attempts} | context),
        )


def _job_of(message: ReceivedMessage) -> WorkerJob:
    job = message.handle
    if not isinstance(job, WorkerJob):
        raise TypeError("the message was not received by this transport")
    return job


def _clamped(attempts: int | None) -> int:
    return min(max(attempts or 0, 0), ATTEMPTS_LIMIT)


def _format_error(error: BaseException) -> str:
    text = str(error)[:_ERROR_CHARACTERS]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _describe_error(error: BaseException | None) -> dict[str, Any]:
    if error is None:
        return {"reason": "unknown_urn"}
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        module = str(frames.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in ("babelqueue", "phpmq_lite"):  # of the handler
            break
        frames = frames.tb_next
    lines = traceback.format_exception(type(error), error, frames, limit=-_TRACEBACK_LINES)
    return {"reason": "failed", "error": _format_error(error), "exception": "".join(lines)}
