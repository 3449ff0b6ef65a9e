"""Bulk jobs, which run in the background and process their messages in slices."""

import asyncio
from array import array
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from aiohttp import web

from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.problems import Problem, problem_of
from phpmq_lite.admin.messages.owned_stores import SelectionStore, UndoRecord, UndoStore, make_undo
from phpmq_lite.broker.operator.message_actions import ActionOptions, ActionOutcome
from phpmq_lite.logs import get_logger
from phpmq_lite.model import AuditEntry
from phpmq_lite.operator_actions import Action, SkipReason

SLICE: Final = 100  # messages per slice; with 500, five jobs delayed other batches by 60 ms
RUNNING_MAX: Final = 4  # jobs per user; twice that in total, because a job can hold 1,000,000 seqs
KEPT_MAX: Final = 100  # maximum number of finished jobs kept in memory
KEPT_MS: Final = 3_600_000

RunSlice = Callable[[AuditEntry, Action, Sequence[int], ActionOptions], Awaitable[ActionOutcome]]

_log = get_logger(__name__)


class BulkJobState(StrEnum):
    """The state of a bulk job; ``stopped`` means that the job failed or was interrupted."""

    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    STOPPED = "stopped"


@dataclass(slots=True, frozen=True)
class BulkWork:
    """The action that a bulk job performs, and the messages it acts on."""

    action: Action
    options: ActionOptions
    seqs: "array[int]"
    description: str = ""  # the search or queue that selected the messages
    rate: int | None = None  # maximum number of messages per second
    undo: UndoRecord | None = None  # set if this job undoes an action
    token: str = ""  # token of the selection, if the job started from one


@dataclass(slots=True)
class BulkJob:
    """A bulk job and its progress."""

    work: BulkWork
    entry: AuditEntry
    act: RunSlice
    started_at: int  # in Unix ms, like ended_at
    total: int  # number of selected messages
    opposite: UndoRecord | None  # what the undo of this job will do; None if it cannot be undone
    handled: int = 0  # number of messages changed or skipped so far
    changed: int = 0
    skipped: Counter[SkipReason] = field(default_factory=Counter)
    state: BulkJobState = BulkJobState.RUNNING
    ended_at: int | None = None
    error: str | None = None
    undo: str | None = None  # undo token
    is_undone: bool = False
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def number(self) -> int:
        """The job number, which equals the id of the job's audit row."""
        return self.entry.audit_id or 0

    @property
    def owner(self) -> str:
        return self.entry.actor


class BulkJobs:
    """Runs bulk jobs and keeps finished ones in memory for an hour."""

    def __init__(self, now_ms: Callable[[], int], undos: UndoStore) -> None:
        self._now_ms = now_ms
        self._undos = undos
        self._jobs: OrderedDict[int, BulkJob] = OrderedDict()
        self._by_token: dict[str, BulkJob] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting = asyncio.Lock()
        self._slicing = asyncio.Lock()  # slices run one at a time, with other batches in between

    @property
    def all(self) -> list[BulkJob]:
        """The jobs in memory, newest first."""
        self._forget()
        return list(reversed(self._jobs.values()))

    def _check_running(self, owner: str) -> None:
        """Refuse a job if its owner has too many running jobs, so that others can start theirs."""
        running = Counter(job.owner for job in self._jobs.values() if job.ended_at is None)
        bound = min(RUNNING_MAX, 2 * RUNNING_MAX - running.total())
        if running[owner] >= bound:
            raise Problem(
                429,
                "too_many_jobs",
                f"{running.total()} bulk jobs are running, {running[owner]} of them yours. Wait "
                "until one ends, or cancel one.",
                bound=f"{RUNNING_MAX} jobs at a time per user, fewer if other users run jobs",
                headers={"Retry-After": "5"},
            )

    def find(self, number: int) -> BulkJob | None:
        """Return the job with this number, or None if it is not in memory."""
        return self._jobs.get(number)

    def of_selection(self, token: str, owner: str) -> BulkJob | None:
        """Return the job that the owner started from this selection, or None if there is none."""
        job = self._by_token.get(token)
        return job if job is not None and job.owner == owner else None

    async def start(self, act: RunSlice, entry: AuditEntry, work: BulkWork) -> BulkJob:
        """Run a job's first slice, then continue in the background; each token starts only one job.

        Raises:
            Problem: 429 if too many jobs are running.
            RefusedError: the broker refused the job; nothing was changed.
        """
        async with self._starting:
            if work.token and (earlier := self.of_selection(work.token, entry.actor)) is not None:
                return earlier
            self._forget()
            self._check_running(entry.actor)
            opposite = make_undo(work.action, entry.actor, entry.target)
            job = BulkJob(work, entry, act, self._now_ms(), len(work.seqs), opposite)
            async with self._slicing:
                await _slice(job)
            self._jobs[job.number] = job
            if work.token:
                self._by_token[work.token] = job
        if job.handled >= job.total:
            self._end(job, BulkJobState.DONE)
        else:
            task = asyncio.create_task(self._run(job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return job

    def cancel(self, job: BulkJob) -> None:
        """Cancel a job before its next slice; the changes made so far remain but can be undone."""
        job.cancelled.set()

    async def close(self) -> None:
        """Stop all jobs; after the next startup, the audit log shows them as interrupted."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for job in self._jobs.values():
            if job.ended_at is None:  # the job was interrupted
                job.state, job.ended_at = BulkJobState.STOPPED, self._now_ms()
                job.ended.set()

    async def _run(self, job: BulkJob) -> None:
        state = BulkJobState.STOPPED
        try:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            while job.handled < job.total:
                if job.work.rate is not None:  # wait for the next slice, or until it is cancelled
                    due_s = began_s + job.handled / job.work.rate - loop.time()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(job.cancelled.wait(), max(0.0, due_s))
                async with self._slicing:
                    if job.cancelled.is_set():  # the job may have been cancelled while waiting
                        break
                    await _slice(job)
            state = BulkJobState.DONE if job.handled >= job.total else BulkJobState.CANCELLED
            if state is BulkJobState.CANCELLED:
                await _close_row(job, str(state))
        except Exception as error:
            problem = problem_of(error)
            job.error = problem.detail if problem is not None else "The broker could not continue."
            if problem is None:
                _log.exception("bulk_failed", job=job.number, action=str(job.work.action))
            with suppress(Exception):  # if this fails too, the audit row still says "running"
                await _close_row(job, problem.code if problem is not None else "failed")
        finally:
            self._end(job, state)

    def _end(self, job: BulkJob, state: BulkJobState) -> None:
        job.state, job.ended_at = state, self._now_ms()
        if job.work.undo is None:  # an undo cannot be undone
            job.undo = self._undos.add(job.opposite, job.ended_at)
        job.work = replace(job.work, seqs=array("Q"), undo=None)  # frees the memory
        job.opposite = None
        job.ended.set()

    def _forget(self) -> None:
        """Drop expired jobs and, if too many remain, old jobs of the users with the most jobs."""
        ended = [job for job in self._jobs.values() if job.ended_at is not None]
        dropped = [job for job in ended if (job.ended_at or 0) + KEPT_MS <= self._now_ms()]
        remaining = [job for job in ended if job not in dropped]
        counts = Counter(job.owner for job in remaining)
        while len(remaining) > KEPT_MAX:
            owner, _ = counts.most_common(1)[0]
            job = next(job for job in remaining if job.owner == owner)
            counts[owner] -= 1
            remaining.remove(job)
            dropped.append(job)
        for job in dropped:
            del self._jobs[job.number]
            self._by_token.pop(job.work.token, None)


async def _slice(job: BulkJob) -> None:
    """Run the next slice and write its audit row in the same transaction."""
    work, start = job.work, job.handled
    size = SLICE if work.rate is None else max(1, min(SLICE, work.rate))
    end = min(start + size, job.total)
    options = work.options
    if work.undo is not None:
        options = work.undo.complete(options, start, end)
    job.entry.result = str(BulkJobState.DONE if end >= job.total else BulkJobState.RUNNING)
    outcome = await job.act(job.entry, work.action, work.seqs[start:end], options)
    job.handled = end
    job.changed += len(outcome.changed)
    job.skipped.update(outcome.skipped)
    if job.opposite is not None:
        job.opposite.note(outcome)


async def _close_row(job: BulkJob, result: str) -> None:
    job.entry.result = result
    await job.act(job.entry, job.work.action, [], job.work.options)


class MessageStores:
    """Selections, bulk jobs and undo records of all callers."""

    __slots__ = ("jobs", "selections", "undos")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.selections = SelectionStore()
        self.undos = UndoStore()
        self.jobs = BulkJobs(now_ms, self.undos)


STORES: Final = web.AppKey("message stores", MessageStores)


def stores_of(call: Call) -> MessageStores:
    return call.context.app[STORES]
