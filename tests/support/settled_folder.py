"""A data folder with many settled messages, and readers of their Arrow streams."""

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa

from phpmq_lite.model import checksum
from phpmq_lite.storage.data_folder import DATABASE, DataFolder
from phpmq_lite.storage.statements import load
from tests.support.both_engines import copy_rows
from tests.support.stored_rows import stored_rows
from tests.support.stores import ON_POSTGRES, conninfo_of, empty_database

HISTORY_ID = "0123456789abcdef" * 2
NOW_MS = 1_800_000_000_000  # settled_at of offset 0; each offset adds a second
STEP_MS = 5_000  # of the clock
QUEUES = ("orders", "mail", "orders.eu")
_FILL = """
WITH RECURSIVE n(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i < :last)
INSERT INTO history ("offset", seq, token, queue_id, position, outcome, reason, settled_at, ttl_s,
  deadline_ms, published_at, first_dispatched_at, last_dispatched_at, deliveries, charged, size,
  crc, publisher, consumer, urn, trace_id, meta_id, attempts)
SELECT i, i + 10, i * 7919, 1 + i % 3, i + 20, 2 + i % 4,
  CASE WHEN i % 4 THEN 'client' END, :now + i * 1000, CASE WHEN i % 2 THEN 60 END,
  CASE WHEN i % 2 THEN :now + i END, :now + i, CASE WHEN i % 5 THEN :now + i + 1 END,
  CASE WHEN i % 5 THEN :now + i + 2 END, i % 5, 0, :size, 0,
  CASE WHEN i % 7 THEN 1 END, CASE WHEN i % 5 THEN 2 END,
  CASE WHEN i > 5 AND i % 3 THEN 'urn:orders:' || (i % 4) END,
  CASE WHEN i > 5 AND i % 3 THEN printf('%08x-0000', i) END,
  CASE WHEN i > 5 AND i % 3 THEN 'm-' || i END, CASE WHEN i > 5 AND i % 3 THEN 0 END
FROM n
"""
_OPTIONS = """
UPDATE history SET
  charged = "offset" % 3,
  retries = "offset" % 6, group_name = 'g' || "offset", unique_key = 'k' || "offset",
  source_seq = CASE WHEN "offset" % 6 = 4 THEN "offset" END,
  source_queue_id = CASE WHEN "offset" % 6 = 4 THEN 2 END,
  source_reason = CASE WHEN "offset" % 6 = 4 THEN 'poison' END,
  ready_at = published_at + 5 * ("offset" % 6),
  due_ms = CASE WHEN "offset" % 6 = 5 THEN :now END,
  deliver_at = CASE WHEN "offset" % 6 = 4 THEN :now + 9 END,
  position = position + (CASE "offset" % 6 WHEN 2 THEN 127 WHEN 3 THEN -125 ELSE 0 END << 48)
WHERE "offset" % 6 > 0
"""
_BODIES = """
INSERT INTO body SELECT seq, CASE WHEN size THEN CAST(printf('%0*d', size, seq) AS BLOB)
  ELSE x'' END FROM history WHERE "offset" BETWEEN :first AND :last
"""


def settled_folder(data: Path, rows: int, *, size: int = 40) -> Path:
    """Create a data folder whose history has the offsets 1 to ``rows``; return the database."""
    folder = DataFolder.open(data)
    try:
        folder.database.write_bytes(empty_database())
        with closing(sqlite3.connect(folder.database, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            connection.execute("BEGIN")
            _fill(connection, rows, size)
            connection.execute("COMMIT")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        folder.record(has_messages=True, is_running=False)
    finally:
        folder.close()
    return data / DATABASE


def _fill(connection: sqlite3.Connection, rows: int, size: int) -> None:
    execute = connection.execute
    for queue_id, name in enumerate(QUEUES, 1):
        execute("INSERT INTO queue (queue_id, name, created_at) VALUES (?, ?, 0)", (queue_id, name))
    given = {"first": 1, "last": rows, "now": NOW_MS, "size": size}
    if rows:
        execute(_FILL, given)
        execute(_BODIES, given)
        execute(_OPTIONS, {"now": NOW_MS})
        index = load("history_index", "sqlite")  # all but a tail, as in a running broker
        for name in ("index_singly", "index_traces"):
            execute(index[name], {"count": rows - rows // 10})
    execute(
        "INSERT OR REPLACE INTO counter VALUES ('next_number', ?), ('placed_upto', ?),"
        " ('clock_step_ms', ?)",
        (rows + 11, rows - rows // 10, STEP_MS),
    )
    execute(
        "INSERT OR REPLACE INTO counter WITH placed AS (SELECT * FROM history"
        "  WHERE \"offset\" <= (SELECT value FROM counter WHERE name = 'placed_upto'))"
        " SELECT 'history_rows', count(*) FROM placed"
        " WHERE outcome <> 5 UNION ALL SELECT 'deleted_rows', count(*) FROM placed"
        " WHERE outcome = 5 UNION ALL SELECT 'history_bytes', coalesce(sum(size), 0) FROM placed"
        " WHERE outcome <> 5 UNION ALL SELECT 'deleted_bytes', coalesce(sum(size), 0) FROM placed"
        " WHERE outcome = 5"
    )
    connection.create_function("checksum", 2, checksum, deterministic=True)
    execute(
        "UPDATE history AS h SET crc = checksum(h.seq, content) FROM body WHERE body.seq = h.seq"
    )
    execute("INSERT OR REPLACE INTO meta VALUES ('history_id', ?)", (HISTORY_ID,))


def move_to_engine(data: Path) -> None:
    """Move the database of a stopped broker to PostgreSQL, if that is the engine under test."""
    if ON_POSTGRES and (data / DATABASE).exists():
        copy_rows(data / DATABASE, conninfo_of(data))
        (data / DATABASE).unlink()


def execute_in_process(database: Path, *statements: str) -> str:
    """Run statements in a separate process; return the rows of the last one.

    ADBC brings its own SQLite, and two copies in one process release each other's locks.
    """
    if ON_POSTGRES and not database.exists():
        texts = [re.sub("x'([0-9a-f]*)'", r"'\\x\1'::bytea", text) for text in statements]
        return str([stored_rows(database.parent, text) for text in texts][-1])
    program = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "for text in sys.argv[2:]: found = c.execute(text).fetchall()\n"
        "print(found)"
    )
    command = [sys.executable, "-c", program, str(database), *statements]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def remove_history_upto(database: Path, upto: int) -> None:
    """Remove the rows up to an offset from the history, as retention does."""
    execute_in_process(
        database,
        f"INSERT INTO counter VALUES ('history_lo', {upto + 1}), ('deleted_lo', {upto + 1})"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        f'DELETE FROM history WHERE "offset" <= {upto}',
    )


class ShortStreamError(Exception):
    """A complete stream has fewer or more rows than announced."""


async def read_counted(session: aiohttp.ClientSession, url: str) -> Any:
    """Return the rows of a range as a ``pyarrow.Table``, checked as a client must.

    Raises:
        ShortStreamError: the number of rows differs from the announced one.
        aiohttp.ClientError: the connection broke, or the response is an error.
    """
    async with session.get(url) as response:
        response.raise_for_status()
        announced = int(response.headers["X-Row-Count"])
        table = pa.ipc.open_stream(await response.read()).read_all()
    if table.num_rows != announced:
        raise ShortStreamError(f"{table.num_rows} rows came, {announced} were announced")
    return table


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text("ascii", "replace")
    except FileNotFoundError:
        return False
