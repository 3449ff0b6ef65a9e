"""Acknowledgements, credit and pauses of consumers (``docs/reference/wire.md``)."""

import pytest

from tests.support.fork_server import BrokerProcess
from tests.support.socket_client import AdminApi, SocketClient

pytestmark = pytest.mark.acceptance


def ignored(admin: AdminApi, reason: str) -> float:
    return admin.metrics().get(f'phpmq_acks_ignored_total{{reason="{reason}"}}', 0)


# -- ignored acknowledgements


def test_acknowledgement_by_another_connection_is_ignored(
    admin: AdminApi, peer: SocketClient, other: SocketClient, queue: str
) -> None:
    other.store(queue, b"a")
    before = ignored(admin, "foreign")
    peer.consume(queue, 1)
    held = peer.dispatches(1)
    other.ack(*held)
    other.barrier()
    assert ignored(admin, "foreign") == before + 1
    assert admin.queue(queue)["dispatched"] == 1
    peer.ack(*held)
    peer.barrier()
    assert admin.queue(queue)["dispatched"] == 0


@pytest.mark.parametrize(
    "message_id",
    [b"0" * 32, b"f" * 32, b"0" * 15 + b"1" + b"0" * 16, b"x", b"\xff" * 64, b"+1" + b"0" * 30],
)
def test_acknowledgement_with_an_unknown_id_is_ignored_and_frees_no_credit(
    peer: SocketClient, queue: str, message_id: bytes
) -> None:
    peer.store(queue, b"a", b"b")
    peer.consume(queue, 1)
    held = peer.dispatches(1)
    peer.send(peer.side.acknowledge(queue, message_id))
    peer.barrier()
    assert not peer.got
    peer.ack(*held)
    assert peer.bodies(1) == [b"b"]


def test_ack_with_a_wrong_queue_is_ignored(admin: AdminApi, peer: SocketClient, queue: str) -> None:
    peer.store(queue, b"a", b"b")
    peer.consume(queue, 1)
    (held,) = peer.dispatches(1)
    peer.send(peer.side.acknowledge("barrier", held.message_id))
    peer.barrier()
    assert not peer.got
    assert admin.queue(queue)["dispatched"] == 1


def test_second_acknowledgement_is_ignored(peer: SocketClient, queue: str) -> None:
    peer.store(queue, b"a", b"b", b"c")
    peer.consume(queue, 1)
    held = peer.dispatches(1)
    peer.ack(*held, *held, *held)
    assert peer.bodies(1) == [b"b"]
    peer.barrier()
    assert not peer.got


def test_acknowledgement_of_a_released_message_is_accepted(
    admin: AdminApi, peer: SocketClient, other: SocketClient, queue: str
) -> None:
    """Its consumer lost the connection, finished the work, and reconnected."""
    other.store(queue, b"a")
    peer.consume(queue, 1)
    held = peer.dispatches(1)
    peer.consume(queue, 0)
    peer.barrier()
    assert admin.queue(queue)["ready"] == 1
    other.ack(*held)
    other.barrier()
    assert admin.queue(queue)["ready"] == 0


def test_ack_of_purged_message_is_ignored(admin: AdminApi, peer: SocketClient, queue: str) -> None:
    """Its credit is free again."""
    peer.store(queue, b"a")
    peer.consume(queue, 1)
    held = peer.dispatches(1)
    assert admin.post(f"/api/v1/queues/{queue}/purge", {"dispatched": True}) == {"settled": 1}
    before = ignored(admin, "settled")
    peer.publish(queue, b"b")
    assert peer.bodies(1) == [b"b"]
    peer.ack(*held)
    peer.barrier()
    assert ignored(admin, "settled") == before + 1


# -- windows


def test_credit_limits_dispatches(peer: SocketClient, other: SocketClient, queue: str) -> None:
    other.store(queue, *(b"%d" % number for number in range(10)))
    peer.consume(queue, 3)
    held = peer.dispatches(3)
    peer.barrier()
    assert not peer.got
    peer.ack(held[1], held[2])
    assert peer.bodies(2) == [b"3", b"4"]


def test_second_consume_resets_window(peer: SocketClient, other: SocketClient, queue: str) -> None:
    """Held messages are returned and dispatched again with the same ids."""
    other.store(queue, b"a", b"b", b"c")
    peer.consume(queue, 2)
    before = peer.dispatches(2)
    peer.consume(queue, 3)
    again = peer.dispatches(3)
    assert [d.message_id for d in again[:2]] == [d.message_id for d in before]
    assert again[2].content == b"c"


def test_count_of_0_returns_held_messages(
    admin: AdminApi, peer: SocketClient, other: SocketClient, queue: str
) -> None:
    other.store(queue, b"a", b"b")
    peer.consume(queue, 2)
    peer.dispatches(2)
    peer.consume(queue, 0)
    peer.barrier()
    assert (admin.queue(queue)["ready"], admin.queue(queue)["consumers"]) == (2, 0)
    other.consume(queue, 2)
    assert other.bodies(2) == [b"a", b"b"]
    assert not peer.got


def test_connection_consumes_two_queues(
    peer: SocketClient, other: SocketClient, queue: str
) -> None:
    peer.send(peer.side.consume(queue, 1) + peer.side.consume(f"{queue}-more", 1))
    other.store(queue, b"a", b"b")
    other.store(f"{queue}-more", b"c", b"d")
    assert sorted(peer.bodies(2)) == [b"a", b"c"]


def test_credit_is_at_most_1_000(peer: SocketClient, other: SocketClient, queue: str) -> None:
    """R14."""
    peer.consume(queue, 10**18)
    other.store(queue, *(b"" for _ in range(1_010)))
    assert len(peer.dispatches(1_000)) == 1_000
    peer.barrier()
    assert not peer.got


def test_consumers_take_turns(peer: SocketClient, other: SocketClient, queue: str) -> None:
    peer.consume(queue, 100)
    other.consume(queue, 100)
    peer.barrier()
    other.barrier()
    peer.store(queue, *(b"" for _ in range(100)))
    assert (len(peer.dispatches(50)), len(other.dispatches(50))) == (50, 50)


# -- pauses


def test_publisher_without_key_waits_while_publishing_is_paused(
    admin: AdminApi, peer: SocketClient, other: SocketClient, queue: str
) -> None:
    """Its later frames wait too, in order; other clients are served."""
    peer.store(queue, b"a")
    admin.pause(queue, "publishing")
    peer.send(peer.side.publish(queue, b"b") + peer.side.publish("barrier", b"", key=b"behind"))
    assert other.confirm(queue, b"with a key") == "paused"
    other.consume(queue, 5)
    assert other.bodies(1) == [b"a"]
    other.barrier()
    assert not other.got
    assert not peer.receipts
    admin.resume(queue, "publishing")
    assert other.bodies(1) == [b"b"]
    assert peer.receipt().key == b"behind"


def test_waiting_publish_is_stored_after_its_publisher_disconnected(
    admin: AdminApi, other: SocketClient, broker: BrokerProcess, queue: str
) -> None:
    other.store(queue, b"a")
    admin.pause(queue, "publishing")
    with SocketClient(broker.port) as peer:
        peer.send(peer.side.publish(queue, b"{b}") + peer.side.publish(queue, b"{c}"))
    other.consume(queue, 5)
    other.barrier()
    assert [dispatch.content for dispatch in other.got] == [b"a"]
    admin.resume(queue, "publishing")
    assert other.bodies(3) == [b"a", b"{b}", b"{c}"]


def test_acknowledgements_pass_a_waiting_publish_slowly(
    admin: AdminApi, peer: SocketClient, other: SocketClient, queue: str
) -> None:
    """A connection that also consumes may publish, so that its queue drains."""
    other.store(f"{queue}-work", b"1", b"2", b"3")
    other.store(queue, b"")
    admin.pause(queue, "publishing")
    peer.consume(f"{queue}-work", 1)
    for number in (b"1", b"2", b"3"):
        (dispatch,) = peer.dispatches(1)
        assert dispatch.content == number
        ack = peer.side.acknowledge(dispatch.queue, dispatch.message_id)
        peer.send(peer.side.publish(queue, b"result") + ack)
    peer.publish("barrier", b"", key=b"k")
    assert peer.receipt().key == b"k"
    assert admin.queue(queue)["ready"] == 4


def test_consumer_waits_while_delivery_is_paused(
    admin: AdminApi, peer: SocketClient, other: SocketClient, queue: str
) -> None:
    other.store(queue, b"a")
    admin.pause(queue, "delivery")
    peer.consume(queue, 5)
    other.store(queue, b"b")
    peer.barrier()
    assert not peer.got
    admin.resume(queue, "delivery")
    assert peer.bodies(2) == [b"a", b"b"]
