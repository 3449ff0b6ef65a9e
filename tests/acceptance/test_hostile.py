"""Browsers that send frames, and peers that stall, flood or disconnect.

``docs/operate/security.md`` 8 and 9.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from select import select

import pytest

from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.socket_client import AdminApi, SocketClient, assert_closed_without_reply

pytestmark = pytest.mark.acceptance

Request = Callable[[SocketClient, str], bytes]


# -- the http guard (docs/operate/security.md 8)


def browser_request(peer: SocketClient, queue: str) -> bytes:
    """Return what a browser sends for ``fetch(url, {method: frame, body: frame})``."""
    method = peer.side.publish(queue, b"method")
    body = peer.side.publish(queue, b"body")
    head = b" / HTTP/1.1\r\nHost: 127.0.0.1:9100\r\nContent-Length: %d\r\n\r\n" % len(body)
    return method + head + body


def swallowing_request(peer: SocketClient, queue: str) -> bytes:
    """Return a request whose method contains the rest of the head as its content."""
    head = b" / HTTP/1.1\r\nHost: 127.0.0.1:9100\r\n\r\n"
    frame_of_head = peer.side.publish(queue, b"start" + head).removesuffix(b"P05%029d0" % 1)
    return frame_of_head + b"P05%029d0" % 1 + peer.side.publish(queue, b"body")


@pytest.mark.parametrize("request_of", [browser_request, swallowing_request])
def test_browser_frames_are_not_executed(
    broker: BrokerProcess, admin: AdminApi, queue: str, request_of: Request
) -> None:
    with SocketClient(broker.port) as peer:
        peer.send(request_of(peer, queue))
        assert_closed_without_reply(peer)
    with SocketClient(broker.port) as peer:
        peer.barrier()
    assert admin.queue(queue) == {}


@pytest.mark.parametrize("request_of", [browser_request, swallowing_request])
def test_browser_frames_are_executed_without_the_guard(tmp_path: Path, request_of: Request) -> None:
    """The control: only the guard stops the requests above."""
    flags = ("--admin", "none", "--set", "tcp.http_guard=false")
    with broker_process(tmp_path / "data", *flags) as broker:
        with SocketClient(broker.port) as peer:
            peer.send(request_of(peer, "orders"))
            peer.half_close()
            peer.rest()
        with SocketClient(broker.port) as peer:
            peer.consume("orders", 5)
            assert len(peer.dispatches(1)) == 1


def test_frames_that_might_be_a_method_are_executed_after_a_silence(
    peer: SocketClient, other: SocketClient, queue: str
) -> None:
    other.consume(queue, 5)
    peer.publish(queue, b"onlyTokenCharacters")
    assert other.bodies(1) == [b"onlyTokenCharacters"]


def test_frames_that_might_be_a_method_are_executed_at_the_end(
    broker: BrokerProcess, other: SocketClient, queue: str
) -> None:
    with SocketClient(broker.port) as peer:
        peer.publish(queue, b"onlyTokenCharacters")
    other.consume(queue, 5)
    assert other.bodies(1) == [b"onlyTokenCharacters"]


# -- bounds of memory and time (docs/operate/security.md 9)


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Run a broker with low limits for unstored bytes and short timeouts."""
    data = tmp_path_factory.mktemp("tight") / "data"
    flags = ["--admin", "127.0.0.1:0"]
    for setting in (
        "unstored_total=1MiB", "frame_timeout_s=1", "frame_rate_bytes=1GiB", "write_timeout_s=1",
    ):  # fmt: skip
        flags += ["--set", f"limits.{setting}"]
    with broker_process(data, *flags) as running:
        yield running


@pytest.mark.parametrize("how", ["close", "reset"])
def test_publishers_that_disconnect_within_a_message_free_its_bytes(
    tight: BrokerProcess, queue: str, how: str
) -> None:
    """Their partial messages are dropped and block no other publisher."""
    for _ in range(4):
        with SocketClient(tight.port) as peer:
            peer.barrier()
            peer.send(peer.side.publish(queue, b"{" * 500_000)[:-100_000])
            getattr(peer, how)()
    with SocketClient(tight.port) as peer:
        large = b"{" * 300_000
        for number in range(4):
            message = peer.side.publish(queue, large, key=b"%d" % number)
            peer.send(message[:150_000])
            peer.send(message[150_000:])
            assert peer.receipt().reason is None


def test_publishers_of_a_paused_queue_do_not_block_others(tight: BrokerProcess, queue: str) -> None:
    """Not even if their messages exceed ``limits.unstored_total``."""
    admin, more = AdminApi(tight.admin[0]), f"{queue}-more"
    with (
        SocketClient(tight.port) as peer,
        SocketClient(tight.port) as other,
        SocketClient(tight.port) as third,
    ):
        peer.store(queue, b"first")
        admin.pause(queue, "publishing")
        peer.send(b"".join(peer.side.publish(queue, b"{" * 100_000) for _ in range(15)))
        third.consume(more, 1)
        for number in range(50):
            message = b"%d" % number + b"}" * 10_000 * (number % 20)
            assert other.confirm(more, message) is None
            (dispatch,) = third.dispatches(1)
            assert dispatch.content == message
            third.ack(dispatch)
        admin.resume(queue, "publishing")
        other.consume(queue, 100)
        assert len(other.dispatches(16)) == 16


def test_consumer_is_removed_if_its_next_frame_never_ends(tight: BrokerProcess, queue: str) -> None:
    """The http guard delays its 002; the end of the connection releases the consumer."""
    admin = AdminApi(tight.admin[0])
    with SocketClient(tight.port) as peer:
        endless = peer.side.publish(queue, b"x" * 1_000)
        peer.send(peer.side.consume(queue, 5) + endless[:8])
        for at in range(8, len(endless)):  # faster than the guard waits for
            peer.send(endless[at : at + 1])
            if select([peer.socket], [], [], 0.008)[0]:
                break
        assert_closed_without_reply(peer)
    with SocketClient(tight.port) as other:
        assert other.confirm(queue, b"body") is None
        other.consume(queue, 1)
        assert other.bodies(1) == [b"body"]
    assert admin.queue(queue)["consumers"] <= 1
