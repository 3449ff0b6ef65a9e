"""Hostile or defective clients do not disturb others, and each limit holds.

These are the lines of ``docs/operate/security.md`` about clients, without those that
``test_limits.py`` covers.
"""

import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from select import select

import pytest

from phpmq_lite.os_process import resident_bytes
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.latency_probe import MIB, Latencies, LatencyProbe
from tests.support.seed import SEED
from tests.support.socket_client import WAIT_S, AdminApi, SocketClient

pytestmark = pytest.mark.faults

CREDIT = 1_000  # of one consumer, by default
CREDIT_BYTES = 16 * MIB
TRICKLING = 150
FRAME_S = 3
QUEUES = 50


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    flags = ["--admin", "127.0.0.1:0"]
    for setting in (f"frame_timeout_s={FRAME_S}", "frame_rate_bytes=1GiB", f"max_queues={QUEUES}"):
        flags += ["--set", f"limits.{setting}"]
    with broker_process(tmp_path / "data", *flags) as running:
        yield running


def ignored(admin: AdminApi, reason: str) -> float:
    return admin.metrics().get(f'phpmq_acks_ignored_total{{reason="{reason}"}}', 0)


# -- consumers


def test_consumer_that_never_acknowledges_holds_at_most_its_credit(
    broker: BrokerProcess, figure: Callable[[str], None]
) -> None:
    """In messages and in bytes; other consumers get the rest."""
    admin = AdminApi(broker.admin[0])
    with SocketClient(broker.port) as greedy, SocketClient(broker.port) as other:
        other.store("small", *(b"%d" % number for number in range(3 * CREDIT)))
        other.store("large", *(b"%d" % number + b"." * MIB for number in range(24)))
        before = resident_bytes(broker.pid)
        greedy.consume("small", 10**9)
        greedy.consume("large", 10**9)
        greedy.dispatches(CREDIT + CREDIT_BYTES // MIB - 1)
        greedy.barrier()
        assert not greedy.got
        held = {name: admin.queue(name)["dispatched"] for name in ("small", "large")}
        other.consume("small", 10)
        assert other.bodies(10) == [b"%d" % (CREDIT + number) for number in range(10)]
        grown = resident_bytes(broker.pid) - before
    figure(
        f"a consumer that never acknowledges holds {held['small']:,} small messages and "
        f"{held['large']} MiB of large ones; memory {grown / MIB:+.1f} MiB"
    )
    assert held == {"small": CREDIT, "large": CREDIT_BYTES // MIB - 1}
    assert grown < 4 * CREDIT_BYTES


def test_acknowledgements_of_what_others_hold_are_ignored_and_counted(
    broker: BrokerProcess, figure: Callable[[str], None]
) -> None:
    """Twenty times each id that another consumer holds, and as many ids that do not exist."""
    admin, times = AdminApi(broker.admin[0]), 20
    with SocketClient(broker.port) as owner, SocketClient(broker.port) as thief:
        owner.store("work", *(b"%d" % number for number in range(200)))
        owner.consume("work", 200)
        held = owner.dispatches(200)
        unknown = [thief.side.acknowledge("work", b"%032x" % number) for number in range(4_000)]
        for _ in range(times):
            thief.ack(*held)
        thief.send(b"".join(unknown))
        thief.barrier()
        assert admin.queue("work")["dispatched"] == 200
        owner.ack(*held)
        owner.barrier()
        assert admin.queue("work")["dispatched"] == 0
    foreign, guessed = ignored(admin, "foreign"), ignored(admin, "unknown")
    figure(f"foreign ids: {foreign:,.0f} ignored and counted, {guessed:,.0f} that were guessed")
    assert foreign == times * 200
    assert guessed == 4_000


# -- producers


def test_connections_that_trickle_are_closed_and_pages_answer_meanwhile(
    broker: BrokerProcess, figure: Callable[[str], None]
) -> None:
    """Each has begun a message and sends one byte of it at a time."""
    took_ms: list[float] = []
    with ExitStack() as stack:
        open_ones = {}
        began = time.monotonic()
        for _ in range(TRICKLING):
            peer = stack.enter_context(SocketClient(broker.port))
            peer.send(b"H0100102P01%029dqueueP02%029d{" % (5, 1 << 20))
            open_ones[peer.socket] = peer
        while open_ones:
            assert time.monotonic() - began < 10 * FRAME_S
            for ended in select(list(open_ones), [], [], 0.1)[0]:
                assert open_ones.pop(ended).rest() == b""
            for peer in open_ones.values():
                with suppress(OSError):
                    peer.send(b"{")
            asked = time.perf_counter()
            with urllib.request.urlopen(broker.admin[0], timeout=WAIT_S) as page:
                assert page.status == 200
            took_ms.append((time.perf_counter() - asked) * 1_000)
        took_s = time.monotonic() - began
    figure(
        f"{TRICKLING} connections that trickle with {FRAME_S} s for a message: all closed after "
        f"{took_s:.1f} s, a page meanwhile in {Latencies(took_ms)}"
    )
    assert took_s >= FRAME_S


def test_flood_of_queue_names_ends_at_the_limit(
    broker: BrokerProcess, figure: Callable[[str], None]
) -> None:
    """With a key it is rejected; without one the connection is closed.  Old queues work."""
    with SocketClient(broker.port) as peer, SocketClient(broker.port) as flood:
        assert peer.confirm("old", b"first") is None
        reasons = [flood.confirm(f"made-{number}", b"") for number in range(2 * QUEUES)]
        assert set(reasons) == {None, "too many queues"}
        made = reasons.count(None)
        closed = 0
        for number in range(50):
            with SocketClient(broker.port) as plain:
                plain.publish(f"plain-{number}", b"{}")
                closed += plain.rest() == b""
        assert peer.confirm("old", b"second") is None
    figure(
        f"a flood of {2 * QUEUES} queue names with a limit of {QUEUES}: {made} made, the others "
        f"refused; {closed} connections without keys closed"
    )
    assert made == QUEUES - 1
    assert closed == 50


def test_flood_of_connections_disturbs_no_client(
    broker: BrokerProcess, figure: Callable[[str], None]
) -> None:
    """Each sends a partial frame or another protocol, and disconnects."""
    words = (b"", b"H01", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00", b"\0" * 64)
    is_over, opened = threading.Event(), 0

    def flood() -> None:
        nonlocal opened
        while not is_over.is_set():
            with suppress(OSError), socket.create_connection(("127.0.0.1", broker.port)) as one:
                opened += 1
                one.sendall(words[(opened + SEED) % len(words)])

    with LatencyProbe(broker.port) as probe:
        alone = probe.round_trips(100)
        threads = [threading.Thread(target=flood) for _ in range(2)]
        for thread in threads:
            thread.start()
        meanwhile = probe.round_trips(100)
        is_over.set()
        for thread in threads:
            thread.join()
        probe.peer.barrier()
    lines = len(broker.log.read_text(encoding="utf-8").splitlines())
    figure(
        f"{opened:,} connections that leave at once: round trips {meanwhile} (alone: {alone}), "
        f"{lines} log lines"
    )
    assert lines < 100
