"""Producers with a real broker, and with one that closes connections."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.client import Client, connect, connect_blocking
from phpmq_lite.client.blocking_client import NoReplyError, client_from_url, publish_each
from phpmq_lite.client.core import Backoff
from phpmq_lite.client.publishes import KeyedMessage
from phpmq_lite.envelopes import codec
from phpmq_lite.envelopes.producer import AsyncProducer, Producer
from phpmq_lite.envelopes.worker_connection import WorkerConnection
from phpmq_lite.errors import (
    KEY_CONFLICT,
    ClientError,
    EnvelopeError,
    LocalProtocolError,
    PublishRefusedError,
)
from phpmq_lite.protocol.frames import ClientFrame, Publish
from phpmq_lite.testing import RunningBroker, running_service
from tests.support.fork_server import broker_process
from tests.support.scripted_broker import ScriptedBroker, ScriptedPeer

URN = "urn:babel:orders:created"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_service(tmp_path / "data") as running:
        yield running


@pytest.fixture
async def peer() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as broker:
        yield broker


async def take(client: Client, queue: str) -> list[bytes]:
    """Acknowledge and return the messages that are in the queue now."""
    await client.publish_confirmed(queue, b"last")
    found: list[bytes] = []
    async with asyncio.timeout(30), client.consume(queue) as deliveries:
        async for delivery in deliveries:
            delivery.ack()
            if delivery.body == b"last":
                break
            found.append(delivery.body)
    return found


async def test_blocking_producer_publishes_what_a_consumer_decodes(broker: RunningBroker) -> None:
    def publish() -> list[str]:
        with Producer(f"127.0.0.1:{broker.port}", queue="orders") as orders:
            return [orders.publish(URN, {"name": "Zoë", "n": n}) for n in range(3)]

    ids = await asyncio.to_thread(publish)
    async with connect("127.0.0.1", broker.port) as client:
        envelopes = [codec.decode(body) for body in await take(client, "orders")]
    assert [envelope["meta"]["id"] for envelope in envelopes] == ids
    assert [envelope["data"] for envelope in envelopes] == [
        {"name": "Zoë", "n": n} for n in range(3)
    ]


async def test_producer_with_an_address_opens_itself(broker: RunningBroker) -> None:
    address = f"127.0.0.1:{broker.port}"

    def publish() -> str:
        orders = Producer(address, queue="orders")
        try:
            return orders.publish(URN, {})
        finally:
            orders.close()
            with pytest.raises(ClientError, match="closed"):
                orders.publish(URN, {})

    ids = [await asyncio.to_thread(publish)]
    orders = AsyncProducer(address, queue="orders")
    ids += await asyncio.gather(*(orders.publish(URN, {}) for _ in range(3)))
    await orders.close()
    async with connect("127.0.0.1", broker.port) as client:
        bodies = await take(client, "orders")
    assert sorted(codec.decode(body)["meta"]["id"] for body in bodies) == sorted(ids)


async def test_envelope_published_twice_is_stored_once(broker: RunningBroker) -> None:
    envelope = codec.make(URN, {"n": 1}, queue="orders")
    for _ in range(2):  # the second as after a restart, on another connection
        async with AsyncProducer(f"127.0.0.1:{broker.port}") as orders:
            await orders.publish_envelope(envelope)
    async with connect("127.0.0.1", broker.port) as client:
        assert await take(client, "orders") == [codec.encode(envelope)]


async def test_trace_continues_over_two_hops(broker: RunningBroker) -> None:
    async with (
        connect("127.0.0.1", broker.port) as client,
        AsyncProducer(client, queue="first") as hop,
    ):
        await hop.publish(URN, {"hop": 0}, trace_id="t-0")
        for number, (here, there) in enumerate([("first", "second"), ("second", "third")], 1):
            (body,) = await take(client, here)
            with codec.continue_trace(codec.decode(body)):
                await hop.publish(URN, {"hop": number}, queue=there)
        (body,) = await take(client, "third")
        assert client.is_connected  # the producer does not own it
    envelope = json.loads(body)
    assert (envelope["trace_id"], envelope["data"]) == ("t-0", {"hop": 2})


async def test_many_tasks_publish_at_once(broker: RunningBroker) -> None:
    async with AsyncProducer(f"127.0.0.1:{broker.port}", queue="orders") as orders:
        ids = await asyncio.gather(*(orders.publish(URN, {"n": n}) for n in range(500)))
        bodies = await take(orders.client, "orders")
    assert {json.loads(body)["meta"]["id"] for body in bodies} == set(ids)


async def test_invalid_payload_is_not_sent(broker: RunningBroker) -> None:
    async with AsyncProducer(f"127.0.0.1:{broker.port}", queue="orders") as orders:
        bad: list[Any] = [float("nan"), "\ud800", object(), b"x", {1: 2}]
        for value in bad:
            with pytest.raises(EnvelopeError, match="/data/v"):
                await orders.publish(URN, {"v": value})
        with pytest.raises(LocalProtocolError, match="limit"):
            await orders.publish(URN, {"v": "x" * (9 << 20)})
        assert await take(orders.client, "orders") == []


async def test_cut_before_the_receipt_stores_once(peer: ScriptedBroker) -> None:
    seen: list[bytes] = []

    def store_and_cut(connection: ScriptedPeer, frame: ClientFrame) -> None:
        assert isinstance(frame, Publish)
        assert frame.key is not None
        seen.append(frame.key)
        if len(seen) == 1:
            peer.stored[frame.key] = frame.content
            connection.cut()
        else:
            peer.store(connection, frame)

    peer.script = store_and_cut
    address = f"127.0.0.1:{peer.port}"
    async with AsyncProducer(address, queue="orders", backoff=Backoff(0.001, 0.001)) as orders:
        meta_id = await orders.publish(URN, {})
    assert seen == [meta_id.encode()] * 2
    assert len(peer.stored) == 1


# -- many, each under its own key


def sends(peer: ScriptedBroker, *messages: KeyedMessage, timeout_s: float = 30) -> list[str]:
    """Publish from a thread; return the class names of the outcomes."""
    with connect_blocking("127.0.0.1", peer.port, backoff=Backoff(0.001, 0.001)) as client:
        outcomes = publish_each(client, messages, timeout_s)
        assert len(client.session.pending) == 0
    return ["stored" if outcome is None else type(outcome).__name__ for outcome in outcomes]


async def test_key_is_refused_for_another_body_except_where_it_means_once(
    broker: RunningBroker,
) -> None:
    async with connect("127.0.0.1", broker.port) as client:
        await client.publish_confirmed("orders", b"1", key=b"k")
        with pytest.raises(PublishRefusedError) as caught:
            await client.publish_confirmed("orders", b"2", key=b"k")
        assert caught.value.reason == KEY_CONFLICT
        messages = [KeyedMessage("orders", b"%d" % n, 0, b"k") for n in range(3)]

        def send() -> list[Exception | None]:
            with connect_blocking("127.0.0.1", broker.port) as blocking:
                return [publish_each(blocking, [message])[0] for message in messages]

        assert await asyncio.to_thread(send) == [None] * 3
        assert await take(client, "orders") == [b"1"]


async def test_each_message_has_its_outcome(peer: ScriptedBroker) -> None:
    def answer(connection: ScriptedPeer, frame: ClientFrame) -> None:
        assert isinstance(frame, Publish)
        if frame.queue == "paused":
            connection.answer(frame, "paused")
        elif frame.queue != "silent":
            peer.store(connection, frame)

    peer.script = answer
    messages = [
        KeyedMessage("orders", b"1", 0, b"k1"),
        KeyedMessage("paused", b"2", 0, b"k2"),
        KeyedMessage("a" * 300, b"3", 0, b"k3"),
        KeyedMessage("silent", b"4", 0, b"k4"),
        KeyedMessage("orders", b"5", 0, b"k5"),
    ]
    assert await asyncio.to_thread(sends, peer, *messages, timeout_s=0.5) == [
        "stored",
        PublishRefusedError.__name__,
        LocalProtocolError.__name__,
        NoReplyError.__name__,
        "stored",
    ]
    assert peer.stored == {b"k1": b"1", b"k5": b"5"}


async def test_message_that_always_ends_the_connection_is_given_up(peer: ScriptedBroker) -> None:
    def hang_up(connection: ScriptedPeer, frame: ClientFrame) -> None:
        assert isinstance(frame, Publish)
        if frame.content == b"bad":
            connection.cut()
        else:
            peer.store(connection, frame)

    peer.script = hang_up
    messages = [KeyedMessage("q", body, 0, body) for body in (b"one", b"bad", b"two")]
    found = await asyncio.to_thread(sends, peer, *messages)
    assert found[1:] == ["ConnectionLostError"] * 2
    assert b"two" not in peer.stored


async def test_lost_broker_leaves_all_outcomes_open(peer: ScriptedBroker) -> None:
    peer.script = lambda connection, _: connection.cut()

    def send() -> list[str]:
        with connect_blocking("127.0.0.1", peer.port, reconnect=False) as client:
            outcomes = publish_each(client, [KeyedMessage("q", b"1", 0, b"k")], 30)
            again = publish_each(client, [KeyedMessage("q", b"1", 0, b"k")], 30)
        return [type(outcome).__name__ for outcome in (*outcomes, *again)]

    assert await asyncio.to_thread(send) == ["NoReplyError"] * 2


async def test_key_of_an_event_means_once_whatever_the_bytes(broker: RunningBroker) -> None:
    """Each envelope has an id, a trace and a time of its own, so a repeat has other bytes."""
    address = f"127.0.0.1:{broker.port}"

    def publish(process: str) -> None:
        with Producer(address, queue="orders") as orders:
            for _ in range(2):
                orders.publish(URN, {"process": process}, key="order 1042 was created")

    await asyncio.to_thread(publish, "first")
    await asyncio.to_thread(publish, "after a restart")
    async with AsyncProducer(address, queue="orders") as orders:
        await orders.publish(URN, {"process": "asyncio"}, key="order 1042 was created")
        again = codec.make(URN, {"process": "changed"}, "orders")
        await orders.publish_envelope(again)
        with pytest.raises(PublishRefusedError, match=KEY_CONFLICT):  # a mistake, not a repeat
            await orders.publish_envelope(again | {"data": {"process": "changed again"}})
    async with connect(address) as client:
        found = [codec.decode(body)["data"]["process"] for body in await take(client, "orders")]
    assert found == ["first", "changed"]


def test_worker_repeats_what_it_derives_from_a_failure(tmp_path: Path) -> None:
    """A worker killed between a receipt and its settlement publishes it again, at another time."""
    with broker_process(tmp_path / "data", "--admin", "none") as broker:
        link = WorkerConnection(client_from_url(f"phpmq://127.0.0.1:{broker.port}"))
        link.publish("orders.dlq", b"failed at 1", key=b"1:dead")
        link.publish("orders.dlq", b"failed at 2", key=b"1:dead")
        found = link.receive("orders.dlq", 30.0)
        assert found is not None
        assert found.body == b"failed at 1"
        found.ack()
        link.publish("orders.dlq", b"last")
        last = link.receive("orders.dlq", 30.0)
        assert last is not None
        assert last.body == b"last"
        link.close()
