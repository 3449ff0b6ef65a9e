"""Without disk space, publishes are refused or wait; operations that free space continue."""

import pytest

from phpmq_lite.broker import commands
from phpmq_lite.broker.commands import CommandResult
from phpmq_lite.broker.operator import publishing
from phpmq_lite.broker.pipeline import staging
from phpmq_lite.broker.reasons import SHORTAGE_REFUSALS
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import DISK_FULL, DISK_LOW, Batch, LoadedRows, Shortage, checksum
from tests.support.core_rig import CoreRig, bodies, sent_messages, sent_receipts

LOW = Shortage(DISK_LOW, "little room")
FULL = Shortage(DISK_FULL, "no room")


def set_block(rig: CoreRig, block: Shortage | None) -> Batch:
    return rig.run(lambda: rig.core.registry.stop_publishing(rig.core.batch, block))


@pytest.fixture
def rig() -> CoreRig:
    made = CoreRig()
    made.publish(b"a")
    return made


def test_confirmed_publish_is_refused_until_there_is_space(rig: CoreRig) -> None:
    one = rig.connect()

    def publish() -> Batch:
        return rig.run(lambda: commands.publish(rig.core, one, "orders", b"b", None, b"k"))

    set_block(rig, LOW)
    batch = publish()
    assert sent_receipts(batch, one) == [(b"k", DISK_LOW.reason)]
    assert (batch.created, rig.core.refused) == ([], {DISK_LOW.reason: 1})
    set_block(rig, None)
    assert sent_receipts(publish(), one) == [(b"k", None)]
    set_block(rig, FULL)
    [seq] = publish().key_seqs  # a known key, whose message is only on disk
    rig.begin(LoadedRows(checksums={seq: checksum(seq, b"b")}))
    commands.publish(rig.core, one, "orders", b"b", None, b"k")
    assert sent_receipts(rig.finish(), one) == [(b"k", None)]


@pytest.mark.parametrize("name", ["orders", "a new queue"])
def test_publisher_without_a_key_waits_until_there_is_space(rig: CoreRig, name: str) -> None:
    one = rig.connect()
    set_block(rig, LOW)
    rig.begin()
    assert commands.publish(rig.core, one, name, b"b", None, None) is CommandResult.PARK
    assert rig.finish().to_resume == set()
    assert set_block(rig, None).to_resume == {one}
    rig.begin()
    assert commands.publish(rig.core, one, name, b"b", None, None) is CommandResult.DONE
    assert len(rig.finish().created) == 1


def test_publisher_waits_for_both_space_and_its_queue(rig: CoreRig) -> None:
    one = rig.connect()
    rig.run(lambda: rig.pause("orders", "publishing", True))
    set_block(rig, LOW)
    rig.run(lambda: commands.publish(rig.core, one, "orders", b"b", None, None))
    assert rig.run(lambda: rig.pause("orders", "publishing", False)).to_resume == set()
    assert set_block(rig, None).to_resume == {one}


def test_blocked_or_limited_queue_is_checked_for_each_message(rig: CoreRig) -> None:
    assert commands.unchecked_queue(rig.core, "orders") is rig.queue()
    set_block(rig, LOW)
    assert commands.unchecked_queue(rig.core, "orders") is None
    rig.run(lambda: rig.configure("orders", {"max_deliveries": 3}))
    assert commands.unchecked_queue(rig.core, "orders") is None
    set_block(rig, None)
    assert commands.unchecked_queue(rig.core, "orders") is rig.queue()
    rig.run(lambda: rig.configure("orders", {"max_messages": 3}))
    assert commands.unchecked_queue(rig.core, "orders") is None


def test_publisher_that_also_consumes_waits_only_for_a_full_disk(rig: CoreRig) -> None:
    one = rig.connect()
    set_block(rig, LOW)
    rig.begin()
    assert commands.publish(rig.core, one, "orders", b"b", None, None) is CommandResult.PARK
    assert (
        commands.publish(rig.core, one, "orders", b"b", None, None, is_forced=True)
        is CommandResult.DONE
    )
    assert len(rig.finish().created) == 1
    set_block(rig, FULL)
    rig.begin()
    assert commands.publish(rig.core, one, "orders", b"c", None, None) is CommandResult.PARK
    assert (
        commands.publish(rig.core, one, "orders", b"c", None, None, is_forced=True)
        is CommandResult.PARK
    )
    assert rig.finish().created == []
    assert set_block(rig, None).to_resume == {one}


def test_consumers_acknowledge_requeue_and_dead_letter() -> None:
    rig = CoreRig()
    worker = rig.consumer(credit=3)
    held = sent_messages(rig.publish(b"a", b"b", b"c"), worker)
    assert bodies(held) == [b"a", b"b", b"c"]
    set_block(rig, FULL)
    core = rig.core
    batch = rig.run(
        lambda: commands.acknowledge_late(core, worker, "orders", held[0].message_id),
        lambda: commands.requeue(core, worker, "orders", held[1].message_id, 0),
        lambda: commands.dead_letter(core, worker, "orders", held[2].message_id),
    )
    assert sum(map(len, batch.settled.values())) == 2
    assert [each.size for each in batch.created] == [1]  # the record


@pytest.mark.parametrize("name", ["orders", "a new queue"])
def test_operator_is_refused_with_code_and_setting(rig: CoreRig, name: str) -> None:
    set_block(rig, LOW)
    rig.begin()
    with pytest.raises(RefusedError, match="little room") as refused:
        publishing.publish(
            rig.core, rig.answers.append, rig.entry("queue.publish"), name, [(b"x", None)]
        )
    assert refused.value.code == "disk_full"
    assert rig.core.refused == {DISK_LOW.reason: 1}
    assert rig.finish().new_queues == []


def test_block_is_a_refusal_of_every_queue(rig: CoreRig) -> None:
    set_block(rig, LOW)
    assert rig.queue().refusal() == SHORTAGE_REFUSALS[DISK_LOW]
    set_block(rig, None)
    assert rig.queue().refusal() is None


def test_spark_stages_nothing(rig: CoreRig) -> None:
    set_block(rig, LOW)
    rig.begin()
    with pytest.raises(RefusedError, match="little room"):
        staging.stage(
            rig.core, rig.answers.append, rig.entry("queue.publish"), "token",
            [("orders", b"x", None)], after=0, is_whole=True,
        )  # fmt: skip
    rig.finish()
