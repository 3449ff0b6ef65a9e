"""One connection writes to the database: two can damage a WAL."""

import os
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest

from phpmq_lite.storage.data_folder import DATABASE
from tests.support.fork_server import broker_process
from tests.support.socket_client import SocketClient

pytestmark = [pytest.mark.faults, pytest.mark.acceptance]

PAGES = (
    "/", "/queues", "/queues/orders", "/search?q=x", "/system", "/metrics", "/dead",
    "/api/v1/stats", "/api/v1/messages?queue=orders", "/audit", "/clients",
)  # fmt: skip


def opens(pid: int, database: Path) -> Counter[bool]:
    """Count the descriptors of the database in a process, by whether they are writable."""
    found: Counter[bool] = Counter()
    folder = Path(f"/proc/{pid}")
    for link in (folder / "fd").iterdir():
        try:
            if link.readlink() != database:
                continue
            text = (folder / "fdinfo" / link.name).read_text(encoding="ascii")
        except FileNotFoundError:  # just closed
            continue
        flags = next(line.split()[1] for line in text.splitlines() if line.startswith("flags"))
        found[int(flags, 8) & os.O_ACCMODE != os.O_RDONLY] += 1
    return found


@pytest.mark.skipif(not Path("/proc/self/fdinfo").exists(), reason="the system has no /proc")
def test_database_is_open_for_writing_once(tmp_path: Path, figure: Callable[[str], None]) -> None:
    data = tmp_path / "data"
    database = data.resolve() / DATABASE
    most: Counter[bool] = Counter()
    with (
        broker_process(data, "--admin", "127.0.0.1:0") as broker,
        SocketClient(broker.port) as peer,
    ):
        admin = broker.admin[0].rstrip("/")
        for at, page in enumerate(PAGES):
            peer.store("orders", *[bytes(100_000)] * 20)  # checkpoints, too
            with urlopen(f"{admin}{page}") as answer:
                answer.read()
            if at == 0:
                peer.consume("orders", 5)
                peer.ack(*peer.dispatches(5))
            most |= opens(broker.pid, database)
        # The test detects a second writer, here its own.
        with closing(sqlite3.connect(database)) as other:
            other.execute("SELECT count(*) FROM message").fetchone()
            assert opens(os.getpid(), database)[True] == 1
    figure(f"writable opens: {most[True]}, read-only ones: {most[False]}")
    assert most[True] == 1
    assert most[False] > 1
