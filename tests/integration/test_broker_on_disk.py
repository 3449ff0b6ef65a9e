"""A broker on a real file: restarts, pages, damage, and the rows of dead letters."""

import pytest

from phpmq_lite.broker import commands
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.commands import CommandResult
from phpmq_lite.broker.operator.message_actions import ActionOptions
from phpmq_lite.broker.publish_keys import expand_run
from phpmq_lite.broker.queue import Connection
from phpmq_lite.model import DUE_AT_ONCE, Limits, State
from phpmq_lite.operator_actions import Action
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.storage import store as stores
from tests.support.core_and_store import Client, Driver, MakeDriver, run_operation

# -- restart


def test_held_messages_are_ready_again_in_their_place_after_a_restart(driver: Driver) -> None:
    worker = driver.consume(3)
    driver.publish(b"a", b"b", b"c", b"d", b"e")
    assert driver.states()[:3] == [(1, 1, 1), (2, 1, 1), (3, 1, 1)]
    driver.kill_and_restart()
    assert driver.returned == 3
    assert len(worker.got) == 3
    again = driver.consume()
    assert [d.body for d in again.take()] == [b"a", b"b", b"c", b"d", b"e"]
    assert driver.states()[:3] == [(1, 1, 2), (2, 1, 2), (3, 1, 2)]
    assert driver.rows("SELECT sum(charged) FROM message") == [(0,)]  # a restart is no attempt


def test_queues_count_for_their_creators_after_a_restart(make: MakeDriver) -> None:
    driver = make(Limits(queues=4))
    driver.publish(b"a", queue="mails")
    run_operation(driver, "create_queue", "late")
    created = +driver.core.registry.created
    assert sum(created.values()) == 2
    assert len(created) == 2
    driver.kill_and_restart()
    assert +driver.core.registry.created == created


def test_acknowledgement_from_before_a_restart_still_counts(driver: Driver) -> None:
    """README, Wire: 004 settles a message that no live connection holds."""
    worker = driver.consume()
    driver.publish(b"a")
    [held] = worker.take()
    driver.kill_and_restart()
    driver.connect().acknowledge("orders", held.message_id)
    driver.step()
    assert driver.outcomes() == [(1, 1, 2, None)]
    assert driver.live() == (0, 0)


def test_number_is_never_assigned_twice(driver: Driver) -> None:
    worker = driver.consume()
    for seq in range(1, 4):
        driver.publish(b"a")
        [got] = worker.take()
        assert got.seq == seq
        worker.acknowledge("orders", got.message_id)
        driver.step()
        driver.kill_and_restart()
        worker = driver.consume()


def test_deadline_survives_a_restart_and_the_scale_it_is_on(driver: Driver) -> None:
    driver.publish(b"a", ttl_s=10)
    driver.publish(b"b")
    driver.kill_and_restart()
    assert driver.core.next_wake_ms == driver.clock.steady_ms + 10_000
    driver.clock.advance(9.999)
    driver.step()
    assert driver.outcomes() == []
    driver.kill_and_restart()
    driver.clock.advance(0.001)
    driver.step()
    assert driver.outcomes() == [(1, 1, 3, None)]
    assert [d.body for d in driver.consume().take()] == [b"b"]


def test_deadline_that_passed_while_the_broker_was_stopped_is_kept(driver: Driver) -> None:
    driver.publish(b"a", ttl_s=10)
    driver.clock.advance(3_600)
    driver.kill_and_restart()
    assert driver.consume().take() == []
    assert driver.outcomes() == [(1, 1, 3, None)]


def test_key_is_known_after_a_restart_for_the_rest_of_its_time(make: MakeDriver) -> None:
    driver = make(Limits(receipt_window_ms=10_000))
    first = driver.connect()
    first.publish("orders", b"a", None, b"k")
    driver.step()
    for seconds, count in ((9.999, 1), (0.001, 2)):
        driver.clock.advance(seconds)
        driver.kill_and_restart()
        again = driver.connect()
        again.publish("orders", b"a", None, b"k")
        driver.step()
        assert [(r.key, r.reason) for r in again.receipts] == [(b"k", None)]
        assert driver.live() == (count, count)


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_youngest_keys_are_known_after_a_restart(
    make: MakeDriver, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(stores, "_RECEIPTS_AT_ONCE", at_once)
    driver = make(Limits(receipts=3))
    client = driver.connect()
    for key in (b"a", b"b", b"c", b"d"):
        client.publish("orders", key, None, key)
    driver.step()
    driver.kill_and_restart()
    client = driver.connect()
    for key in (b"b", b"c", b"d", b"a"):
        client.publish("orders", key, None, key)
    driver.step()
    assert driver.live() == (5, 5)


def publish_run(client: Client, queue: str, keys: list[bytes]) -> None:
    """Publish messages whose bodies are their keys in one piece, as a session does."""

    def run(core: Broker, me: Connection) -> CommandResult:
        parts = [(core.queues[queue], len(keys))]
        assert commands.publish_run(core, me, parts, keys, [None] * len(keys), keys) == len(keys)
        return CommandResult.DONE

    client._give("publish_run", queue, keys, action=run)


def test_table_has_the_keys_that_queues_remember_when_a_neighbour_has_too_many(
    make: MakeDriver,
) -> None:
    driver = make(Limits(receipts=60))
    client = driver.connect()
    sent: dict[str, list[bytes]] = {"mails": [], "orders": [], "reports": []}

    def publish(queue: str, count: int) -> None:
        start = len(sent[queue])
        keys = [b"%s-%d" % (queue.encode(), number) for number in range(start + count)]
        sent[queue] = [key + b"x" * (number % 3 // 2) for number, key in enumerate(keys)]
        publish_run(client, queue, sent[queue][-count:])
        driver.step()

    def known() -> dict[str, list[bytes]]:
        core, now_ms = driver.core, driver.clock.now().steady_ms
        ids = {queue: core.queues[queue].queue_id for queue in sent}
        return {
            queue: [key for key in keys if core.publish_keys.find(ids[queue], key, now_ms)]
            for queue, keys in sent.items()
        }

    def stored() -> list[bytes]:
        runs = driver.rows("SELECT * FROM receipt")
        return sorted(key for run in runs for _, key, _, _ in expand_run(run))

    driver.publish(b"", queue="mails")
    driver.publish(b"", queue="reports")
    driver.publish(b"")
    publish("orders", 50)
    publish("mails", 12)
    publish("reports", 500)
    publish("mails", 8)
    for _ in range(2):
        assert known() == {
            "mails": sent["mails"], "orders": sent["orders"][-20:],
            "reports": sent["reports"][-20:],
        }  # fmt: skip
        assert stored() == sorted(key for keys in known().values() for key in keys)
        driver.kill_and_restart()
    before = driver.live()
    client = driver.connect()
    for key in sent["mails"]:
        client.publish("mails", key, None, key)
    driver.step()
    assert [receipt.reason for receipt in client.receipts] == [None] * 20
    assert driver.live() == before  # known, and stored under the same numbers


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("fate", ["ready", "held", "acked", "dead", "deleted", "requeued"])
def test_known_key_is_refused_for_another_body_whatever_became_of_its_message(
    driver: Driver, fate: str, *, is_restarted: bool
) -> None:
    client = driver.connect()
    client.publish("orders", b"a", None, b"k")
    driver.step()
    if fate == "deleted":
        run_operation(driver, "purge", "orders")
    elif fate != "ready":
        worker = driver.consume(1)
        [held] = worker.take()
        if fate == "acked":
            worker.acknowledge("orders", held.message_id)
        elif fate == "dead":
            worker.dead_letter("orders", held.message_id)
        elif fate == "requeued":
            worker.requeue("orders", held.message_id)
        driver.step()
    if is_restarted:
        driver.kill_and_restart()
    client = driver.connect()
    bodies = [b"b", b"a", b"", b"a" * 1000, b"a"]
    for body in bodies:
        client.publish("orders", body, None, b"k")
        client.publish("mails", body, None, b"%d" % len(body))  # 0, 1 and 1000
        driver.step()
    conflict = "key conflict"
    assert [r.reason for r in client.receipts if r.queue == "orders"] == [
        conflict, None, conflict, conflict, None,
    ]  # fmt: skip
    rows = driver.rows("SELECT size FROM message") + driver.rows("SELECT size FROM history")
    assert len(rows) == {"dead": 2}.get(fate, 1) + 3


def test_key_counts_as_repeated_once_its_row_is_gone(driver: Driver) -> None:
    worker = driver.consume()
    client = driver.connect()
    client.publish("orders", b"a", None, b"k")
    driver.step()
    worker.acknowledge("orders", worker.take()[0].message_id)
    driver.step()
    driver.store.execute("DELETE FROM history")
    client.publish("orders", b"b", None, b"k")
    driver.step()
    assert [r.reason for r in client.receipts] == [None, None]
    assert driver.live() == (0, 0)


def test_number_of_dead_letters_by_source_survives_a_restart(driver: Driver) -> None:
    for name, count in (("orders", 2), ("mails", 1)):
        driver.publish(*[b"x"] * count, queue=name)
        run_operation(driver, "configure", name, {"dead_letter_queue": "failed"})
        worker = driver.consume(count, name)
        for message in worker.take():
            worker.dead_letter(name, message.message_id)
        driver.step()
    driver.publish(b"no record", queue="failed")
    for _ in range(2):
        registry = driver.core.registry
        counts = {name: registry.count_records(registry.queues[name]) for name in registry.queues}
        assert counts == {"orders": 2, "mails": 1, "failed": 0}
        driver.kill_and_restart()


def test_settings_of_a_queue_survive_a_restart(driver: Driver) -> None:
    driver.publish(b"a")
    changes = {
        "on_expire": "dead_letter", "max_deliveries": 7, "ack_timeout_s": 5, "default_ttl_s": 9,
        "max_messages": 3, "max_bytes": 1 << 40, "payload_policy": "envelope",
    }  # fmt: skip
    driver.ask("configure", "orders", changes)
    driver.ask("pause", "orders", "delivery", True)
    driver.step()
    own = driver.core.queues["orders"].row.own
    assert own == changes | {"delivery_paused": True}
    driver.kill_and_restart()
    queue = driver.core.queues["orders"]
    assert queue.row.own == own
    assert (queue.settings.max_deliveries, queue.settings.delivery_paused) == (7, True)
    driver.ask("configure", "orders", dict.fromkeys(own))
    driver.step()
    driver.kill_and_restart()
    assert driver.core.queues["orders"].settings == QueueSettings()


def test_connections_are_closed_in_their_rows_at_the_next_start(driver: Driver) -> None:
    driver.connect().disconnect()
    driver.connect()
    driver.step()
    rows = (
        "SELECT client, address, closed_at IS NULL, reason FROM client WHERE client > 0"
        " ORDER BY client"
    )
    assert driver.rows(rows)[1] == (2, "client 2", 1, None)
    driver.kill_and_restart()
    driver.connect()
    driver.step()
    assert driver.rows(rows) == [
        (1, "client 1", 0, "closed by the peer"),
        (2, "client 2", 0, "the broker stopped"),
        (3, "client 1", 1, None),
    ]


# -- pages


def test_backlog_comes_in_order_through_a_small_window(make: MakeDriver) -> None:
    driver = make(Limits(window=4, window_bytes=100))
    contents = [b"%03d" % n * (1 + n % 20) for n in range(60)]
    driver.publish(*contents)
    worker = driver.consume(3)
    got: list[bytes] = []
    while worker.got:
        for delivery in worker.take():
            got.append(delivery.body)
            worker.acknowledge("orders", delivery.message_id)
        driver.step()
    assert got == contents


def test_body_larger_than_every_bound_is_delivered(make: MakeDriver) -> None:
    driver = make(Limits(window=2, window_bytes=10, bodies_bytes=10, credit_bytes=10,
                         write_bytes=10, held_bytes=10))  # fmt: skip
    driver.publish(b"x" * 1_000, b"y" * 2_000)
    worker = driver.consume()
    [first] = worker.take()
    worker.acknowledge("orders", first.message_id)
    driver.step()
    assert [len(d.body) for d in worker.take()] == [2_000]


@pytest.mark.parametrize("on_expire", ["history", "dead_letter", "forward:late"])
def test_all_expire_however_many_are_due_at_once(make: MakeDriver, on_expire: str) -> None:
    driver = make(defaults=QueueSettings(on_expire=on_expire))
    count = 2 * DUE_AT_ONCE + 3
    driver.publish(*[b"x"] * count, ttl_s=1)
    driver.clock.advance(1)
    driver.step()
    target = {"history": None, "dead_letter": "orders.dlq", "forward:late": "late"}[on_expire]
    assert driver.live() == (0, 0)
    settled = driver.rows('SELECT count(*), count(DISTINCT seq), max("offset") FROM history')
    assert settled == ([(count,) * 3] if target != "late" else [(0, 0, None)])
    if target is not None:
        assert driver.live(target) == (count, count)
        assert driver.rows("SELECT count(*) FROM message") == [(count,)]


def test_overdue_message_that_returns_while_a_later_one_expires_expires_too(driver: Driver) -> None:
    worker = driver.consume(1)
    driver.publish(b"held", ttl_s=1)
    driver.clock.advance(1)
    driver.step()
    driver.publish(b"waits", ttl_s=1)
    driver.clock.advance(1)
    worker.disconnect()
    driver.step()
    assert driver.live() == (0, 0)
    assert [outcome for *_, outcome, _ in driver.outcomes()] == [State.EXPIRED] * 2


# -- damage


def damage(driver: Driver, seq: int) -> None:
    driver.set_body(seq, b"zz")


def test_damaged_message_is_settled_and_never_delivered(driver: Driver) -> None:
    """It is settled as dead with reason crc; it has no record and keeps its body."""
    driver.publish(b"aa", b"bb", b"cc")
    damage(driver, 2)
    worker = driver.consume()
    assert [d.body for d in worker.take()] == [b"aa", b"cc"]
    assert driver.outcomes() == [(1, 2, 4, "crc")]
    assert driver.rows("SELECT name FROM queue") == [("orders",)]
    assert driver.rows("SELECT content FROM body WHERE seq = 2") == [(b"zz",)]
    assert driver.live() == (2, 4)


def test_body_in_the_wrong_row_is_damage(driver: Driver) -> None:
    driver.publish(b"aa", b"bb")
    driver.set_body(1, b"bb")
    driver.set_body(2, b"aa")
    assert driver.consume().take() == []
    assert [row[2:] for row in driver.outcomes()] == [(4, "crc"), (4, "crc")]


def test_message_whose_body_is_missing_is_settled(driver: Driver) -> None:
    driver.publish(b"aa", b"bb")
    driver.store.execute("DELETE FROM body WHERE seq = 1")
    assert [d.body for d in driver.consume().take()] == [b"bb"]
    assert driver.outcomes() == [(1, 1, 4, "crc")]


def test_damage_is_found_when_a_message_comes_again(driver: Driver) -> None:
    worker = driver.consume()
    driver.publish(b"aa")
    assert len(worker.take()) == 1
    damage(driver, 1)
    worker.consume("orders", 10)
    driver.step()
    assert worker.take() == []
    assert driver.outcomes() == [(1, 1, 4, "crc")]


def test_damaged_dead_letter_leaves_no_record(driver: Driver) -> None:
    worker = driver.consume()
    driver.publish(b"aa")
    damage(driver, 1)
    worker.dead_letter("orders", worker.got[0].message_id)
    driver.step()
    assert driver.outcomes() == [(1, 1, 4, "crc")]
    assert driver.rows("SELECT count(*) FROM message") == [(0,)]


def test_damaged_record_is_not_redriven(driver: Driver) -> None:
    worker = driver.consume()
    driver.publish(b"aa")
    worker.dead_letter("orders", worker.got[0].message_id)
    driver.step()
    damage(driver, 2)
    question = driver.ask("redrive", "orders.dlq")
    driver.step()
    assert question.answer == 0
    assert driver.live("orders.dlq") == (1, 2)


# -- dead letters on disk


def test_dead_letter_and_its_record_are_rows_that_tell_of_each_other(driver: Driver) -> None:
    worker = driver.consume()
    driver.publish(b"body", ttl_s=60)
    worker.dead_letter("orders", worker.got[0].message_id)
    driver.step()
    assert driver.outcomes() == [(1, 1, 4, "client")]
    assert driver.rows(
        "SELECT name, source_seq, source_reason, deadline_ms, content FROM message"
        " JOIN queue USING (queue_id) JOIN body USING (seq)"
    ) == [("orders.dlq", 1, "client", None, b"body")]
    [(kind, detail)] = driver.rows("SELECT kind, detail FROM event WHERE seq = 1")
    [record] = driver.consume(queue="orders.dlq").take()
    assert (kind, detail) == ("dead_letter", record.message_id.decode())
    assert record.body == b"body"


def test_history_counts_all_charged_deliveries_of_a_poison_message(make: MakeDriver) -> None:
    driver = make(defaults=QueueSettings(max_deliveries=2))
    driver.publish(b"a")
    for _ in range(2):
        worker = driver.consume()
        assert len(worker.got) == 1
        worker.disconnect()
        driver.step()
    rows = driver.rows("SELECT outcome, reason, deliveries, charged FROM history")
    assert rows == [(4, "max_deliveries", 2, 2)]


def test_message_that_came_too_late_was_never_delivered(driver: Driver) -> None:
    """The clock is read again before sending."""
    worker = driver.consume()
    driver.commit_takes_s = 1.0
    driver.publish(b"late", ttl_s=1)
    assert worker.take() == []
    assert driver.rows(
        "SELECT outcome, deliveries, consumer, first_dispatched_at FROM history"
    ) == [(3, 0, None, None)]


# -- settings that change while messages wait


@pytest.mark.parametrize("place", ["window", "disk", "held", "released", "requeued"])
def test_lowered_max_deliveries_applies_before_the_next_delivery(
    make: MakeDriver, place: str
) -> None:
    driver = make(Limits(window=2))
    driver.publish(b"a", b"b")
    for _ in range(3):
        driver.consume(1).disconnect()
        driver.step()
    assert driver.rows("SELECT seq, charged FROM message ORDER BY seq") == [(1, 3), (2, 0)]
    holder = None
    if place == "window":  # ready in memory, for a consumer that may not get it yet
        driver.ask("pause", "orders", "delivery", True)
        driver.consume(1)
    elif place != "disk":
        holder = driver.consume(1)
        [held] = holder.take()
    driver.ask("configure", "orders", {"max_deliveries": 2})
    driver.step()
    if place == "window":
        driver.ask("pause", "orders", "delivery", False)
    elif holder is not None and place == "held":
        holder.consume("orders", 0)
    elif holder is not None and place == "requeued":
        holder.requeue("orders", held.message_id)
    elif place == "released":
        driver.ask("act_on_messages", Action.RELEASE, [1], ActionOptions(), audit="message.release")
    driver.step()
    got = [
        delivery.body for client in driver.clients if client.is_open for delivery in client.take()
    ]
    got += [delivery.body for delivery in driver.consume(5).take()]
    assert b"a" not in got
    assert driver.rows("SELECT seq, reason FROM history") == [(1, "max_deliveries")]


def configured(driver: Driver, name: str, on_expire: str | None) -> str:
    result = run_operation(driver, "configure", name, {"on_expire": on_expire})
    return result if isinstance(result, str) else result["on_expire"]


def test_cycle_of_forwarding_is_refused(driver: Driver) -> None:
    for name in ("a", "b", "c", "orders"):
        driver.publish(b"x", queue=name)
    assert configured(driver, "a", "forward:b") == "forward:b"
    assert configured(driver, "b", "forward:c") == "forward:c"
    assert configured(driver, "c", "forward:a") == "bad_setting"
    assert configured(driver, "b", "forward:a") == "bad_setting"
    assert configured(driver, "c", "forward:later") == "forward:later"
    driver.publish(b"x", queue="later")
    assert configured(driver, "later", "forward:a") == "bad_setting"
    assert configured(driver, "later", "history") == "history"
    # A retry queue forwards to its home by default.
    assert configured(driver, "orders", "forward:orders.retry") == "bad_setting"
    driver.publish(b"x", queue="orders.retry")
    assert configured(driver, "orders.retry", "dead_letter") == "dead_letter"
    assert configured(driver, "orders", "forward:orders.retry") == "forward:orders.retry"
    assert configured(driver, "orders.retry", None) == "bad_setting"
