"""Links that are cut, reset, slow or silent lose nothing, and with keys duplicate nothing.

``PHPMQ_MESSAGES=5000`` sends 5,000 messages over links that break repeatedly; ``PHPMQ_SEED=…``
repeats the random choices of a run.
"""

import asyncio
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from phpmq_lite.client.async_client import connect
from phpmq_lite.client.blocking_client import connect_blocking
from phpmq_lite.client.core import Backoff
from tests.faults.ledger import read_only
from tests.faults.links import BadLinks, Ending, Link
from tests.faults.mutants import mutant_process
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.seed import SEED
from tests.support.socket_client import AdminApi, SocketClient

pytestmark = pytest.mark.faults

MESSAGES = int(os.environ.get("PHPMQ_MESSAGES", "300"))
QUICK = 0.002, 0.02  # seconds until a client comes back
KEY = b"key-of-this-one"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("links") / "data"
    flags = ("--admin", "127.0.0.1:0", "--set", "queues.max_deliveries=0")
    with broker_process(data, *flags) as running:
        yield running


def stored(broker: BrokerProcess, queue: str) -> list[bytes]:
    """Return the contents that were ever stored in a queue, in order."""
    with read_only(broker.data) as database:
        rows = database.execute(
            "SELECT content FROM body JOIN (SELECT seq, queue_id FROM message UNION ALL "
            "SELECT seq, queue_id FROM history) USING (seq) JOIN queue USING (queue_id) "
            "WHERE name = ? ORDER BY seq", (queue,)
        ).fetchall()  # fmt: skip
    return [content for (content,) in rows]


# -- cuts at every byte


@pytest.mark.parametrize("ending", ["close", "reset"])
def test_publish_that_is_cut_at_any_byte_is_stored_once_when_it_is_repeated(
    broker: BrokerProcess, ending: str, figure: Callable[[str], None]
) -> None:
    """A partial frame is ignored, and a whole one is not stored again if its receipt was lost."""
    queue = f"cut-{ending}"
    cuts = 0
    with SocketClient(broker.port) as again:
        length = len(again.side.publish(queue, b"{000}", key=KEY + b"000"))
        for cuts in range(length + 1):
            key, body = KEY + b"%03d" % cuts, b"{%03d}" % cuts
            with SocketClient(broker.port) as peer:
                peer.send(peer.side.publish(queue, body, key=key)[:cuts])
                getattr(peer, ending)()
            assert again.confirm(queue, body, key=key) is None
    assert stored(broker, queue) == [b"{%03d}" % number for number in range(length + 1)]
    figure(f"a publish cut at each of {cuts + 1} places, {ending}: stored once each")


def test_receipt_that_is_cut_at_any_byte_causes_no_duplicate(
    broker: BrokerProcess, figure: Callable[[str], None]
) -> None:
    with SocketClient(broker.port) as again:
        again.publish("cut-receipt", b"{000}", key=KEY + b"000")
        length = len(again.socket.recv(1 << 16))
        with BadLinks(broker.port, lambda number: Link(down=number, ending="reset")) as links:
            for number in range(length):
                key, body = KEY + b"%03d" % number, b"{%03d}" % number
                with suppress(ConnectionResetError), SocketClient(links.port) as peer:  # or at once
                    peer.publish("cut-receipt", body, key=key)
                    assert len(peer.rest()) <= number
                assert again.confirm("cut-receipt", body, key=key) is None
    assert stored(broker, "cut-receipt") == [b"{%03d}" % n for n in range(length)]
    figure(f"a receipt cut at each of {length} places: stored once each")


def test_messages_are_redelivered_in_order_after_a_cut_at_any_byte(
    broker: BrokerProcess, figure: Callable[[str], None]
) -> None:
    """Each consumer disconnects at another byte; the next one gets the same messages."""
    contents = [b"1", b"2", b"3"]
    with SocketClient(broker.port) as peer:
        peer.store("cut-dispatch", *contents)
        peer.consume("cut-dispatch", 1)
        length = len(peer.socket.recv(1 << 16))  # of one
    with BadLinks(broker.port, lambda number: Link(down=length + number)) as links:
        for number in range(length + 1):
            with SocketClient(links.port) as peer:
                peer.consume("cut-dispatch", 3)
                frames = peer.side.receive(peer.rest())
                got = [getattr(frame, "content", b"") for frame in frames]
                assert got == contents[: 1 + number // length]
    with SocketClient(broker.port) as peer:
        peer.consume("cut-dispatch", 3)
        assert peer.bodies(3) == contents
    figure(f"dispatches cut at each of {length + 1} places: come again in their order")


def test_partial_acknowledgement_is_ignored(
    broker: BrokerProcess, figure: Callable[[str], None]
) -> None:
    with SocketClient(broker.port) as peer:
        peer.store("cut-ack", b"first")
        peer.consume("cut-ack", 1)
        (first,) = peer.dispatches(1)
        frame = peer.side.acknowledge(first.queue, first.message_id)
    for cut in range(len(frame)):
        with SocketClient(broker.port) as peer:
            peer.consume("cut-ack", 1)
            (again,) = peer.dispatches(1)
            assert again.message_id == first.message_id
            peer.send(frame[:cut])
    with SocketClient(broker.port) as peer:
        peer.consume("cut-ack", 1)
        peer.ack(*peer.dispatches(1))
        peer.store("cut-ack", b"second")
        assert peer.bodies(1) == [b"second"]
    figure(f"an acknowledgement cut at each of {len(frame)} places: its message came again")


# -- our clients over links that break all the time


def breaking(rng: random.Random) -> Callable[[int], Link]:
    """Return links that end after some bytes; some are slow, some pass single bytes."""

    def link(_number: int) -> Link:
        ending: Ending = rng.choice(("close", "reset"))
        up, down = (int(rng.expovariate(1 / 6_000)) for _ in range(2))
        piece, delay_s = rng.choice(((1 << 16, 0.0), (1 << 16, 0.002), (700, 0.001), (1, 0.0)))
        return Link(up + 150, down + 150, ending, piece, delay_s)

    return link


def test_blocking_clients_lose_and_duplicate_nothing_over_breaking_links(
    broker: BrokerProcess, figure: Callable[[str], None]
) -> None:
    rng = random.Random(SEED)
    bodies = [b"b%d" % number for number in range(MESSAGES)]
    got: list[bytes] = []

    def consume(port: int) -> None:
        with (
            connect_blocking("127.0.0.1", port, backoff=Backoff(*QUICK)) as client,
            client.consume("blocking", credit=20) as consumer,
        ):
            for delivery in consumer:
                got.append(delivery.body)
                delivery.ack()
                if delivery.body == bodies[-1]:
                    return

    with BadLinks(broker.port, breaking(rng)) as links:
        thread = threading.Thread(target=consume, args=(links.port,))
        thread.start()
        with connect_blocking("127.0.0.1", links.port, backoff=Backoff(*QUICK)) as client:
            assert client.publish_many("blocking", bodies, window=10) == MESSAGES
        thread.join()
    judge(broker, "blocking", bodies, got, links.connections, figure)


async def test_clients_lose_and_duplicate_nothing_over_breaking_links(
    broker: BrokerProcess, figure: Callable[[str], None]
) -> None:
    rng = random.Random(SEED + 1)
    bodies = [b"a%d" % number for number in range(MESSAGES)]
    got: list[bytes] = []
    with BadLinks(broker.port, breaking(rng)) as links:

        async def consume() -> None:
            backoff = Backoff(*QUICK)
            async with (
                connect("127.0.0.1", links.port, backoff=backoff) as client,
                client.consume("aio", credit=20) as consumer,
            ):
                async for delivery in consumer:
                    got.append(delivery.body)
                    delivery.ack()
                    if delivery.body == bodies[-1]:
                        return

        consuming = asyncio.create_task(consume())
        async with connect("127.0.0.1", links.port, backoff=Backoff(*QUICK)) as client:
            assert await client.publish_many("aio", bodies, window=10) == MESSAGES
        await consuming
    judge(broker, "aio", bodies, got, links.connections, figure)


def judge(
    broker: BrokerProcess, queue: str, bodies: list[bytes], got: list[bytes], connections: int,
    figure: Callable[[str], None],
) -> None:  # fmt: skip
    """Compare confirmed messages with stored ones, and with received ones and their order."""
    times = Counter(stored(broker, queue))
    lost = [body for body in bodies if not times[body]]
    doubled = [body for body, count in times.items() if count > 1]
    again = len(got) - len(set(got))
    figure(
        f"{queue} clients over breaking links, seed {SEED}: {len(bodies):,} messages over "
        f"{connections:,} connections, {len(lost)} lost, {len(doubled)} doubled, "
        f"{again:,} came again"
    )
    assert (lost, doubled) == ([], [])
    assert set(got) == set(bodies)
    first_times = list(dict.fromkeys(got))
    order = {body: place for place, body in enumerate(stored(broker, queue))}
    assert all(order[one] < order[next_one] for one, next_one in pairwise(first_times))


# -- silent links


def test_messages_held_by_a_silent_link_are_redelivered_in_their_old_order(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """The link drops everything from its consumer, and never ends."""
    flags = ("--admin", "127.0.0.1:0", "--set", "queues.ack_timeout_s=1")
    with broker_process(tmp_path / "data", *flags) as broker, SocketClient(broker.port) as other:
        other.store("silent", b"1", b"2", b"3")
        said = len(other.side.consume("silent", 2))
        with (
            BadLinks(broker.port, lambda _: Link(up=said, ending="silence")) as links,
            SocketClient(links.port) as lost,
        ):
            lost.consume("silent", 2)
            lost.ack(*lost.dispatches(2))
            other.consume("silent", 1)
            for content in (b"3", b"1", b"2"):
                (dispatch,) = other.dispatches(1)
                assert dispatch.content == content
                other.ack(dispatch)
            clients = AdminApi(broker.admin[0]).metrics()["phpmq_clients"]
    figure("a link that swallows acknowledgements: what it held came again, in its order")
    assert clients == 2


# -- mutants


def test_repeated_publishes_reveal_a_broker_that_ignores_keys(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with (
        mutant_process(tmp_path / "data", "IgnoresKeys") as broker,
        pytest.raises(AssertionError) as found,
    ):
        test_receipt_that_is_cut_at_any_byte_causes_no_duplicate(broker, figure)
    figure(f"mutant IgnoresKeys: found: {str(found.value).splitlines()[0][:80]}")


def test_redeliveries_reveal_a_broker_that_loses_the_order(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with (
        mutant_process(tmp_path / "data", "ReturnsToTheEnd") as broker,
        pytest.raises((AssertionError, TimeoutError)) as found,
    ):
        test_messages_are_redelivered_in_order_after_a_cut_at_any_byte(broker, figure)
    figure(f"mutant ReturnsToTheEnd: found: {str(found.value).splitlines()[0][:80]}")
