"""How far a replica is behind its database, in seconds, bytes and messages: upper bounds.

Litestream numbers its transactions; each is a file with the commits of about a second, whose header
has the time and the part of the WAL.  If N is the last transaction in the replica, every commit
before the time in transaction N - 1 is in the replica, because Litestream read the WAL for N later.
Seconds and messages count from that time, and bytes are those of the WAL that no transaction up to
N contains.
"""

import json
import socket
import sqlite3
import struct
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from phpmq_lite.errors import StartRefusedError, StorageError
from phpmq_lite.storage.data_folder import DATABASE, locking_pid, prevent_start, read_meta
from phpmq_lite.storage.sqlite import litestream
from phpmq_lite.storage.sqlite.database_file import open_read_only, wal_of
from phpmq_lite.storage.sqlite.integrity.startup import open_stopped
from phpmq_lite.storage.sqlite.integrity.wal_check import FRAME_HEADER_BYTES, HEADER_BYTES, scan_wal
from phpmq_lite.storage.statements import load

COUNT_LIMIT: Final = 1_000_000  # more live or settled messages are not counted
_HEADER: Final = struct.Struct(">4s4xI20xQ8xQQ8s")  # of an LTX file, up to the salts
_ANSWER_S: Final = 5.0
_COMMIT_MS: Final = 1_000  # at most, from the time of a message to its commit
_READ_MS: Final = 10_000  # at most, from reading the WAL for a transaction to its time


@dataclass(slots=True, frozen=True)
class StandbyState:
    """The state of a standby; the lag is an upper bound."""

    is_running: bool  # whether Litestream is running
    lag_s: float = 0.0
    lag_bytes: int = 0  # of the WAL
    lag_messages: int = 0
    backlog_bytes: int = 0  # size of the local files that wait for the target
    replicated: int | None = None  # last known transaction in the replica
    problem: str = ""  # why the replica does not get everything, or cannot be asked


class _Transaction(NamedTuple):
    page_bytes: int
    at_ms: int  # Unix ms
    wal_offset: int
    wal_bytes: int
    salts: bytes  # of the WAL


def read_standby(
    data: Path,
    replicated: int | None = None,
    *,
    asks_target: bool = False,
    may_continue: Callable[[], bool] = lambda: True,
) -> StandbyState:
    """Return the state of a standby; ``replicated`` is the last known transaction in the replica.

    Blocks for a few seconds if Litestream or the target does not answer.  With ``asks_target``, the
    target is listed, which also finds a target that was emptied.  If nothing is known about it,
    everything counts as missing.  Once ``may_continue`` returns False, the database is not opened.
    """
    running, newest, problem = litestream.is_running(data), 0, "Litestream is not running"
    if running:
        try:
            newest, copied = _ask_litestream(data)
            replicated, problem = (copied, "") if copied else (replicated, "the target fails")
        except (OSError, ValueError) as error:
            problem = f"Litestream does not answer: {error}"
    if asks_target:
        try:
            end = _last_in_target(data)
        except StartRefusedError as error:
            problem = f"{problem}; cannot list the target: {error}".removeprefix("; ")
        else:
            if running and not problem and end < (replicated or 0):
                problem = "the target lacks files that it had, so it cannot be restored completely"
            replicated = end
    state = StandbyState(running, replicated=replicated, problem=problem)
    is_complete = not problem and newest <= (replicated or 0)
    return state if is_complete or not may_continue() else _measure(data, state, newest > 0)


def _ask_litestream(data: Path) -> tuple[int, int]:
    """Return the last transaction here and in the replica (0: failed); raise without an answer."""
    body = json.dumps({"path": str(data.absolute() / DATABASE), "timeout": int(_ANSWER_S)})
    with closing(socket.socket(socket.AF_UNIX)) as sock:
        sock.settimeout(_ANSWER_S)
        sock.connect(str(data.absolute() / litestream.SOCKET))
        sock.sendall(f"POST /sync HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        head, _, answer = sock.makefile("rb").read().partition(b"\r\n\r\n")
    content, status = json.loads(answer), head.split(b" ")[1]
    if status != b"200":
        raise ValueError(content.get("error", status))
    return int(content["txid"]), int(content["replicated_txid"])


def _last_in_target(data: Path) -> int:
    """Return the last transaction up to which the target is complete, or 0."""
    options = ("-config", str(data / litestream.CONFIG), "-level", "all", "-json")
    text = litestream.run_litestream("ltx", *options, str(data.absolute() / DATABASE), data=data)
    end = 0
    ranges = ((int(file["min_txid"], 16), int(file["max_txid"], 16)) for file in json.loads(text))
    for first, last in sorted(ranges):
        end = max(end, last) if first <= end + 1 else end
    return end


def _measure(data: Path, state: StandbyState, has_read_wal: bool) -> StandbyState:
    files, replicated = litestream.local_files(data), state.replicated or 0
    waiting = [file for number, file in files if number > replicated]
    headers = [header for file in waiting if (header := _read_header(file)) is not None]
    pending = sum(header.wal_bytes for header in headers)
    unread: int | None = 0
    if not has_read_wal:
        unread = _unread_bytes(data, _read_header(files[-1][1]) if files else None)
    if replicated and not waiting and unread == 0:
        return state
    since_ms = _complete_until(files, replicated)
    try:
        with _open(data) as connection:
            messages = _count_published(connection, since_ms - _COMMIT_MS)
    except sqlite3.Error as error:
        raise StorageError(f"cannot count the messages that the replica lacks: {error}") from error
    return replace(
        state,
        lag_s=max(0.0, time.time() - (since_ms or read_meta(data).created_at) / 1_000),
        lag_bytes=pending + (unread or 0),
        lag_messages=messages,
        backlog_bytes=sum(map(_size, waiting)),
    )


def _complete_until(files: list[tuple[int, Path]], replicated: int) -> int:
    """Return a time before which all commits are in the replica, in Unix ms; 0 if unknown."""
    before = [file for number, file in files if number < replicated]
    if before and (header := _read_header(before[-1])) is not None:
        return header.at_ms
    if not replicated or not files or (header := _read_header(files[0][1])) is None:
        return 0
    return header.at_ms - _READ_MS


def _unread_bytes(data: Path, last: _Transaction | None) -> int | None:
    """Return the bytes of the WAL behind the last transaction; None if the WAL began again."""
    with suppress(FileNotFoundError), wal_of(data / DATABASE).open("rb") as file:
        scan = scan_wal(file)
        if last is not None and last.salts == scan.salts:
            end = HEADER_BYTES + scan.frames * (FRAME_HEADER_BYTES + last.page_bytes)
            return max(0, end - last.wal_offset - last.wal_bytes)
    return None


def _read_header(file: Path) -> _Transaction | None:
    with suppress(OSError, struct.error), file.open("rb") as opened:
        magic, *fields = _HEADER.unpack(opened.read(_HEADER.size))
        if magic == b"LTX1":
            return _Transaction(*fields)
    return None


def _size(file: Path) -> int:
    with suppress(FileNotFoundError):  # Litestream removes old files
        return file.stat().st_size
    return 0


def _count_published(connection: sqlite3.Connection, since_ms: int) -> int:
    execute, sql = connection.execute, load("standby", "sqlite")

    def find_first(name: str) -> int:  # both tables are in the order of time
        numbers = range(1 << 62)
        return bisect_left(numbers, since_ms, key=lambda n: execute(sql[name], (n,)).fetchone()[0])

    values = (find_first("live_at"), COUNT_LIMIT, find_first("settled_at"), since_ms, COUNT_LIMIT)
    return int(execute(sql["count_published"], values).fetchone()[0])


@contextmanager
def _open(data: Path) -> Iterator[sqlite3.Connection]:
    """Open the database for a brief read, whether it is in use or not."""
    if locking_pid(data) is None and not litestream.is_running(data):
        with prevent_start(data), open_stopped(data / DATABASE) as connection:
            yield connection
        return
    with closing(open_read_only(data / DATABASE)) as connection:
        yield connection
