"""A disk whose fsync takes 200 ms: the loop responds, nothing times out, nothing is lost.

The disk becomes slow during the work, as real ones do.
"""

import random
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.ledger import Crowd, Ledger, Load, is_drained
from tests.faults.shim import Shim
from tests.faults.shimmed_broker import shimmed_broker
from tests.faults.writer_mutants import writer_pid
from tests.support.fork_server import BrokerProcess
from tests.support.latency_probe import Latencies
from tests.support.seed import SEED
from tests.support.socket_client import WAIT_S, AdminApi, SocketClient

pytestmark = pytest.mark.faults

DELAY_MS = 200
LIVES_MS = 100.0  # half of the responses of a loop that waits for the disk take longer
ALONE = 15
CROWD = 3_000


@contextmanager
def broker_on(
    data: Path, mutant: str = "", *, is_second: bool = False
) -> Iterator[tuple[BrokerProcess, Shim]]:
    """Run a broker whose disk can become slow, with an acknowledgement timeout of a second."""
    shim = Shim(data.parent, data)
    flags = "--admin", "127.0.0.1:0", "--set", "queues.ack_timeout_s=1"
    with shimmed_broker(shim, *flags, mutant=mutant, is_second=is_second) as broker:
        yield broker, shim


def ask(url: str) -> float:
    """Request a page; return the milliseconds."""
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        assert answer.read()
    return (time.perf_counter() - began) * 1_000


@contextmanager
def asked(url: str) -> Iterator[list[float]]:
    """Request a page repeatedly; yield the list of milliseconds."""
    took_ms: list[float] = []
    is_over = threading.Event()

    def poll() -> None:
        while not is_over.wait(0.02):
            took_ms.append(ask(url))

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield took_ms
    finally:
        is_over.set()
        thread.join()


def confirm_alone(broker: BrokerProcess, shim: Shim) -> tuple[Latencies, Latencies]:
    """Wait for each receipt, on a fast disk and then on a slow one.

    Returns the response times of health checks, each sent during an fsync, and of a page.
    """
    url = broker.admin[0].rstrip("/")
    health_ms: list[float] = []
    with SocketClient(broker.port) as peer:
        for number in range(50):  # the disk is known to be fast
            assert peer.confirm("alone", b"fast %011d" % number) is None
        shim.delay_sync_ms = DELAY_MS
        with asked(f"{url}/queues") as page_ms:
            for number in range(ALONE):
                key = b"slow %011d" % number
                peer.publish("alone", key, key=key)
                time.sleep(DELAY_MS / 10_000)  # a tenth of it
                health_ms.append(ask(f"{url}/livez"))
                assert peer.receipt_for(key).reason is None
        return Latencies(health_ms), Latencies(page_ms)


@pytest.mark.slow
@pytest.mark.parametrize("is_second", [False, True])
async def test_loop_responds_while_the_disk_is_slow(
    tmp_path: Path, is_second: bool, figure: Callable[[str], None]
) -> None:
    ledger = Ledger(random.Random(SEED))
    with broker_on(tmp_path / "data", is_second=is_second) as (broker, shim):
        health, page = confirm_alone(broker, shim)
        crowd = Crowd(ledger, broker.port, Load(acks_all=True))
        began = time.perf_counter()
        await crowd.work(CROWD, crowd.leave)
        rate = CROWD / (time.perf_counter() - began)
        lag_ms = AdminApi(broker.admin[0]).metrics()["phpmq_event_loop_lag_seconds"] * 1_000
        if is_second:
            writer_pid(broker.data)  # it still runs
        shim.delay_sync_ms = 0
        await Crowd(ledger, broker.port, Load(acks_all=True)).drain(lambda: is_drained(broker.data))
        assert broker.terminate() == 0
    ledger.audit(broker.data)
    which = ", with a writer process" if is_second else ""
    figure(
        f"fsync takes {DELAY_MS} ms more{which}: health answers in {health}, a page in {page}; "
        f"loop lag {lag_ms:.1f} ms; a crowd gets {rate:,.0f} receipts/s; "
        f"{len(ledger.offences)} lost, {ledger.redelivered} redelivered"
    )
    assert ledger.offences == []
    assert ledger.redelivered == 0
    assert health.p50 < LIVES_MS


def test_health_checks_reveal_a_broker_that_waits_in_its_loop(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with broker_on(tmp_path / "data", "WaitsForTheDiskInTheLoop") as (broker, shim):
        health, _ = confirm_alone(broker, shim)
    figure(f"mutant WaitsForTheDiskInTheLoop: health answers in {health}")
    assert health.p50 > LIVES_MS
