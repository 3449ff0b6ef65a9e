"""Both clients against the real broker in this process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from phpmq_lite.client import connect, connect_blocking
from phpmq_lite.client.core import Backoff
from phpmq_lite.testing import RunningBroker, running_service


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_service(tmp_path / "data") as broker:
        yield broker


async def test_message_goes_through_once_with_its_ttl(broker: RunningBroker) -> None:
    async with connect(broker.host, broker.port) as client:
        await client.publish_confirmed("orders", b"one", ttl_s=3_600, key=b"same")
        await client.publish_confirmed("orders", b"one", ttl_s=3_600, key=b"same")
        await client.publish("orders", b"two")
        async with client.consume("orders") as deliveries:
            first, second = await anext(deliveries), await anext(deliveries)
            assert (first.body, second.body) == (b"one", b"two")
            assert first.ttl_s is not None
            assert 3_500 < first.ttl_s <= 3_600
            assert second.ttl_s == 0
            first.ack()
            second.ack()


async def test_window_flows_while_it_is_acknowledged(broker: RunningBroker) -> None:
    bodies = [b'{"number": %d}' % number for number in range(2_000)]
    got: list[bytes] = []
    async with connect(broker.host, broker.port) as client:
        publishing = asyncio.create_task(client.publish_many("orders", bodies, window=100))
        async for delivery in client.consume("orders", credit=50):
            got.append(delivery.body)
            delivery.ack()
            if len(got) == len(bodies):
                break
        assert await publishing == len(bodies)
    assert got == bodies


async def test_requeued_message_comes_last_and_dead_letter_gets_a_record(
    broker: RunningBroker,
) -> None:
    async with connect(broker.host, broker.port) as client:
        await client.publish_many("orders", [b"a", b"b", b"c"])
        async with client.consume("orders", credit=1) as deliveries:
            first = await anext(deliveries)
            first.requeue()
            (await anext(deliveries)).dead_letter()
            (await anext(deliveries)).ack()
            again = await anext(deliveries)
            assert (again.body, again.message_id) == (b"a", first.message_id)
            again.ack()
        async with client.consume("orders.dlq") as records:
            assert b"b" in (await anext(records)).body


async def test_message_returns_to_its_position_when_a_consumer_leaves(
    broker: RunningBroker,
) -> None:
    async with connect(broker.host, broker.port) as client:
        await client.publish_many("orders", [b"a", b"b"])
        async with connect(broker.host, broker.port) as leaving:
            held = await anext(leaving.consume("orders", credit=1))
        async with client.consume("orders") as deliveries:
            again = await anext(deliveries)
            assert (again.body, again.message_id) == (b"a", held.message_id)


async def test_finished_work_does_not_come_again_after_a_cut(broker: RunningBroker) -> None:
    """The late acknowledgement precedes the window, when no client holds the message."""
    backoff = Backoff(0, 0)
    async with connect(broker.host, broker.port, backoff=backoff) as client:
        await client.publish_many("orders", [b"a", b"b"])
        async with client.consume("orders", credit=1) as deliveries:
            delivery = await anext(deliveries)
            link = client._connection
            assert link is not None
            link._transport.abort()
            await link.lost.wait()
            delivery.ack()
            assert (await anext(deliveries)).body == b"b"


async def test_blocking_client_publishes_and_consumes(broker: RunningBroker) -> None:
    bodies = [b'{"number": %d}' % number for number in range(500)]

    def run() -> None:
        with connect_blocking(broker.host, broker.port) as client:
            client.publish("orders", b"plain", 60)
            client.publish_confirmed("orders", b"confirmed")
            assert client.publish_many("orders", bodies, window=100) == 500
            got: list[bytes] = []
            for delivery in client.consume("orders", credit=20):
                got.append(delivery.body)
                delivery.ack()
                if len(got) == 502:
                    break
            assert got == [b"plain", b"confirmed", *bodies]
            assert list(client.consume("orders", timeout_s=0.02)) == []

    await asyncio.to_thread(run)
