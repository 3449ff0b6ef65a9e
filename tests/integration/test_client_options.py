"""Options, retries and longer holds of both clients, at a broker of this release and of the last.

``known_frames = None`` makes the scripted broker close on a hello, as the release before does.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.client import Admin, Delivery, connect, core
from phpmq_lite.client.core import Backoff
from phpmq_lite.errors import ClientError, ConnectionLostError, LocalProtocolError
from phpmq_lite.protocol.frames import (
    OUR_FRAMES,
    Acknowledge,
    ClientFrame,
    Consume,
    Publish,
    PublishWithOptions,
)
from phpmq_lite.testing import RunningBroker, running_service
from tests.integration.test_client import Connect, Threaded, connect_any
from tests.support.killing_proxy import KillingProxy
from tests.support.scripted_broker import ScriptedBroker, ScriptedPeer
from tests.support.waiting import until

__all__ = ["connect_any"]  # a fixture
ID = b"%032x" % 1


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> dict[Any, float]:
    """Forget older brokers before each test, because ports are used again."""
    known: dict[Any, float] = {}
    monkeypatch.setattr(core, "_old_brokers", known)
    return known


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_service(tmp_path / "data") as broker:
        yield broker


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as broker:
        yield broker


@pytest.fixture
def client(connect_any: Connect, broker: RunningBroker) -> Any:
    return connect_any(broker.host, broker.port)


# -- unique keys


@pytest.mark.parametrize("queue", ["mails ü/", "~tilde", ".."])
async def test_message_is_rescheduled_and_cancelled_by_its_unique_key(
    broker: RunningBroker, queue: str
) -> None:
    admin = Admin(broker.admin_url)

    async def act(call: str, **time: Any) -> bool:
        return bool(await asyncio.to_thread(getattr(admin, call), queue, "k", **time))

    async with connect(broker.host, broker.port) as client:
        assert await act("cancel") is False  # without a queue
        await client.publish_confirmed(queue, b"a", delay_s=3_600, unique_key="k")
        date = datetime(2099, 1, 1, tzinfo=UTC)
        assert [await act("reschedule", **time) for time in ({"deliver_at": date}, {})] == [
            True
        ] * 2
        async with client.consume(queue) as deliveries:
            delivery = await anext(deliveries)
            with pytest.raises(ClientError, match=r"http.*A consumer holds it"):
                await act("cancel")
            delivery.retry(60)
            await client.publish_confirmed(queue, b"b")  # the frames before it are processed
        assert [await act("cancel"), await act("cancel")] == [True, False]


async def test_message_is_rescheduled_to_now_while_the_clock_is_in_doubt(
    broker: RunningBroker,
) -> None:
    async with connect(broker.host, broker.port) as client:
        await client.publish_confirmed("orders", b"a", delay_s=3_600, unique_key="k")
        engine = broker.service.handle.engine
        assert engine is not None
        engine.core.is_clock_doubtful = True
        assert await asyncio.to_thread(Admin(broker.admin_url).reschedule, "orders", "k")
        async with client.consume("orders") as deliveries:
            assert (await anext(deliveries)).body == b"a"


def test_admin_that_is_none_is_named(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    with pytest.raises(ConnectionLostError, match=f"{url}: .*refused"):
        Admin(url, token="x").cancel("orders", "k")
    with pytest.raises(ClientError, match=r"the URL is 127.0.0.1:9101"):
        Admin("127.0.0.1:9101")


def info_of(delivery: Delivery) -> tuple[object, ...]:
    return (delivery.attempt, delivery.deliveries, delivery.priority, delivery.group)


async def test_options_order_and_delay_messages(client: Any) -> None:
    async with client:
        await client.publish_confirmed("orders", b"later", delay_s=0.15, ttl_s=30.5)
        await client.publish_confirmed("orders", b"plain")
        await client.publish_many("orders", [b"u1", b"u2"], priority=0, group="g")
        await client.publish("orders", b"once", unique_key="k")
        await client.publish_confirmed("orders", b"twice", unique_key="k")
        async with client.consume("orders", credit=9, info=True) as deliveries:
            got = [await anext(deliveries) for _ in range(5)]
            assert [delivery.body for delivery in got] == [
                b"u1",
                b"u2",
                b"plain",
                b"once",
                b"later",
            ]
            assert got[4].ttl_s == 31
            assert info_of(got[0]) == (1, 1, 0, "g")
            assert info_of(got[2]) == (1, 1, 128, None)
            assert got[0].hold_s is not None
            assert 1_790 < got[0].hold_s <= 1_800
            assert got[0].age_s is not None
            assert 0 <= got[0].age_s < 30


async def test_retry_keeps_the_message_and_names_its_attempt(client: Any) -> None:
    async with client:
        await client.publish_confirmed("orders", b"body", ttl_s=100)
        async with client.consume("orders", info=True) as deliveries:
            first = await anext(deliveries)
            first.retry(0.05, error="no stock", limit=5, content=b"other")
            again = await anext(deliveries)
            assert (again.message_id, again.body) == (first.message_id, b"other")
            assert (again.attempt, 98 <= again.ttl_s <= 100) == (2, True)
            again.retry(failed=False)
            third = await anext(deliveries)
            assert (third.attempt, third.deliveries) == (2, 3)
            third.dead_letter("broken", error="no stock")
        async with client.consume("orders.dlq") as records:
            assert b"no stock" in (await anext(records)).body


async def test_credit_is_changed_while_messages_are_held(client: Any) -> None:
    async with client:
        await client.publish_many("orders", [b"a", b"b", b"c"])
        async with client.consume("orders", credit=1, info=True) as deliveries:
            first = await anext(deliveries)
            deliveries.set_credit(3)
            assert [(await anext(deliveries)).body for _ in range(2)] == [b"b", b"c"]
            first.ack()


async def test_hold_is_extended_and_ended_by_its_holder(tmp_path: Path) -> None:
    """The queue's timeout would return it after a second."""
    settings = {"ack_timeout_s": 1}
    async with (
        running_service(tmp_path / "data", queues=settings) as broker,
        connect(broker.host, broker.port) as client,
        connect(broker.host, broker.port) as other,
    ):
        await client.publish_confirmed("orders", b"body")
        async with client.consume("orders", info=True) as deliveries:
            first = await anext(deliveries)
            deliveries.set_credit(0)
            assert first.extend(30)
            waiting = asyncio.ensure_future(anext(other.consume("orders", info=True)))
            await asyncio.wait({waiting}, timeout=1.5)
            assert not waiting.done()
            assert first.extend(0)
            again = await asyncio.wait_for(waiting, 10)
            assert (again.message_id, again.attempt) == (first.message_id, 2)


SETTLE: dict[str, Callable[[Delivery], None]] = {
    "ack": Delivery.ack,
    "retry": lambda delivery: delivery.retry(60, error="no"),
    "dead_letter": lambda delivery: delivery.dead_letter("bad"),
}


@pytest.mark.parametrize("how", SETTLE)
@pytest.mark.parametrize("is_late", [True, False], ids=["late", "lost with the connection"])
async def test_job_is_done_once_when_the_connection_is_cut_meanwhile(
    broker: RunningBroker, how: str, is_late: bool
) -> None:
    async with connect(broker.host, broker.port, backoff=Backoff(0, 0)) as client:
        await client.publish_many("orders", [b"a", b"b"])
        async with client.consume("orders", credit=1, info=True) as deliveries:
            delivery = await anext(deliveries)
            link = client._connection
            assert link is not None
            if not is_late:
                link._parts = _Lost()
                SETTLE[how](delivery)
            link.abort()
            await link.lost.wait()
            if is_late:
                SETTLE[how](delivery)
            following = await anext(deliveries)
            assert (following.body, following.attempt) == (b"b", 1)


@pytest.mark.parametrize("how", SETTLE)
async def test_job_is_done_once_when_the_broker_notices_the_cut_too_late(
    broker: RunningBroker, how: str
) -> None:
    proxy = KillingProxy(broker.port, "", "after", lambda: None)
    running = broker.service.handle.engine
    assert running is not None
    async with connect("127.0.0.1", proxy.port, backoff=Backoff(0, 0)) as client:
        await client.publish_many("orders", [b"a", b"b"])
        async with client.consume("orders", credit=1, info=True) as deliveries:
            delivery = await anext(deliveries)
            link = client._connection
            assert link is not None
            old = proxy.fall_silent()
            await link.lost.wait()
            SETTLE[how](delivery)
            following = await anext(deliveries)
            for connection in old:
                connection.shutdown(socket.SHUT_RDWR)
            await asyncio.to_thread(until, lambda: len(running.core.connections) == 1)
            following.ack()
            await client.publish_confirmed("orders", b"c")
            last = await anext(deliveries)
            assert [(got.body, got.attempt) for got in (following, last)] == [(b"b", 1), (b"c", 1)]
    proxy.close()


class _Lost(list[bytes]):
    """Takes what is written, and loses it."""

    def append(self, item: bytes) -> None:
        pass


# -- a broker of the release before


async def test_client_that_is_closed_on_twice_sends_no_hello_for_ten_minutes(
    scripted: ScriptedBroker, connect_any: Connect, forgetful: dict[Any, float]
) -> None:
    scripted.known_frames = None
    for _ in range(2):
        async with connect_any("127.0.0.1", scripted.port, reconnect=False) as client:
            await client.publish_confirmed("orders", b"body")
    assert (len(scripted.hellos), len(scripted.peers)) == (2, 4)
    forgetful.update(dict.fromkeys(forgetful, 0.0))  # they are over
    scripted.known_frames = OUR_FRAMES
    async with connect_any("127.0.0.1", scripted.port) as client:
        await client.publish_confirmed("orders", b"body", priority=1)
    assert isinstance((await scripted.next(PublishWithOptions)), PublishWithOptions)


async def test_proxy_without_a_broker_is_no_older_broker(
    scripted: ScriptedBroker, connect_any: Connect, forgetful: dict[Any, float]
) -> None:
    """It accepts connections and closes them; then the broker is back."""
    scripted.known_frames = OUR_FRAMES
    async with connect_any("127.0.0.1", scripted.port) as client:
        peers = len(scripted.peers)
        scripted.on_connect = lambda peer: peer.cut() if len(scripted.peers) < peers + 4 else None
        scripted.peer.cut()
        await client.publish_confirmed("orders", b"body", priority=1)
    assert forgetful == {}


async def test_older_broker_delays_in_the_retry_queue_and_refuses_the_rest(
    scripted: ScriptedBroker, connect_any: Connect
) -> None:
    scripted.known_frames = None
    async with connect_any("127.0.0.1", scripted.port) as client:
        await client.publish_confirmed("orders", b"1", delay_s=1.5)
        await client.publish("orders", b"2", delay_s=20)
        assert await client.publish_many("orders", [b"3"], delay_s=1) == 1
        for options in ({"priority": 1}, {"delay_s": 1, "unique_key": "k"}, {"deliver_at": 1}):
            name = list(options)[-1]
            for publish in (client.publish, client.publish_confirmed):
                with pytest.raises(ClientError, match=f"does not know .*{name}; upgrade it"):
                    await publish("orders", b"x", **options)
        with pytest.raises(ClientError, match="does not know delay_s"):
            await client.publish_confirmed("orders", b"x", ttl_s=60, delay_s=1)
        with pytest.raises(LocalProtocolError, match=r"priority: must be .* to 255, not 256"):
            await client.publish("orders", b"x", priority=256)
    got = [await scripted.next(Publish) for _ in range(3)]
    assert [(frame.queue, frame.ttl_s) for frame in got] == [
        ("orders.retry", 2), ("orders.retry", 20), ("orders.retry", 1)
    ]  # fmt: skip


async def test_retry_at_an_older_broker_is_a_copy_then_an_acknowledgement(
    scripted: ScriptedBroker, connect_any: Connect
) -> None:
    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if isinstance(frame, Consume) and frame.count:
            peer.dispatch(frame.queue, b"body", ID)
        scripted.store(peer, frame)

    scripted.known_frames, scripted.script = None, script
    async with (
        connect_any("127.0.0.1", scripted.port) as client,
        client.consume("orders") as deliveries,
    ):
        delivery = await anext(deliveries)
        assert not delivery.extend(60)
        delivery.retry(3)
        await client.publish_confirmed("other", b"")
    assert await scripted.next(Publish) == Publish("orders.retry", b"body", 3, ID + b":0")
    assert await scripted.next(Acknowledge) == Acknowledge("orders", ID)


async def test_client_that_cannot_connect_says_so_in_time(
    scripted: ScriptedBroker, connect_any: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """The peer accepts the connection, but answers no hello."""
    scripted.on_connect = lambda peer: peer.transport.pause_reading()
    limits: dict[str, Any] = {"connect_timeout_s": 0.2}
    if isinstance(connect_any("127.0.0.1"), Threaded):
        limits = {"timeout_s": 0.2}
    client = connect_any("127.0.0.1", scripted.port, **limits)
    with pytest.raises(ConnectionLostError, match="cannot connect to"):
        await client.open()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
