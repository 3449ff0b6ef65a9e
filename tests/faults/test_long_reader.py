"""A reader that keeps its transaction lets the write-ahead log grow: ours never do, others may.

``PHPMQ_WRITTEN=3000`` writes 3,000 MiB instead of 50.
"""

import os
import sqlite3
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import cycle
from pathlib import Path

import pytest

from tests.faults.mutants import mutant_process
from tests.support.fork_server import BrokerProcess
from tests.support.latency_probe import MIB
from tests.support.socket_client import WAIT_S, AdminApi, SocketClient

pytestmark = pytest.mark.faults

WARNING = "A reader may be preventing truncation"
WRITTEN = int(os.environ.get("PHPMQ_WRITTEN", "50")) * MIB
LIMIT = 16 * MIB
BODY = b"x" * 20_000
PIECE = 50  # messages, a MiB
PAGES = ("", "queues", "messages", "metrics", "api/v1/messages?q=queue:large", "api/v1/export")


def broker_of(data: Path, mutant: str = "") -> BrokerProcess:
    flags = "--admin", "127.0.0.1:0", "--set", f"storage.wal_bytes={LIMIT}"
    return mutant_process(data, mutant, *flags)


@contextmanager
def reading(url: str) -> Iterator[list[str]]:
    """Request pages, searches and exports one after another; yield the completed ones."""
    read: list[str] = []
    is_over = threading.Event()

    def work() -> None:
        for path in cycle(PAGES):
            if is_over.is_set():
                return
            with urllib.request.urlopen(f"{url.rstrip('/')}/{path}", timeout=WAIT_S) as answer:
                while answer.read(1 << 16):
                    if is_over.is_set():
                        return
            read.append(path)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield read
    finally:
        is_over.set()
        thread.join()


def start_page(broker: BrokerProcess) -> str:
    with urllib.request.urlopen(broker.admin[0], timeout=WAIT_S) as page:
        return str(page.read(), "utf-8")


def wal_of(broker: BrokerProcess) -> int:
    return (broker.data / "phpmq.db-wal").stat().st_size


def write(broker: BrokerProcess, size: int = WRITTEN) -> int:
    """Store ``size`` bytes; return the largest size of the WAL."""
    most = 0
    with SocketClient(broker.port) as peer:
        for _ in range(size // (PIECE * len(BODY))):
            peer.store("large", *[BODY] * PIECE)
            most = max(most, wal_of(broker))
    return most


def wait_for_wal_below(broker: BrokerProcess, limit: int) -> float:
    began = time.monotonic()
    while wal_of(broker) > limit:
        assert time.monotonic() - began < 30, f"the WAL still has {wal_of(broker):,} bytes"
        time.sleep(0.05)
    return time.monotonic() - began


def test_pages_and_exports_do_not_hold_up_checkpoints(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with broker_of(tmp_path / "data") as broker, reading(broker.admin[0]) as read:
        most = write(broker)
        while len(read) < len(PAGES):  # on a fast disk, these MiB take less time than a page
            most = max(most, write(broker, MIB))
    figure(
        f"{WRITTEN // MIB:,} MiB and more written beside {len(read)} pages and exports: "
        f"the WAL had at most {most / MIB:.1f} MiB, its limit is {LIMIT // MIB} MiB"
    )
    assert read
    assert most < 2 * LIMIT


def test_wal_size_reveals_a_reader_that_keeps_its_transaction(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with broker_of(tmp_path / "data", "KeepsItsTransactions") as broker:
        start_page(broker)
        most = write(broker, 3 * LIMIT)
    figure(f"mutant KeepsItsTransactions: a WAL of {most / MIB:.1f} MiB")
    assert most > 2 * LIMIT


def test_foreign_reader_is_reported_and_the_wal_recovers_after_it(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with broker_of(tmp_path / "data") as broker:
        uri = f"{(broker.data / 'phpmq.db').as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as stranger:
            stranger.execute("BEGIN")
            before = stranger.execute("SELECT count(*) FROM message").fetchone()
            most = write(broker)
            assert stranger.execute("SELECT count(*) FROM message").fetchone() == before
            assert WARNING in start_page(broker)
            gauge = AdminApi(broker.admin[0]).metrics()['phpmq_db_bytes{file="wal"}']
        took_s = wait_for_wal_below(broker, LIMIT)
        assert WARNING not in start_page(broker)
        with SocketClient(broker.port) as peer:
            assert peer.confirm("large", b"later") is None
    figure(
        f"{WRITTEN // MIB:,} MiB written beside a stranger's transaction: a WAL of "
        f"{most / MIB:.1f} MiB, reported in the admin, truncated {took_s:.1f} s after it ended"
    )
    assert gauge > 2 * LIMIT
