"""A reader that keeps its transaction lets the write-ahead log grow: ours never do, others may.

``PHPMQ_WRITTEN=3000`` writes that many MiB instead of a hundred.
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

from tests.faults.mutants import program_of
from tests.support.fork_server import BrokerProcess
from tests.support.latency_probe import MIB
from tests.support.socket_client import WAIT_S, AdminApi, SocketClient

pytestmark = pytest.mark.faults

WRITTEN = int(os.environ.get("PHPMQ_WRITTEN", "100")) * MIB
LIMIT = 16 * MIB
BODY = b"x" * 20_000
PIECE = 50  # messages, a MiB
PAGES = ("", "queues", "messages", "metrics", "api/v1/messages?q=queue:large", "api/v1/export")


@contextmanager
def running(data: Path, mutant: str = "") -> Iterator[BrokerProcess]:
    flags = ["--admin", "127.0.0.1:0", "--set", f"storage.wal_bytes={LIMIT}"]
    with BrokerProcess(data, flags, program=program_of(mutant)) as broker:
        yield broker


@contextmanager
def read_all_the_time(url: str) -> Iterator[list[str]]:
    """Ask for pages, searches and exports, one behind the other; which were answered whole."""
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


def wal_of(broker: BrokerProcess) -> int:
    return (broker.data / "phpmq.db-wal").stat().st_size


def write(broker: BrokerProcess, size: int = WRITTEN) -> int:
    """Store so many bytes; give the largest WAL that was seen."""
    most = 0
    with SocketClient(broker.port) as peer:
        for _ in range(size // (PIECE * len(BODY))):
            peer.store("large", *[BODY] * PIECE)
            most = max(most, wal_of(broker))
    return most


def wait_for_wal_below(broker: BrokerProcess, limit: int) -> float:
    """Wait until the WAL was cut back; how long that took."""
    began = time.monotonic()
    while wal_of(broker) > limit:
        assert time.monotonic() - began < 30, f"the WAL still has {wal_of(broker):,} bytes"
        time.sleep(0.05)
    return time.monotonic() - began


def test_pages_and_exports_do_not_hold_up_checkpoints(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with running(tmp_path / "data") as broker, read_all_the_time(broker.admin[0]) as read:
        most = write(broker)
    figure(
        f"{WRITTEN // MIB:,} MiB written beside {len(read)} pages and exports: "
        f"the WAL had at most {most / MIB:.1f} MiB, its limit is {LIMIT // MIB} MiB"
    )
    assert read
    assert most < 2 * LIMIT


def test_wal_shows_a_reader_of_ours_that_keeps_its_transaction(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with running(tmp_path / "data", "KeepsItsTransactions") as broker:
        urllib.request.urlopen(broker.admin[0], timeout=WAIT_S).close()
        most = write(broker, 4 * LIMIT)
    figure(f"mutant KeepsItsTransactions: a WAL of {most / MIB:.1f} MiB")
    assert most > 2 * LIMIT


def test_reader_of_others_is_told_of_and_the_wal_recovers_after_it(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with running(tmp_path / "data") as broker:
        uri = f"{(broker.data / 'phpmq.db').as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as stranger:
            stranger.execute("BEGIN")
            before = stranger.execute("SELECT count(*) FROM message").fetchone()
            most = write(broker)
            assert stranger.execute("SELECT count(*) FROM message").fetchone() == before
            with urllib.request.urlopen(broker.admin[0], timeout=WAIT_S) as page:
                assert "A reader may be preventing truncation" in page.read().decode()
            gauge = AdminApi(broker.admin[0]).metrics()['phpmq_db_bytes{file="wal"}']
        took_s = wait_for_wal_below(broker, LIMIT)
        with urllib.request.urlopen(broker.admin[0], timeout=WAIT_S) as page:
            assert "A reader may be preventing truncation" not in page.read().decode()
        with SocketClient(broker.port) as peer:
            assert peer.confirm("large", b"later") is None
    figure(
        f"{WRITTEN // MIB:,} MiB written beside a stranger's transaction: a WAL of "
        f"{most / MIB:.1f} MiB, told of in the admin, cut back {took_s:.1f} s after it ended"
    )
    assert gauge > 2 * LIMIT
