"""Operator actions on a real file, also after a restart: positions, keys, audit, erasure."""

from typing import Any
from unittest.mock import patch

from phpmq_lite.broker.operator.message_actions import ActionOptions, ActionOutcome
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import Limits
from phpmq_lite.operator_actions import Action
from phpmq_lite.storage import store as stores
from tests.support.builds import NEEDS_SOURCES
from tests.support.core_and_store import Driver, MakeDriver, consume_all, stored_bodies


def ask(driver: Driver, verb: str, *arguments: Any, **options: Any) -> Any:
    """Run a command until nothing is left to do; return the answer."""
    question = driver.ask(verb, *arguments, **options)
    driver.step()
    return question.answer


def act(driver: Driver, action: Action, *seqs: int, **options: Any) -> ActionOutcome:
    answer = ask(
        driver, "act_on_messages", action, seqs, ActionOptions(**options), audit=f"message.{action}"
    )
    assert isinstance(answer, ActionOutcome)
    return answer


def audit(driver: Driver) -> list[tuple[Any, ...]]:
    return driver.rows("SELECT audit_id, action, count, result FROM audit ORDER BY audit_id")


def test_deleted_message_is_restored_at_its_position(make: MakeDriver) -> None:
    driver = make(Limits(window=2))
    driver.publish(b"a", b"b", b"c", b"d", b"e")
    before = stored_bodies(driver)
    act(driver, Action.DELETE, 2, 3, 5)
    worker = driver.consume(1)
    done = act(driver, Action.RESTORE, 2, 3, 5)
    assert done.changed == [2, 3, 5]
    assert stored_bodies(driver) == before
    assert consume_all(driver, worker) == before


def test_message_and_its_successor_are_each_restored_once(make: MakeDriver) -> None:
    driver = make()
    driver.publish(b"a", b"b")
    act(driver, Action.DELETE, 1)
    made = int(act(driver, Action.RESTORE, 1).new_ids[1][:16], 16)
    assert act(driver, Action.RESTORE, 1).skipped == {"restored already": 1}
    act(driver, Action.DELETE, made)
    driver.kill_and_restart()
    assert act(driver, Action.RESTORE, 1, made).skipped == {"restored already": 1}
    assert stored_bodies(driver) == [b"a", b"b"]


def test_requeue_and_move_are_undone_after_a_restart(make: MakeDriver) -> None:
    driver = make()
    driver.publish(b"a", b"b", b"c")
    places = act(driver, Action.REQUEUE, 1).places
    places |= act(driver, Action.MOVE, 2, target="mails", create=True).places
    assert (stored_bodies(driver), stored_bodies(driver, "mails")) == ([b"c", b"a"], [b"b"])
    driver.kill_and_restart()
    assert act(driver, Action.PLACE, 1, 2, places=places).changed == [1, 2]
    assert (stored_bodies(driver), driver.live(), driver.live("mails")) == (
        [b"a", b"b", b"c"], (3, 3), (0, 0),
    )  # fmt: skip


def test_large_bodies_are_loaded_in_pages_and_all_restored(make: MakeDriver) -> None:
    driver = make()
    driver.publish(b"a" * 9, b"b" * 9, b"c" * 30, b"d")
    act(driver, Action.DELETE, 1, 2, 3, 4)
    with patch.object(stores, "_PAGE_BYTES", 20):
        outcome = act(driver, Action.RESTORE, 4, 3, 2, 1, 99)
    assert (outcome.changed, outcome.skipped) == ([4, 3, 2, 1], {"gone": 1})
    assert audit(driver)[-1] == (2, "message.restore", 4, "done")


def test_damaged_body_is_not_restored(make: MakeDriver) -> None:
    driver = make()
    driver.publish(b"a")
    act(driver, Action.DELETE, 1)
    driver.set_body(1, b"\0")
    assert act(driver, Action.RESTORE, 1).skipped == {"body gone": 1}


def test_released_message_goes_to_another_consumer(make: MakeDriver) -> None:
    driver = make()
    one, other = driver.consume(1), driver.consume(1)
    driver.publish(b"a")
    [first] = one.take()
    one.choke(is_blocked=True)
    assert act(driver, Action.RELEASE, 1).changed == [1]
    [second] = other.take()
    assert first.message_id == second.message_id
    one.acknowledge("orders", first.message_id)
    driver.step()
    assert driver.core.ignored == {"foreign": 1}


def test_key_returns_the_first_ids_after_a_restart(make: MakeDriver) -> None:
    driver = make()
    pieces = [(b"a", None), (b"b", None)]
    first = ask(driver, "publish", "orders", pieces, key=b"k")
    act(driver, Action.DELETE, 1)
    driver.kill_and_restart()
    assert ask(driver, "publish", "orders", pieces, key=b"k") == first
    assert driver.live() == (1, 1)


def test_edited_message_names_its_source_alive_or_settled(make: MakeDriver) -> None:
    driver = make()
    driver.publish(b"a", b"b")
    act(driver, Action.DELETE, 1)
    for source in (1, 2, 99):
        ask(driver, "publish", "orders", [(b"c", None)], source=(source, "edit"))
    details = driver.rows("SELECT detail FROM event WHERE kind = 'edit' AND seq IN (3, 4, 5)")
    tokens = dict(driver.rows(
        "SELECT seq, token FROM message UNION SELECT seq, token FROM history"
    ))  # fmt: skip
    assert [detail for (detail,) in details] == [
        f"{1:016x}{tokens[1]:016x}", f"{2:016x}{tokens[2]:016x}", f"{99:016x}",
    ]  # fmt: skip


def test_erased_secret_is_removed_from_the_file(make: MakeDriver) -> None:
    driver = make()
    secret = b"correct horse battery staple"
    driver.publish(secret, b"b")
    act(driver, Action.DELETE, 1)
    assert act(driver, Action.ERASE, 1).changed == [1]
    driver.store.checkpoint("TRUNCATE")
    assert secret not in driver.path.read_bytes()
    assert driver.outcomes() == [(1, 1, 5, "delete")]
    assert act(driver, Action.RESTORE, 1).skipped == {"body gone": 1}


@NEEDS_SOURCES
def test_operation_cut_short_by_a_stop_is_marked_interrupted(make: MakeDriver) -> None:
    driver = make()
    driver.publish(b"a", b"b", b"c")
    with patch("phpmq_lite.broker.operator.message_actions.PAGE_ROWS", 2):
        driver.ask("purge", "orders")
        driver.turn()
        driver.turn()
        assert audit(driver) == [(1, "queue.purge", 2, "running")]
        driver.kill_and_restart()
    assert audit(driver) == [(1, "queue.purge", 2, "interrupted")]
    assert len(driver.states()) == 1
    act(driver, Action.DELETE, 3)
    assert audit(driver)[1:] == [(2, "message.delete", 1, "done")]


def test_purge_leaves_messages_restored_meanwhile(make: MakeDriver) -> None:
    driver = make()
    driver.publish(b"a", b"b", b"c", b"d")
    act(driver, Action.DELETE, 4)
    with patch("phpmq_lite.broker.operator.message_actions.PAGE_ROWS", 1):
        purge = driver.ask("purge", "orders")
        driver.turn()
        act(driver, Action.RESTORE, 4)
    assert (purge.answer, stored_bodies(driver)) == (3, [b"d"])


def test_removed_queue_is_kept_while_the_history_refers_to_it(make: MakeDriver) -> None:
    driver = make()
    driver.publish(b"a")
    ask(driver, "create_queue", "empty")
    ask(driver, "configure", "empty", {"max_messages": 1})
    act(driver, Action.DELETE, 1)
    for name in ("orders", "empty"):
        assert ask(driver, "remove_queue", name) is True
    driver.kill_and_restart()
    assert driver.core.queues == {}
    assert driver.rows("SELECT queue_id, name FROM queue") == [(1, "orders")]
    assert isinstance(ask(driver, "purge", "orders"), RefusedError)
    driver.publish(b"b", queue="other")
    driver.publish(b"c")
    assert driver.rows("SELECT queue_id, name, settings FROM queue ORDER BY queue_id") == [
        (1, "orders", "{}"), (3, "other", "{}"),  # 2 is not reused
    ]  # fmt: skip
    driver.kill_and_restart()
    assert sorted(driver.core.queues) == ["orders", "other"]


def test_audit_numbers_continue_after_a_restart(make: MakeDriver) -> None:
    driver = make()
    for _ in "ab":
        ask(driver, "create_queue", "orders")
        driver.kill_and_restart()
    assert [row[0] for row in audit(driver)] == [1, 2]
