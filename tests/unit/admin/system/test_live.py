"""Live feeds, streams and tails: changes, limits, and what a tail records."""

import asyncio
from dataclasses import fields
from typing import Any

import pytest

from phpmq_lite.admin.http import live_feeds
from phpmq_lite.admin.http.live_feeds import (
    CONTROL,
    FIRST_ROWS,
    IDLE_FEEDS,
    ROWS,
    STREAMS,
    STREAMS_OF_CONTROL,
    STREAMS_PER_SESSION,
    Feed,
    FeedPosition,
    FeedState,
    FeedStream,
    LiveFeeds,
    LiveValues,
    parse_position,
)
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.messages import tail as tails
from phpmq_lite.admin.messages.tail import QueueTail, TailEvent
from phpmq_lite.admin.messages.wait import WaitPosition
from phpmq_lite.admin.system.live import LiveView
from phpmq_lite.broker import transitions
from phpmq_lite.errors import StorageError
from phpmq_lite.model import Batch, Message, State
from phpmq_lite.storage.read.activity import MessagePreview, RecentActivity
from tests.support.core_rig import CoreRig


def test_feed_sends_everything_first_and_then_changes() -> None:
    feed = Feed(3)
    feed.update(LiveValues({"a": "1", "b": "2"}, {"p": "0"}, new=0, says="x"))
    first = feed.since(None)
    assert first.data == {
        "shown": {"a": "1", "b": "2"}, "points": {"p": "0"}, "new": 0, "says": "x",
    }  # fmt: skip
    assert feed.update(LiveValues({"a": "1", "b": "3"}, {"p": "0"}, new=2, says="x"))
    assert feed.since(first.position).data == {"shown": {"b": "3"}, "new": 2}
    assert feed.since(feed.position).data == {}


def test_live_view_describes_the_values() -> None:
    names = {each.name for each in fields(LiveValues)}
    assert names == LiveView.model_fields.keys() - {"id"}


def test_feed_reports_changes_and_names_a_removed_field_once() -> None:
    feed = Feed(1)
    assert feed.update(LiveValues({"a": "1"}))
    assert not feed.update(LiveValues({"a": "1"}))
    seen = feed.position
    feed.update(LiveValues({}))
    assert feed.since(seen).data == {"shown": {"a": None}}
    assert not feed.update(LiveValues({}))


def test_feed_sends_everything_after_a_position_in_another_feed() -> None:
    feed = Feed(2)
    feed.update(LiveValues({"a": "1"}))
    assert feed.since(FeedPosition(1, 9, 9)).data == {"shown": {"a": "1"}}


def test_feed_says_that_rows_may_be_missing_after_a_position_in_another_feed() -> None:
    feed = Feed(3)
    feed.update(LiveValues(rows=[]))
    assert "gap" not in feed.since(None).data
    assert feed.since(FeedPosition(2, 9, 9)).data["gap"] is True
    assert "gap" not in feed.since(feed.position).data


def test_feed_sends_rows_once_and_counts_omitted_ones() -> None:
    feed = Feed(1)
    feed.update(LiveValues(rows=[{"id": "1"}]))
    seen = feed.position
    feed.update(LiveValues(rows=[{"id": "5"}], missed=3))
    assert feed.since(seen).data == {"rows": [{"id": "5"}], "missed": 3}
    assert feed.since(feed.position).data == {}


def test_feed_keeps_the_last_rows_and_counts_the_others_as_missed() -> None:
    feed = Feed(1)
    feed.update(LiveValues(rows=[{"id": "first"}]))
    seen = feed.position
    feed.update(LiveValues(rows=[{"id": str(number)} for number in range(ROWS + 20)]))
    update = feed.since(seen)
    assert (len(update.data["rows"]), update.data["missed"]) == (ROWS, 20)
    assert len(feed.since(None).data["rows"]) == FIRST_ROWS
    assert "missed" not in feed.since(None).data


@pytest.mark.parametrize("text", ["", "1", "1-2", "1-2-x", "-1-2-3", "1-2-3-4", "١-1-1", "9" * 60])
def test_other_event_id_is_ignored(text: str) -> None:
    assert parse_position(text) is None


def test_event_id_reads_back() -> None:
    assert parse_position(str(FeedPosition(3, 17, 2040))) == FeedPosition(3, 17, 2040)


# -- streams


class Source:
    """A feed's values; counts its evaluations."""

    def __init__(self) -> None:
        self.count = 0
        self.values = LiveValues({"n": "0"})
        self.error: Exception | None = None

    async def __call__(self) -> LiveValues:
        self.count += 1
        if self.error is not None:
            raise self.error
        return self.values


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> LiveFeeds:
    monkeypatch.setattr(live_feeds, "EVERY_S", 0.001)
    return LiveFeeds()


def opened(
    hub: LiveFeeds, source: Source, session: str = "s", key: str = "k", user: str = "anna"
) -> FeedStream:
    stream = hub.open(key, source, session, user, None, lambda: True)
    assert stream is not None
    return stream


async def test_streams_of_one_feed_share_its_evaluations(hub: LiveFeeds) -> None:
    source = Source()
    both = [opened(hub, source, f"s{number}") for number in range(2)]
    for number in "01":
        source.values = LiveValues({"n": number})
        updates = [await stream.next() for stream in both]
        assert [update.data for update in updates if update] == [{"shown": {"n": number}}] * 2
    for stream in both:
        hub.leave("k", stream)


async def test_nothing_is_evaluated_after_the_last_stream_has_left(hub: LiveFeeds) -> None:
    source = Source()
    stream = opened(hub, source)
    await stream.next()
    hub.leave("k", stream)
    await asyncio.sleep(0)
    count = source.count
    await asyncio.sleep(0.01)
    assert source.count == count
    assert hub.streams == 0


async def test_feed_that_was_dropped_is_no_longer_evaluated(hub: LiveFeeds) -> None:
    """Its stream has not left yet, and would take the events of the feed that follows it."""
    source, alive = Source(), [True]
    stream = hub.open("k", source, "s", "anna", None, lambda: alive[0])
    assert stream is not None
    await stream.next()
    alive[0] = False
    hub.drop_unwatched("k")
    await asyncio.sleep(0)
    count = source.count
    await asyncio.sleep(0.01)
    assert source.count == count
    next_stream = opened(hub, source)
    hub.leave("k", stream)
    assert await next_stream.next() is not None
    hub.leave("k", next_stream)


async def test_first_event_comes_even_if_a_feed_has_nothing(hub: LiveFeeds) -> None:
    source = Source()
    source.values = LiveValues(rows=[])
    stream = opened(hub, source)
    update = await stream.next()
    assert update is not None
    assert update.data == {}
    hub.leave("k", stream)


async def test_session_has_four_streams(hub: LiveFeeds) -> None:
    source = Source()
    mine = [opened(hub, source, "mine") for _ in range(STREAMS_PER_SESSION)]
    assert hub.open("k", source, "mine", "anna", None, lambda: True) is None
    assert hub.open("k", source, "other", "anna", None, lambda: True) is not None
    hub.leave("k", mine[0])
    assert hub.open("k", source, "mine", "anna", None, lambda: True) is not None


async def test_control_socket_has_its_own_limit_of_streams(hub: LiveFeeds) -> None:
    source = Source()
    for _ in range(STREAMS_OF_CONTROL):
        opened(hub, source, CONTROL)
    assert hub.open("k", source, CONTROL, "anna", None, lambda: True) is None


async def test_broker_has_a_limit_of_streams(hub: LiveFeeds) -> None:
    source = Source()
    for number in range(STREAMS):
        opened(hub, source, str(number))
    assert hub.streams == STREAMS
    assert hub.open("k", source, "one more", "anna", None, lambda: True) is None


async def test_streams_are_shared_by_user_however_many_sessions_one_has(hub: LiveFeeds) -> None:
    source = Source()
    for number in range(STREAMS):
        opened(hub, source, str(number))
    assert hub.open("k", source, "one more", "anna", None, lambda: True) is None
    for user in ("berta", "carla"):
        for number in range(2):
            opened(hub, source, f"{user} {number}", user=user)
    assert hub.streams == STREAMS + 4


async def test_stream_of_a_disconnected_peer_does_not_count(hub: LiveFeeds) -> None:
    source, alive = Source(), [True]
    for _ in range(STREAMS_PER_SESSION):
        assert hub.open("k", source, "s", "anna", None, lambda: alive[0]) is not None
    alive[0] = False
    assert hub.open("k", source, "s", "anna", None, lambda: True) is not None


async def test_close_ends_streams_and_waits(hub: LiveFeeds) -> None:
    stream, wait = opened(hub, Source()), asyncio.Event()
    hub.waits[wait] = "anna"
    hub.close()
    assert await stream.next() is None
    assert stream.reason == "stopping"
    assert wait.is_set()
    assert hub.open("k", Source(), "s", "anna", None, lambda: True) is None


async def test_streams_end_when_what_they_show_is_gone(hub: LiveFeeds) -> None:
    source = Source()
    stream = opened(hub, source)
    await stream.next()
    source.error = Problem(404, "unknown_queue", "There is no queue.")
    assert await stream.next() is None
    assert stream.reason == "gone"


async def test_stream_outlives_an_evaluation_that_failed(hub: LiveFeeds) -> None:
    source = Source()
    source.error = StorageError("disk")
    stream = opened(hub, source)
    await asyncio.sleep(0.01)
    source.error = None
    update = await stream.next()
    assert update is not None
    assert update.data == {"shown": {"n": "0"}}
    hub.leave("k", stream)


async def test_stream_ends_after_its_time_so_that_permissions_are_checked_again(
    hub: LiveFeeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_feeds, "STREAM_S", 0.0)
    stream = opened(hub, Source())
    while await stream.next() is not None:
        pass
    assert stream.reason == "renew"


async def test_poll_returns_what_a_stream_sends(hub: LiveFeeds) -> None:
    source = Source()
    first = await hub.poll("k", source, None)
    assert first.data == {"shown": {"n": "0"}}
    await asyncio.sleep(0.002)
    source.values = LiveValues({"n": "7"})
    assert (await hub.poll("k", source, first.position)).data == {"shown": {"n": "7"}}


async def test_polls_evaluate_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    hub, source = LiveFeeds(), Source()
    for _ in range(5):
        await hub.poll("k", source, None)
    assert source.count == 1


async def test_idle_feeds_are_dropped(hub: LiveFeeds) -> None:
    for number in range(IDLE_FEEDS + 5):
        hub.states[number] = FeedState()
        await hub.poll(number, Source(), None)
    assert len(hub.states) == IDLE_FEEDS + 1


# -- tails


class Readings(RecentActivity):
    """Returns previews without a database."""

    def __init__(self, *places: MessagePreview) -> None:
        self.known = {place.seq: place for place in places}
        self.asked: list[int] = []

    async def previews(self, seqs: Any) -> dict[int, MessagePreview]:
        self.asked += seqs
        return {seq: self.known[seq] for seq in seqs if seq in self.known}


class Engine:
    """Notifies its listeners of a batch."""

    def __init__(self) -> None:
        self.looks: set[Any] = set()

    def tap(self, look: Any) -> Any:
        self.looks.add(look)
        return lambda: self.looks.discard(look)

    def commit(self, batch: Batch) -> None:
        for look in tuple(self.looks):
            look(batch)


def message(seq: int, queue_id: int = 1, **values: Any) -> Message:
    made = Message(seq, 1, queue_id, seq, 0, None, None, 50, None, None, 1, 0, 2, 0, 4, None)
    for name, value in values.items():
        setattr(made, name, value)
    return made


def tail_of(*places: MessagePreview) -> tuple[Engine, QueueTail, Readings]:
    engine, readings = Engine(), Readings(*places)
    tail = QueueTail(1, engine.tap, readings)
    tail.listen()
    return engine, tail, readings


async def kinds(engine: Engine, tail: QueueTail, batch: Batch) -> list[str]:
    engine.commit(batch)
    events, _ = await tail.take_events()
    tail.stop()
    return [event.kind for event in events]


async def test_tail_records_a_life_without_reading_what_it_saw_begin() -> None:
    engine, tail, readings = tail_of()
    batch = Batch(60)
    born = message(7)
    batch.created.append(born)
    batch.bodies.append(b"{}")
    born.consumer, born.last_dispatched_at = 4, 60
    batch.dispatched.append(born)
    engine.commit(batch)
    after = Batch(70)
    after.settled[int(State.ACKED), None] = [7]
    assert await kinds(engine, tail, after) == ["publish", "dispatch", "ack"]
    assert readings.asked == []


async def test_tail_looks_up_what_it_did_not_see_begin() -> None:
    place = MessagePreview(9, 1, 1, 2, b"hi")
    engine, tail, readings = tail_of(place, MessagePreview(10, 1, 2, 2, b"no"))
    batch = Batch(60)
    batch.settled[int(State.EXPIRED), None] = [9, 10, 11]
    engine.commit(batch)
    events, missed = await tail.take_events()
    tail.stop()
    assert [(h.kind, h.preview) for h in events] == [("expire", place)]
    assert (readings.asked, missed) == ([9, 10, 11], 0)


async def test_tail_skips_other_queues() -> None:
    engine, tail, _ = tail_of()
    batch = Batch(60)
    batch.created.append(message(7, queue_id=2))
    batch.bodies.append(b"{}")
    batch.events += (7, 60, "requeue", None)
    assert await kinds(engine, tail, batch) == []


async def test_tail_reports_a_dead_letter_once() -> None:
    engine, tail, _ = tail_of(MessagePreview(9, 1, 1, 2, b""))
    batch = Batch(60)
    batch.events += (9, 60, "dead_letter", "0" * 32)
    batch.settled[int(State.DEAD), "client"] = [9]
    assert await kinds(engine, tail, batch) == ["dead"]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("mail", "other", ["move"]),
        ("other", "mail", ["move"]),
        ("other", "a to mail", []),
        ("mail to a", "other", []),
    ],
)
async def test_tail_reports_the_moves_of_its_queue_only(
    source: str, target: str, expected: list[str]
) -> None:
    """The name of a queue may contain what the text of a move has between its two names."""
    rig = CoreRig()
    rig.begin()
    for name in ("mail", source, target):
        rig.core.registry.get_or_create(rig.core.batch, name)
    rig.finish()
    row = rig.publish(b"", queue=source).created[0]
    place = MessagePreview(row.seq, 1, rig.queue(target).queue_id, 2, b"")
    engine, tail, _ = tail_of(place)
    batch = rig.run(lambda: transitions.move(rig.core, row, rig.queue(target), b""))
    assert await kinds(engine, tail, batch) == expected


async def test_tail_counts_events_beyond_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "PENDING_MAX", 3)
    engine, tail, _ = tail_of()
    batch = Batch(60)
    for seq in range(5):
        batch.created.append(message(seq))
        batch.bodies.append(b"")
    engine.commit(batch)
    events, missed = await tail.take_events()
    tail.stop()
    assert (len(events), missed) == (3, 2)


async def test_tail_that_stopped_no_longer_listens() -> None:
    engine, tail, _ = tail_of()
    assert len(engine.looks) == 1
    tail.stop()
    assert engine.looks == set()


@pytest.mark.parametrize(
    ("kind", "detail", "text"),
    [
        ("retry", '{"attempt": 2, "limit": 5, "error": "none left"}', "2 of 5 failed: none left"),
        ("retry", '{"failed": false}', "put off"),
        ("failure", '{"exception": "StockError", "error": "no"}', "StockError: no"),
        ("schedule", "by anna", "by anna"),
    ],
)
def test_row_of_a_tail_says_what_a_worker_reported(kind: str, detail: str, text: str) -> None:
    assert kind in tails.KINDS
    row = tails.tail_row(TailEvent(kind, 5, 9, detail), {}, str)
    assert row["text"] == text


def test_row_of_a_tail_shows_nothing_hidden() -> None:
    event = TailEvent("publish", 5, 9, "\u202ebad", 4, MessagePreview(9, 1, 1, 3, b"a\x00b"))
    row = tails.tail_row(event, {4: "client 4"}, lambda id_: f"/messages/{id_}")
    assert row["text"] == "by client 4, \\u202ebad"
    assert row["preview"] == "a\\x00b"
    assert (row["id"], row["kind"], row["seq"]) == ("publish.9.5", "publish", "#9")
    assert row["link"].startswith("/messages/0000000000000009")


def test_filter_of_a_tail_takes_kinds_and_text() -> None:
    row = {"kind": "ack", "seq": "#9", "text": "purge", "preview": "Hello"}
    assert tails.is_match(row, frozenset(), "")
    assert tails.is_match(row, frozenset({"ack"}), "hello")
    assert not tails.is_match(row, frozenset({"dead"}), "")
    assert not tails.is_match(row, frozenset(), "nothing")


def test_cursor_of_a_wait_reads_back() -> None:
    assert WaitPosition.read(WaitPosition(7, 9).text) == WaitPosition(7, 9)
    assert WaitPosition.read(None) is None


@pytest.mark.parametrize("text", ["x", "WzEsMl0", WaitPosition(-1, 0).text])
def test_other_cursor_is_refused(text: str) -> None:
    with pytest.raises(Problem):
        WaitPosition.read(text)


def test_cursor_after_a_publish_waits_for_its_end() -> None:
    ids = [f"{seq:016x}{1:016x}" for seq in (12, 11)]
    assert WaitPosition(7, 9).after(ids) == WaitPosition(12, 9)
    assert WaitPosition(7, 9).after([]) == WaitPosition(7, 9)
