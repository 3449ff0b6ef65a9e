"""Makes a data folder with many messages alive and settled, quickly, for what reads them.

The broker starts on it as on its own.  Two million messages take about a minute and 1.3 GB::

    python benchmarks/admin_database.py --live 1000000 --settled 1000000 --data /tmp/bench
"""

import argparse
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from phpmq_lite.installation import migrations_folder
from phpmq_lite.model import checksum
from phpmq_lite.storage.data_folder import DATABASE, DataFolder
from phpmq_lite.storage.read.messages import wire_id
from phpmq_lite.storage.sqlite.history_index import HistoryIndexer
from phpmq_lite.storage.sqlite.migrate import migrate

QUEUES: Final = 44  # without those below
SHELVES: Final = 6  # with dead-letter records
SHELF_EVERY: Final = 20  # every n-th live message is a dead-letter record
RARE_QUEUE: Final = "rare"
RARE_ROWS: Final = 10
SPACING_MS: Final = 150  # between two publishes: two million took three and a half days
SLICE: Final = 100_000  # messages a transaction

_SQL: Final = """
WITH RECURSIVE n(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i < :last),
  a AS (SELECT i, ((i * 2654435761) >> 11) & 1048575 AS h FROM n)
"""
# Half of all messages are in the first queue.
_QUEUE: Final = f"CASE WHEN h & 1 THEN 1 ELSE 1 + (h >> 3) % {QUEUES} END"
_COLUMNS: Final = """
  i * 7919 + h, {queue} AS queue_id, i, {ttl}, {ttl} * 1000 + :began_ms + i * :spacing,
  :began_ms + i * :spacing, {first}, {last}, {deliveries}, 0,
  length(content), crc(i, content), 1 + h % 40, {consumer},
  urn_of(h), printf('%08x-0000-4000-8000-%012x', i / 8 * 40503 % 65536, i / 8), printf('m-%d', i), 0
"""


@dataclass(slots=True, frozen=True)
class Made:
    """What is in the database, for the pages to open."""

    queue: str  # the one that has most
    rare_queue: str  # ten settled messages, none alive
    alive_id: str
    settled_id: str
    shelf: str = "queue-01.dlq"
    trace_id: str = ""


def make(data: Path, live: int, settled: int) -> Made:
    """Fill a data folder; one that has been filled so before is taken as it is."""
    known = data / "made.txt"
    wanted = f"{live} {settled}"
    if not (known.is_file() and known.read_text() == wanted):
        folder = DataFolder.open(data)
        try:
            with _writing(folder.database) as connection:
                _fill(connection, live, settled)
            folder.record(has_messages=True, is_running=False)
        finally:
            folder.close()
        known.write_text(wanted)
    return _made(data / DATABASE)


def _made(path: Path) -> Made:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    alive = connection.execute(
        "SELECT seq, token FROM message WHERE queue_id = 1 ORDER BY seq DESC LIMIT 1 OFFSET 1000"
    ).fetchone() or (0, 0)
    settled = connection.execute(
        'SELECT seq, token, trace_id FROM history ORDER BY "offset" DESC LIMIT 1 OFFSET 1000'
    ).fetchone() or (0, 0, "")
    connection.close()
    return Made("queue-01", RARE_QUEUE, wire_id(*alive), wire_id(*settled[:2]), trace_id=settled[2])


@contextmanager
def _writing(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -400000")
    migrate(connection, migrations_folder())
    connection.create_function("crc", 2, checksum, deterministic=True)
    connection.create_function("body_of", 2, _body, deterministic=True)
    connection.create_function("record_of", 2, _record, deterministic=True)
    connection.create_function("urn_of", 1, _urn, deterministic=True)
    try:
        yield connection
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()


def _urn(mark: int) -> str:
    kinds = ("orders:created", "orders:paid", "mail:sent", "stock:moved", "user:seen")
    return f"urn:babel:{kinds[mark % 5]}"


def _body(number: int, mark: int) -> bytes:
    trace = f"{number // 8 * 40503 % 65536:08x}-0000-4000-8000-{number // 8:012x}"
    return (
        f'{{"job":"{_urn(mark)}","trace_id":"{trace}",'
        f'"data":{{"order_id":{number},"customer":{mark % 5000},"total":{mark % 90_000 / 100},'
        f'"note":"ordered by {mark:x} for the {number % 97}th time"}},'
        f'"meta":{{"id":"m-{number}","queue":"queue","lang":"php","schema_version":1}},'
        '"attempts":0}'
    ).encode()


def _record(number: int, mark: int) -> bytes:
    causes = (
        f"Connection to 10.0.0.{mark % 200}:5432 timed out after {mark % 9000} ms",
        f"Undefined array key {mark % 500}",
        f"Order {number} is paid already",
        f"SMTP 550 for user{mark}@example.org",
        f"Deadlock found in transaction {mark:x}-{number:08x}-0000-0000-0000-000000000000",
        "Call to a member function getId() on null",
    )
    block = f',"dead_letter":{{"reason":"failed","error":"{causes[mark % 6]}","attempts":3}}}}'
    return _body(number, mark)[:-1] + block.encode()


def _fill(connection: sqlite3.Connection, live: int, settled: int) -> None:
    """Store alive and settled messages in turn, as a broker with a backlog has them."""
    last = live + settled
    began_ms = time.time_ns() // 1_000_000 - last * SPACING_MS - 60_000
    given = {"began_ms": began_ms, "spacing": SPACING_MS, "live": live, "settled": settled}
    connection.executemany(
        "INSERT INTO queue (queue_id, name, created_at) VALUES (?, ?, ?)",
        [(number, f"queue-{number:02}", began_ms) for number in range(1, QUEUES + 1)]
        + [
            (QUEUES + number, f"queue-{number:02}.dlq", began_ms)
            for number in range(1, SHELVES + 1)
        ]
        + [(QUEUES + SHELVES + 1, RARE_QUEUE, began_ms)],
    )
    connection.executemany(
        "INSERT INTO client (client, kind, address, opened_at) VALUES (?, 'tcp', ?, ?)",
        [(number, f"10.0.0.{number}:5{number:04}", began_ms) for number in range(1, 81)],
    )
    for first in range(1, last + 1, SLICE):
        connection.execute("BEGIN")
        _slice(connection, given | {"first": first, "last": min(first + SLICE - 1, last)})
        connection.execute("COMMIT")
    _finish(connection, last)


# A number is alive where the share of alive ones says so: spread evenly, whatever both are.
_IS_ALIVE: Final = "(i * :live) / (:live + :settled) > ((i - 1) * :live) / (:live + :settled)"


def _slice(connection: sqlite3.Connection, given: dict[str, int]) -> None:
    shelf = f"i % {SHELF_EVERY * 2} < 2"
    queue = f"CASE WHEN {shelf} THEN {QUEUES} + 1 + h % {SHELVES} ELSE {_QUEUE} END"
    is_held = "(h & 1023) = 7"
    columns = _COLUMNS.format(
        queue=queue, ttl="CASE WHEN h % 4 = 0 THEN 2592000 END",
        first=f"CASE WHEN {is_held} THEN :began_ms + i * :spacing + 40 END",
        last=f"CASE WHEN {is_held} THEN :began_ms + i * :spacing + 40 END",
        deliveries=f"CASE WHEN {is_held} THEN 1 ELSE 0 END",
        consumer=f"CASE WHEN {is_held} THEN 41 + h % 40 END",
    )  # fmt: skip
    connection.execute(
        f"{_SQL} INSERT INTO message (seq, state, source_seq, source_queue_id, source_reason, "
        "token, queue_id, position, ttl_s, deadline_ms, published_at, first_dispatched_at, "
        "last_dispatched_at, deliveries, charged, size, crc, publisher, consumer, urn, trace_id, "
        f"meta_id, attempts) SELECT i, CASE WHEN {is_held} THEN 1 ELSE 0 END, "
        f"CASE WHEN {shelf} THEN i - 1 END, CASE WHEN {shelf} THEN 1 + h % {SHELVES} END, "
        f"CASE WHEN {shelf} THEN CASE WHEN h % 3 THEN 'client' ELSE 'max_deliveries' END END, "
        f"{columns} FROM (SELECT i, h, CASE WHEN {shelf} THEN record_of(i, h) "
        f"ELSE body_of(i, h) END AS content FROM a WHERE {_IS_ALIVE})",
        given,
    )
    outcome = "CASE WHEN h % 100 < 85 THEN 2 WHEN h % 100 < 93 THEN 3 WHEN h % 100 < 97 THEN 4 "
    columns = _COLUMNS.format(
        queue=_QUEUE, ttl="CASE WHEN h % 4 = 0 THEN 3600 END",
        first=":began_ms + i * :spacing + 20", last=":began_ms + i * :spacing + 20",
        deliveries="1 + (h & 63 = 5) * 2", consumer="41 + h % 40",
    )  # fmt: skip
    connection.execute(
        f"{_SQL} INSERT INTO history (seq, outcome, reason, settled_at, "
        "token, queue_id, position, ttl_s, deadline_ms, published_at, first_dispatched_at, "
        "last_dispatched_at, deliveries, charged, size, crc, publisher, consumer, urn, trace_id, "
        f"meta_id, attempts) SELECT i, {outcome} ELSE 5 END, "
        "CASE WHEN h % 100 >= 97 THEN 'purge' WHEN h % 100 >= 93 THEN 'client' END, "
        f":began_ms + i * :spacing + 60 + (h & 255), {columns} "
        f"FROM (SELECT i, h, body_of(i, h) AS content FROM a WHERE NOT ({_IS_ALIVE}))",
        given,
    )
    connection.execute(
        f"{_SQL} INSERT INTO body SELECT i, CASE WHEN {_IS_ALIVE} AND {shelf} "
        "THEN record_of(i, h) ELSE body_of(i, h) END FROM a",
        given,
    )


def _finish(connection: sqlite3.Connection, last: int) -> None:
    """Add the rows of the rare queue, update counters and totals, and index the history."""
    connection.execute(
        'UPDATE history SET queue_id = ? WHERE "offset" IN (SELECT 1 + value * ('
        'SELECT max("offset") / 11 FROM history) FROM json_each(?))',
        (QUEUES + SHELVES + 1, str(list(range(RARE_ROWS)))),
    )
    connection.execute(
        "INSERT INTO event (seq, at_ms, kind, detail) SELECT seq, published_at + 30, 'return', "
        "'connection ended' FROM history WHERE deliveries > 1"
    )
    connection.execute(
        "UPDATE queue SET (live_count, live_bytes) = (SELECT count(*), coalesce(sum(size), 0) "
        "FROM message WHERE message.queue_id = queue.queue_id)"
    )
    connection.execute(
        "INSERT OR REPLACE INTO counter VALUES ('next_number', ?), ('next_client', 1000)",
        (last + 1,),
    )
    indexer = HistoryIndexer()
    while indexer.run(connection, 0, is_idle=True):
        pass


def main() -> None:
    """Create a data folder from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--live", type=int, default=1_000_000)
    parser.add_argument("--settled", type=int, default=1_000_000)
    parser.add_argument("--data", type=Path, default=Path("/tmp/phpmq-bench/data"))
    options = parser.parse_args()
    options.data.parent.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    print(make(options.data, options.live, options.settled))
    print(f"{time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main()
