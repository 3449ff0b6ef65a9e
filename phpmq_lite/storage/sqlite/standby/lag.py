"""How far a replica is behind its database, in seconds, bytes and messages.

All three are upper bounds.  Litestream numbers its transactions; each is a file with the commits of
about a second, whose header has the time and the part of the WAL.  If N is the last transaction in
the replica, every commit before the time in transaction N - 1 is in the replica, because Litestream
read the WAL for N after that.

- seconds: since that time, unless all is replicated
- bytes: of the WAL, in the transactions after N and behind the last one
- messages: published since that time
"""

import http.client
import json
import socket
import sqlite3
import struct
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from phpmq_lite.errors import StartRefusedError
from phpmq_lite.storage.data_folder import DATABASE, locking_pid, prevent_start
from phpmq_lite.storage.sqlite.integrity.stopped_database import open_stopped
from phpmq_lite.storage.sqlite.integrity.wal_check import scan_wal
from phpmq_lite.storage.sqlite.integrity.wal_format import (
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    read_header,
)
from phpmq_lite.storage.sqlite.standby.litestream import (
    CONFIG,
    SOCKET,
    environment_of,
    find_litestream,
    is_running,
    local_files,
    run_litestream,
)
from phpmq_lite.storage.statements import load

COUNT_LIMIT: Final = 1_000_000  # more messages are not counted
_HEADER: Final = struct.Struct(">4s12xQQQ8xQQ8s")  # of an LTX file, up to the salts
_ANSWER_S: Final = 5.0  # maximum wait for an answer of Litestream
_MARGIN_MS: Final = 1_000  # from the time of a message to its commit
_FIRST_MS: Final = 60_000  # assumed distance to a transaction that is no longer stored here


@dataclass(slots=True, frozen=True)
class StandbyState:
    """The state of a standby; the lag is an upper bound."""

    is_running: bool  # whether Litestream is running
    lag_s: float = 0.0
    lag_bytes: int = 0  # of the WAL
    lag_messages: int = 0  # at most ``COUNT_LIMIT`` live and as many settled ones
    backlog_bytes: int = 0  # size of the local files that wait for the target
    replicated: int | None = None  # the last known transaction in the replica
    problem: str = ""  # why the replica does not get everything, or cannot be asked


class _Transaction(NamedTuple):
    number: int
    at_ms: int  # Unix ms
    wal_end: int  # offset in the WAL
    wal_bytes: int
    salts: bytes  # of the WAL


def read_standby(
    data: Path, replicated: int | None = None, *, asks_target: bool = False
) -> StandbyState:
    """Return the state of a standby; ``replicated`` is the last known transaction in the replica.

    Blocks for a few seconds if Litestream does not answer.  With ``asks_target``, the files in the
    target are listed, which also finds a target that was emptied.  Otherwise, the last transaction
    that Litestream has written counts, or everything that is stored here if none is known.
    """
    running, problem = is_running(data), "Litestream is not running"
    newest = 0
    if running:
        try:
            newest, found = _ask_litestream(data)
            replicated, problem = (found, "") if found else (replicated, "the target fails")
        except (OSError, ValueError, http.client.HTTPException) as error:
            problem = f"Litestream does not answer: {error}"
    if asks_target:
        try:
            end = _last_in_target(data)
        except StartRefusedError as error:
            problem = problem or f"the target cannot be read: {error}"
        else:
            if running and not problem and end < (replicated or 0):
                problem = "the target lacks files that it had, so it cannot be restored completely"
            replicated = end
    state = StandbyState(running, replicated=replicated, problem=problem)
    if not problem and newest <= (replicated or 0):
        return state
    return _measure(data, state)


def _ask_litestream(data: Path) -> tuple[int, int]:
    """Return the last transaction here and in the replica; 0 if the target has failed."""
    variables = list(environment_of(data).values())
    connection = http.client.HTTPConnection("litestream", timeout=_ANSWER_S)
    with closing(socket.socket(socket.AF_UNIX)) as sock:
        sock.settimeout(_ANSWER_S)
        sock.connect(str(data.absolute() / SOCKET))
        connection.sock = sock
        body = json.dumps({"path": variables[0], "timeout": int(_ANSWER_S)})
        connection.request("POST", "/sync", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = json.loads(answer.read())
    if answer.status != 200:
        raise ValueError(content.get("error", answer.status))
    return int(content["txid"]), int(content["replicated_txid"])


def _last_in_target(data: Path) -> int:
    """Return the last transaction up to which the target is complete, or 0.

    Raises:
        StartRefusedError: Litestream is missing, or cannot read the target.
    """
    found = find_litestream()
    if found is None:
        raise StartRefusedError("litestream is not on the PATH")
    variables = environment_of(data)
    text = run_litestream(
        found.path, "ltx", "-config", str(data / CONFIG), "-level", "all", "-json",
        *list(variables.values())[:1], environment=variables,
    )  # fmt: skip
    end = 0
    ranges = ((int(one["min_txid"], 16), int(one["max_txid"], 16)) for one in json.loads(text))
    for first, last in sorted(ranges):
        if first <= end + 1:
            end = max(end, last)
    return end


def _measure(data: Path, state: StandbyState) -> StandbyState:
    files = local_files(data)
    known = state.replicated or 0
    waiting = [(number, file) for number, file in files if number > known]
    headers = [header for _, file in waiting if (header := _read_header(file)) is not None]
    pending = sum(header.wal_bytes for header in headers)
    if not state.is_running:
        pending += _unread_bytes(data, _read_header(files[-1][1]) if files else None)
    if not waiting and not pending:
        return state
    since_ms = _complete_until(files, known)
    now_ms = time.time_ns() // 1_000_000
    messages = 0
    with suppress(sqlite3.Error, OSError, StartRefusedError), _open(data) as connection:
        messages = count_published(connection, since_ms - _MARGIN_MS)
    return replace(
        state,
        lag_s=max(0, now_ms - since_ms) / 1_000,
        lag_bytes=pending,
        lag_messages=messages,
        backlog_bytes=sum(_size(file) for _, file in waiting),
    )


def _complete_until(files: list[tuple[int, Path]], known: int) -> int:
    """Return a time before which all commits are in the replica, in Unix ms; 0 if unknown."""
    before = [file for number, file in files if number < known]
    if before and (header := _read_header(before[-1])) is not None:
        return header.at_ms
    if not known or not files or (header := _read_header(files[0][1])) is None:
        return 0
    return header.at_ms - _FIRST_MS


def _unread_bytes(data: Path, last: _Transaction | None) -> int:
    """Return how many bytes the WAL has behind the last transaction."""
    try:
        with (data / f"{DATABASE}-wal").open("rb") as file:
            raw = file.read(HEADER_BYTES)
            if len(raw) < HEADER_BYTES:
                return 0
            header, found = read_header(raw), scan_wal(file)
    except FileNotFoundError:
        return 0
    end = HEADER_BYTES + found.frames * (FRAME_HEADER_BYTES + header.page_size)
    if last is None or last.salts != header.salts:
        return end
    return max(0, end - last.wal_end)


def _read_header(file: Path) -> _Transaction | None:
    with suppress(OSError, struct.error):
        with file.open("rb") as opened:
            raw = opened.read(_HEADER.size)
        magic, _, number, at_ms, offset, size, salts = _HEADER.unpack(raw)
        if magic == b"LTX1":
            return _Transaction(number, at_ms, offset + size, size, salts)
    return None


def _size(file: Path) -> int:
    with suppress(FileNotFoundError):
        return file.stat().st_size
    return 0


@contextmanager
def _open(data: Path) -> Iterator[sqlite3.Connection]:
    """Open the database for a brief read, whether it is in use or not."""
    database = data / DATABASE
    if locking_pid(data) is None and not is_running(data):
        with prevent_start(data), open_stopped(database) as connection:
            yield connection
        return
    uri = f"{database.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        yield connection


def count_published(connection: sqlite3.Connection, since_ms: int) -> int:
    """Return how many messages were published since a time, in Unix ms.

    The first live and the first settled ones are searched by bisection, because both tables are in
    the order of time: 0.5 ms, and 0.1 ms per thousand messages.
    """
    sql, limit = load("standby"), COUNT_LIMIT
    seq = _first_since(connection, sql["message_from"], since_ms)
    offset = _first_since(connection, sql["settled_from"], since_ms)
    found = connection.execute(sql["count_published"], (seq, limit, offset, since_ms, limit))
    return int(found.fetchone()[0])


def _first_since(connection: sqlite3.Connection, sql: Any, since_ms: int) -> int:
    low, high = 0, 1 << 62
    while low < high:
        middle = (low + high) // 2
        row = connection.execute(sql, (middle,)).fetchone()
        if row is None or row[1] >= since_ms:
            high = middle
        else:
            low = row[0] + 1
    return low
