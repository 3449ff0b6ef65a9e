"""A trace in order: lanes, groups by meta.id, and how each message relates to earlier ones."""

from dataclasses import replace

from phpmq_lite.admin.messages.message_life import Retry
from phpmq_lite.admin.messages.traces import LANES, TraceView, build_trace, find_failed_attempts
from phpmq_lite.model import State
from phpmq_lite.storage.read.messages import MessageRow
from tests.unit.admin.cases import NOW_MS
from tests.unit.admin.messages.test_message_life import ROW


def row(seq: int, **changes: object) -> MessageRow:
    given = {"published_at": NOW_MS + seq * 1_000, "meta_id": "a", "attempts": 0} | changes
    return replace(ROW, seq=seq, position=seq, **given)  # type: ignore[arg-type]


def steps(trace: TraceView) -> list[list[tuple[int, str]]]:
    return [[(step.row.seq, step.repeat or "") for step in group.steps] for group in trace.groups]


def test_nothing_has_no_lanes() -> None:
    assert build_trace([]) == TraceView([], [], 0, 0, 0)


def test_retries_of_a_message_stand_with_it() -> None:
    trace = build_trace([row(4, attempts=2), row(1), row(2, meta_id="b"), row(3, attempts=1)])
    assert steps(trace) == [[(1, ""), (3, "retried"), (4, "retried")], [(2, "")]]
    assert (trace.groups[0].retries, trace.groups[0].deaths) == (2, 0)


def test_failed_attempts_of_a_message_are_marked_on_its_bar() -> None:
    rows = [row(1, retries=2, state=State.SCHEDULED), row(11, meta_id="b")]
    times = [Retry(rows[0].published_at + at * 1_000) for at in (0, 5)]
    trace = build_trace(rows, retries={1: times})
    assert trace.groups[0].retries == 2
    assert [list(bar.failures) for lane in trace.lanes for bar in lane.bars] == [[0, 50], []]


def test_record_is_a_dead_letter_whether_tied_or_not() -> None:
    tied = row(2, attempts=3, source_seq=1, queue="orders.dlq")
    loose = row(3, attempts=3, queue="orders.failed")
    trace = build_trace([row(1), tied, loose], frozenset({"orders.failed"}))
    assert steps(trace) == [[(1, ""), (2, "dead letter"), (3, "dead letter")]]
    assert (trace.groups[0].retries, trace.groups[0].deaths) == (0, 2)


def test_acked_attempt_followed_by_a_retry_or_record_counts_as_failed() -> None:
    rows = [
        row(1, state=State.ACKED),
        row(2, attempts=1, state=State.ACKED),
        row(3, attempts=2, queue="orders.dlq", state=State.DELETED),
        row(4, state=State.ACKED),  # redriven and handled
        row(5, meta_id="b", attempts=1, state=State.ACKED),
        row(6, meta_id="b", attempts=1, state=State.READY),  # published again
        row(7, meta_id=None, state=State.ACKED),
    ]
    assert find_failed_attempts(rows, frozenset()) == {1, 2}
    bars = {bar.row.seq for lane in build_trace(rows).lanes for bar in lane.bars if bar.is_failed}
    assert bars == {1, 2}


def test_repeated_attempts_are_not_a_retry() -> None:
    """A redrive starts again at 0."""
    trace = build_trace([row(1, attempts=2), row(2, attempts=0), row(3, attempts=2)])
    assert steps(trace) == [[(1, ""), (2, "sent again"), (3, "sent again")]]


def test_messages_without_a_meta_id_are_not_grouped() -> None:
    trace = build_trace([row(1, meta_id=None), row(2, meta_id=None)])
    assert steps(trace) == [[(1, "")], [(2, "")]]


def test_bars_lie_within_the_time_of_the_trace() -> None:
    rows = [
        row(1, state=2, settled_at=NOW_MS + 2_000),
        row(2, queue_id=2, queue="mail", state=2, settled_at=NOW_MS + 5_000),
        row(5, queue_id=2, queue="mail"),
    ]
    trace = build_trace(rows)
    assert [lane.queue for lane in trace.lanes] == ["orders", "mail"]
    assert [len(lane.bars) for lane in trace.lanes] == [1, 2]
    bars = [bar for lane in trace.lanes for bar in lane.bars]
    assert (bars[0].start, bars[0].width) == (0, 25)
    assert all(bar.start >= 0 and bar.start + bar.width <= 100.01 for bar in bars)
    assert all(bar.width > 0 for bar in bars)
    assert (trace.first_at, trace.last_at) == (NOW_MS + 1_000, NOW_MS + 5_000)


def test_lanes_are_bounded() -> None:
    trace = build_trace([row(n, queue_id=n, queue=f"q{n}") for n in range(1, LANES + 4)])
    assert (len(trace.lanes), trace.hidden) == (LANES, 3)
    assert len(trace.groups[0].steps) == LANES + 3
