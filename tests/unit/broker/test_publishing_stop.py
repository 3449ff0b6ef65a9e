"""No room on the disk: messages are refused or wait, and all that makes room goes on."""

import pytest

from phpmq_lite.broker.broker import CommandResult
from phpmq_lite.broker.operator import publishing
from phpmq_lite.broker.pipeline import staging
from phpmq_lite.broker.registry import PublishBlock
from phpmq_lite.errors import RefusedError
from tests.support.core_rig import CoreRig, bodies, sent_messages, sent_receipts

LOW = PublishBlock("disk_full", "disk full: storage.free_bytes", "little room", is_bare=False)
FULL = LOW._replace(reason="disk full", is_bare=True)


def shut(rig: CoreRig, why: PublishBlock | None) -> None:
    rig.run(lambda: rig.core.state.registry.stop_publishing(why))


@pytest.fixture
def rig() -> CoreRig:
    made = CoreRig()
    made.publish(b"a")
    return made


def test_confirmed_publish_is_refused_with_the_bound_and_taken_again_later(rig: CoreRig) -> None:
    one = rig.connect()
    shut(rig, LOW)
    batch = rig.run(lambda: rig.core.publish(one, "orders", b"b", None, b"k"))
    assert sent_receipts(batch, one) == [(b"k", LOW.reason)]
    assert (batch.created, rig.core.refused) == ([], {LOW.reason: 1})
    shut(rig, None)
    batch = rig.run(lambda: rig.core.publish(one, "orders", b"b", None, b"k"))
    assert sent_receipts(batch, one) == [(b"k", None)]


def test_key_that_was_stored_before_is_receipted(rig: CoreRig) -> None:
    one = rig.connect()
    rig.run(lambda: rig.core.publish(one, "orders", b"b", None, b"k"))
    shut(rig, FULL)
    batch = rig.run(lambda: rig.core.publish(one, "orders", b"b", None, b"k"))
    assert sent_receipts(batch, one) == [(b"k", None)]


@pytest.mark.parametrize("name", ["orders", "a new queue"])
def test_publisher_without_a_key_waits_until_there_is_room(rig: CoreRig, name: str) -> None:
    one = rig.connect()
    shut(rig, LOW)
    rig.begin()
    assert rig.core.publish(one, name, b"b", None, None) is CommandResult.PARK
    assert rig.finish().to_resume == set()
    batch = rig.run(lambda: rig.core.state.registry.stop_publishing(None))
    assert batch.to_resume == {one}
    rig.begin()
    assert rig.core.publish(one, name, b"b", None, None) is CommandResult.DONE
    assert len(rig.finish().created) == 1


def test_publisher_of_a_paused_queue_goes_on_waiting_when_there_is_room(rig: CoreRig) -> None:
    one = rig.connect()
    rig.run(lambda: rig.pause("orders", "publishing", True))
    shut(rig, LOW)
    rig.run(lambda: rig.core.publish(one, "orders", b"b", None, None))
    assert rig.run(lambda: rig.pause("orders", "publishing", False)).to_resume == set()
    assert rig.run(lambda: rig.core.state.registry.stop_publishing(None)).to_resume == {one}


def test_no_run_of_messages_is_taken_unseen(rig: CoreRig) -> None:
    assert rig.core.unchecked_queue("orders") is rig.queue()
    shut(rig, LOW)
    assert rig.core.unchecked_queue("orders") is None
    rig.run(lambda: rig.configure("orders", {"max_deliveries": 3}))
    assert rig.core.unchecked_queue("orders") is None
    shut(rig, None)
    assert rig.core.unchecked_queue("orders") is rig.queue()
    rig.run(lambda: rig.configure("orders", {"max_messages": 3}))
    assert rig.core.unchecked_queue("orders") is None


def test_who_also_consumes_is_let_through_unless_there_is_no_room_at_all(rig: CoreRig) -> None:
    one = rig.connect()
    shut(rig, LOW)
    rig.begin()
    assert rig.core.publish(one, "orders", b"b", None, None) is CommandResult.PARK
    assert rig.core.force_publish(one, "orders", b"b", None) is CommandResult.DONE
    assert len(rig.finish().created) == 1
    shut(rig, FULL)
    rig.begin()
    assert rig.core.publish(one, "orders", b"c", None, None) is CommandResult.PARK
    assert rig.core.force_publish(one, "orders", b"c", None) is CommandResult.PARK
    assert rig.finish().created == []
    assert rig.run(lambda: rig.core.state.registry.stop_publishing(None)).to_resume == {one}


def test_consumers_acknowledge_requeue_and_dead_letter(rig: CoreRig) -> None:
    rig = CoreRig()
    worker = rig.consumer(credit=3)
    held = sent_messages(rig.publish(b"a", b"b", b"c"), worker)
    assert bodies(held) == [b"a", b"b", b"c"]
    shut(rig, FULL)
    core = rig.core
    batch = rig.run(
        lambda: core.acknowledge(worker, "orders", held[0].message_id),
        lambda: core.requeue(worker, "orders", held[1].message_id, 0),
        lambda: core.dead_letter(worker, "orders", held[2].message_id),
    )
    assert sum(map(len, batch.settled.values())) == 2
    assert [each.size for each in batch.created] == [1]  # the record


@pytest.mark.parametrize("name", ["orders", "a new queue"])
def test_operator_is_refused_with_code_and_bound(rig: CoreRig, name: str) -> None:
    shut(rig, LOW)
    rig.begin()
    with pytest.raises(RefusedError, match="little room") as refused:
        publishing.publish(
            rig.core, rig.answers.append, rig.entry("queue.publish"), name, [(b"x", None)]
        )
    assert refused.value.code == "disk_full"
    assert rig.core.refused == {LOW.reason: 1}
    assert rig.finish().new_queues == []


def test_moves_and_redrives_ask_the_queue_and_hear_of_it(rig: CoreRig) -> None:
    shut(rig, LOW)
    assert rig.queue().refusal() == LOW.reason
    shut(rig, None)
    assert rig.queue().refusal() is None


def test_spark_stages_nothing(rig: CoreRig) -> None:
    shut(rig, LOW)
    rig.begin()
    with pytest.raises(RefusedError, match="little room"):
        staging.stage(
            rig.core, rig.answers.append, rig.entry("queue.publish"), "token",
            [("orders", b"x", None)], after=0, is_whole=True,
        )  # fmt: skip
    rig.finish()
