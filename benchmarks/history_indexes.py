"""What the indexes of the history cost each message that settles.

Moves messages from the live table to the history as the writer does, in commits of 1,000, with
all indexes, without each of the new ones, and with those of the first schema::

    python benchmarks/history_indexes.py --messages 200000 --data .
"""

import argparse
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from phpmq_lite.resources import migrations_folder
from phpmq_lite.storage.migrate import migrate
from phpmq_lite.storage.statements import many

QUEUES: Final = 50
COMMIT: Final = 1_000
ROUNDS: Final = 3
VARIANTS: Final = {
    "all": (),
    "without history_queue": ("DROP INDEX history_queue",),
    "without history_unusual": ("DROP INDEX history_unusual",),
    "first schema": (
        "DROP INDEX history_queue",
        "DROP INDEX history_unusual",
        'CREATE INDEX history_deleted ON history ("offset") WHERE outcome = 5',
    ),
}


def prepare(path: Path, number: int, changes: tuple[str, ...]) -> sqlite3.Connection:
    """Make a database with messages alive in many queues."""
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 0"):
        connection.execute(f"PRAGMA {pragma}")
    migrate(connection, migrations_folder())
    for change in changes:
        connection.execute(change)
    connection.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
        "INSERT INTO message (seq, token, queue_id, position, state, published_at, size, crc) "
        "SELECT i, i * 7919, 1 + ((i * 2654435761) >> 11) % ?, i, 0, 0, 256, 0 FROM n",
        (number, QUEUES),
    )
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return connection


def settle(connection: sqlite3.Connection, number: int) -> float:
    """Settle all of them, one in twenty not as acked; return messages per second."""
    began_s = time.perf_counter()
    for first in range(1, number + 1, COMMIT):
        seqs = list(range(first, min(first + COMMIT, number + 1)))
        connection.execute("BEGIN IMMEDIATE")
        for outcome, reason, share in (
            (2, None, [seq for seq in seqs if seq % 20]),
            (4, "client", [seq for seq in seqs if not seq % 20]),
        ):
            many("live", "settle").run(connection.execute, share, (outcome, reason, 0))
            many("live", "remove").run(connection.execute, share)
        connection.execute("COMMIT")
        if first // COMMIT % 20 == 0:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    return number / (time.perf_counter() - began_s)


def main() -> None:
    """Measure each variant in turn, so that all see the same machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--data", type=Path, default=None)
    options = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in VARIANTS}
    sizes: dict[str, int] = {}
    for _ in range(ROUNDS):
        for name, changes in VARIANTS.items():
            with tempfile.TemporaryDirectory(dir=options.data) as folder:
                connection = prepare(Path(folder) / "h.db", options.messages, changes)
                rates[name].append(settle(connection, options.messages))
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                connection.close()
                sizes[name] = (Path(folder) / "h.db").stat().st_size
    for name, found in rates.items():
        rate = statistics.median(found)
        print(f"{name:28}{rate:>10,.0f}/s {1e6 / rate:6.2f} µs each {sizes[name] / 1e6:8.1f} MB")


if __name__ == "__main__":
    main()
