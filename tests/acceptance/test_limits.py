"""Misbehaving peers do not slow down the others, and memory stays bounded.

The asserted bounds are wide; the summary of the run shows the measured figures.
"""

import resource
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from select import select

import pytest

from phpmq_lite.broker_process import BrokerProcess, broker_process
from phpmq_lite.client.blocking_client import connect_blocking
from phpmq_lite.os_process import resident_bytes
from phpmq_lite.protocol.connection import ClientSide
from phpmq_lite.server.admission import SPARE_FILES
from tests.support.latency_probe import MIB, Figure, Latencies, LatencyProbe
from tests.support.socket_client import WAIT_S, AdminApi, SocketClient, assert_closed_without_reply
from tests.support.stores import ON_POSTGRES
from tests.support.waiting import until

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(sys.platform != "linux", reason="measures with /proc"),
]

CONNECTIONS = 1_000
ROUND_TRIPS = 100
MAX_ROUND_TRIP_MS = 2_000.0  # on any machine


@pytest.fixture(autouse=True, scope="module")
def _many_files() -> Iterator[None]:
    """The broker inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * CONNECTIONS if hard == resource.RLIM_INFINITY else min(hard, 4 * CONNECTIONS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    flags = ["--admin", "127.0.0.1:0"]
    for name in ("connections", "connections_per_loopback_address"):
        flags += ["--set", f"limits.{name}={2 * CONNECTIONS}"]
    with broker_process(tmp_path / "data", *flags) as running:
        yield running


class Scene:
    """Round trips and memory of a broker, before and during a disturbance."""

    def __init__(self, broker: BrokerProcess, name: str, figure: Figure) -> None:
        self._broker, self._name, self._figure = broker, name, figure
        self._probe = LatencyProbe(broker.port)
        self._probe.round_trips(50)  # warm up
        self._alone = self._probe.round_trips(ROUND_TRIPS)
        self._bytes = resident_bytes(broker.pid)

    def __enter__(self) -> "Scene":
        return self

    def __exit__(self, *_: object) -> None:
        self._probe.peer.close()

    def compare(self, step: Callable[[], None] = lambda: None, most_bytes: int = 64 * MIB) -> None:
        """Measure during the disturbance, whose next step precedes each round trip."""
        times_ms = []
        for _ in range(ROUND_TRIPS):
            step()
            times_ms.append(self._probe.round_trip_ms())
        times = Latencies(times_ms)
        grown = resident_bytes(self._broker.pid) - self._bytes
        self._figure(
            f"{self._name}: round trips {times} (alone: {self._alone}); "
            f"memory {self._bytes / MIB:.1f} {grown / MIB:+.1f} MiB"
        )
        assert times.max < MAX_ROUND_TRIP_MS
        assert grown < most_bytes


def send_until_blocked(peers: list[SocketClient], data: bytes) -> int:
    """Send on each connection until all block for half a second; return the bytes sent."""
    left = {peer.socket: memoryview(data) for peer in peers}
    for own in left:
        own.setblocking(False)
    while left and (ready := select([], list(left), [], 0.5)[1]):
        for own in ready:
            left[own] = left[own][own.send(left[own][:65_536]) :]
            if not left[own]:
                del left[own]
    for peer in peers:
        peer.socket.settimeout(WAIT_S)
    return len(peers) * len(data) - sum(map(len, left.values()))


def with_small_buffer(port: int) -> SocketClient:
    """Connect with a receive buffer of a few kilobytes, so that little is in flight."""
    own = socket.socket()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    own.settimeout(WAIT_S)
    own.connect(("127.0.0.1", port))
    return SocketClient(own)


@pytest.mark.slow
def test_consumers_that_stop_reading_disturb_nobody(broker: BrokerProcess, figure: Figure) -> None:
    """Three with a credit of 1,000 each and 60 MB to read; later one of them reads again."""
    with ExitStack() as stack, Scene(broker, "3 consumers that stop reading", figure) as scene:
        with SocketClient(broker.port) as publisher:
            for number in range(3_000):
                publisher.publish("large", b"%020d" % number * 1_000)
            publisher.barrier()
        slow = [stack.enter_context(with_small_buffer(broker.port)) for _ in range(3)]
        for peer in slow:
            peer.consume("large", 1_000)
            peer.dispatches(1)
        scene.compare()
        numbers = [int(dispatch.content[:20]) for dispatch in slow[0].dispatches(300)]
        assert numbers == sorted(numbers)
        scene.compare()


@pytest.mark.slow
def test_publishers_that_trickle_disturb_nobody(broker: BrokerProcess, figure: Figure) -> None:
    """A hundred, each within a message of 8 MB, send a byte now and then."""
    with ExitStack() as stack, Scene(broker, "100 publishers that trickle", figure) as scene:
        peers = [stack.enter_context(SocketClient(broker.port)) for _ in range(100)]
        for peer in peers:
            peer.send(b"H0100102P01%029dqueueP02%029d{" % (5, 8 << 20))

        def trickle() -> None:
            for peer in peers:
                peer.send(b"{")

        scene.compare(trickle)


def test_unfinished_messages_do_not_fill_the_memory(broker: BrokerProcess, figure: Figure) -> None:
    """The broker reads ``limits.unstored_total`` and a little of each; the rest stays unread."""
    with ExitStack() as stack, Scene(broker, "40 messages cut at 7 of 8 MB", figure) as scene:
        peers = [stack.enter_context(SocketClient(broker.port)) for _ in range(40)]
        head = b"H0100102P01%029dqueueP02%029d" % (5, 8 << 20)
        send_until_blocked(peers, head + b"{" * (7 << 20))
        scene.compare(most_bytes=128 * MIB)


@pytest.mark.slow
def test_many_connections_disturb_nobody(broker: BrokerProcess, figure: Figure) -> None:
    """Half of them consume a queue each, and get one message at the end."""
    with ExitStack() as stack, Scene(broker, f"{CONNECTIONS:,} connections", figure) as scene:
        peers = [stack.enter_context(SocketClient(broker.port)) for _ in range(CONNECTIONS)]
        for number, peer in enumerate(peers[::2]):
            peer.consume(f"idle-{number}", 10)
        peers[-1].barrier()
        scene.compare()
        with SocketClient(broker.port) as publisher:
            for number in range(len(peers[::2])):
                publisher.publish(f"idle-{number}", b"%d" % number)
        for number, peer in enumerate(peers[::2]):
            assert peer.bodies(1) == [b"%d" % number]


def test_lengths_of_29_digits_are_refused(broker: BrokerProcess, figure: Figure) -> None:
    """The connection is closed before any content is buffered, without a reply."""
    with Scene(broker, "29-digit lengths, one before each round trip", figure) as scene:

        def announce_long_content() -> None:
            with SocketClient(broker.port) as peer:
                peer.send(b"H0100102P01%029dqueueP02%s" % (5, b"9" * 29))
                assert_closed_without_reply(peer)

        scene.compare(announce_long_content)
    metrics = AdminApi(broker.admin[0]).metrics()
    assert metrics['phpmq_protocol_errors_total{code="too-large"}'] == ROUND_TRIPS


@pytest.mark.slow
def test_publisher_that_does_not_read_its_receipts_is_throttled(
    broker: BrokerProcess, figure: Figure
) -> None:
    """It gets all receipts when it reads again."""
    with (
        Scene(broker, "a publisher that reads no receipts", figure) as scene,
        with_small_buffer(broker.port) as peer,
    ):
        side, number = ClientSide(), 100_000
        frames = [side.publish("orders", b"{}", key=b"%d" % key) for key in range(number)]
        sent = send_until_blocked([peer], b"".join(frames))
        assert sent < sum(map(len, frames))
        scene.compare(most_bytes=128 * MIB)
        whole = sent // len(frames[-1])
        assert [peer.receipt().key for _ in range(whole)] == [b"%d" % key for key in range(whole)]


def test_connections_beyond_the_descriptors_are_refused(tmp_path: Path, figure: Figure) -> None:
    """400 of them, with 256 descriptors: accepted ones still work, and the log stays short."""
    accepted = (256 - SPARE_FILES) // (2 if ON_POSTGRES else 1)  # a standby relays each of them
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    broker = BrokerProcess(tmp_path / "data", ["--admin", "127.0.0.1:0"])
    try:
        broker.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        with (
            ExitStack() as stack,
            Scene(broker, "400 connections with 256 descriptors", figure) as scene,
        ):
            api = AdminApi(broker.admin[0])
            consumers = []
            for number in range(accepted - 1):  # the probe has a place, too
                consumers.append(stack.enter_context(SocketClient(broker.port)))
                consumers[-1].consume(f"queue-{number}", 1)  # silent ones would give up their place
                consumers[-1].barrier()
            for _ in range(400 - len(consumers)):
                assert_closed_without_reply(stack.enter_context(SocketClient(broker.port)))
            scene.compare()
            assert api.metrics()["phpmq_clients"] == accepted
            for consumer in consumers:
                consumer.barrier()
        # A connection that arrives before the broker has closed all of these would be refused.
        until(lambda: api.metrics()['phpmq_limit_used{limit="connections"}'] == 0)
        with SocketClient(broker.port) as peer:
            peer.barrier()
        log = broker.log.read_text(encoding="utf-8").splitlines()
        figure(
            f"{'':9}{len([line for line in log if 'connection_refused' in line])} log lines of it"
        )
        assert len(log) < 20
    finally:
        broker.kill()


def test_gone_publishers_of_a_full_queue_do_not_lock_out_its_consumer(tmp_path: Path) -> None:
    """PHP connects, publishes and closes, again and again, while the consumer is away."""
    flags = ["--admin", "none", "--set", "queues.max_messages=1", "--set", "limits.connections=20"]
    with broker_process(tmp_path / "data", *flags) as broker:
        with SocketClient(broker.port) as publisher:
            assert publisher.confirm("orders", b"first") is None
            publisher.confirm("other", b"")
        for number in range(60):
            with SocketClient(broker.port) as publisher:
                publisher.publish("orders", b"{%d}" % number)
        # The client reconnects by itself until the broker accepts it.
        with connect_blocking("127.0.0.1", broker.port) as client:
            got = []
            with client.consume("orders", credit=1) as consumer:
                for delivery in consumer:
                    got.append(delivery.body)
                    delivery.ack()
                    if len(got) == 10:
                        break
        assert got[0] == b"first"
