"""Describes the machine that runs the benchmark, and measures its limits without a broker."""

import os
import platform
import socket
import sqlite3
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from phpmq_lite import __version__, installation
from phpmq_lite.bench.traffic import Address, connect
from phpmq_lite.storage.mounts import file_system


@dataclass(slots=True, frozen=True)
class Machine:
    """The environment on which benchmark results depend."""

    broker: str  # version of PHPMQ Lite
    build: str | None  # "compiled" or "pure Python"; None if the benchmark did not start the broker
    cpu: str
    cores: int
    kernel: str
    python: str
    sqlite: str
    file_system: str  # file system type of the data folder


def describe_machine(folder: Path, *, is_own: bool) -> Machine:
    """Describe the machine and ``folder``'s file system; ``is_own`` if we start the broker."""
    return Machine(
        broker=__version__,
        build=installation.build_kind() if is_own else None,
        cpu=_cpu_name(),
        cores=os.cpu_count() or 1,
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        sqlite=sqlite3.sqlite_version,
        file_system=file_system(folder) or "unknown",
    )


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


ROW_BYTES: Final = 256
ECHO_BYTES: Final = 256
LARGE_ROW_BYTES: Final = 100_000
COMMIT_BYTES: Final = 4 << 20  # maximum total body size per commit; the same limit as in the broker
_BLOCK: Final = b"x" * 4096
_ROWS_PER_STATEMENT: Final = 500
_CACHE_BYTES: Final = 8 << 20  # size of SQLite's page cache; the same as in the broker
_RECEIVE_BYTES: Final = 1 << 16


def _rate(step: Callable[[], object], seconds: float) -> float:
    """Call ``step`` repeatedly for ``seconds``; return the number of calls per second."""
    calls = 0
    began_s = time.perf_counter()
    while (elapsed_s := time.perf_counter() - began_s) < seconds:
        step()
        calls += 1
    return calls / elapsed_s


def measure_syncs(folder: Path, seconds: float) -> Generator[None, None, float]:
    """Append 4 KiB blocks to a file, with a sync after each; return the syncs per second."""
    file = os.open(folder / "sync.bin", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    sync = getattr(os, "fdatasync", os.fsync)

    def append() -> None:
        os.write(file, _BLOCK)
        sync(file)

    yield
    rate = _rate(append, seconds)
    os.close(file)
    return rate


def measure_rows(
    folder: Path, seconds: float, rows_per_commit: int
) -> Generator[None, None, float]:
    """Insert 256-byte rows durably in WAL mode; return the number of rows per second."""
    database = sqlite3.connect(folder / f"rows-{rows_per_commit}.db", isolation_level=None)
    execute = database.execute
    execute("PRAGMA journal_mode=WAL")
    execute("PRAGMA synchronous=FULL")
    execute("CREATE TABLE body (seq INTEGER PRIMARY KEY, content BLOB NOT NULL)")
    size = min(rows_per_commit, _ROWS_PER_STATEMENT)
    insert = f"INSERT INTO body (content) VALUES {', '.join(['(?)'] * size)}"  # noqa: S608 - constant
    contents = [b"x" * ROW_BYTES] * size

    def commit() -> None:
        execute("BEGIN IMMEDIATE")
        for _ in range(rows_per_commit // size):
            execute(insert, contents)
        execute("COMMIT")

    yield
    commits_per_s = _rate(commit, seconds)
    database.close()
    return rows_per_commit * commits_per_s


def measure_writes(folder: Path, seconds: float) -> Generator[None, None, float]:
    """Insert 100 KB rows in 4 MiB transactions, as the broker does; return the bytes per second."""
    # Import this here, because only this measurement uses the broker's code.
    from phpmq_lite.storage.sqlite.store import LONG_WAL_BYTES, SqliteStore

    connection = sqlite3.connect(folder / "writes.db", isolation_level=None)
    store = SqliteStore(connection)
    store.configure(_CACHE_BYTES)
    execute = store.execute
    execute("CREATE TABLE body (seq INTEGER PRIMARY KEY, content BLOB NOT NULL)")
    content = b"x" * LARGE_ROW_BYTES
    rows_per_commit = COMMIT_BYTES // LARGE_ROW_BYTES
    in_log = 0

    def commit() -> None:
        nonlocal in_log
        execute("BEGIN IMMEDIATE")
        for _ in range(rows_per_commit):
            execute("INSERT INTO body (content) VALUES (?)", (content,))
        execute("COMMIT")
        in_log += rows_per_commit * LARGE_ROW_BYTES
        if in_log >= LONG_WAL_BYTES:
            store.checkpoint("RESTART")
            in_log = 0

    yield
    commits_per_s = _rate(commit, seconds)
    connection.close()
    return rows_per_commit * LARGE_ROW_BYTES * commits_per_s


def echo_server(listener: socket.socket) -> Generator[None, None, None]:
    """Accept one connection and echo the received bytes, for ``measure_round_trips``."""
    with listener:
        yield
        connection, _ = listener.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := connection.recv(_RECEIVE_BYTES):
            connection.sendall(data)


def measure_round_trips(address: Address, seconds: float) -> Generator[None, None, float]:
    """Send 256 bytes over loopback and wait for the echo; return the round trips per second."""
    message = b"x" * ECHO_BYTES
    with connect(address) as connection:

        def round_trip() -> None:
            connection.sendall(message)
            remaining = ECHO_BYTES
            while remaining:
                remaining -= len(connection.recv(_RECEIVE_BYTES)) or remaining

        yield
        return _rate(round_trip, seconds)
