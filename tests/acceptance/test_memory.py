"""Memory and start time do not grow with the backlog.

``PHPMQ_BACKLOG=1000000 python -m pytest tests/acceptance/test_memory.py`` stores more.
"""

import os
import sys
import time
from pathlib import Path

import pytest

from phpmq_lite.broker_process import BrokerProcess, broker_process
from phpmq_lite.os_process import resident_bytes
from tests.support.latency_probe import MIB, Figure
from tests.support.socket_client import AdminApi, SocketClient

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(sys.platform != "linux", reason="measures with /proc"),
]

SMALL = 10_000
BACKLOG = int(os.environ.get("PHPMQ_BACKLOG", "200000"))
BODY = b"x" * 256
CREDIT = 100
MOST_BYTES = 120_000_000  # of the process, for any backlog


def fill(peer: SocketClient, number: int) -> float:
    began = time.perf_counter()
    piece = peer.side.publish("backlog", BODY) * 1_000
    for _ in range(number // 1_000):
        peer.send(piece)
    peer.barrier()
    return number / (time.perf_counter() - began)


def fill_windows(broker: BrokerProcess) -> None:
    """Consume and acknowledge some messages, to fill windows and caches."""
    with SocketClient(broker.port) as consumer:
        consumer.consume("backlog", CREDIT)
        for _ in range(20):
            consumer.ack(*consumer.dispatches(CREDIT))
        consumer.barrier()


@pytest.mark.slow
@pytest.mark.timeout(120 + BACKLOG // 2_000)
def test_memory_and_start_do_not_grow_with_the_backlog(tmp_path: Path, figure: Figure) -> None:
    with broker_process(tmp_path / "data", "--admin", "127.0.0.1:0") as broker:
        with SocketClient(broker.port) as publisher:
            fill(publisher, SMALL)
            fill_windows(broker)
            small = resident_bytes(broker.pid)
            rate = fill(publisher, BACKLOG - SMALL)
            fill_windows(broker)
            large = resident_bytes(broker.pid)
        count = AdminApi(broker.admin[0]).queue("backlog")["ready"]
        broker.kill()
        began = time.perf_counter()
        broker.start()
        listens_s = time.perf_counter() - began
        with SocketClient(broker.port) as consumer:
            consumer.consume("backlog", 1)
            consumer.dispatches(1)
            dispatched_s = time.perf_counter() - began
        fill_windows(broker)
        restarted = resident_bytes(broker.pid)
        figure(
            f"backlog: memory {small / MIB:.1f} MiB with {SMALL:,} messages, {large / MIB:.1f} MiB "
            f"with {count:,} ({(large - small) / MIB:+.1f}), {restarted / MIB:.1f} MiB after a "
            f"kill -9; listens {listens_s:.2f} s and dispatches {dispatched_s:.2f} s after that; "
            f"published {rate:,.0f}/s"
        )
        assert max(large, restarted) < MOST_BYTES
        assert large - small < 40 * MIB
        assert restarted - small < 40 * MIB
        assert dispatched_s < 30
