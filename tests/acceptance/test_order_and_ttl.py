"""Order and time to live of messages, tested on a broker process."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from phpmq_lite.model import State
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.sqlite.integrity.seal import seal
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.socket_client import SocketClient
from tests.support.stored_rows import stored_rows
from tests.support.stores import ON_POSTGRES

pytestmark = pytest.mark.acceptance

_numbers = count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Run a broker with a window of 50 ready messages per queue, so most are read from disk."""
    data = tmp_path_factory.mktemp("order") / "data"
    flags = ("--set", "limits.window=50", "--set", "queues.max_deliveries=0")
    with broker_process(data, "--admin", "none", *flags) as running:
        yield running


def numbered(numbers: range) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def consume_all(peer: SocketClient, queue: str, number: int, credit: int) -> list[bytes]:
    """Consume ``number`` messages, acknowledging those of each read together."""
    peer.consume(queue, credit)
    got: list[bytes] = []
    while len(got) < number:
        ready = peer.dispatches(max(1, len(peer.got)))
        got += [dispatch.content for dispatch in ready]
        peer.ack(*ready)
    return got


# -- order


@pytest.mark.parametrize("credit", [1, 7, 1_000])
def test_consumer_gets_messages_in_the_order_of_publishing(
    peer: SocketClient, other: SocketClient, queue: str, credit: int
) -> None:
    """Messages on disk, in memory, and published during consumption."""
    other.store(queue, *numbered(range(300)))
    peer.consume(queue, credit)
    other.send(b"".join(other.side.publish(queue, b"%d" % n) for n in range(300, 600)))
    assert consume_all(peer, queue, 600, credit) == numbered(range(600))


def test_two_consumers_share_the_order(peer: SocketClient, other: SocketClient, queue: str) -> None:
    other.store(queue, *numbered(range(200)))
    peer.consume(queue, 60)
    first = peer.bodies(60)
    other.consume(queue, 1_000)
    second = other.bodies(140)
    assert first == numbered(range(60))
    assert second == numbered(range(60, 200))


@pytest.mark.parametrize("how", ["close", "reset", "half_close"])
def test_messages_come_again_before_newer_ones_after_a_disconnect(
    peer: SocketClient, other: SocketClient, queue: str, how: str
) -> None:
    """With their old ids, in their old order."""
    other.store(queue, *numbered(range(200)))
    peer.consume(queue, 30)
    held = peer.dispatches(30)
    peer.ack(*held[::3])  # in the middle of what is held
    more = peer.dispatches(10)
    getattr(peer, how)()
    other.store(queue, *numbered(range(200, 220)))
    other.consume(queue, 1_000)
    again = [d for d in held if d not in held[::3]] + more
    got = other.dispatches(210)
    assert [d.message_id for d in got[:30]] == [d.message_id for d in again]
    assert [d.content for d in got[30:]] == numbered(range(40, 220))


def test_messages_of_two_consumers_come_again_in_one_order(
    broker: BrokerProcess, peer: SocketClient, other: SocketClient, queue: str
) -> None:
    other.store(queue, *numbered(range(100)))
    with SocketClient(broker.port) as third:
        peer.consume(queue, 20)
        peer.dispatches(20)
        third.consume(queue, 20)
        third.dispatches(20)
        third.reset()
        peer.reset()
    assert consume_all(other, queue, 100, 5) == numbered(range(100))


def test_messages_come_in_the_same_order_after_a_kill(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", "--admin", "none") as broker:
        with SocketClient(broker.port) as peer:
            peer.store("orders", *numbered(range(100)))
            peer.consume("orders", 10)
            held = peer.dispatches(10)
            peer.ack(held[4])
            peer.requeue(held[2])
            peer.barrier()
            broker.kill()
        broker.start()
        expected = numbered(range(100))
        expected.remove(b"4")
        expected.remove(b"2")
        with SocketClient(broker.port) as peer:
            peer.store("orders", b"newer")
            assert consume_all(peer, "orders", 100, 100) == [*expected, b"2", b"newer"]


def test_requeued_message_comes_last(peer: SocketClient, other: SocketClient, queue: str) -> None:
    """With its old id, before messages that are published later."""
    other.store(queue, *numbered(range(120)))
    peer.consume(queue, 1)
    (first,) = peer.dispatches(1)
    peer.requeue(first)
    peer.barrier()
    other.store(queue, b"newer")
    assert consume_all(peer, queue, 119, 1) == numbered(range(1, 120))
    again, newer = peer.dispatches(1), consume_all(peer, queue, 2, 2)
    assert again[0].message_id == first.message_id
    assert newer == [b"0", b"newer"]


def test_order_is_kept_while_messages_are_settled(other: SocketClient, queue: str) -> None:
    """Acknowledge, requeue or return messages at random; compare the order with a list."""
    rng = random.Random(queue)
    expected = numbered(range(400))
    other.store(queue, *expected)
    while expected:
        credit = rng.randint(1, 120)
        other.consume(queue, credit)
        held = other.dispatches(min(credit, len(expected)))
        assert [dispatch.content for dispatch in held] == expected[:credit]
        for dispatch in held:
            end = rng.choice((other.ack, other.ack, other.requeue, None))
            if end is not None:
                end(dispatch)
                expected.remove(dispatch.content)
            if end == other.requeue:
                expected.append(dispatch.content)
        other.consume(queue, 0)
        other.barrier()
        other.got.clear()


# -- time to live


def wait_seconds(peer: SocketClient, seconds: int = 1) -> None:
    """Wait for ``seconds`` by the clock of the broker.

    A message in ``<queue>.retry`` moves to ``<queue>`` when its TTL ends.
    """
    timer = f"timer-{next(_numbers)}"
    peer.consume(timer, 1)
    peer.publish(f"{timer}.retry", b"", ttl_s=seconds)
    (rung,) = peer.dispatches(1)
    assert rung.queue == timer
    peer.send(peer.side.acknowledge(timer, rung.message_id) + peer.side.consume(timer, 0))


def rows(data: Path, text: str, *values: object) -> list[tuple[Any, ...]]:
    return stored_rows(data, text, *values)


HISTORY = """
SELECT outcome, published_at, settled_at, first_dispatched_at, last_dispatched_at, ttl_s
FROM history JOIN queue USING (queue_id) WHERE name = ? ORDER BY "offset"
"""


def test_message_is_not_dispatched_after_its_second(
    broker: BrokerProcess, peer: SocketClient, other: SocketClient, queue: str
) -> None:
    """TTL 1, no consumer for more than a second by the broker's clock, then one."""
    other.store(queue, *[b"short"] * 100, ttl_s=1)
    other.store(queue, b"endless")
    wait_seconds(other)
    peer.consume(queue, 1_000)
    peer.barrier()
    assert [dispatch.content for dispatch in peer.got] == [b"endless"]
    found = rows(broker.data, HISTORY, queue)
    assert len(found) == 100
    for outcome, published_at, settled_at, first_at, last_at, _ in found:
        assert (outcome, first_at, last_at) == (State.EXPIRED, None, None)
        assert settled_at - published_at >= 1_000


def test_no_dispatch_is_late_under_load(
    broker: BrokerProcess,
    peer: SocketClient,
    other: SocketClient,
    queue: str,
    figure: Callable[[str], None],
) -> None:
    """A consumer with credit 1 and more messages than it can take in a second."""
    peer.consume(queue, 1)  # first, because storing them may take a second
    other.store(queue, *numbered(range(10_000)), ttl_s=1)
    other.publish(f"{queue}.end.retry", b"", ttl_s=2)
    peer.consume(f"{queue}.end", 1)
    ttls = []
    while (dispatch := peer.dispatches(1)[0]).queue == queue:
        ttls.append(dispatch.ttl_s)
        peer.ack(dispatch)
    assert set(ttls) == {1}
    found = rows(broker.data, HISTORY, queue)
    acked = [row for row in found if row[0] == State.ACKED]
    expired = [row for row in found if row[0] == State.EXPIRED]
    assert (len(acked), len(acked) + len(expired)) == (len(ttls), 10_000)
    latest_ms = max(last_at - published_at for _, published_at, _, _, last_at, _ in acked)
    soonest_ms = min(settled_at - published_at for _, published_at, settled_at, *_ in expired)
    figure(
        f"TTL 1 under load: {len(acked):,} of 10,000 dispatched, the last {latest_ms} ms after its "
        f"publish; the others expired, the first after {soonest_ms} ms"
    )
    # The deadline is on the steady clock, whose milliseconds begin at another moment.
    assert latest_ms <= 1_000
    assert soonest_ms >= 999


def test_remaining_seconds_count_down(peer: SocketClient, other: SocketClient, queue: str) -> None:
    """They are rounded up, so a new message has all of them."""
    other.publish(queue, b"", ttl_s=100)
    left = []
    for wait_s in (0, 1, 1):
        if wait_s:
            wait_seconds(other, wait_s)
        peer.consume(queue, 1)
        left.append(peer.dispatches(1)[0].ttl_s or 0)
        peer.consume(queue, 0)
        peer.barrier()
    assert left[0] == 100
    assert left[0] - 1 >= left[1]
    assert left[1] - 1 >= left[2]
    assert left[2] > 50


def test_requeue_sets_a_new_ttl(peer: SocketClient, other: SocketClient, queue: str) -> None:
    other.store(queue, b"a", ttl_s=1)
    peer.consume(queue, 1)
    (dispatch,) = peer.dispatches(1)
    peer.requeue(dispatch, ttl_s=3_600)
    wait_seconds(other)
    assert peer.dispatches(1)[0].ttl_s in (3_600, 3_599)


def test_held_message_does_not_expire_but_is_not_dispatched_again_either(
    broker: BrokerProcess, peer: SocketClient, other: SocketClient, queue: str
) -> None:
    """Only ready messages expire; this one does when it is returned."""
    other.store(queue, b"a", ttl_s=1)
    peer.consume(queue, 1)
    peer.dispatches(1)
    wait_seconds(other)
    assert rows(broker.data, HISTORY, queue) == []
    peer.consume(queue, 0)
    peer.consume(queue, 1)
    peer.barrier()
    assert not peer.got
    ((outcome, *_),) = rows(broker.data, HISTORY, queue)
    assert outcome == State.EXPIRED


def test_message_without_time_to_live_never_expires(
    broker: BrokerProcess, peer: SocketClient, other: SocketClient, queue: str
) -> None:
    """TTL 0, and the older revision without TTL; the largest TTL is a hundred years."""
    other.publish(queue, b"zero")
    other.send(b"H0100102P01%029d%sP02%029dolder" % (len(queue), queue.encode(), 5))
    other.publish(queue, b"largest", ttl_s=10**19 - 1)
    wait_seconds(other)
    peer.consume(queue, 5)
    got = {dispatch.content: dispatch.ttl_s or 0 for dispatch in peer.dispatches(3)}
    left_s = got.pop(b"largest")
    assert got == {b"zero": 0, b"older": 0}
    assert 0 < 100 * 365 * 86_400 - left_s < 60
    deadlines = "SELECT count(deadline_ms) FROM message JOIN queue USING (queue_id) WHERE name = ?"
    assert rows(broker.data, deadlines, queue) == [(1,)]


def test_expiry_survives_a_restart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker_process(data, "--admin", "none") as broker:
        with SocketClient(broker.port) as peer:
            peer.store("orders", b"short", ttl_s=2)
            peer.store("orders", b"long", ttl_s=3_600)
            peer.store("orders.timer.retry", b"rings", ttl_s=2)
            peer.consume("orders", 5)
            assert peer.bodies(2) == [b"short", b"long"]
            broker.kill()
        broker.start()
        with SocketClient(broker.port) as peer:
            peer.consume("orders.timer", 1)
            assert peer.bodies(1) == [b"rings"]
            peer.consume("orders", 5)
            peer.barrier()
            assert [dispatch.content for dispatch in peer.got] == [b"long"]
            assert 0 < (peer.got[0].ttl_s or 0) < 3_600
        ((outcome, published_at, settled_at, *_),) = rows(data, HISTORY, "orders")
        assert outcome == State.EXPIRED
        assert settled_at - published_at >= 2_000


def set_deadlines(data: Path, deadline_ms: int) -> None:
    """Set one deadline (wall clock) for all messages with a TTL of a stopped broker."""
    stored_rows(data, "UPDATE message SET deadline_ms = ? WHERE ttl_s IS NOT NULL", deadline_ms)
    if not ON_POSTGRES:
        with closing(DataFolder.open(data)) as folder:
            seal(folder)  # the seal of the stop no longer matches


class Livez:
    """Measures the response times of ``/livez``, which the loop answers without a batch."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._connection = HTTPConnection(place.hostname or "", place.port, timeout=20)
        self.times_ms: list[float] = []
        self.answered_at: list[int] = []  # Unix ms

    def ask(self) -> None:
        began = time.perf_counter()
        self._connection.request("GET", "/livez")
        answer = self._connection.getresponse()
        answer.read()
        self.times_ms.append((time.perf_counter() - began) * 1_000)
        self.answered_at.append(time.time_ns() // 1_000_000)
        assert answer.status == 200

    def close(self) -> None:
        self._connection.close()


@pytest.mark.sample("live")
@pytest.mark.parametrize("is_overdue", [False, True], ids=["live", "at the start"])
def test_loop_responds_while_30_000_messages_expire_at_once(
    tmp_path: Path, is_overdue: bool, figure: Callable[[str], None]
) -> None:
    """It answers again and again while they expire; a quiet machine waits at most 50 ms."""
    data, number = tmp_path / "data", 30_000
    with broker_process(data, "--admin", "127.0.0.1:0") as broker:
        with SocketClient(broker.port) as peer:
            for _ in range(0, number, 1_000):
                peer.send(peer.side.publish("orders", b"x" * 256, ttl_s=3_600) * 1_000)
            peer.barrier()
        assert broker.terminate() == 0
        now_ms = time.time_ns() // 1_000_000
        set_deadlines(data, now_ms - 1 if is_overdue else now_ms + 3_000)
        broker.start()
        livez = Livez(broker.admin[0])
        expired = "SELECT count(*), min(settled_at), max(settled_at) FROM history"
        while (found := rows(data, expired)[0])[0] < number:
            for _ in range(50):
                livez.ask()
                time.sleep(0.002)  # a stall that matters is far longer
        livez.close()
        times = sorted(livez.times_ms)
        when = "at the start" if is_overdue else "live"
        figure(
            f"{number:,} messages expire at once, {when}: gone "
            f"in {found[2] - found[1]} ms; /livez p50 {times[len(times) // 2]:.1f} ms, p99 "
            f"{times[len(times) * 99 // 100]:.1f} ms, max {times[-1]:.1f} ms"
        )
        assert sum(found[1] < at < found[2] for at in livez.answered_at) >= 5
