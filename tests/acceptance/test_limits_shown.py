"""Exceed each limit of ``docs/operate/security.md`` 9; metrics and system page show it.

The effects on other clients are in ``test_limits.py`` and ``test_hostile.py``.
"""

import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from select import select
from urllib.error import HTTPError

import pytest

from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.latency_probe import Figure
from tests.support.socket_client import AdminApi, SocketClient, assert_closed_without_reply, connect
from tests.support.waiting import until

pytestmark = pytest.mark.acceptance

LIMITS = """
limits.connections_per_loopback_address=12 limits.frame_timeout_s=1 limits.frame_rate_bytes=1GiB
limits.write_timeout_s=1 limits.max_content=1MiB limits.max_queues=40 limits.held=50
limits.unstored_frames=10 limits.unstored_total=256KiB limits.http_connections=5
"""
SETTINGS = LIMITS.split()
LONG = b"x" * 400_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    flags = ["--admin", "127.0.0.1:0"]
    for setting in SETTINGS:
        flags += ["--set", setting]
    with broker_process(tmp_path_factory.mktemp("tight") / "data", *flags) as running:
        yield running


def page_of(broker: BrokerProcess) -> str:
    with urllib.request.urlopen(f"{broker.admin[0]}system", timeout=20) as answer:
        return str(answer.read().decode()).replace("<wbr>", "")  # line breaks within names


# -- how to exceed each limit


def open_too_many(broker: BrokerProcess, _queue: str) -> None:
    with ExitStack() as stack:
        peers = [stack.enter_context(SocketClient(broker.port)) for _ in range(12)]
        for peer in peers:
            peer.barrier()  # silent ones would give up their place
        assert_closed_without_reply(stack.enter_context(SocketClient(broker.port)))
        for peer in peers:
            peer.barrier()


def stall_within_a_message(broker: BrokerProcess, queue: str) -> None:
    """Only the complete message is stored."""
    with SocketClient(broker.port) as peer:
        whole = peer.side.publish(queue, b"{}")
        peer.send(whole + whole[:-1])
        assert_closed_without_reply(peer)
    with SocketClient(broker.port) as other:
        other.consume(queue, 5)
        other.dispatches(1)
        other.barrier()
        assert not other.got


def read_nothing(broker: BrokerProcess, queue: str) -> None:
    """Another consumer gets the messages that the connection held."""
    with SocketClient(broker.port) as peer, SocketClient(broker.port) as other:
        for _ in range(40):  # more than the kernels and the write buffer take
            assert other.confirm(queue, LONG) is None
        peer.read_nothing()
        peer.consume(queue, 40)
        (first,) = peer.dispatches(1)
        other.consume(queue, 1)  # a larger credit might leave too few to fill the buffers
        other.acknowledge_until(first.message_id)


def publish_too_much(broker: BrokerProcess, queue: str) -> None:
    with SocketClient(broker.port) as peer:
        peer.publish(queue, b"x" * ((1 << 20) + 1))
        assert_closed_without_reply(peer)


def make_too_many_queues(broker: BrokerProcess, queue: str) -> None:
    with SocketClient(broker.port) as peer:
        reasons = {peer.confirm(f"{queue}-{number}", b"") for number in range(41)}
    assert "too many queues" in reasons


def hold_too_many(broker: BrokerProcess, queue: str) -> None:
    with SocketClient(broker.port) as peer:
        peer.store(queue, *[b"%d" % number for number in range(60)])
        peer.consume(queue, 60)
        held = peer.dispatches(50)
        peer.barrier()
        assert not peer.got
        peer.ack(*held)
        peer.ack(*peer.dispatches(10))
        peer.barrier()


def flood(broker: BrokerProcess, queue: str) -> None:
    """Send more frames in one write than a connection may have pending."""
    with SocketClient(broker.port) as peer:
        peer.store(queue, *[b"%d" % number for number in range(2_000)])


def send_large_ones_together(broker: BrokerProcess, queue: str) -> None:
    """Send several partial messages until the broker stops reading."""
    with ExitStack() as stack:
        for _ in range(4):
            peer = stack.enter_context(SocketClient(broker.port))
            peer.barrier()
            peer.socket.setblocking(False)
            rest = memoryview(peer.side.publish(queue, b"{" + LONG)[:-1])
            while rest and select([], [peer.socket], [], 0.1)[1]:
                rest = rest[peer.socket.send(rest[:65_536]) :]


def open_too_many_to_the_admin(broker: BrokerProcess, _queue: str) -> None:
    """Use all places for streams, four of them without a token; idle ones would be given up."""
    address = broker.admin[0].removeprefix("http://").rstrip("/")
    get = b"GET /api/v1/events?topic=queues HTTP/1.1\r\nHost: localhost\r\n"
    with ExitStack() as stack:
        for login in (b"",) * 4 + (b"Authorization: Bearer %s\r\n" % new_token(broker),):
            stream = stack.enter_context(connect(address))
            stream.sendall(get + login + b"\r\n")
            assert stream.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        with suppress(ConnectionResetError):
            assert stack.enter_context(connect(address)).recv(1) == b""
    until(lambda: is_answered(broker))  # a stream ends when it is next written to


def new_token(broker: BrokerProcess) -> bytes:
    """Create a token over the control socket."""
    body = json.dumps({"name": "other", "role": "viewer", "queues": []})
    with connect(broker.data / "control.sock") as control, control.makefile("rb") as answer:
        control.sendall(
            b"POST /api/v1/tokens HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body.encode())
        )
        found = json.loads(answer.read().partition(b"\r\n\r\n")[2])
    return str(found["token"]).encode()


def is_answered(broker: BrokerProcess) -> bool:
    """Return whether requests from this address have room again."""
    try:
        page_of(broker)
    except HTTPError as answer:
        answer.close()
        if answer.code != 429:
            raise
        return False
    return True


REACHED: dict[str, Callable[[BrokerProcess, str], None]] = {
    "connections_per_address": open_too_many,
    "frame_timeout": stall_within_a_message,
    "write_timeout": read_nothing,
    "max_content": publish_too_much,
    "held": hold_too_many,
    "unstored_frames": flood,
    "unstored_total": send_large_ones_together,
    "http_connections": open_too_many_to_the_admin,
    "max_queues": make_too_many_queues,  # the last one: later tests could not create queues
}


@pytest.mark.parametrize("limit", REACHED)
def test_exceeded_limit_is_counted(broker: BrokerProcess, queue: str, limit: str) -> None:
    admin, sample = AdminApi(broker.admin[0]), f'phpmq_limit_reached_total{{limit="{limit}"}}'
    with SocketClient(broker.port) as peer:
        peer.barrier()  # makes its queue, which max_queues would refuse below
    before = admin.metrics()[sample]
    REACHED[limit](broker, queue)
    while admin.metrics()['phpmq_limit_used{limit="connections"}']:
        pass  # wait until the connections are closed
    with SocketClient(broker.port) as peer:
        peer.barrier()  # counted by now, and others are served
    assert admin.metrics()[sample] > before


def test_page_shows_every_limit_with_its_effect(broker: BrokerProcess, figure: Figure) -> None:
    page, metrics = page_of(broker), AdminApi(broker.admin[0]).metrics()
    bounds = [name for name in metrics if name.startswith("phpmq_limit{")]
    counted = [name for name in metrics if name.startswith("phpmq_limit_reached_total{")]
    used = [name for name in metrics if name.startswith("phpmq_limit_used{")]
    figure(f"limits: {len(bounds)} shown, {len(used)} with a gauge, {len(counted)} counted")
    assert len(bounds) >= 20
    assert set(REACHED) <= {name.partition('"')[2].partition('"')[0] for name in counted}
    for setting in SETTINGS:
        name = setting.partition("=")[0]
        if name.endswith("_s") or name not in ("limits.frame_rate_bytes",):
            assert name.replace("_loopback", "") in page
    for text in ("closed immediately", "to a new queue is refused", "no further dispatches"):
        assert text in page


def test_publishers_wait_while_memory_exceeds_its_limit(
    tmp_path_factory: pytest.TempPathFactory, figure: Figure
) -> None:
    """``limits.memory``: consumers still get messages, the page shows it, all messages arrive."""
    data = tmp_path_factory.mktemp("short") / "data"
    flags = ("--admin", "127.0.0.1:0", "--set", "limits.memory=1MiB")
    with broker_process(data, *flags) as broker:
        admin = AdminApi(broker.admin[0])
        with SocketClient(broker.port) as consumer, SocketClient(broker.port) as publisher:
            consumer.consume("orders", 5_000)
            publisher.store("orders", b"first")
            sample = 'phpmq_readers_paused{reason="resident"}'
            for _ in range(1_000):
                if admin.metrics().get(sample):
                    break
                consumer.barrier()
            assert admin.metrics()[sample] == 1
            assert "publishers wait" in page_of(broker)
            publisher.send(
                b"".join(publisher.side.publish("orders", b"%d" % n) for n in range(500))
            )
            assert len(consumer.dispatches(501)) == 501
            metrics = admin.metrics()
    used = metrics['phpmq_limit_used{limit="memory"}']
    figure(f"limits.memory 1 MiB, {used / (1 << 20):.0f} used: the publisher waited, all arrived")
    assert metrics['phpmq_limit_reached_total{limit="memory"}'] == 1
