"""Envelopes in broker and store on a real file: index, quarantine, records, redrive."""

import json
from typing import Any

import pytest

from phpmq_lite.broker.broker import BACKGROUND_BYTES
from phpmq_lite.broker.operator.message_actions import ActionOptions
from phpmq_lite.broker.operator.publishing import Published
from phpmq_lite.envelopes.inspector import BabelQueueInspector
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import State
from phpmq_lite.operator_actions import Action
from phpmq_lite.queue_settings import QueueSettings
from tests.support.core_and_store import Client, Delivery, Driver, MakeDriver
from tests.support.envelope_cases import CASES, Case, body, record_of

URN = "urn:babel:orders:created"
TRACE = "7b3f9c2a-e41d-4f88-9b2a-1c0d5e6f7a8b"
META_ID = "f1e2d3c4-b5a6-4789-90ab-cdef01234567"
INDEX = (URN, TRACE, META_ID, 0)
ALL_FOUR = "urn, trace_id, meta_id, attempts"


@pytest.fixture
def make(make: MakeDriver) -> MakeDriver:
    """Return a driver that inspects envelopes according to the settings of its queues."""
    return lambda **settings: make(None, QueueSettings(**settings), BabelQueueInspector())


def content(driver: Driver, seq: int) -> bytes:
    [(found,)] = driver.rows("SELECT content FROM body WHERE seq = ?", seq)
    assert isinstance(found, bytes)
    return found


def block(driver: Driver, seq: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(content(driver, seq))["dead_letter"]
    return found


def dispatched(driver: Driver) -> tuple[Client, Delivery]:
    """Return a new worker and the only message that it holds."""
    worker = driver.consume()
    [held] = worker.take()
    return worker, held


def worker_record(held: Delivery, **changes: Any) -> bytes:
    said = {
        "reason": "failed", "error": "no stock", "exception": "OutOfStock", "failed_at": 1,
        "original_queue": "orders", "attempts": 3, "lang": "python", "detail": "max_attempts",
        "message_id": held.message_id.decode(),
    } | changes  # fmt: skip
    return held.body[:-1] + b',"dead_letter":' + json.dumps(said).encode() + b"}"


# -- the index


def test_index_is_in_the_live_row_and_in_the_history(driver: Driver) -> None:
    worker = driver.consume()
    driver.publish(body(), b"plain", body(attempts="7"))
    live = f"SELECT {ALL_FOUR} FROM message ORDER BY seq"
    assert driver.rows(live) == [INDEX, (None,) * 4, (*INDEX[:3], 7)]
    for delivery in worker.take():
        worker.acknowledge("orders", delivery.message_id)
    driver.step()
    assert driver.rows(f"SELECT {ALL_FOUR} FROM history ORDER BY seq") == [
        INDEX, (None,) * 4, (*INDEX[:3], 7),
    ]  # fmt: skip


def test_opaque_queue_has_no_index(make: MakeDriver) -> None:
    driver = make(payload_policy="opaque")
    driver.publish(body())
    assert driver.rows(f"SELECT {ALL_FOUR} FROM message") == [(None,) * 4]


# -- quarantine


@pytest.mark.parametrize("case", [c for c in CASES if c.reason], ids=lambda case: str(case.name))
def test_bad_content_is_quarantined_in_one_transaction(make: MakeDriver, case: Case) -> None:
    driver = make(payload_policy="envelope")
    worker = driver.consume()
    client = driver.connect()
    client.publish("orders", case.content, 0, b"k")
    turns = driver.step()
    assert len([turn for turn in turns if turn.batch.created]) == 1
    assert worker.take() == []
    assert [receipt.reason for receipt in client.receipts] == [None]
    assert driver.outcomes() == [(1, 1, State.DEAD, case.reason)]
    assert content(driver, 1) == case.content
    if case.record == "keep":
        assert content(driver, 2) == case.content
    else:
        found = content(driver, 2)
        start = found.index(b'"reason":"poison"') - 1
        end = found.index(b"}", start) + 1
        assert found == record_of(case, found[start:end])
        said = json.loads(found[start:end])
        assert (said["detail"], said["original_queue"]) == (case.reason, "orders")
    assert driver.rows("SELECT source_seq, source_queue_id, source_reason FROM message") == [
        (1, 1, case.reason)
    ]
    assert driver.rows(f"SELECT {ALL_FOUR} FROM message") == driver.rows(
        f"SELECT {ALL_FOUR} FROM history"
    )


@pytest.mark.parametrize("case", [c for c in CASES if not c.reason], ids=lambda c: str(c.name))
def test_valid_content_reaches_its_consumer_unchanged(make: MakeDriver, case: Case) -> None:
    driver = make(payload_policy="envelope")
    worker = driver.consume()
    driver.publish(case.content)
    assert [d.body for d in worker.take()] == [case.content]


def test_large_bad_content_is_quarantined_too(make: MakeDriver) -> None:
    driver = make(payload_policy="envelope")
    large = body(trace_id=None, x='"%s"' % ("x" * BACKGROUND_BYTES))
    driver.publish(large, body())
    assert driver.outcomes() == [(1, 1, State.DEAD, "missing_trace_id")]
    assert json.loads(content(driver, 2))["x"] == "x" * BACKGROUND_BYTES
    [(seq, token)] = driver.rows("SELECT seq, token FROM history")
    assert block(driver, 2)["message_id"] == f"{seq:016x}{token:016x}"


def test_quarantine_that_is_not_committed_leaves_nothing(make: MakeDriver) -> None:
    driver = make(payload_policy="envelope")
    driver.connect().publish("orders", b"bad", 0, b"k")
    driver.decide()
    driver.kill_and_restart()
    assert driver.states() == driver.outcomes() == []


def test_empty_list_of_php_is_accepted_as_configured(make: MakeDriver) -> None:
    php = body(data="[]", meta='{"lang":"php","schema_version":1}')
    driver = make(payload_policy="envelope")
    driver.publish(php)
    assert driver.outcomes() == []
    driver.ask("configure", "orders", {"empty_list_data": "never"})
    driver.step()
    driver.publish(php)
    assert driver.outcomes() == [(1, 2, State.DEAD, "poison")]


# -- dead letters


@pytest.mark.parametrize("how", ["client", "max_deliveries", "expired"])
def test_death_of_any_cause_leaves_a_record_with_its_block(make: MakeDriver, how: str) -> None:
    driver = make(max_deliveries=1, on_expire="dead_letter")
    driver.publish(body(attempts="2"), ttl_s=60)
    if how == "expired":
        driver.clock.advance(60)
        driver.step()
    else:
        worker, held = dispatched(driver)
        if how == "client":
            worker.dead_letter("orders", held.message_id)
        else:
            worker.requeue("orders", held.message_id)
        driver.step()
    assert driver.outcomes() == [(1, 1, State.DEAD, how)]
    found = block(driver, 2)
    assert (found["reason"], found["detail"], found["attempts"]) == ("failed", how, 2)
    assert content(driver, 2).startswith(body(attempts="2")[:-1])
    assert driver.rows("SELECT trace_id FROM message") == [(TRACE,)]


def test_bare_006_of_another_version_names_it(driver: Driver) -> None:
    newer = body(meta='{"schema_version":2}')
    driver.publish(newer)
    worker, held = dispatched(driver)
    worker.dead_letter("orders", held.message_id)
    driver.step()
    assert driver.outcomes() == [(1, 1, State.DEAD, "unsupported_schema_version")]
    assert content(driver, 2) == newer


@pytest.mark.parametrize("crash", ["none", "before", "between", "after"])
def test_record_of_a_worker_stays_the_only_one(driver: Driver, crash: str) -> None:
    driver.publish(body())
    worker, held = dispatched(driver)
    key = held.message_id + b":dead"
    if crash == "before":
        worker.publish("orders.dlq", worker_record(held), 0, key)
        driver.decide()  # never stored
        driver.kill_and_restart()
        worker, held = dispatched(driver)
    worker.publish("orders.dlq", worker_record(held), 0, key)
    driver.step()
    if crash == "between":
        driver.kill_and_restart()
        worker, held = dispatched(driver)
        worker.publish("orders.dlq", worker_record(held), 0, key)
    worker.dead_letter("orders", held.message_id)
    if crash == "after":
        driver.turn()  # the command arrived, but the dead letter is not stored
        driver.kill_and_restart()
        worker, held = dispatched(driver)
        worker.publish("orders.dlq", worker_record(held), 0, key)
        worker.dead_letter("orders", held.message_id)
    driver.step()
    assert driver.outcomes() == [(1, 1, State.DEAD, "max_attempts")]
    assert driver.rows("SELECT source_seq, source_queue_id, source_reason FROM message") == [
        (1, 1, "max_attempts")
    ]
    assert driver.rows("SELECT kind FROM event WHERE kind = 'dead_letter'") == [("dead_letter",)]


def test_record_of_a_worker_is_found_where_its_message_returned(make: MakeDriver) -> None:
    """Its writer has disconnected, and the message expires at another worker."""
    driver = make(on_expire="dead_letter")
    driver.publish(body(), ttl_s=60)
    worker, held = dispatched(driver)
    worker.publish("orders.dlq", worker_record(held))
    driver.step()
    worker.disconnect()
    driver.step()
    driver.clock.advance(60)
    driver.step()
    assert driver.outcomes() == [(1, 1, State.DEAD, "max_attempts")]
    assert len(driver.states()) == 1


@pytest.mark.parametrize(
    ("named", "goal", "policy"),
    [
        ("errors", "orders.dlq", "observe"),  # the worker does not know the setting
        ("errors", "errors", "observe"),
        ("errors", "graves", "observe"),
        (None, "graves", "observe"),  # the queue orders.dlq does not exist
        (None, "graves", "envelope"),
        (None, "mails.dlq", "observe"),
    ],
)
def test_record_of_a_worker_is_found_in_any_queue(
    make: MakeDriver, named: str | None, goal: str, policy: str
) -> None:
    driver = make(payload_policy=policy)
    driver.publish(body())
    driver.ask("configure", "orders", {"dead_letter_queue": named})
    worker, held = dispatched(driver)
    worker.publish(goal, worker_record(held), 0, held.message_id + b":dead")
    driver.step()
    worker.dead_letter("orders", held.message_id)
    driver.step()
    assert driver.outcomes() == [(1, 1, State.DEAD, "max_attempts")]
    assert driver.rows(
        "SELECT name, source_seq, source_reason FROM message JOIN queue USING (queue_id)"
    ) == [(goal, 1, "max_attempts")]


def test_record_in_another_queue_counts_only_from_the_consumer(driver: Driver) -> None:
    """Knowing the whole id is not enough to forge a record, and many records hide no real one."""
    driver.publish(body())
    worker, held = dispatched(driver)
    stranger = driver.connect()
    stranger.publish("graves", worker_record(held))
    stranger.publish("mails.dlq", worker_record(held))  # linked for readers only
    worker.publish("graves", worker_record(held, detail="true"))
    for _ in range(20):
        stranger.publish("mails.dlq", worker_record(held))
    driver.step()
    assert driver.rows("SELECT source_seq FROM message WHERE seq IN (2, 3, 4) ORDER BY seq") == [
        (None,), (1,), (1,)
    ]  # fmt: skip
    worker.dead_letter("orders", held.message_id)
    driver.step()
    assert driver.outcomes() == [(1, 1, State.DEAD, "true")]


@pytest.mark.parametrize("by", ["a stranger", "its worker, of another id"])
def test_forged_record_elsewhere_suppresses_no_dead_letter(driver: Driver, by: str) -> None:
    driver.publish(body())
    worker, held = dispatched(driver)
    if by == "a stranger":
        writer, forged = driver.connect(), worker_record(held)
    else:
        other = (held.message_id[:16] + b"0" * 16).decode()
        writer, forged = worker, worker_record(held, message_id=other)
    for queue in ("graves", "mails.dlq"):
        writer.publish(queue, forged)
    worker.dead_letter("orders", held.message_id)
    driver.step()
    assert driver.outcomes() == [(1, 1, State.DEAD, "client")]
    assert block(driver, 4)["detail"] == "client"


# -- redrive


def test_redrive_restores_the_published_content(make: MakeDriver) -> None:
    driver = make(payload_policy="envelope")
    driver.publish(b"\xff", body(data=None, attempts="3"))
    driver.ask("configure", "orders", {"payload_policy": "observe"})
    driver.ask("redrive", "orders.dlq")
    driver.step()
    got = [d.body for d in driver.consume().take()]
    assert got == [b"\xff", body(data=None, attempts="0")]
    assert driver.live("orders.dlq") == (0, 0)


def test_plan_of_a_redrive_changes_nothing_on_disk(make: MakeDriver) -> None:
    driver = make(payload_policy="envelope")
    driver.publish(b"bad", body(data=None))
    before = driver.tables()
    plan = driver.ask("act_on_messages", Action.REDRIVE, [2, 4], ActionOptions(is_dry_run=True))
    driver.step()
    assert plan.answer.targets == {"orders": 2}
    assert plan.answer.poisoned == {"poison": 1, "invalid_data": 1}
    assert driver.tables() == before


def test_named_dead_letter_queue_is_one_after_a_restart_too(make: MakeDriver) -> None:
    driver = make(max_deliveries=1)
    driver.publish(body())
    driver.ask("configure", "orders", {"dead_letter_queue": "orders.failed"})
    driver.step()
    driver.publish(b"{}", queue="orders.failed")
    driver.kill_and_restart()
    failed = driver.core.queues["orders.failed"]
    assert (failed.is_dead_letter_queue, failed.settings.max_deliveries) == (True, 0)
    worker, held = dispatched(driver)
    worker.dead_letter("orders", held.message_id)
    driver.step()
    assert driver.live("orders.failed")[0] == 2


def test_cycle_is_rejected_and_nothing_is_stored(driver: Driver) -> None:
    driver.publish(body())
    driver.publish(body(), queue="mails")
    driver.ask("configure", "orders", {"dead_letter_queue": "mails"})
    driver.step()
    question = driver.ask("configure", "mails", {"dead_letter_queue": "orders"})
    driver.step()
    assert isinstance(question.answer, RefusedError)
    assert driver.rows("SELECT settings FROM queue ORDER BY queue_id")[1] == ("{}",)


# -- repeated keys


def publish(driver: Driver, *bodies: bytes) -> Published:
    """Publish under one key, like the HTTP API."""
    question = driver.ask("publish", "orders", [(body, None) for body in bodies], key=b"k")
    driver.step()
    assert isinstance(question.answer, Published)
    return question.answer


@pytest.mark.parametrize("bodies", [[b"bad"], [b"bad", b"bad"], [b"bad", body(), b"bad", body()]])
def test_repeated_key_returns_the_first_reply_with_quarantined_messages(
    make: MakeDriver, bodies: list[bytes]
) -> None:
    driver = make(payload_policy="envelope")
    first = publish(driver, *bodies)
    again = publish(driver, *bodies)
    assert len(first.ids) == len(bodies)
    assert again == first
    assert list(first.quarantined.values()) == ["poison"] * bodies.count(b"bad")


def test_repeated_key_names_the_record_of_a_message_that_left_the_history(make: MakeDriver) -> None:
    driver = make(payload_policy="envelope")
    publish(driver, b"bad")
    driver.store.execute("DELETE FROM history")
    [place] = driver.rows("SELECT seq, token FROM message WHERE source_seq IS NOT NULL")
    record = "{:016x}{:016x}".format(*place)
    again = publish(driver, b"bad")
    assert (again.ids, again.quarantined) == ([record], {record: "poison"})
