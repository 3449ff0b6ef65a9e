"""Producers: what they send, under which key, and what they refuse before sending."""

import asyncio
import contextvars
import json
import sqlite3
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from phpmq_lite.client.async_client import Client
from phpmq_lite.client.blocking_client import BlockingClient
from phpmq_lite.envelopes import codec
from phpmq_lite.envelopes.codec import decode
from phpmq_lite.envelopes.outbox import TABLE, Outbox, create_tables
from phpmq_lite.envelopes.producer import AsyncProducer, Producer, prepare_publish, receipt_key
from phpmq_lite.envelopes.worker_app import App
from phpmq_lite.errors import EnvelopeError
from tests.unit.envelopes.fake_worker_connection import FakeLink, transport_on

URN = "urn:babel:orders:created"


@dataclass
class Sent:
    calls: list[tuple[str, bytes, int, bytes]] = field(default_factory=list)

    options: list[dict[str, Any]] = field(default_factory=list)

    def publish_confirmed(
        self, queue: str, body: bytes, ttl_s: int, key: bytes, **options: Any
    ) -> None:
        self.calls.append((queue, body, ttl_s, key))
        self.options.append(options)


class AsyncSent(Sent):
    async def publish_confirmed(  # type: ignore[override]
        self, queue: str, body: bytes, ttl_s: int, key: bytes, **options: Any
    ) -> None:
        super().publish_confirmed(queue, body, ttl_s, key, **options)


@dataclass
class OrderCreated:
    """A message class of an application."""

    trace_id: str | None = None

    def get_babel_urn(self) -> str:
        return URN

    def to_payload(self) -> dict[str, Any]:
        return {"order_id": 1042}

    def get_babel_trace_id(self) -> str | None:
        return self.trace_id


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def orders(sent: Sent) -> Producer:
    return Producer(cast("BlockingClient", sent), queue="orders")


def test_producer_sends_an_envelope_under_its_meta_id(orders: Producer, sent: Sent) -> None:
    meta_id = orders.publish(URN, {"order_id": 1042}, ttl_s=60, meta={"ext": {"a": 1}})
    ((queue, body, ttl_s, key),) = sent.calls
    envelope = json.loads(body)
    assert (queue, ttl_s, key) == ("orders", 60, meta_id.encode())
    assert (envelope["job"], envelope["data"], envelope["attempts"]) == (URN, {"order_id": 1042}, 0)
    assert envelope["meta"]["id"] == meta_id
    assert (envelope["meta"]["queue"], envelope["meta"]["ext"]) == ("orders", {"a": 1})


async def test_producers_pass_options_on(orders: Producer, sent: Sent) -> None:
    orders.publish(URN, {}, delay_s=0.5, ttl_s=60)
    later = AsyncSent()
    await AsyncProducer(cast("Client", later), queue="orders").publish(URN, {}, priority=0)
    assert sent.options + later.options == [{"delay_s": 0.5}, {"priority": 0}]
    assert [call[::2] for call in sent.calls + later.calls] == [("orders", 60), ("orders", 0)]


def test_producer_takes_another_queue_and_key(orders: Producer, sent: Sent) -> None:
    orders.publish(URN, {}, queue="invoices", key="order-1042")
    ((queue, body, _, key),) = sent.calls
    assert (queue, key) == ("invoices", b"order-1042")
    assert json.loads(body)["meta"]["queue"] == "invoices"


def test_each_publish_is_an_envelope_of_its_own(orders: Producer, sent: Sent) -> None:
    assert orders.publish(URN, {}) != orders.publish(URN, {})
    assert len({key for _, _, _, key in sent.calls}) == 2


def test_repeated_envelope_has_the_same_bytes_and_key(orders: Producer, sent: Sent) -> None:
    envelope = codec.make(URN, {"n": 1}, queue="invoices")
    assert orders.publish_envelope(envelope) == orders.publish_envelope(envelope)
    first, second = sent.calls
    assert first == second
    assert first[0] == "invoices"


@pytest.mark.parametrize(
    ("given", "own", "expected"), [(None, None, "t-0"), ("t-1", None, "t-1"), (None, "t-2", "t-2")]
)
def test_trace_is_the_given_one_or_that_of_the_current_job(
    orders: Producer, sent: Sent, given: str | None, own: str | None, expected: str
) -> None:
    with codec.continue_trace({"trace_id": "t-0"}):
        if own is None:
            orders.publish(URN, {}, trace_id=given)
        orders.publish(OrderCreated(own or given))
    assert {json.loads(body)["trace_id"] for _, body, _, _ in sent.calls} == {expected}


def test_trace_ends_with_the_current_job(orders: Producer, sent: Sent) -> None:
    with codec.continue_trace({"trace_id": "t-0"}):
        with codec.continue_trace({"trace_id": "t-1"}):
            orders.publish(URN, {})
        orders.publish(URN, {})
    orders.publish(URN, {})
    first, second, third = (json.loads(body)["trace_id"] for _, body, _, _ in sent.calls)
    assert (first, second) == ("t-1", "t-0")
    assert third not in ("t-0", "t-1")
    assert len(third) == 36


def test_trace_is_inherited_by_a_coroutine_on_another_loop() -> None:
    """A worker runs ``async def`` handlers on a loop of its own thread."""
    seen: list[str | None] = []

    async def handler() -> None:
        seen.append(codec.current_trace_id())

    with codec.continue_trace({"trace_id": "t-0"}):
        context = contextvars.copy_context()
    context.run(asyncio.run, handler())
    assert seen == ["t-0"]


@pytest.mark.parametrize(
    ("arguments", "queue"),
    [
        ((OrderCreated("t-2"),), "orders"),
        ((OrderCreated("t-2"), "emails"), "emails"),
        ((URN, {"order_id": 1042}), "orders"),
        ((URN, {"order_id": 1042}, "emails"), "emails"),
    ],
)
async def test_publish_takes_a_job_or_a_urn_and_the_queue_by_its_place(
    orders: Producer, sent: Sent, arguments: tuple[Any, ...], queue: str
) -> None:
    """As PHP's ``$producer->dispatch(new UserRegistered(42), 'emails')``."""
    link, later = FakeLink(), AsyncSent()
    app = App(transport_on(link), queue="orders")
    connection = sqlite3.connect(":memory:")
    create_tables(connection)
    orders.publish(*arguments)
    app.publish(*arguments)
    Outbox(connection, queue="orders").publish(*arguments)
    await AsyncProducer(cast("Client", later), queue="orders").publish(*arguments)
    written = connection.execute(f"SELECT queue, body FROM {TABLE}").fetchall()
    connection.close()
    bodies = [body for there, body, *_ in (*sent.calls, *later.calls, *written) if there == queue]
    for content in (*bodies, *link.published(queue)):
        envelope = decode(content)
        assert (envelope["job"], envelope["data"]) == (URN, {"order_id": 1042})
        assert envelope["meta"]["queue"] == queue
        assert isinstance(arguments[0], str) or envelope["trace_id"] == "t-2"
    assert len(bodies) + len(link.published(queue)) == 4


def test_given_trace_overrides_that_of_the_job(orders: Producer, sent: Sent) -> None:
    orders.publish(OrderCreated("t-2"), trace_id="t-1")
    orders.publish(OrderCreated("t-2"), trace_id=" ")
    assert [json.loads(body)["trace_id"] for _, body, _, _ in sent.calls] == ["t-1", "t-2"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((URN,), "/data is missing"),
        ((URN, "emails"), "/data must be a mapping, not str"),
        ((OrderCreated(), {"n": 1}), "/data comes from the OrderCreated"),
        ((OrderCreated(), "emails", "orders"), "/data comes from the OrderCreated"),
        ((object(), "emails"), "object has no method get_babel_urn"),
        ((object(),), "object has no method get_babel_urn"),
        (("", {}), "URN|urn"),
        ((" \t", {}), "URN|urn"),
        (("\v\f", {}), "URN|urn"),
    ],
)
def test_publish_names_the_missing_argument(
    orders: Producer, sent: Sent, arguments: tuple[Any, ...], text: str
) -> None:
    with pytest.raises(EnvelopeError, match=text):
        orders.publish(*arguments)
    assert sent.calls == []


async def test_async_producer_sends_the_same() -> None:
    sent = AsyncSent()
    orders = AsyncProducer(cast("Client", sent), queue="orders")
    first = await orders.publish(URN, {"n": 1}, trace_id="t-1", ttl_s=5)
    second = await orders.publish(OrderCreated("t-2"), "invoices")
    assert [(queue, ttl_s, key.decode()) for queue, _, ttl_s, key in sent.calls] == [
        ("orders", 5, first),
        ("invoices", 0, second),
    ]
    assert [json.loads(body)["trace_id"] for _, body, _, _ in sent.calls] == ["t-1", "t-2"]


@pytest.mark.parametrize(
    ("data", "pointer"),
    [
        ({"price": float("nan")}, "/data/price"),
        ({"list": [1, float("inf")]}, "/data/list/1"),
        ({"name": "\ud800"}, "/data/name"),
        ({"at": object()}, "/data/at"),
        ({"a/b": {"~": b"bytes"}}, "/data/a~1b/~0"),
    ],
)
def test_unencodable_value_is_refused_with_its_pointer(
    orders: Producer, sent: Sent, data: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(EnvelopeError, match=pointer):
        orders.publish(URN, data)
    assert sent.calls == []


@pytest.mark.parametrize("name", ["id", "queue", "schema_version", "ts", "max_retries"])
def test_reserved_member_of_meta_is_refused(orders: Producer, sent: Sent, name: str) -> None:
    with pytest.raises(EnvelopeError, match=f"/meta/{name}"):
        orders.publish(URN, {}, meta={name: 1})
    assert sent.calls == []


@pytest.mark.parametrize(
    "change", [{"trace_id": " "}, {"attempts": "0"}, {"data": []}, {"meta": {"schema_version": 2}}]
)
def test_wrong_envelope_is_refused(orders: Producer, sent: Sent, change: dict[str, Any]) -> None:
    with pytest.raises(EnvelopeError):
        orders.publish_envelope(codec.make(URN, {}, queue="orders") | change)
    assert sent.calls == []


def test_envelope_without_a_queue_needs_one() -> None:
    envelope = codec.make(URN, {}, queue="orders")
    del envelope["meta"]["queue"]
    with pytest.raises(EnvelopeError, match="/meta/queue"):
        prepare_publish(envelope)
    assert prepare_publish(envelope, "orders").queue == "orders"


def test_later_attempt_of_an_envelope_is_another_message() -> None:
    envelope = codec.make(URN, {}, queue="orders")
    meta_id = envelope["meta"]["id"].encode()
    keys = [prepare_publish(envelope | {"attempts": n}).key for n in (0, 1, 2)]
    assert keys == [meta_id, meta_id + b":1", meta_id + b":2"]


def test_receipt_key_fits_the_protocol_whatever_the_meta_id_is() -> None:
    assert receipt_key(b"{}", "a" * 64) == b"a" * 64
    assert len(receipt_key(b"{}", "a" * 65)) == 64
    assert receipt_key(b"{}", "a" * 65) != receipt_key(b"{}", "a" * 66)
    assert receipt_key(b"{}", "") == receipt_key(b"{}", "") != receipt_key(b"[]", "")


@pytest.mark.parametrize("key", ["", b"", "a" * 65, "ä" * 33])
def test_key_of_a_wrong_length_is_refused(orders: Producer, sent: Sent, key: bytes | str) -> None:
    with pytest.raises(ValueError, match="1 to 64"):
        orders.publish(URN, {}, key=key)
    assert sent.calls == []
