"""One connection of each process writes to the database, in turns: otherwise a WAL is damaged."""

import os
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest

from phpmq_lite.storage.data_folder import DATABASE
from tests.faults.mutants import mutant_process
from tests.faults.writer_mutants import writer_pid
from tests.support.socket_client import SocketClient

pytestmark = [pytest.mark.faults, pytest.mark.acceptance]

PATHS = """
/ /queues /queues/orders /search?q=x /system /metrics /dead /api/v1/stats
/api/v1/messages?queue=orders /audit /clients
"""
PAGES = PATHS.split()


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


NEEDS_PROC = pytest.mark.skipif(
    not Path("/proc/self/fdinfo").exists(), reason="the system has no /proc"
)


@NEEDS_PROC
@pytest.mark.parametrize("is_second", [False, True])
def test_database_is_open_for_writing_once_in_each_process_that_writes(
    tmp_path: Path, is_second: bool, figure: Callable[[str], None]
) -> None:
    data = tmp_path / "data"
    database = data.resolve() / DATABASE
    most: Counter[bool] = Counter()
    most_of_writer: Counter[bool] = Counter()
    with (
        mutant_process(data, "", "--admin", "127.0.0.1:0", is_second=is_second) as broker,
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
            if is_second:
                most_of_writer |= opens(writer_pid(data), database)
        # The test detects a second writer, here its own.
        with closing(sqlite3.connect(database)) as other:
            other.execute("SELECT count(*) FROM message").fetchone()
            assert opens(os.getpid(), database)[True] == 1
    figure(f"writable opens: {most[True]}, read-only ones: {most[False]}")
    assert most[True] == 1
    assert most[False] > 1
    assert most_of_writer == (Counter({True: 1}) if is_second else Counter())


@NEEDS_PROC
def test_writer_process_inherits_only_what_it_uses(tmp_path: Path) -> None:
    """An inherited connection of a client would stay open after the end of the broker."""
    data = tmp_path / "data"
    with (
        mutant_process(data, "", "--admin", "127.0.0.1:0", is_second=True) as broker,
        SocketClient(broker.port) as peer,
    ):
        peer.store("orders", b"body")
        folder = Path(f"/proc/{writer_pid(data)}/fd")
        links = sorted(os.readlink(link) for link in folder.iterdir())
        files = [Path(link) for link in links if Path(link).parent == data.resolve()]
        assert [file.name for file in files] == [
            "lock", DATABASE, f"{DATABASE}-shm", f"{DATABASE}-wal"
        ]  # fmt: skip
        others = [link for link in links if Path(link) not in files]
        assert others.count("/dev/null") == 3
        batch = {"/memfd:batch (deleted)"}  # mmap duplicates the descriptor
        (socket,) = set(others) - {"/dev/null"} - batch
        assert socket.startswith("socket:")
        assert others.count(socket) == 1
