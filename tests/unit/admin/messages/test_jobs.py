"""Bulk jobs run in slices: progress, cancel, rate, errors and undo."""

import asyncio
from array import array
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import pytest

from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.messages.jobs import (
    KEPT_MAX,
    KEPT_MS,
    RUNNING_MAX,
    SLICE,
    BulkJob,
    BulkJobs,
    BulkJobState,
    BulkWork,
)
from phpmq_lite.admin.messages.owned_stores import UndoStore
from phpmq_lite.broker.operator.message_actions import ActionOptions, ActionOutcome
from phpmq_lite.broker.transitions import MessagePlace
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import AuditEntry
from phpmq_lite.operator_actions import Action
from tests.unit.admin.messages.made import Broker, entry


class Rig:
    """Bulk jobs with a clock set by hand."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.undos = UndoStore()
        self.jobs = BulkJobs(lambda: self.now_ms, self.undos)

    async def start(
        self, broker: Broker, count: int, action: Action = Action.DELETE, token: str = "",
        rate: int | None = None, number: int = 7, owner: str = "anna",
    ) -> BulkJob:  # fmt: skip
        made = entry()
        made.actor = owner
        made.audit_id = number
        order = BulkWork(
            action, ActionOptions(), array("Q", range(1, count + 1)), rate=rate, token=token
        )
        return await self.jobs.start(broker.act, made, order)


class SlowBroker(Broker):
    """Yields in each slice and counts concurrent ones."""

    under_way = most = 0

    async def act(
        self, entry: AuditEntry, action: Action, seqs: Sequence[int], options: ActionOptions
    ) -> ActionOutcome:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        return await super().act(entry, action, seqs, options)


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_small_work_is_done_at_once(rig: Rig) -> None:
    broker = Broker(gone=[2])
    job = await rig.start(broker, 3)
    assert (job.state, job.changed, job.skipped) == (BulkJobState.DONE, 2, Counter(gone=1))
    assert broker.slices == [[1, 2, 3]]
    assert broker.results == ["done"]
    assert job.undo is not None
    assert list(rig.undos.find(job.undo, "anna", 0).seqs) == [1, 3]


async def test_large_work_runs_in_slices_and_only_the_last_ends_its_audit_row(rig: Rig) -> None:
    broker = Broker()
    job = await rig.start(broker, 2 * SLICE + 1)
    assert (job.state, job.handled) == (BulkJobState.RUNNING, SLICE)
    await job.ended.wait()
    assert [len(part) for part in broker.slices] == [SLICE, SLICE, 1]
    assert broker.results == ["running", "running", "done"]
    assert (job.state, job.changed, job.total) == (BulkJobState.DONE, 2 * SLICE + 1, 2 * SLICE + 1)
    assert rig.jobs.find(job.number) is job


async def test_jobs_take_turns_so_that_one_slice_is_under_way(rig: Rig) -> None:
    """Five slices in one batch delayed the messages of others by 60 ms."""
    broker = SlowBroker()
    jobs = [await rig.start(broker, 3 * SLICE, number=number) for number in (1, 2, 3)]
    for job in jobs:
        await job.ended.wait()
    assert (broker.most, [job.changed for job in jobs]) == (1, [3 * SLICE] * 3)


async def test_nothing_selected_is_done_and_audited(rig: Rig) -> None:
    broker = Broker()
    job = await rig.start(broker, 0)
    assert (job.state, job.undo, broker.results) == (BulkJobState.DONE, None, ["done"])


async def test_cancelled_work_stops_before_the_next_slice_and_can_be_taken_back(rig: Rig) -> None:
    broker = Broker()
    job = await rig.start(broker, 3 * SLICE)
    rig.jobs.cancel(job)
    await job.ended.wait()
    assert (job.state, job.changed) == (BulkJobState.CANCELLED, SLICE)
    assert broker.slices[-1] == []
    assert broker.results[-1] == "cancelled"
    assert job.undo is not None


async def test_refusal_stops_the_work_and_says_why(rig: Rig) -> None:
    broker = Broker()
    broker.refuses_from = 1
    job = await rig.start(broker, 3 * SLICE)
    await job.ended.wait()
    assert (job.state, job.error) == (BulkJobState.STOPPED, "Publishing is paused.")
    assert broker.results[-1] == "paused"


async def test_refusal_of_the_first_slice_starts_nothing(rig: Rig) -> None:
    broker = Broker()
    broker.refuses_from = 0
    with pytest.raises(RefusedError):
        await rig.start(broker, 3)
    assert rig.jobs.all == []


async def test_same_selection_starts_one_job_only(rig: Rig) -> None:
    broker = Broker()
    first, second = await asyncio.gather(
        rig.start(broker, 2 * SLICE, token="t"), rig.start(broker, 2 * SLICE, token="t")
    )
    assert first is second
    await first.ended.wait()
    assert [len(part) for part in broker.slices] == [SLICE, SLICE]
    assert rig.jobs.of_selection("t", "bert") is None


async def test_rate_makes_smaller_slices_that_wait(rig: Rig) -> None:
    broker = Broker()
    job = await rig.start(broker, 5, rate=2)
    assert (job.state, job.handled, broker.slices) == (BulkJobState.RUNNING, 2, [[1, 2]])
    rig.jobs.cancel(job)
    await job.ended.wait()
    assert job.changed == 2


async def test_high_rate_is_reached(rig: Rig) -> None:
    job = await rig.start(Broker(), 1_500, rate=100_000)
    await job.ended.wait()
    assert (job.state, job.changed) == (BulkJobState.DONE, 1_500)


async def test_too_much_work_at_once_is_refused(rig: Rig) -> None:
    jobs = [await rig.start(Broker(), 5, rate=1, number=at) for at in range(1, RUNNING_MAX + 1)]
    with pytest.raises(Problem) as caught:
        await rig.start(Broker(), 5)
    assert caught.value.status == 429
    await rig.jobs.close()
    assert {job.state for job in jobs} == {BulkJobState.STOPPED}


async def test_work_of_one_user_leaves_room_for_that_of_others(rig: Rig) -> None:
    """Each user may start as many jobs as slots remain free."""
    started: Counter[str] = Counter()
    for at, owner in enumerate(["anna"] * 6 + ["bert"] * 3 + ["carl"] * 2 + ["dora"] * 2):
        with suppress(Problem):
            await rig.start(Broker(), 5, rate=1, number=at + 1, owner=owner)
            started[owner] += 1
    assert started == Counter(anna=RUNNING_MAX, bert=2, carl=1, dora=1)
    with pytest.raises(Problem, match="Wait until one ends, or cancel one"):
        await rig.start(Broker(), 5)
    await rig.jobs.close()


async def test_finished_work_of_one_user_does_not_push_out_that_of_another(rig: Rig) -> None:
    job = await rig.start(Broker(), 1, owner="bert")
    for number in range(100, 100 + KEPT_MAX + 5):
        await rig.start(Broker(), 1, number=number)
    assert job in rig.jobs.all
    assert len(rig.jobs.all) == KEPT_MAX


async def test_finished_work_is_forgotten_after_an_hour(rig: Rig) -> None:
    job = await rig.start(Broker(), 1, token="t")
    assert rig.jobs.all == [job]
    rig.now_ms = KEPT_MS
    assert rig.jobs.all == []
    assert rig.jobs.of_selection("t", "anna") is None


async def test_finished_jobs_are_bounded(rig: Rig) -> None:
    for number in range(1, KEPT_MAX + 3):
        await rig.start(Broker(), 1, number=number)
    assert len(rig.jobs.all) == KEPT_MAX
    assert rig.jobs.find(1) is None


async def test_undo_passes_each_slice_its_positions(rig: Rig) -> None:
    moved = await rig.start(Broker(), SLICE + 1, Action.MOVE)
    await moved.ended.wait()
    assert moved.undo is not None
    undo = rig.undos.find(moved.undo, "anna", 0)
    broker = Broker()
    back = await rig.jobs.start(
        broker.act, entry(), BulkWork(undo.action, ActionOptions(), undo.seqs, undo=undo)
    )
    await back.ended.wait()
    assert [len(options.places) for options in broker.options] == [SLICE, 1]
    assert broker.options[1].places == {SLICE + 1: MessagePlace(1, (SLICE + 1) * 10)}
    assert back.undo is None
