"""What templates show of rows and figures."""

from dataclasses import replace

from phpmq_lite.admin import views
from phpmq_lite.admin.lists import ListedQueue
from phpmq_lite.model import QueueSettings
from phpmq_lite.storage.browse import EventRow, MessageRow
from tests.unit.admin.cases import NOW_MS, broker_status, client_status, queue_status

ROW = MessageRow(
    offset=None, seq=5, token=6, queue_id=1, queue="orders", position=5, state=0, reason=None,
    settled_at=None, ttl_s=None, deadline_at=None, published_at=NOW_MS - 10_000,
    first_dispatched_at=None, last_dispatched_at=None, deliveries=0, charged=0, size=2, crc=0,
    publisher=8, publisher_kind="tcp", publisher_address="10.0.0.1:5", consumer=None,
    consumer_kind=None, consumer_address=None, urn=None, trace_id=None, source_seq=None,
    source_token=None, source_queue=None, source_reason=None, preview=b"{}",
)  # fmt: skip


def test_tiles_count_dead_letter_records_once() -> None:
    status = broker_status(
        queue_status("orders", 1, ready=5, dead=3, published_per_s=1.5),
        queue_status("orders.dlq", 2, ready=3),
    )
    shown = views.tiles(status, {1: NOW_MS - 60_000, 2: NOW_MS - 9_000_000}, NOW_MS)
    picked = {key: shown[f"total.{key}"] for key in ("ready", "dead", "age", "in", "queues")}
    assert picked == {"ready": "5", "dead": "3", "age": "1 min", "in": "1.5", "queues": "2"}


def test_figures_of_a_queue_have_a_dash_where_nothing_waits() -> None:
    shown = views.queue_figures(ListedQueue(queue_status(ready=1_204), None), NOW_MS)
    assert (shown["ready"], shown["age"]) == ("1,204", "–")


def test_nothing_needs_attention_when_all_is_well() -> None:
    status = broker_status(
        queue_status("orders", 1, ready=5, consumers=1),
        queue_status("orders.dlq", 2, ready=3),
        queue_status("mail.retry", 3, ready=3),
    )
    assert views.notices(status, {}, NOW_MS) == []


def test_what_waits_for_its_retry_needs_no_attention() -> None:
    """It is forwarded when it expires, so nothing is lost."""
    retry = queue_status("mail.retry", 3, ready=3, settings=QueueSettings(on_expire="forward:mail"))
    assert views.notices(broker_status(retry), {3: (3, NOW_MS + 60_000)}, NOW_MS) == []


def test_what_expires_unread_comes_first() -> None:
    status = broker_status(
        queue_status("backlog", 1, ready=5, delivery_paused=True),
        queue_status("dying", 2, ready=2),
        queue_status("read", 3, ready=2, consumers=1),
        clients=(client_status(9, paused_reason="disk"),),
        refused={"paused": 2},
    )
    soon = NOW_MS + 120_000
    found = views.notices(status, {2: (2, soon), 3: (2, soon)}, NOW_MS)
    assert [(notice.level, notice.link) for notice in found] == [
        ("bad", "dying"),
        ("warn", "backlog"),
        ("warn", "Clients"),
        ("warn", "Publishes"),
    ]
    assert found[0].text == (
        "2 messages expire within 10 minutes with nobody consuming, the first in 2 min"
    )
    assert found[1].text == "5 ready and no consumer, delivery paused"


def titles(steps: list[views.Step]) -> list[str]:
    return [step.title for step in steps]


def test_timeline_of_a_ready_message_ends_with_its_deadline() -> None:
    row = replace(ROW, deadline_at=NOW_MS + 5_000)
    steps = views.timeline(row, [], NOW_MS)
    assert titles(steps) == ["Published", "Expires unless dispatched before"]
    assert (steps[0].detail, steps[1].gap) == ("by client 8 · tcp 10.0.0.1:5", "5 s")


def test_timeline_tells_a_whole_life_in_order() -> None:
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
    steps = views.timeline(row, events, NOW_MS)
    assert titles(steps) == [
        "Published",
        "First dispatched",
        "Returned to its old place",
        "Requeued to the end of its queue",
        "Dispatched, delivery 20",
        "Dead-letter record written",
        "Dead",
    ]
    assert [step.gap for step in steps][:3] == [None, "1 s", "1 s"]
    assert steps[5].message_id == record


def test_timeline_tells_both_ends_of_a_redrive() -> None:
    newer, older = f"{9:016x}{1:016x}", f"{2:016x}{1:016x}"
    events = [EventRow(NOW_MS, "redrive", newer), EventRow(NOW_MS, "redrive", older)]
    assert titles(views.timeline(ROW, events, NOW_MS))[1:] == [
        "Redriven as a new message",
        "Stored by a redrive",
    ]


def test_timeline_shows_an_event_it_does_not_know() -> None:
    steps = views.timeline(ROW, [EventRow(NOW_MS, "moved", "by anna")], NOW_MS)
    assert (steps[1].title, steps[1].detail) == ("moved", "by anna")


def test_client_is_named_as_far_as_it_is_known() -> None:
    assert views.client_name(None, None, None) == "nobody"
    assert views.client_name(0, None, None) == "this page or API"
    assert views.client_name(5, None, None) == "client 5"
    assert views.client_name(5, "tcp", "h:1") == "client 5 · tcp h:1"
