"""Runs of frames that are processed together: their length, over any queues."""

from collections import deque

from phpmq_lite.broker.flow_control import PublishQuota
from phpmq_lite.model import ACKED_KEY
from phpmq_lite.protocol.frames import Acknowledge, ClientFrame, Publish
from phpmq_lite.server.frame_processing import apply_frames
from tests.support.core_rig import CoreRig

UNLIMITED = 1 << 30


def publish(queue: str, key: bytes | None = None) -> Publish:
    return Publish(queue, b"body", 0, key)


def run_of(
    rig: CoreRig, *frames: ClientFrame, quota: PublishQuota | None = None, most: int = 100
) -> int:
    """Process the frames of a new connection; return how many were processed."""
    client, waiting = rig.connect(), deque(frames)
    rig.begin()
    count, size = apply_frames(
        rig.core, client, waiting, most, quota or PublishQuota(lambda _: UNLIMITED)
    )
    rig.finish()
    assert count == len(frames) - len(waiting)
    assert size == sum(len(f.content) for f in frames[:count] if isinstance(f, Publish))
    return count


def rig_with(*queues: str) -> CoreRig:
    """Create queues, each with one message."""
    rig = CoreRig()
    for queue in queues:
        rig.publish(b"first", queue=queue)
    return rig


def test_run_covers_any_queues() -> None:
    rig = rig_with("a", "b")
    assert run_of(rig, *[publish(queue) for queue in "abbaab"]) == 6
    assert {q.name: q.row.live_count for q in rig.core.queues.values()} == {"a": 4, "b": 4}


def test_run_ends_at_a_queue_without_quota() -> None:
    quota = PublishQuota({"a": 2, "b": 9}.__getitem__)
    rig = rig_with("a", "b")
    assert run_of(rig, *[publish(queue) for queue in "ababab"], quota=quota) == 4
    assert (quota.available("a"), quota.available("b")) == (0, 7)
    assert run_of(rig, publish("a"), publish("b"), quota=quota) == 0


def test_run_ends_at_another_kind_a_new_queue_or_the_limit() -> None:
    rig = rig_with("a", "b")
    assert run_of(rig, publish("a"), publish("b"), publish("a", b"key"), publish("b")) == 2
    assert run_of(rig, publish("a"), publish("b"), publish("new"), publish("a")) == 2
    assert run_of(rig, publish("a"), publish("b"), Acknowledge("a", b"0" * 32)) == 2
    assert run_of(rig, publish("a"), publish("b"), publish("a"), most=2) == 2


def test_single_publish_is_not_a_run() -> None:
    assert run_of(rig_with("a"), publish("a")) == 0


def test_repeated_key_is_stored_once_and_receipted_twice() -> None:
    rig = rig_with("a", "b")
    keys = [publish("a", b"1"), publish("b", b"1"), publish("a", b"1"), publish("b", b"2")]
    assert run_of(rig, *keys) == 4
    [outbox] = rig.core.batch.sends.values()
    assert [(r.queue, key) for r in outbox.receipts for key in r.keys] == [
        ("a", b"1"), ("b", b"1"), ("a", b"1"), ("b", b"2"),
    ]  # fmt: skip
    queues = rig.core.queues.values()
    assert {q.name: (q.row.live_count, q.counters.deduplicated) for q in queues} == {
        "a": (2, 1),
        "b": (3, 0),
    }


def test_run_ends_at_a_known_key_whose_message_is_on_disk() -> None:
    quota = PublishQuota({"a": 3, "b": 9}.__getitem__)
    rig = rig_with("a", "b")
    assert run_of(rig, publish("a", b"1"), publish("a", b"2")) == 2
    frames = [publish("a", b"3"), publish("b", b"1"), publish("a", b"1"), publish("a", b"4")]
    assert run_of(rig, *frames, quota=quota) == 2
    assert (quota.available("a"), quota.available("b")) == (2, 8)  # as many as were published
    assert rig.batch.key_seqs == {3}


def test_run_of_acknowledgements_ends_at_a_message_not_held(rig: CoreRig) -> None:
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
    assert (rig.core.held, rig.core.held_bytes, client.acked) == (0, 0, 2)
