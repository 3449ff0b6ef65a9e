"""No disk space: messages are refused or wait; operations that free space continue."""

import pytest

from phpmq_lite.broker.broker import CommandResult
from phpmq_lite.broker.operator import publishing
from phpmq_lite.broker.pipeline import staging
from phpmq_lite.broker.queue import Connection
from phpmq_lite.broker.registry import PublishBlock
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import Batch
from tests.support.core_rig import CoreRig, bodies, sent_receipts

LOW = PublishBlock("disk_full", "disk full: storage.free_bytes", "little room", is_bare=False)
FULL = LOW._replace(reason="disk full", is_bare=True)


def shut(rig: CoreRig, why: PublishBlock | None) -> Batch:
    return rig.run(lambda: rig.core.state.registry.stop_publishing(why))


def confirm(rig: CoreRig, publisher: Connection) -> list[tuple[bytes, str | None]]:
    """Publish with a key and return the receipts."""
    batch = rig.run(lambda: rig.core.publish(publisher, "orders", b"b", None, b"k"))
    return sent_receipts(batch, publisher)


@pytest.fixture
def rig() -> CoreRig:
    made = CoreRig()
    made.publish(b"a")
    return made


def test_confirmed_publish_is_refused_until_there_is_space(rig: CoreRig) -> None:
    one = rig.connect()
    shut(rig, LOW)
    assert confirm(rig, one) == [(b"k", LOW.reason)]
    assert (rig.batch.created, rig.core.refused) == ([], {LOW.reason: 1})
    shut(rig, None)
    assert confirm(rig, one) == [(b"k", None)]


def test_key_that_was_stored_before_is_receipted(rig: CoreRig) -> None:
    one = rig.connect()
    confirm(rig, one)
    shut(rig, FULL)
    assert confirm(rig, one) == [(b"k", None)]


@pytest.mark.parametrize("name", ["orders", "a new queue"])
def test_publisher_without_a_key_waits_until_there_is_space(rig: CoreRig, name: str) -> None:
    one = rig.connect()
    set_block(rig, LOW)
    rig.begin()
    assert rig.core.publish(one, name, b"b", None, None) is CommandResult.PARK
    assert rig.finish().to_resume == set()
    assert shut(rig, None).to_resume == {one}
    rig.begin()
    assert rig.core.publish(one, name, b"b", None, None) is CommandResult.DONE
    assert len(rig.finish().created) == 1


def test_publisher_of_a_paused_queue_keeps_waiting_when_there_is_room(rig: CoreRig) -> None:
    one = rig.connect()
    rig.run(lambda: rig.pause("orders", "publishing", True))
    set_block(rig, LOW)
    rig.run(lambda: rig.core.publish(one, "orders", b"b", None, None))
    assert rig.run(lambda: rig.pause("orders", "publishing", False)).to_resume == set()
    assert shut(rig, None).to_resume == {one}


def test_no_run_of_messages_bypasses_the_checks(rig: CoreRig) -> None:
    assert rig.core.unchecked_queue("orders") is rig.queue()
    set_block(rig, LOW)
    assert rig.core.unchecked_queue("orders") is None
    rig.run(lambda: rig.configure("orders", {"max_deliveries": 3}))
    assert rig.core.unchecked_queue("orders") is None
    set_block(rig, None)
    assert rig.core.unchecked_queue("orders") is rig.queue()
    rig.run(lambda: rig.configure("orders", {"max_messages": 3}))
    assert rig.core.unchecked_queue("orders") is None


def test_consuming_publisher_may_publish_unless_the_disk_is_full(rig: CoreRig) -> None:
    one = rig.connect()
    set_block(rig, LOW)
    rig.begin()
    assert rig.core.publish(one, "orders", b"b", None, None) is CommandResult.PARK
    assert rig.core.force_publish(one, "orders", b"b", None) is CommandResult.DONE
    assert len(rig.finish().created) == 1
    set_block(rig, FULL)
    rig.begin()
    assert rig.core.publish(one, "orders", b"c", None, None) is CommandResult.PARK
    assert rig.core.force_publish(one, "orders", b"c", None) is CommandResult.PARK
    assert rig.finish().created == []
    assert shut(rig, None).to_resume == {one}


def test_consumers_acknowledge_requeue_and_dead_letter() -> None:
    rig = CoreRig()
    worker, held = rig.dispatch(b"a", b"b", b"c", credit=3)
    assert bodies(held) == [b"a", b"b", b"c"]
    set_block(rig, FULL)
    core = rig.core
    batch = rig.run(
        lambda: core.acknowledge(worker, "orders", held[0].message_id),
        lambda: core.requeue(worker, "orders", held[1].message_id, 0),
        lambda: core.dead_letter(worker, "orders", held[2].message_id),
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
    assert rig.core.refused == {LOW.reason: 1}
    assert rig.finish().new_queues == []


def test_queue_reports_the_refusal_to_moves_and_redrives(rig: CoreRig) -> None:
    shut(rig, LOW)
    assert rig.queue().refusal() == LOW.reason
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
