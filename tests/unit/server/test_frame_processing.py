"""Frames in a row: how far a run goes, over any queues."""

from collections import deque

from phpmq_lite.broker.flow_control import PublishQuota
from phpmq_lite.broker.state import ACKED_KEY
from phpmq_lite.protocol.frames import Acknowledge, ClientFrame, Publish
from phpmq_lite.server.frame_processing import apply_frames
from tests.support.core_rig import CoreRig

UNLIMITED = 1 << 30


def publish(queue: str, key: bytes | None = None) -> Publish:
    return Publish(queue, b"body", 0, key)


def run_of(
    rig: CoreRig, *frames: ClientFrame, rooms: PublishQuota | None = None, most: int = 100
) -> int:
    """Give frames of a new connection; return how many are done and taken out."""
    client, waiting = rig.connect(), deque(frames)
    rig.begin()
    count, size = apply_frames(
        rig.core, client, waiting, most, rooms or PublishQuota(lambda _: UNLIMITED)
    )
    rig.finish()
    assert count == len(frames) - len(waiting)
    assert size == sum(len(f.content) for f in frames[:count] if isinstance(f, Publish))
    return count


def rig_with(*queues: str) -> CoreRig:
    """Make queues, each with one message."""
    rig = CoreRig()
    for queue in queues:
        rig.publish(b"first", queue=queue)
    return rig


def test_a_run_goes_over_any_queues() -> None:
    rig = rig_with("a", "b")
    assert run_of(rig, *[publish(queue) for queue in "abbaab"]) == 6
    assert {q.name: q.row.live_count for q in rig.core.state.queues.values()} == {"a": 4, "b": 4}


def test_a_run_ends_where_a_queue_has_no_more_room_in_all_its_parts() -> None:
    rooms = PublishQuota({"a": 2, "b": 9}.__getitem__)
    rig = rig_with("a", "b")
    assert run_of(rig, *[publish(queue) for queue in "ababab"], rooms=rooms) == 4
    assert (rooms.available("a"), rooms.available("b")) == (0, 7)
    assert run_of(rig, publish("a"), publish("b"), rooms=rooms) == 0


def test_a_run_ends_at_another_kind_a_new_queue_and_the_most() -> None:
    rig = rig_with("a", "b")
    assert run_of(rig, publish("a"), publish("b"), publish("a", b"key"), publish("b")) == 2
    assert run_of(rig, publish("a"), publish("b"), publish("new"), publish("a")) == 2
    assert run_of(rig, publish("a"), publish("b"), Acknowledge("a", b"0" * 32)) == 2
    assert run_of(rig, publish("a"), publish("b"), publish("a"), most=2) == 2


def test_a_lone_publish_is_no_run() -> None:
    assert run_of(rig_with("a"), publish("a")) == 0


def test_a_key_that_comes_twice_is_stored_once_and_answered_twice() -> None:
    rig = rig_with("a", "b")
    keys = [publish("a", b"1"), publish("b", b"1"), publish("a", b"1"), publish("b", b"2")]
    assert run_of(rig, *keys) == 4
    [(_, receipts)] = rig.core.state.batch.sends.values()
    assert [(r.queue, key) for r in receipts for key in r.keys] == [
        ("a", b"1"), ("b", b"1"), ("a", b"1"), ("b", b"2"),
    ]  # fmt: skip
    queues = rig.core.state.queues.values()
    assert {q.name: (q.row.live_count, q.counters.deduplicated) for q in queues} == {
        "a": (2, 1),
        "b": (3, 0),
    }


def test_acknowledgements_of_several_queues_end_at_one_that_is_not_held(rig: CoreRig) -> None:
    client = rig.connect()
    for queue in "ab":
        rig.consume(client, 10, queue)
        rig.publish(b"first", queue=queue)
    held = [id for consumer in client.consumers.values() for id in consumer.held]
    assert len(held) == 2
    frames: deque[ClientFrame] = deque(
        [Acknowledge("b", held[1]), Acknowledge("a", held[0]), Acknowledge("a", held[0])]
    )
    rig.begin()
    assert apply_frames(rig.core, client, frames, 9, PublishQuota(lambda _: UNLIMITED)) == (2, 0)
    batch = rig.finish()
    assert batch.settled == {ACKED_KEY: [2, 1]}
    assert (rig.core.state.held, rig.core.state.held_bytes, client.acked) == (0, 0, 2)
