"""Claims in memory: their effect on windows, counters and later commands."""

from typing import Any

import pytest

from phpmq_lite.broker.pipeline import claims, state
from phpmq_lite.errors import RefusedError
from phpmq_lite.histogram import bucket
from phpmq_lite.model import (
    BEFORE_ALL,
    NO_OPTIONS,
    Batch,
    LoadedPage,
    LoadedRows,
    Message,
    PageKind,
    PipelineRows,
    QueueRow,
    RecoveredState,
    State,
)
from tests.support.builds import NEEDS_SOURCES
from tests.support.core_rig import STEADY_MS, CoreRig, event_kinds, message, outcomes

BYTES = 1 << 20


@pytest.fixture
def rig() -> CoreRig:
    rig = CoreRig()
    rig.begin()
    rig.core.registry.get_or_create(rig.core.batch, "orders")
    rig.finish()
    return rig


def claim(rig: CoreRig, count: int = 10, **options: Any) -> Batch:
    return rig.pipeline("claim", "s", "orders", count, BYTES, **options)


def load_page(rig: CoreRig, batch: Batch, *rows: Message, is_last: bool = True) -> Batch:
    [page] = batch.pages
    return rig.run(loaded=LoadedRows(pages=[LoadedPage(page.on_rows, list(rows), is_last)]))


def held(seq: int) -> Message:
    row = message(seq)
    row.state, row.deliveries, row.last_dispatched_at = State.DISPATCHED, 1, 0
    return row


def test_claim_loads_ready_messages_and_numbers_them(rig: CoreRig) -> None:
    rig.publish(b"a", b"b")
    asked = claim(rig)
    [page] = asked.pages
    assert (page.kind, page.queue_id, page.after, page.upto, page.limit) == (
        PageKind.READY, 1, BEFORE_ALL, 2, 10,
    )  # fmt: skip
    batch = load_page(rig, asked, message(1), message(2))
    wall_ms = rig.core.now.wall_ms
    assert batch.claims_added == [1, 1, 1, wall_ms, 1, 2, 2, wall_ms]
    assert [(m.seq, m.state, m.deliveries) for m in batch.dispatched] == [(1, 1, 1), (2, 1, 1)]
    assert rig.answers == [2]
    queue = rig.queue()
    assert (queue.held, queue.claimed, queue.counters.dispatched) == (0, 2, 2)


def test_delay_is_no_wait_of_a_claimed_message(rig: CoreRig) -> None:
    delayed = message(1)
    delayed.options = NO_OPTIONS._replace(ready_at=rig.core.now.wall_ms - 40)
    load_page(rig, claim(rig), delayed)
    assert [at for at, count in enumerate(rig.queue().wait_histogram or ()) if count] == [
        bucket(40)
    ]


def test_claimed_messages_are_not_in_memory_and_delay_no_stop(rig: CoreRig) -> None:
    load_page(rig, claim(rig), message(1))
    core = rig.core
    assert (core.messages, core.held, core.held_bytes) == ({}, 0, 0)
    rig.run(lambda: rig.core.drain(rig.answers.append))
    assert rig.answers[-1] is None


def test_claimed_message_leaves_the_window(rig: CoreRig) -> None:
    rig.consumer(credit=1)
    rig.publish(b"a", b"b", b"c")
    window = rig.window()
    assert [m.seq for m in window] == [2, 3]
    batch = load_page(rig, claim(rig, 1), message(2), is_last=False)
    assert [m.seq for m in window] == [3]
    assert (set(rig.core.messages), rig.queue().dispatched) == ({1, 3}, 2)
    assert batch.pages == []  # the claim is complete


def test_claim_skips_due_messages_and_pending_dead_letters(rig: CoreRig) -> None:
    asked = claim(rig)
    rig.core.pending.add(message(2), "client")
    batch = load_page(rig, asked, message(1, deadline_ms=STEADY_MS), message(2), message(3))
    assert [m.seq for m in batch.dispatched] == [3]
    assert rig.queue().claimed_to == BEFORE_ALL  # the next claim reads them again


def test_pause_stops_a_claim_between_two_pages(rig: CoreRig) -> None:
    asked = load_page(rig, claim(rig), message(1), is_last=False)
    rig.run(lambda: rig.pause("orders", "delivery", True))
    batch = load_page(rig, asked, message(2), is_last=False)
    assert (batch.dispatched, batch.pages, rig.answers[-1]) == ([], [], 1)


def test_acknowledged_claims_settle_like_any_message(rig: CoreRig) -> None:
    rig.publish(b"a", b"b")
    load_page(rig, claim(rig), message(1), message(2))
    asked = rig.pipeline("ack_claims", "s", 2)
    [page] = asked.pages
    assert (page.kind, page.queue_id, page.after, page.upto) == (PageKind.CLAIMED, 1, 0, 2)
    batch = load_page(rig, asked, held(1), held(2))
    assert outcomes(batch) == {(State.ACKED, None): [1, 2]}
    assert batch.claims_removed == [1, 2]
    assert rig.answers == [2, 2]
    queue = rig.queue()
    assert (queue.claimed, queue.dispatched, queue.row.live_count) == (0, 0, 0)
    assert (queue.counters.acked, sum(queue.hold_histogram or [])) == (2, 2)


def test_released_claims_are_ready_and_uncharged(rig: CoreRig) -> None:
    rig.publish(b"a")
    load_page(rig, claim(rig), message(1))
    asked = rig.pipeline("release_claims", "s")
    batch = load_page(rig, asked, held(1))
    assert [(m.seq, m.state, m.charged) for m in batch.changed.values()] == [(1, 0, 0)]
    assert event_kinds(batch) == [(1, "release")]
    assert (rig.queue().dispatched, rig.queue().claimed_to) == (0, 0)


def test_commands_of_a_subscription_wait_for_one_another(rig: CoreRig) -> None:
    first = claim(rig, 1)
    second = claim(rig, 1, after=0)
    refused = rig.pipeline("claim", "s", "orders", 1, BYTES, after=9)
    assert (second.pages, refused.pages) == ([], [])
    load_page(rig, first, message(1))
    assert rig.answers[:2] == [1, 1]
    assert isinstance(rig.answers[2], RefusedError)
    assert rig.answers[2].code == "unknown_claims"


def test_many_commands_of_a_subscription_may_wait(rig: CoreRig) -> None:
    first = claim(rig, 1)
    for _ in range(1_000):
        claim(rig, 1, after=0)
    load_page(rig, first, message(1))
    assert rig.answers == [1] * 1_001
    asked = rig.pipeline("ack_claims", "s", 1)
    assert [page.kind for page in asked.pages] == [PageKind.CLAIMED]  # it begins at once


@pytest.mark.parametrize(("arguments", "code"), [
    (("", "orders", 1), "bad_name"), (("s", "none", 1), "unknown_queue"),
    (("s", "orders", 0), "too_many"), (("s", "orders", claims.CLAIM_MAX + 1), "too_many"),
])  # fmt: skip
def test_claim_is_refused_as_a_whole(
    rig: CoreRig, arguments: tuple[str, str, int], code: str
) -> None:
    rig.begin()
    with pytest.raises(RefusedError) as caught:
        claims.claim(rig.core, rig.answers.append, rig.entry(), *arguments, BYTES)
    assert caught.value.code == code
    assert not rig.finish().stores


@NEEDS_SOURCES
def test_subscriptions_are_bounded(rig: CoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "SUBSCRIPTIONS_MAX", 1)
    load_page(rig, claim(rig))
    with pytest.raises(RefusedError) as caught:
        rig.pipeline("claim", "t", "orders", 1, BYTES)
    assert caught.value.code == "too_many_subscriptions"


def test_subscriptions_are_recovered_at_start(rig: CoreRig) -> None:
    rows = PipelineRows(subscriptions=[(4, "s", 1, 9, 6)], claimed=[(1, 2)])
    stored = RecoveredState([QueueRow(1, "orders", 0, {}, 3, 40)], [], {}, None, 0, rows)
    rig.core = type(rig.core)(stored, rig.limits, rig.defaults)
    assert rig.queue().claimed == 2
    claim(rig, after=6)
    assert rig.answers == [8]
