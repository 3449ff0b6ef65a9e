"""The outbox's table and its relay, in memory, with a scripted broker."""

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from babelqueue.outbox import Outbox as SdkOutbox
from babelqueue.outbox import OutboxRelay, OutboxStore

from phpmq_lite.client.blocking_client import NoReplyError, PublishOutcome
from phpmq_lite.client.publishes import KeyedMessage
from phpmq_lite.envelopes import codec, producer
from phpmq_lite.envelopes.outbox import (
    Outbox,
    Relay,
    SqliteOutboxStore,
    check_table_name,
    create_tables,
    schema,
)
from phpmq_lite.errors import (
    ConnectionLostError,
    EnvelopeError,
    LocalProtocolError,
    PublishRefusedError,
)

URN = "urn:babel:orders:created"


class Broker:
    """Stores messages unless ``verdict`` returns an error for them."""

    def __init__(self) -> None:
        self.stored: list[KeyedMessage] = []
        self.calls = 0
        self.verdict: Callable[[KeyedMessage], PublishOutcome] = lambda _message: None

    def send(self, messages: Sequence[KeyedMessage]) -> list[PublishOutcome]:
        self.calls += 1
        outcomes = [self.verdict(message) for message in messages]
        self.stored += [m for m, out in zip(messages, outcomes, strict=True) if out is None]
        return outcomes

    def numbers(self, queue: str = "orders") -> list[int]:
        """Return ``data.n`` of each stored message, in order."""
        return [json.loads(m.content)["data"]["n"] for m in self.stored if m.queue == queue]


class Shop:
    """A service's database in memory with its outbox, a store and a clock."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        create_tables(self.connection)
        self.connection.execute("CREATE TABLE sale (n INTEGER)")
        self.outbox = Outbox(self.connection, queue="orders")
        self.now_s = 1_000_000.0
        self.broker = Broker()
        self.failures: list[tuple[str, str]] = []
        self.store = self.another_store()
        self.relay = self.relay_of(self.store)

    def another_store(self) -> SqliteOutboxStore:
        return SqliteOutboxStore(self.connection, now_ms=lambda: round(self.now_s * 1_000))

    def relay_of(self, store: SqliteOutboxStore, **options: Any) -> Relay:
        return Relay(
            store,
            self.broker.send,
            lambda: self.now_s,
            report=lambda row, why: self.failures.append((row.queue, why)),
            **options,
        )

    def write(self, *numbers: int, queue: str = "orders") -> None:
        for number in numbers:
            self.outbox.publish(URN, {"n": number}, queue=queue)

    def column(self, name: str) -> list[Any]:
        found = self.connection.execute(f"SELECT {name} FROM phpmq_outbox ORDER BY seq")
        return [row[0] for row in found]


@pytest.fixture
def shop() -> Iterator[Shop]:
    made = Shop()
    yield made
    made.connection.close()


# -- the writer's side


def test_row_is_committed_with_the_business_data_or_not_at_all(shop: Shop) -> None:
    for end in ("ROLLBACK", "COMMIT"):
        shop.connection.execute("BEGIN")
        shop.connection.execute("INSERT INTO sale VALUES (1)")
        shop.write(1)
        shop.connection.execute(end)
        sales = shop.connection.execute("SELECT count(*) FROM sale").fetchone()[0]
        assert len(shop.column("id")) == sales == (end == "COMMIT")


def test_options_reach_the_broker_in_the_form_that_it_may_know(shop: Shop) -> None:
    """A delay alone needs no column, and no broker of this release."""
    shop.outbox.publish(URN, {}, delay_s=2.5)
    shop.outbox.publish(URN, {}, ttl_s=1.5, delay_s=2)
    shop.outbox.publish(URN, {}, priority=0)
    shop.outbox.publish(URN, {}, ttl_s=60)
    with pytest.raises(LocalProtocolError, match="priority: must be"):
        shop.outbox.publish(URN, {}, priority=256)
    shop.relay.run()
    assert [(m.queue, m.ttl_s, m.options) for m in shop.broker.stored] == [
        ("orders", 1, {"ttl_s": 1.5, "delay_s": 2}),
        ("orders", 0, {"ttl_s": 0, "priority": 0}),
        ("orders", 60, None),
        ("orders.retry", 3, None),
    ]


def test_table_of_the_release_before_gets_its_column_when_tables_are_created(shop: Shop) -> None:
    shop.connection.execute("ALTER TABLE phpmq_outbox DROP COLUMN options")
    shop.write(1)
    shop.outbox.publish(URN, {"n": 2}, delay_s=1)
    with pytest.raises(sqlite3.OperationalError, match="options"):
        shop.outbox.publish(URN, {"n": 3}, priority=0)
    shop.relay.run()
    create_tables(shop.connection)
    create_tables(shop.connection)
    shop.outbox.publish(URN, {"n": 3}, priority=0)
    shop.relay.run()
    assert (shop.broker.numbers(), shop.broker.numbers("orders.retry")) == ([1, 3], [2])


def test_row_has_the_bytes_that_a_producer_sends(shop: Shop) -> None:
    envelope = codec.make(URN, {"name": "Zoë\u2028/"}, queue="orders")
    row_id = shop.outbox.write(envelope, ttl_s=60)
    assert shop.column("body") == [producer.prepare_publish(envelope).content]
    assert (shop.column("id"), shop.column("ttl_s")) == ([row_id], [60])


def test_outbox_continues_the_trace_of_the_current_job(shop: Shop) -> None:
    with codec.continue_trace({"trace_id": "t-0"}):
        shop.write(1)
    assert json.loads(shop.column("body")[0])["trace_id"] == "t-0"


def test_what_cannot_be_sent_is_refused_before_the_insert(shop: Shop) -> None:
    with pytest.raises(EnvelopeError, match="/data/n"):
        shop.outbox.publish(URN, {"n": float("nan")})
    with pytest.raises(LocalProtocolError, match="queue name"):
        shop.write(1, queue="a" * 300)
    with pytest.raises(LocalProtocolError, match="digits"):
        shop.outbox.publish(URN, {}, ttl_s=-1)
    assert shop.column("id") == []


@pytest.mark.parametrize("name", ["", "a b", "1a", 'a"', "a;b", "ä"])
def test_name_of_a_table_is_checked(name: str) -> None:
    with pytest.raises(ValueError, match="not a valid table name"):
        check_table_name(name)


def test_tables_may_have_another_name() -> None:
    connection = sqlite3.connect(":memory:")
    create_tables(connection, "mail")
    create_tables(connection, "mail")
    Outbox(connection, table="mail").publish(URN, {})
    assert SqliteOutboxStore(connection, "mail").queues() == ["default"]
    assert all("mail" in statement for statement in schema("mail"))
    connection.close()


# -- the relay


def test_relay_sends_queue_by_queue_in_order_under_the_rows_ids(shop: Shop) -> None:
    shop.write(1, 2)
    shop.write(3, queue="mail")
    shop.write(4)
    done = shop.relay.run()
    assert (done.sent, done.failed, done.is_unreachable) == (4, 0, False)
    assert (shop.broker.numbers(), shop.broker.numbers("mail")) == ([1, 2, 4], [3])
    assert {m.key.decode() for m in shop.broker.stored} == set(shop.column("id"))
    assert shop.relay.run().sent == 0


def test_relay_sends_in_batches_until_nothing_is_left(shop: Shop) -> None:
    shop.write(*range(25))
    assert shop.relay_of(shop.store, batch=10).run().sent == 25
    assert (shop.broker.numbers(), shop.broker.calls) == (list(range(25)), 3)


def test_batch_ends_with_the_bytes_that_it_may_have(shop: Shop) -> None:
    shop.write(*range(3))
    size = len(shop.column("body")[0])
    bounds = (1, size + 1, 1 << 20)
    assert [len(shop.store.lease_rows("orders", 10, most)) for most in bounds] == [1, 2, 3]


def test_failing_row_stays_with_its_error_and_the_rest_goes_on(shop: Shop) -> None:
    shop.write(*range(5))
    bad = shop.column("id")[2].encode()
    shop.broker.verdict = lambda m: LocalProtocolError("too long") if m.key == bad else None
    done = shop.relay.run()
    assert (done.sent, done.failed) == (4, 1)
    assert shop.broker.numbers() == [0, 1, 3, 4]
    assert shop.column("error") == [None, None, "too long", None, None]
    assert shop.failures == [("orders", "too long")]


def test_failing_row_is_tried_again_after_5_s_and_later_each_time(shop: Shop) -> None:
    shop.write(0)
    shop.broker.verdict = lambda _: LocalProtocolError("no")
    shop.relay.run()
    for wait_s in (5, 10, 20, 40, 80, 160, 300, 300):
        tries = shop.column("attempts")[0]
        shop.now_s += wait_s - 0.1
        shop.relay.run()
        assert shop.column("attempts") == [tries]
        shop.now_s += 0.1
        shop.relay.run()
        assert shop.column("attempts") == [tries + 1]
    shop.broker.verdict = lambda _: None
    shop.now_s += 300
    assert shop.relay.run().sent == 1
    assert shop.column("error") == [None]


def test_refusing_queue_waits_and_the_others_go_on_in_order(shop: Shop) -> None:
    shop.write(1, 2)
    shop.write(3, queue="mail")
    refusal = PublishRefusedError("paused")
    shop.broker.verdict = lambda m: refusal if m.queue == "orders" else None
    done = shop.relay.run()
    assert (done.sent, done.refused) == (1, {"orders"})
    assert shop.column("error")[:2] == ["publish refused: paused"] * 2
    calls = shop.broker.calls
    assert shop.relay.run().refused == {"orders"}
    assert shop.broker.calls == calls
    shop.broker.verdict = lambda _: None
    shop.now_s += 1
    assert shop.relay.run().sent == 2
    assert shop.broker.numbers() == [1, 2]


def test_refusing_queue_waits_longer_each_time(shop: Shop) -> None:
    shop.write(1)
    shop.broker.verdict = lambda _: PublishRefusedError("queue full: messages")
    shop.relay.run()
    for pause_s in (1, 2, 4, 8, 16, 30, 30):
        calls = shop.broker.calls
        shop.now_s += pause_s - 0.01
        shop.relay.run()
        assert shop.broker.calls == calls
        shop.now_s += 0.01
        shop.relay.run()
        assert shop.broker.calls == calls + 1


def test_queue_that_accepted_a_message_waits_from_1_s_again(shop: Shop) -> None:
    shop.write(1)
    for _ in range(2):
        shop.broker.verdict = lambda _: PublishRefusedError("paused")
        shop.relay.run()
        shop.broker.verdict = lambda _: None
        shop.now_s += 1
        assert shop.relay.run().sent == 1
        shop.write(2)


def test_broker_that_is_away_leaves_rows_as_they_are(shop: Shop) -> None:
    shop.write(1)
    shop.write(2, queue="mail")
    shop.broker.verdict = lambda _: NoReplyError("away")
    done = shop.relay.run()
    assert (done.sent, done.failed, done.is_unreachable) == (0, 0, True)
    assert (shop.broker.calls, shop.column("attempts")) == (1, [0, 0])
    shop.broker.verdict = lambda _: None
    assert shop.relay.run().sent == 2


def test_row_that_the_broker_hangs_up_on_is_found_and_the_rest_goes_on(shop: Shop) -> None:
    shop.write(*range(6))
    bad = shop.column("id")[2].encode()
    hung: list[bytes] = []

    def send(messages: Sequence[KeyedMessage]) -> list[PublishOutcome]:
        keys = [m.key for m in messages]
        if bad not in keys:
            return shop.broker.send(messages)
        hung.append(bad)
        before = keys.index(bad)
        shop.broker.send(messages[:before])
        lost: PublishOutcome = ConnectionLostError("10 connections ended")
        return [None] * before + [lost] * (len(messages) - before)

    relay = Relay(shop.store, send, lambda: shop.now_s)
    done = relay.run()
    assert (done.sent, done.failed, len(hung)) == (5, 1, 2)
    assert shop.broker.numbers() == [0, 1, 3, 4, 5]
    assert shop.column("error")[2] == "10 connections ended"
    assert shop.column("attempts") == [0, 0, 1, 0, 0, 0]


def test_queue_belongs_to_one_relay_until_its_lease_ends(shop: Shop) -> None:
    shop.write(1)
    shop.broker.verdict = lambda _: NoReplyError("away")
    shop.relay.run()
    shop.broker.verdict = lambda _: None
    other = shop.relay_of(shop.another_store())
    shop.now_s += 29.9
    assert other.run().sent == 0
    shop.now_s += 0.1
    assert other.run().sent == 1


def test_released_queue_is_there_for_others_at_once(shop: Shop) -> None:
    shop.write(1)
    assert len(shop.store.lease_rows("orders", 10)) == 1
    other = shop.another_store()
    assert other.lease_rows("orders", 10) == []
    shop.store.release()
    assert len(other.lease_rows("orders", 10)) == 1


def test_stopped_relay_ends_between_two_batches(shop: Shop) -> None:
    shop.write(*range(30))
    relay = shop.relay_of(shop.store, batch=10, is_stopped=lambda: shop.broker.calls == 2)
    assert relay.run().sent == 20


def test_status_counts_waiting_rows_by_queue(shop: Shop) -> None:
    shop.write(1, 2)
    shop.write(3, queue="mail")
    bad = shop.column("id")[1].encode()
    shop.broker.verdict = lambda m: LocalProtocolError("no") if m.key == bad else None
    shop.relay.run()
    shop.write(4)
    (row,) = shop.store.status()
    assert (row.queue, row.waiting, row.failing) == ("orders", 2, 1)
    assert (row.attempts, row.error) == (1, "no")


def test_sent_rows_are_purged_after_their_time_and_others_never(shop: Shop) -> None:
    shop.write(*range(1_050))
    shop.relay.run()
    shop.write(7, queue="mail")
    shop.now_s += 60
    assert shop.store.purge(61) == 0
    assert shop.store.purge(60) == 1_050
    assert shop.column("queue") == ["mail"]


def test_text_in_the_body_column_is_sent_as_its_bytes(shop: Shop) -> None:
    """Other languages may insert the row with their own statement."""
    text = producer.prepare_publish(codec.make(URN, {"n": 1}, queue="orders")).content.decode()
    shop.connection.execute(
        "INSERT INTO phpmq_outbox (id, queue, body, written_ms) VALUES ('x', 'orders', ?, 0)",
        (text,),
    )
    shop.relay.run()
    assert [m.content for m in shop.broker.stored] == [text.encode()]


# -- the SDK's outbox and relay


class SdkTransport:
    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []

    def publish(self, queue: str, body: str) -> None:
        if "ugly" in body:  # not hexadecimal, so no random id contains it
            raise ValueError("ugly")
        self.sent.append((queue, body))


def test_sdk_outbox_and_relay_work_over_the_store(shop: Shop) -> None:
    outbox = SdkOutbox(shop.store)
    for word in ("one", "ugly", "two"):
        outbox.write(codec.make(URN, {"word": word}, queue="orders"))
    transport: Any = SdkTransport()
    done = OutboxRelay(transport, shop.store, sleeper=lambda _: None).drain()
    assert (done.published, done.failed) == (2, 1)
    assert [json.loads(body)["data"]["word"] for _, body in transport.sent] == ["one", "two"]
    assert shop.column("error") == [None, "ValueError: ugly", None]
    assert isinstance(shop.store, OutboxStore)


def test_store_refuses_what_the_sdk_writes_wrongly(shop: Shop) -> None:
    outbox = SdkOutbox(shop.store)
    envelope = codec.make(URN, {}, queue="orders")
    for data in ({"n": float("nan")}, {"name": "\ud800"}):
        with pytest.raises(EnvelopeError):
            outbox.write(envelope | {"data": data})
    assert shop.column("id") == []
