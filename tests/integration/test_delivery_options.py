"""Delays, priorities, groups, unique keys, retries and longer holds, on a real database."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from phpmq_lite.broker.operator.message_actions import ActionOptions
from phpmq_lite.broker.operator.publishing import NewMessage
from phpmq_lite.envelopes.inspector import BabelQueueInspector
from phpmq_lite.frame_options import PublishOptions
from phpmq_lite.operator_actions import Action
from phpmq_lite.queue_settings import QueueSettings
from tests.support.core_and_store import Client, Driver, consume_all, drivers_in, run_operation


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    with drivers_in(tmp_path) as make:
        yield make(defaults=QueueSettings(ack_timeout_s=60, max_deliveries=3))


def configure(driver: Driver, **own: object) -> None:
    client = driver.connect()
    client.consume("orders", 0)
    driver.step()
    assert run_operation(driver, "configure", "orders", own) is None or True
    driver.step()


def bodies(client: Client) -> list[bytes]:
    return [delivery.body for delivery in client.take()]


def at(driver: Driver, seconds: float) -> None:
    driver.clock.advance(seconds)
    driver.step()


def counts(driver: Driver) -> tuple[int, int]:
    [row] = driver.rows("SELECT live_count, scheduled_count FROM queue WHERE name = 'orders'")
    return row


# -- scheduled


def test_delayed_message_becomes_ready_at_its_time(driver: Driver) -> None:
    worker = driver.consume()
    driver.connect().publish_with("orders", b"later", delay_s=2.5)
    driver.connect().publish_with("orders", b"now")
    driver.step()
    assert bodies(worker) == [b"now"]
    assert counts(driver) == (2, 1)
    at(driver, 2.4)
    assert bodies(worker) == []
    at(driver, 0.1)
    assert bodies(worker) == [b"later"]
    assert counts(driver) == (2, 0)


def test_messages_due_at_once_become_ready_in_order_of_time(driver: Driver) -> None:
    publisher = driver.connect()
    for body, delay_s in ((b"c", 3), (b"a", 1), (b"b", 2), (b"b2", 2)):
        publisher.publish_with("orders", body, delay_s=delay_s)
    driver.step()
    at(driver, 5)
    assert bodies(driver.consume()) == [b"a", b"b", b"b2", b"c"]


def test_delay_and_date_survive_a_restart(driver: Driver) -> None:
    now = driver.clock.now()
    driver.connect().publish_with("orders", b"delay", delay_s=10)
    driver.connect().publish_with("orders", b"date", deliver_at=now.wall_ms + 5_000)
    driver.step()
    driver.kill_and_restart()
    worker = driver.consume()
    at(driver, 5)
    assert bodies(worker) == [b"date"]
    at(driver, 5)
    assert bodies(worker) == [b"delay"]


def test_setting_the_clock_moves_dates_but_no_delays(driver: Driver) -> None:
    worker = driver.consume()
    driver.connect().publish_with("orders", b"delay", delay_s=10)
    date = driver.clock.now().wall_ms + 3_600_000
    driver.connect().publish_with("orders", b"date", deliver_at=date)
    driver.step()
    driver.clock.set_wall(3_600)
    driver.step()
    assert bodies(worker) == [b"date"]
    driver.clock.set_wall(-7_200)
    at(driver, 10)
    assert bodies(worker) == [b"delay"]


def test_time_to_live_begins_when_the_message_is_ready(driver: Driver) -> None:
    driver.connect().publish_with("orders", b"short", delay_s=100, ttl_s=1.5)
    driver.step()
    at(driver, 100)
    at(driver, 1.4)
    assert len(driver.states()) == 1
    at(driver, 0.1)
    assert driver.outcomes()[0][2:] == (3, None)


def test_purge_takes_scheduled_messages_and_restore_schedules_them_again(driver: Driver) -> None:
    driver.connect().publish_with("orders", b"later", delay_s=50)
    driver.step()
    run_operation(driver, "purge", "orders")
    assert (counts(driver), driver.states()) == ((0, 0), [])
    [(seq,)] = driver.rows("SELECT seq FROM history")
    at(driver, 20)
    run_operation(driver, "act_on_messages", Action.RESTORE, [seq], ActionOptions())
    assert counts(driver) == (1, 1)
    worker = driver.consume()
    at(driver, 29)
    assert bodies(worker) == []
    at(driver, 1)
    assert bodies(worker) == [b"later"]


# -- priorities


def test_priorities_order_a_queue_over_windows_and_restarts(driver: Driver) -> None:
    worker = driver.consume(1)
    publisher = driver.connect()
    publisher.publish_with("orders", b"256 alone", priority=255)
    driver.step()
    for number in range(30):
        publisher.publish_with("orders", b"%03d" % (255 - number * 8), priority=255 - number * 8)
    publisher.publish("orders", b"128 default")
    driver.step()
    assert bodies(worker) == [b"256 alone"]
    driver.kill_and_restart()
    expected = sorted([*(b"%03d" % (255 - n * 8) for n in range(30)), b"128 default"])
    expected.insert(-1, b"256 alone")  # it is older than the other one with the last priority
    expected[-2:] = [b"256 alone", b"255"]
    worker = driver.consume(1)
    got = []
    while deliveries := worker.take():
        got += [delivery.body for delivery in deliveries]
        worker.acknowledge("orders", deliveries[0].message_id)
        driver.step()
    assert got == expected


def test_urgent_message_is_next_and_keeps_its_priority_when_requeued(driver: Driver) -> None:
    driver.publish(b"a", b"b", b"c")
    worker = driver.consume(1)
    [a] = worker.take()
    driver.connect().publish_with("orders", b"urgent", priority=0)
    driver.step()
    worker.acknowledge("orders", a.message_id)
    driver.step()
    [urgent] = worker.take()
    assert urgent.body == b"urgent"
    worker.requeue("orders", urgent.message_id)
    driver.step()
    assert bodies(worker) == [b"urgent"]


# -- retries


def test_retry_keeps_the_message_and_counts_the_attempt(driver: Driver) -> None:
    driver.publish(b"job", ttl_s=100)
    worker = driver.consume()
    [first] = worker.take()
    at(driver, 10)
    worker.retry("orders", first.message_id, delay_s=5, attempt=1, error="no")
    driver.step()
    assert counts(driver) == (1, 1)
    at(driver, 5)
    [second] = worker.take()
    assert (second.message_id, second.ttl_s) == (first.message_id, 90)
    [(kind, detail)] = driver.rows("SELECT kind, detail FROM event")
    assert kind == "retry"
    assert json.loads(detail)["error"] == "no"
    assert driver.rows("SELECT charged, retries, failed_attempt FROM message") == [(0, 1, 1)]


def test_repeated_and_late_retries(driver: Driver) -> None:
    driver.publish(b"job")
    worker = driver.consume()
    [first] = worker.take()
    worker.disconnect()
    driver.step()  # charges the lost connection
    late = driver.connect()
    late.retry("orders", first.message_id, attempt=1)
    driver.step()
    assert driver.rows("SELECT charged, retries FROM message") == [(0, 1)]
    late.retry("orders", first.message_id, attempt=1)
    driver.step()
    assert driver.rows("SELECT charged, retries FROM message") == [(0, 1)]
    assert driver.core.ignored == {"repeated": 1}


def test_scheduled_message_takes_a_late_acknowledgement_but_no_retry(driver: Driver) -> None:
    driver.publish(b"job")
    worker = driver.consume()
    [first] = worker.take()
    worker.retry("orders", first.message_id, delay_s=50, attempt=1)
    worker.retry("orders", first.message_id, delay_s=90, attempt=2)
    worker.requeue("orders", first.message_id)
    driver.step()
    assert driver.core.ignored == {"scheduled": 2}
    worker.acknowledge("orders", first.message_id)
    driver.step()
    assert (driver.states(), counts(driver)) == ([], (0, 0))


def test_retry_whose_envelope_is_not_loaded_yet_is_not_counted(tmp_path: Path) -> None:
    """Repeated after a kill, it would be ignored, and its attempt would miss in the envelope."""
    with drivers_in(tmp_path) as make:
        driver = make(envelopes=BabelQueueInspector())
        driver.publish(b'{"job":"u","attempts":0}')
        worker = driver.consume()
        [first] = worker.take()
        worker.retry("orders", first.message_id, attempt=1)
        worker.retry("orders", first.message_id, attempt=2)
        driver.turn()
        driver.turn()  # stores the first, and requests the envelope for the second
        assert driver.rows("SELECT retries, failed_attempt FROM message") == [(1, 1)]
        driver.step()
        assert driver.rows("SELECT retries, failed_attempt FROM message") == [(2, 2)]
        assert driver.rows("SELECT content FROM body") == [(b'{"job":"u","attempts":2}',)]


def test_retry_replaces_the_content(driver: Driver) -> None:
    driver.publish(b"job")
    worker = driver.consume()
    [first] = worker.take()
    worker.retry("orders", first.message_id, b"job, with notes", delay_s=1)
    driver.step()
    assert driver.live() == (1, 15)
    driver.kill_and_restart()
    worker = driver.consume()
    at(driver, 1)
    assert bodies(worker) == [b"job, with notes"]


# -- holds


def test_extended_hold_ends_at_the_time_asked_for(driver: Driver) -> None:
    driver.publish(b"job", b"other")
    worker, other = driver.consume(2), driver.connect()
    job, _ = worker.take()
    worker.extend("orders", job.message_id, 150)
    driver.step()
    at(driver, 60)  # the acknowledgement timeout of the other message
    other.consume("orders", 5)
    driver.step()
    worker.take()
    at(driver, 89)
    charged = "SELECT charged, deliveries FROM message WHERE seq = ?"
    assert driver.rows(charged, job.seq) == [(0, 1)]
    at(driver, 1)
    assert driver.rows(charged, job.seq) == [(1, 2)]


def test_kept_credit_returns_nothing(driver: Driver) -> None:
    driver.publish(b"a", b"b", b"c")
    worker = driver.consume(2)
    a, _ = worker.take()
    worker.consume_with("orders", 0, keep=True)
    driver.step()
    worker.acknowledge("orders", a.message_id)
    driver.step()
    assert worker.take() == []
    worker.consume_with("orders", 2, keep=True)
    driver.step()
    assert bodies(worker) == [b"c"]
    assert driver.rows("SELECT count(*) FROM event") == [(0,)]


# -- limits


def test_in_flight_limit_counts_all_consumers(driver: Driver) -> None:
    configure(driver, max_in_flight=3)
    driver.publish(*(b"%d" % n for n in range(6)))
    workers = driver.consume(2), driver.consume(2), driver.consume(2)
    got = [delivery for worker in workers for delivery in worker.take()]
    assert len(got) == 3
    workers[0].acknowledge("orders", got[0].message_id)
    driver.step()
    assert sum(len(worker.take()) for worker in workers) == 1


def test_rate_limit_is_a_bucket(driver: Driver) -> None:
    configure(driver, max_rate=10.0, max_burst=4)
    worker = driver.consume(100)
    driver.publish(*(b"%d" % n for n in range(40)))
    assert worker.take() == []  # empty at first
    at(driver, 0.1)
    assert len(worker.take()) == 1
    at(driver, 10)
    assert len(worker.take()) == 4
    for _ in range(10):
        at(driver, 0.1)
    assert len(worker.take()) == 10


# -- groups


def test_one_message_of_a_group_is_in_flight(driver: Driver) -> None:
    configure(driver, group_by="group")
    publisher = driver.connect()
    for group, number in (("a", 1), ("a", 2), ("b", 1), ("a", 3), ("b", 2)):
        publisher.publish_with("orders", b"%s%d" % (group.encode(), number), group=group)
    publisher.publish("orders", b"none")
    driver.step()
    one, two = driver.consume(10), driver.consume(10)
    held = {d.body: (w, d) for w in (one, two) for d in w.take()}
    assert sorted(held) == [b"a1", b"b1", b"none"]
    for body, then in ((b"a1", b"a2"), (b"b1", b"b2"), (b"a2", b"a3")):
        worker, delivery = held.pop(body)
        worker.acknowledge("orders", delivery.message_id)
        driver.step()
        new = {d.body: (w, d) for w in (one, two) for d in w.take()}
        assert list(new) == [then]
        held |= new


def test_head_blocks_its_group_over_retry_and_restart(driver: Driver) -> None:
    configure(driver, group_by="group")
    publisher = driver.connect()
    publisher.publish_with("orders", b"first", group="a")
    publisher.publish_with("orders", b"second", group="a", priority=0)
    driver.step()
    worker = driver.consume()
    [second] = worker.take()  # the urgent one, before either was dispatched
    worker.retry("orders", second.message_id, delay_s=10)
    driver.step()
    assert worker.take() == []
    driver.kill_and_restart()
    worker = driver.consume()
    assert worker.take() == []
    at(driver, 10)
    [again] = worker.take()
    assert again.body == b"second"
    worker.acknowledge("orders", again.message_id)
    driver.step()
    assert bodies(worker) == [b"first"]


# -- unique keys


def test_unique_key_holds_one_live_message(driver: Driver) -> None:
    publisher = driver.connect()
    publisher.publish_with("orders", b"one", unique_key="k")
    publisher.publish_with("orders", b"two", b"r", unique_key="k")
    driver.step()
    assert [receipt.reason for receipt in publisher.receipts] == [None]
    worker = driver.consume()
    [one] = worker.take()
    assert one.body == b"one"
    worker.acknowledge("orders", one.message_id)
    publisher.publish_with("orders", b"three", unique_key="k")
    driver.step()
    assert bodies(worker) == [b"three"]


def test_action_skips_a_message_that_is_replaced_in_the_same_batch(driver: Driver) -> None:
    """Otherwise the window would have it again, although it is in the history."""
    driver.publish(b"first")
    worker = driver.consume(1)
    driver.connect().publish_with("orders", b"one", unique_key="k")
    driver.step()
    options = PublishOptions(unique_key="k", replaces=True)
    driver.ask("publish", "orders", [NewMessage(b"two", None, options)])
    requeue = driver.ask("act_on_messages", Action.REQUEUE, [2], ActionOptions())
    driver.step()
    assert requeue.answer.changed == []
    assert driver.core.messages.keys() == {1, 3}
    assert consume_all(driver, worker) == [b"first", b"two"]


def test_replace_settles_the_old_message_unless_it_is_held(driver: Driver) -> None:
    publisher = driver.connect()
    publisher.publish_with("orders", b"one", unique_key="k", delay_s=9)
    publisher.publish_with("orders", b"two", b"r", unique_key="k", if_exists="replace")
    driver.step()
    assert [row[2:] for row in driver.outcomes()] == [(5, "replaced")]
    worker = driver.consume()
    assert bodies(worker) == [b"two"]
    publisher.publish_with("orders", b"three", b"s", unique_key="k", if_exists="replace")
    driver.step()
    assert [receipt.reason for receipt in publisher.receipts] == [None, "unique_key_held"]
    options = [PublishOptions(unique_key="k", replaces=True), PublishOptions(unique_key="k")]
    both = [NewMessage(b"four", None, each) for each in options]
    assert run_operation(driver, "publish", "orders", both) == "unique_key_held"
    assert counts(driver) == (1, 0)


# -- NAME.retry by convention


def test_publish_to_a_retry_queue_is_delayed_in_its_home(driver: Driver) -> None:
    worker, publisher = driver.consume(), driver.connect()
    publisher.publish("orders.retry", b"later", 5, b"k")
    publisher.publish("orders.retry", b"later", 5, b"k")
    publisher.publish("orders.retry", b"stays", None)
    driver.step()
    assert [(r.queue, r.reason) for r in publisher.receipts] == [("orders.retry", None)] * 2
    assert counts(driver) == (1, 1)
    at(driver, 5)
    assert bodies(worker) == [b"later"]
    assert driver.live("orders.retry") == (1, 5)


def test_copy_of_a_worker_takes_over_what_the_message_had(driver: Driver) -> None:
    publisher = driver.connect()
    publisher.publish_with("orders", b"job", priority=3, unique_key="u", group="g")
    driver.step()
    worker = driver.consume()
    [job] = worker.take()
    worker.publish("orders.retry", b"job, again", 5, job.message_id + b":1")
    worker.acknowledge("orders", job.message_id)
    driver.step()
    publisher.publish_with("orders", b"other", unique_key="u")
    driver.step()
    assert counts(driver) == (1, 1)
    [row] = driver.rows("SELECT position >> 48, group_name, unique_key FROM message")
    assert row == (3 - 128, "g", "u")


# -- operators


def test_publish_by_an_operator_knows_all_unique_keys_in_one_batch(driver: Driver) -> None:
    """The next one has forgotten them, and rows take one more batch than keys without."""
    driver.publish(b"first")
    driver.consume(1)
    driver.connect().publish_with("orders", b"old", unique_key="k", delay_s=9)
    driver.step()
    new = [NewMessage(b"new", None, PublishOptions(unique_key=key)) for key in ("k", "free")]
    asked = driver.ask("publish", "orders", new)
    driver.turn()
    driver.turn()
    run_operation(driver, "act_on_messages", Action.DELIVER, [2], ActionOptions())
    assert len(asked.answer.stored) == 1


def test_publish_by_an_operator_with_a_unique_key_names_the_first(driver: Driver) -> None:
    options = PublishOptions(unique_key="k", delay_s=3)
    [first] = run_operation(driver, "publish", "orders", [NewMessage(b"one", None, options)]).ids
    again = run_operation(driver, "publish", "orders", [NewMessage(b"two", None, options)])
    assert (again.ids, again.existing) == ([first], {first})
    assert counts(driver) == (1, 1)


def test_deliver_now_and_its_undo(driver: Driver) -> None:
    driver.connect().publish_with("orders", b"later", delay_s=50)
    driver.step()
    [(seq,)] = driver.rows("SELECT seq FROM message")
    question = driver.ask("act_on_messages", Action.DELIVER, [seq], ActionOptions(), audit="a")
    driver.step()
    assert counts(driver) == (1, 0)
    places = ActionOptions(places=question.answer.places)
    run_operation(driver, "act_on_messages", Action.PLACE, [seq], places)
    assert counts(driver) == (1, 1)
    worker = driver.consume()
    at(driver, 50)
    assert bodies(worker) == [b"later"]


def test_moved_message_stays_scheduled_and_its_key_must_be_free(driver: Driver) -> None:
    publisher = driver.connect()
    publisher.publish_with("orders", b"a", delay_s=5, unique_key="k")
    publisher.publish_with("mails", b"b", unique_key="k")
    publisher.publish_with("mails", b"c", delay_s=5)
    driver.step()
    options = ActionOptions(target="mails")
    seqs = [seq for (seq,) in driver.rows("SELECT seq FROM message ORDER BY seq")]
    outcome = driver.ask("act_on_messages", Action.MOVE, [seqs[0]], options, audit="a")
    back = driver.ask(
        "act_on_messages", Action.MOVE, [seqs[2]], ActionOptions(target="orders"), audit="a"
    )
    driver.step()
    assert outcome.answer.skipped == {"unique_key_taken": 1}
    assert (back.answer.changed, counts(driver)) == ([seqs[2]], (2, 2))
