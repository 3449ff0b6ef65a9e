"""The outbox's table and its relay, in memory, with a scripted broker."""

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from babelqueue.outbox import Outbox as SdkOutbox
from babelqueue.outbox import OutboxRelay, OutboxStore

from phpmq_lite.client.blocking_client import KeyedMessage, NoReplyError, PublishOutcome
from phpmq_lite.envelopes import codec, producer
from phpmq_lite.envelopes.outbox import (
    Outbox,
    SqliteOutboxStore,
    check_table_name,
    create_tables,
    schema,
)
from phpmq_lite.envelopes.outbox_relay import Relay
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


class House:
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
def house() -> Iterator[House]:
    made = House()
    yield made
    made.connection.close()


# -- the writer's side


def test_row_is_committed_with_the_business_data_or_not_at_all(house: House) -> None:
    for end in ("ROLLBACK", "COMMIT"):
        house.connection.execute("BEGIN")
        house.connection.execute("INSERT INTO sale VALUES (1)")
        house.write(1)
        house.connection.execute(end)
        sales = house.connection.execute("SELECT count(*) FROM sale").fetchone()[0]
        assert len(house.column("id")) == sales == (end == "COMMIT")


def test_row_has_the_bytes_that_a_producer_sends(house: House) -> None:
    envelope = codec.make(URN, {"name": "Zoë\u2028/"}, queue="orders")
    row_id = house.outbox.write(envelope, ttl_s=60)
    assert house.column("body") == [producer.prepare_publish(envelope).content]
    assert (house.column("id"), house.column("ttl_s")) == ([row_id], [60])


def test_outbox_continues_the_trace_of_what_is_handled(house: House) -> None:
    with codec.continue_trace({"trace_id": "t-0"}):
        house.write(1)
    assert json.loads(house.column("body")[0])["trace_id"] == "t-0"


def test_what_cannot_be_sent_is_refused_before_the_insert(house: House) -> None:
    with pytest.raises(EnvelopeError, match="/data/n"):
        house.outbox.publish(URN, {"n": float("nan")})
    with pytest.raises(LocalProtocolError, match="queue name"):
        house.write(1, queue="a" * 300)
    with pytest.raises(LocalProtocolError, match="digits"):
        house.outbox.publish(URN, {}, ttl_s=-1)
    assert house.column("id") == []


@pytest.mark.parametrize("name", ["", "a b", "1a", 'a"', "a;b", "ä"])
def test_name_of_a_table_is_checked(name: str) -> None:
    with pytest.raises(ValueError, match="not a valid table name"):
        check_table_name(name)


def test_tables_may_be_called_otherwise() -> None:
    connection = sqlite3.connect(":memory:")
    create_tables(connection, "mail")
    create_tables(connection, "mail")
    Outbox(connection, table="mail").publish(URN, {})
    assert SqliteOutboxStore(connection, "mail").queues() == ["default"]
    assert all("mail" in statement for statement in schema("mail"))
    connection.close()


# -- the relay


def test_relay_sends_queue_by_queue_in_order_under_the_rows_ids(house: House) -> None:
    house.write(1, 2)
    house.write(3, queue="mail")
    house.write(4)
    done = house.relay.run()
    assert (done.sent, done.failed, done.is_unreachable) == (4, 0, False)
    assert (house.broker.numbers(), house.broker.numbers("mail")) == ([1, 2, 4], [3])
    assert {m.key.decode() for m in house.broker.stored} == set(house.column("id"))
    assert house.relay.run().sent == 0


def test_relay_sends_in_batches_until_nothing_is_left(house: House) -> None:
    house.write(*range(25))
    assert house.relay_of(house.store, batch=10).run().sent == 25
    assert (house.broker.numbers(), house.broker.calls) == (list(range(25)), 3)


def test_batch_ends_with_the_bytes_that_it_may_have(house: House) -> None:
    house.write(*range(3))
    size = len(house.column("body")[0])
    assert [len(house.store.lease_rows("orders", 10, most)) for most in (1, size + 1, 1 << 20)] == [
        1,
        2,
        3,
    ]


def test_failing_row_stays_with_its_error_and_the_rest_goes_on(house: House) -> None:
    house.write(*range(5))
    bad = house.column("id")[2].encode()
    house.broker.verdict = lambda m: LocalProtocolError("too long") if m.key == bad else None
    done = house.relay.run()
    assert (done.sent, done.failed) == (4, 1)
    assert house.broker.numbers() == [0, 1, 3, 4]
    assert house.column("error") == [None, None, "too long", None, None]
    assert house.failures == [("orders", "too long")]


def test_failing_row_is_tried_again_after_5_s_and_later_each_time(house: House) -> None:
    house.write(0)
    house.broker.verdict = lambda _: LocalProtocolError("no")
    house.relay.run()
    for wait_s in (5, 10, 20, 40, 80, 160, 300, 300):
        tries = house.column("attempts")[0]
        house.now_s += wait_s - 0.1
        house.relay.run()
        assert house.column("attempts") == [tries]
        house.now_s += 0.1
        house.relay.run()
        assert house.column("attempts") == [tries + 1]
    house.broker.verdict = lambda _: None
    house.now_s += 300
    assert house.relay.run().sent == 1
    assert house.column("error") == [None]


def test_refusing_queue_waits_and_the_others_go_on_in_order(house: House) -> None:
    house.write(1, 2)
    house.write(3, queue="mail")
    refusal = PublishRefusedError("paused")
    house.broker.verdict = lambda m: refusal if m.queue == "orders" else None
    done = house.relay.run()
    assert (done.sent, done.refused) == (1, {"orders"})
    assert house.column("error")[:2] == ["publish refused: paused"] * 2
    calls = house.broker.calls
    assert house.relay.run().refused == {"orders"}
    assert house.broker.calls == calls
    house.broker.verdict = lambda _: None
    house.now_s += 1
    assert house.relay.run().sent == 2
    assert house.broker.numbers() == [1, 2]


def test_refusing_queue_waits_longer_each_time(house: House) -> None:
    house.write(1)
    house.broker.verdict = lambda _: PublishRefusedError("queue full: messages")
    house.relay.run()
    for pause_s in (1, 2, 4, 8, 16, 30, 30):
        calls = house.broker.calls
        house.now_s += pause_s - 0.01
        house.relay.run()
        assert house.broker.calls == calls
        house.now_s += 0.01
        house.relay.run()
        assert house.broker.calls == calls + 1


def test_queue_that_took_something_waits_from_1_s_again(house: House) -> None:
    house.write(1)
    for _ in range(2):
        house.broker.verdict = lambda _: PublishRefusedError("paused")
        house.relay.run()
        house.broker.verdict = lambda _: None
        house.now_s += 1
        assert house.relay.run().sent == 1
        house.write(2)


def test_broker_that_is_away_leaves_rows_as_they_are(house: House) -> None:
    house.write(1)
    house.write(2, queue="mail")
    house.broker.verdict = lambda _: NoReplyError("away")
    done = house.relay.run()
    assert (done.sent, done.failed, done.is_unreachable) == (0, 0, True)
    assert (house.broker.calls, house.column("attempts")) == (1, [0, 0])
    house.broker.verdict = lambda _: None
    assert house.relay.run().sent == 2


def test_row_that_the_broker_hangs_up_on_is_found_and_the_rest_goes_on(house: House) -> None:
    house.write(*range(6))
    bad = house.column("id")[2].encode()
    hung: list[bytes] = []

    def send(messages: Sequence[KeyedMessage]) -> list[PublishOutcome]:
        keys = [m.key for m in messages]
        if bad not in keys:
            return house.broker.send(messages)
        hung.append(bad)
        before = keys.index(bad)
        house.broker.send(messages[:before])
        lost: PublishOutcome = ConnectionLostError("10 connections ended")
        return [None] * before + [lost] * (len(messages) - before)

    relay = Relay(house.store, send, lambda: house.now_s)
    done = relay.run()
    assert (done.sent, done.failed, len(hung)) == (5, 1, 2)
    assert house.broker.numbers() == [0, 1, 3, 4, 5]
    assert house.column("error")[2] == "10 connections ended"
    assert house.column("attempts") == [0, 0, 1, 0, 0, 0]


# -- several relays


def test_queue_belongs_to_one_relay_until_its_lease_ends(house: House) -> None:
    house.write(1)
    house.broker.verdict = lambda _: NoReplyError("away")
    house.relay.run()
    house.broker.verdict = lambda _: None
    other = house.relay_of(house.another_store())
    house.now_s += 29.9
    assert other.run().sent == 0
    house.now_s += 0.1
    assert other.run().sent == 1


def test_released_queue_is_there_for_others_at_once(house: House) -> None:
    house.write(1)
    assert len(house.store.lease_rows("orders", 10)) == 1
    other = house.another_store()
    assert other.lease_rows("orders", 10) == []
    house.store.release()
    assert len(other.lease_rows("orders", 10)) == 1


def test_stopped_relay_ends_between_two_batches(house: House) -> None:
    house.write(*range(30))
    relay = house.relay_of(house.store, batch=10, is_stopped=lambda: house.broker.calls == 2)
    assert relay.run().sent == 20


# -- what is left


def test_status_tells_what_waits_by_queue(house: House) -> None:
    house.write(1, 2)
    house.write(3, queue="mail")
    bad = house.column("id")[1].encode()
    house.broker.verdict = lambda m: LocalProtocolError("no") if m.key == bad else None
    house.relay.run()
    house.write(4)
    (row,) = house.store.status()
    assert (row.queue, row.waiting, row.failing, row.attempts, row.error) == (
        "orders",
        2,
        1,
        1,
        "no",
    )


def test_sent_rows_are_purged_after_their_time_and_others_never(house: House) -> None:
    house.write(*range(2_100))
    house.relay.run()
    house.write(7, queue="mail")
    house.now_s += 60
    assert house.store.purge(61) == 0
    assert house.store.purge(60) == 2_100
    assert house.column("queue") == ["mail"]


def test_text_in_the_body_column_is_sent_as_its_bytes(house: House) -> None:
    """Other languages may insert the row with their own statement."""
    text = producer.prepare_publish(codec.make(URN, {"n": 1}, queue="orders")).content.decode()
    house.connection.execute(
        "INSERT INTO phpmq_outbox (id, queue, body, written_ms) VALUES ('x', 'orders', ?, 0)",
        (text,),
    )
    house.relay.run()
    assert [m.content for m in house.broker.stored] == [text.encode()]


# -- the SDK's own


class Transport:
    """The publishing half of an SDK transport."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []

    def publish(self, queue: str, body: str) -> None:
        if "ugly" in body:  # no hexadecimal digits: ids are random
            raise ValueError("ugly")
        self.sent.append((queue, body))


def test_sdk_outbox_and_relay_work_over_the_store(house: House) -> None:
    outbox = SdkOutbox(house.store)
    for word in ("one", "ugly", "two"):
        outbox.write(codec.make(URN, {"word": word}, queue="orders"))
    transport: Any = Transport()
    done = OutboxRelay(transport, house.store, sleeper=lambda _: None).drain()
    assert (done.published, done.failed) == (2, 1)
    assert [json.loads(body)["data"]["word"] for _, body in transport.sent] == ["one", "two"]
    assert house.column("error") == [None, "ValueError: ugly", None]
    assert isinstance(house.store, OutboxStore)


def test_store_refuses_what_the_sdk_writes_wrongly(house: House) -> None:
    outbox = SdkOutbox(house.store)
    envelope = codec.make(URN, {}, queue="orders")
    for data in ({"n": float("nan")}, {"name": "\ud800"}):
        with pytest.raises(EnvelopeError):
            outbox.write(envelope | {"data": data})
    assert house.column("id") == []
