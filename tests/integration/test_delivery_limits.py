"""Groups, unique keys, dates and limits where they meet other rules, on a real database."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.broker.operator.message_actions import ActionOptions
from phpmq_lite.frame_options import DeliveryTime
from phpmq_lite.operator_actions import Action
from phpmq_lite.queue_settings import QueueSettings
from tests.support.core_and_store import Client, Driver, drivers_in, run_operation


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    with drivers_in(tmp_path) as make:
        driver = make(defaults=QueueSettings(ack_timeout_s=60, max_deliveries=3))
        for queue in ("orders", "mails"):
            driver.connect().consume(queue, 0)
        driver.step()
        yield driver


def configure(driver: Driver, queue: str = "orders", **own: object) -> None:
    run_operation(driver, "configure", queue, own)


def publish(driver: Driver, *bodies: bytes, queue: str = "orders", **options: Any) -> None:
    for body in bodies:
        driver.connect().publish_with(queue, body, **options)
    driver.step()


def act(driver: Driver, action: Action, *seqs: int, **options: Any) -> Any:
    given = ActionOptions(**options)
    return run_operation(driver, "act_on_messages", action, list(seqs), given)


def bodies(client: Client) -> list[bytes]:
    return [delivery.body for delivery in client.take()]


def at(driver: Driver, seconds: float) -> None:
    driver.clock.advance(seconds)
    driver.step()


def finish(driver: Driver, client: Client) -> None:
    """Acknowledge what a client got last."""
    for delivery in client.take():
        client.acknowledge(delivery.queue, delivery.message_id)
    driver.step()


# -- groups


def test_group_goes_on_after_a_kill_between_its_messages(driver: Driver) -> None:
    configure(driver, group_by="group")
    publish(driver, b"1", b"2", group="a")
    worker = driver.consume()
    [first] = worker.take()
    worker.acknowledge("orders", first.message_id)
    driver.record()  # stored; the next message of the group is not ready yet
    driver.kill_and_restart()
    assert bodies(driver.consume()) == [b"2"]


def test_message_that_becomes_ready_does_not_overtake_its_group(driver: Driver) -> None:
    configure(driver, group_by="group")
    publish(driver, b"1", b"2", group="a")
    publish(driver, b"3", group="a", delay_s=5)
    worker = driver.consume()
    [first] = worker.take()
    driver.clock.advance(5)
    worker.acknowledge("orders", first.message_id)
    driver.turn()
    driver.step()
    assert bodies(worker) == [b"2"]
    finish(driver, worker)


def test_message_that_an_operator_requeues_does_not_overtake_its_group(driver: Driver) -> None:
    configure(driver, group_by="group")
    publish(driver, b"1", b"2", b"3", group="a")
    act(driver, Action.REQUEUE, 1)
    worker = driver.consume()
    assert bodies(worker) == [b"2"]


def test_pending_late_retry_lets_the_next_of_its_group_pass(driver: Driver) -> None:
    configure(driver, group_by="group")
    publish(driver, b"1", b"2", group="a")
    late = driver.connect()
    [(seq, token)] = driver.rows("SELECT seq, token FROM message WHERE seq = 1")
    late.retry("orders", b"%016x%016x" % (seq, token), delay_s=50)
    driver.step()
    assert bodies(driver.consume()) == [b"2"]


def test_turning_groups_off_unblocks_their_messages(driver: Driver) -> None:
    configure(driver, group_by="group")
    publish(driver, b"1", b"2", group="a")
    publish(driver, b"alone")
    worker = driver.consume()
    assert bodies(worker) == [b"1", b"alone"]
    configure(driver, group_by=None)
    assert bodies(worker) == [b"2"]
    configure(driver, group_by="group")
    publish(driver, b"3", group="a")
    assert bodies(worker) == [b"3"]  # what was in flight is no head any more


def test_records_are_in_no_group_and_have_no_key(driver: Driver) -> None:
    configure(driver, group_by="group")
    publish(driver, b"1", b"2", group="a")
    publish(driver, b"3", group="b", unique_key="k")
    worker = driver.consume()
    for delivery in worker.take():
        worker.dead_letter("orders", delivery.message_id)
    driver.step()
    configure(driver, "orders.dlq", group_by="group")
    publish(driver, b"own", queue="orders.dlq", group="a")
    publish(driver, b"keyed", queue="orders.dlq", unique_key="k")
    assert bodies(driver.consume(queue="orders.dlq")) == [b"1", b"3", b"own", b"keyed"]


def test_group_is_computed_again_from_the_body_when_moved(driver: Driver) -> None:
    configure(driver, "mails", group_by="/customer")
    publish(driver, b'{"customer": 7}', b'{"customer": 7}', b'{"customer": 8}')
    act(driver, Action.MOVE, 1, 2, 3, target="mails")
    groups = driver.rows("SELECT group_name, state FROM message ORDER BY seq")
    assert groups == [("7", 0), ("7", 7), ("8", 0)]


def test_forward_computes_the_group_from_the_body(driver: Driver) -> None:
    configure(driver, "mails", group_by="/customer")
    configure(driver, on_expire="forward:mails")
    publish(driver, b'{"customer": 7}', ttl_s=1)
    publish(driver, b'{"customer": 7}', ttl_s=1, unique_key="k")  # is looked up, too
    worker = driver.consume(queue="mails")
    at(driver, 1)
    assert len(worker.take()) == 1


def test_head_stays_the_head_when_it_is_put_back(driver: Driver) -> None:
    configure(driver, group_by="group")
    publish(driver, b"1", b"2", group="a")
    worker = driver.consume()
    worker.take()
    requeued = act(driver, Action.REQUEUE, 1, time=DeliveryTime(50))
    act(driver, Action.PLACE, 1, places=requeued.places)
    assert bodies(worker) == [b"1"]


# -- unique keys


def test_forward_onto_a_taken_key_expires(driver: Driver) -> None:
    configure(driver, on_expire="forward:mails")
    publish(driver, b"first", queue="mails", unique_key="k")
    publish(driver, b"second", b"other", unique_key="k", ttl_s=1)
    publish(driver, b"free", unique_key="free", ttl_s=1)
    worker = driver.consume(queue="mails")
    at(driver, 1)
    assert driver.outcomes() == [(1, 2, 3, "unique_key_taken")]
    assert bodies(worker) == [b"first", b"free"]


def test_copy_of_a_worker_frees_the_key_of_the_original(driver: Driver) -> None:
    publish(driver, b"job", unique_key="u")
    worker = driver.consume()
    [job] = worker.take()
    worker.publish("orders.retry", b"again", 5, job.message_id + b":1")
    driver.step()
    assert driver.rows("SELECT seq FROM message WHERE unique_key = 'u'") == [(2,)]


def test_delayed_publish_takes_no_key_twice(driver: Driver) -> None:
    publish(driver, b"one", unique_key="u")
    publish(driver, b"two", queue="orders.retry", unique_key="u", ttl_s=5)
    assert driver.live() == (1, 3)


# -- time


@pytest.mark.parametrize("is_right", [False, True])
def test_date_waits_while_the_clock_is_in_doubt(driver: Driver, is_right: bool) -> None:
    driver.core.is_clock_doubtful = True
    past = driver.clock.now().wall_ms - 1_000
    publish(driver, b"date", deliver_at=past)
    worker = driver.consume()
    assert bodies(worker) == []
    run_operation(driver, "decide_clock", 0, 0, is_right=is_right)
    assert bodies(worker) == [b"date"]


def test_message_that_has_become_ready_stays_ready_when_the_clock_is_set_back(
    driver: Driver,
) -> None:
    publish(driver, b"date", deliver_at=driver.clock.now().wall_ms + 5_000)
    at(driver, 5)
    driver.clock.set_wall(-3_600)
    driver.step()
    driver.kill_and_restart()
    assert driver.rows("SELECT state, deliver_at FROM message") == [(0, None)]
    assert bodies(driver.consume()) == [b"date"]


@pytest.mark.parametrize("is_date", [False, True])
@pytest.mark.parametrize(("away_s", "left_s"), [(20, 30), (60, 0)])
def test_restored_message_is_scheduled_unless_its_time_has_passed(
    driver: Driver, away_s: int, left_s: int, is_date: bool
) -> None:
    time: dict[str, Any] = {"delay_s": 50}
    if is_date:
        time = {"deliver_at": driver.clock.now().wall_ms + 50_000}
    publish(driver, b"later", **time)
    act(driver, Action.DELETE, 1)
    at(driver, away_s)
    assert act(driver, Action.RESTORE, 1).new_ids
    assert driver.rows("SELECT state FROM message") == [(6 if left_s else 0,)]
    worker = driver.consume()
    if left_s:
        at(driver, left_s - 0.1)
        assert bodies(worker) == []
        at(driver, 0.1)
    assert bodies(worker) == [b"later"]


def test_decision_on_the_clock_moves_no_later_delay(driver: Driver) -> None:
    publish(driver, b"before", delay_s=100)
    publish(driver, b"since")
    number = driver.core.next_number
    worker = driver.consume()
    [since] = worker.take()
    worker.retry("orders", since.message_id, delay_s=100)
    driver.step()
    run_operation(driver, "decide_clock", 40_000, number, is_right=True)
    at(driver, 60)
    assert bodies(worker) == [b"before"]
    at(driver, 40)
    assert bodies(worker) == [b"since"]


def test_restored_date_keeps_its_time_to_live(driver: Driver) -> None:
    date = driver.clock.now().wall_ms + 10_000
    publish(driver, b"date", deliver_at=date, ttl_s=5)
    act(driver, Action.DELETE, 1)
    driver.clock.set_wall(-60)
    at(driver, 30)  # due as expected when it was published, but not by the clock
    assert act(driver, Action.RESTORE, 1).new_ids
    worker = driver.consume()
    at(driver, 40)
    assert [delivery.ttl_s for delivery in worker.take()] == [5]


def test_retry_with_nothing_left_expires_at_once(driver: Driver) -> None:
    publish(driver, b"job", ttl_s=10)
    worker = driver.consume()
    [job] = worker.take()
    at(driver, 10)
    worker.retry("orders", job.message_id, delay_s=50)
    driver.step()
    assert driver.outcomes() == [(1, 1, 3, None)]


def test_extended_hold_ends_with_its_holder(driver: Driver) -> None:
    publish(driver, b"job")
    worker = driver.consume()
    [job] = worker.take()
    worker.extend("orders", job.message_id, 5_000)
    worker.disconnect()
    driver.step()
    driver.consume()
    at(driver, 60)
    [(_, _, deliveries)] = driver.states()
    assert deliveries == 3


# -- claims


def claim(driver: Driver, count: int) -> list[bytes]:
    """Claim messages; return all that are claimed, in order."""
    run_operation(driver, "claim", "s", "orders", count, 10_000)
    rows = driver.rows(
        "SELECT content FROM claim JOIN body USING (seq) ORDER BY subscription_id, claim"
    )
    return [content for (content,) in rows]


def test_claim_follows_priority_after_a_restart(driver: Driver) -> None:
    publish(driver, b"default")
    publish(driver, b"urgent", priority=0)
    driver.kill_and_restart()
    assert claim(driver, 1) == [b"urgent"]


def test_claim_takes_one_of_a_group(driver: Driver) -> None:
    configure(driver, group_by="group")
    publish(driver, b"1", b"2", group="a")
    publish(driver, b"3", group="b")
    worker = driver.consume(1)
    assert bodies(worker) == [b"1"]
    assert claim(driver, 10) == [b"3"]
    driver.kill_and_restart()
    assert claim(driver, 10) == [b"3", b"1"]
    assert claim(driver, 10) == [b"3", b"1"]
    run_operation(driver, "ack_claims", "s", 2)
    assert claim(driver, 10) == [b"2"]


def test_claim_counts_for_the_limits(driver: Driver) -> None:
    configure(driver, max_in_flight=3, max_rate=10.0, max_burst=5)
    publish(driver, b"1", b"2", b"3", b"4", b"5")
    worker = driver.consume(1)
    at(driver, 0.2)
    assert len(worker.take()) == 1
    assert claim(driver, 10) == [b"2"]  # what is left in the bucket
    at(driver, 10)
    assert claim(driver, 10) == [b"2", b"3"]
    assert driver.core.queues["orders"].dispatched == 3


# -- staged rows


def publish_staged(driver: Driver, version: int, *bodies: bytes) -> None:
    rows = [("orders", body, None) for body in bodies]
    run_operation(driver, "stage", f"t{version}", rows, after=0, is_whole=True)
    run_operation(driver, "publish_staged", "app", version, [f"t{version}"])


def test_staged_rows_have_groups(driver: Driver) -> None:
    configure(driver, group_by="/customer")
    publish_staged(driver, 1, b'{"customer": 1}', b'{"customer": 1, "n": 2}', b'{"customer": 2}')
    worker = driver.consume()
    assert bodies(worker) == [b'{"customer": 1}', b'{"customer": 2}']
    publish_staged(driver, 2, b'{"customer": 1, "n": 3}', b'{"customer": 3}', b"none")
    assert bodies(worker) == [b'{"customer": 3}', b"none"]
    for seq, token in driver.rows("SELECT seq, token FROM message WHERE state = 1 AND seq < 4"):
        worker.acknowledge("orders", b"%016x%016x" % (seq, token))
    driver.step()
    assert bodies(worker) == [b'{"customer": 1, "n": 2}']


def test_staged_rows_are_before_those_of_a_lower_priority(driver: Driver) -> None:
    worker = driver.consume(1)
    publish(driver, b"held", b"last", priority=200)
    [held] = worker.take()
    publish_staged(driver, 1, b"staged")
    worker.acknowledge("orders", held.message_id)
    driver.step()
    assert bodies(worker) == [b"staged"]
