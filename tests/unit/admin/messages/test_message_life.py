"""A message's timeline, built from its row, its events and those of its relatives."""

from dataclasses import fields, replace
from typing import Any

import pytest

from phpmq_lite.admin.messages.message_life import (
    LifeStep,
    Retry,
    list_relatives,
    make_timeline,
)
from phpmq_lite.model import State
from phpmq_lite.storage.read.messages import EventRow, LinkRow, MessageRow, wire_id
from tests.unit.admin.cases import NOW_MS

PLACE = {"seq": 5, "token": 6, "queue_id": 1, "queue": "orders", "position": 5, "state": 0}
FIGURES = {"deliveries": 0, "charged": 0, "size": 2, "crc": 0, "published_at": NOW_MS - 10_000}
PUBLISHER = {"publisher": 8, "publisher_kind": "tcp", "publisher_address": "10.0.0.1:5"}
VALUES: dict[str, Any] = PLACE | FIGURES | PUBLISHER | {"preview": b"{}"}
UNSET: dict[str, Any] = {field.name: None for field in fields(MessageRow)}
ROW = MessageRow(**UNSET | VALUES)


def titles(steps: list[LifeStep]) -> list[str]:
    return [step.title for step in steps]


def test_timeline_of_a_ready_message_ends_with_its_deadline() -> None:
    row = replace(ROW, deadline_at=NOW_MS + 5_000)
    steps = make_timeline(row, [], NOW_MS)
    assert titles(steps) == ["Published", "Expires unless dispatched first"]
    assert (steps[0].detail, steps[1].gap) == ("by client 8 · tcp 10.0.0.1:5", "5 s")


def test_timeline_shows_a_whole_life_in_order() -> None:
    row = replace(
        ROW, state=4, reason="max_deliveries", deliveries=20, consumer=7,
        first_dispatched_at=NOW_MS - 9_000, last_dispatched_at=NOW_MS - 2_000,
        settled_at=NOW_MS - 1_000,
    )  # fmt: skip
    record = f"{9:016x}{1:016x}"
    events = [
        EventRow(NOW_MS - 8_000, "return", "connection ended"),
        EventRow(NOW_MS - 5_000, "requeue", None),
        EventRow(NOW_MS - 1_000, "dead_letter", record),
    ]
    steps = make_timeline(row, events, NOW_MS)
    assert titles(steps) == [
        "Published",
        "First dispatched",
        "Returned to its position",
        "Requeued to the end of its queue",
        "Dispatched, delivery 20",
        "Dead-letter record written",
        "Dead",
    ]
    assert [step.gap for step in steps][:3] == [None, "1 s", "1 s"]
    assert steps[5].message_id == record


FAILURE = (
    '{"attempt": 2, "limit": 5, "exception": "StockError", "error": "none left", '
    '"traceback": "line 7", "next_at": 99}'
)


def test_timeline_shows_failed_attempts_and_when_the_next_one_is() -> None:
    row = replace(ROW, state=State.SCHEDULED, retries=2, due_at=NOW_MS + 60_000)
    events = [
        EventRow(NOW_MS - 9_000, "retry", FAILURE),
        EventRow(NOW_MS - 8_000, "retry", '{"failed": false, "next_at": 100}'),
        EventRow(NOW_MS - 7_000, "schedule", "by anna"),
    ]
    _, failed, put_off, changed, ahead = make_timeline(row, events, NOW_MS)
    assert (failed.title, failed.kind) == ("Attempt 2 of 5 failed", "dead")
    assert (failed.detail, failed.next_at) == ("StockError: none left", 99)
    assert failed.traceback == "line 7"
    assert (put_off.title, put_off.kind, put_off.next_at) == (
        "Put off by its worker", "scheduled", 100,
    )  # fmt: skip
    assert (changed.title, changed.detail) == ("Delivery time changed", "by anna")
    assert (ahead.title, ahead.at_ms, ahead.gap) == ("Becomes ready", NOW_MS + 60_000, "1 min")


def test_timeline_says_since_when_a_delayed_message_is_ready_and_why_its_worker_gave_up() -> None:
    row = replace(
        ROW, state=State.DEAD, ready_at=NOW_MS - 5_000, settled_at=NOW_MS, reason="client"
    )
    steps = make_timeline(row, [EventRow(NOW_MS - 1, "failure", '{"error": "no"}')], NOW_MS)
    assert titles(steps) == ["Published", "Became ready", "Worker gave up", "Dead"]
    assert steps[2].detail == "no"


@pytest.mark.parametrize("detail", [None, "text", "[1]", '{"attempt": "x", "limit": null}'])
def test_retry_of_any_detail_can_be_shown(detail: str | None) -> None:
    assert Retry.of(EventRow(7, "retry", detail)).title == "Put off by its worker"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"deliver_at": 50, "due_at": 70}, 50),  # a date is not shifted with the clock
        ({"due_at": 70}, 70),
        ({"state": State.READY, "deliver_at": 50}, None),
    ],
)
def test_time_of_a_scheduled_message(changes: dict[str, Any], expected: int | None) -> None:
    assert replace(ROW, **{"state": State.SCHEDULED} | changes).scheduled_for == expected


def test_timeline_shows_both_sides_of_a_redrive() -> None:
    newer, older = f"{9:016x}{1:016x}", f"{2:016x}{1:016x}"
    events = [EventRow(NOW_MS, "redrive", newer), EventRow(NOW_MS, "redrive", older)]
    shown = titles(make_timeline(ROW, events, NOW_MS))
    assert shown[1:] == ["Redriven as a new message", "Created by a redrive"]


def test_timeline_shows_an_event_it_does_not_know() -> None:
    steps = make_timeline(ROW, [EventRow(NOW_MS, "moved", "by anna")], NOW_MS)
    assert (steps[1].title, steps[1].detail) == ("moved", "by anna")


def test_timeline_includes_other_messages_of_the_same_life() -> None:
    """A deleted message was restored: its steps are merged with those of the new one."""
    older = replace(ROW, seq=2, state=5, published_at=NOW_MS - 60_000, settled_at=NOW_MS - 20_000)
    events = [EventRow(NOW_MS - 10_000, "restore", wire_id(5, 6))]
    steps = make_timeline(
        ROW, [EventRow(NOW_MS - 10_000, "restore", wire_id(2, 6))], NOW_MS, {2: (older, events)}
    )
    assert [(step.title, step.of_seq) for step in steps] == [
        ("Published", 2),
        ("Deleted", 2),
        ("Published", None),
        ("Created by a restore", None),
        ("Restored as a new message", 2),
    ]


def test_relatives_are_named_by_their_relation() -> None:
    record = replace(ROW, source_seq=3, source_token=6)
    links = [
        LinkRow(5, 0, "edit", wire_id(9, 1)),
        LinkRow(5, 0, "restore", wire_id(2, 1)),
        LinkRow(9, 0, "edit", wire_id(5, 6)),  # the other side of the first
    ]
    found = list_relatives(record, links, {9: replace(ROW, seq=9)})
    assert [(one.seq, one.how, one.row is None) for one in found] == [
        (2, "Restored from", True),
        (3, "Dead-letter record of", True),
        (9, "Edited as", False),
    ]
