"""What finding the history costs each message that settles.

Moves messages from the live table to the history as the writer does, in commits of 1,000: with the
first schema, with today's, with an index for the pages of a queue in place of the tables that are
filled behind, and with indexes of traces, of which each message has its own.  Then it fills those
tables in slices, as upkeep does, and last it removes everything, as retention does, with and
without places::

    python benchmarks/history_indexes.py --messages 200000 --queues 50 --data .
"""

import argparse
import sqlite3
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from phpmq_lite.installation import migrations_folder
from phpmq_lite.storage import retention
from phpmq_lite.storage.sqlite.history_index import HistoryIndexer
from phpmq_lite.storage.sqlite.migrate import migrate
from phpmq_lite.storage.sqlite.store import SqliteStore
from phpmq_lite.storage.statements import many

COMMIT: Final = 1_000
ROUNDS: Final = 3
CHECKPOINT: Final = 20_000  # messages
VARIANTS: Final = {
    "now": (),
    "first schema": (
        "DROP TABLE history_run",
        "DROP TABLE trace_place",
        "DROP INDEX message_moved",
        "DROP INDEX history_unusual",
        'CREATE INDEX history_deleted ON history ("offset") WHERE outcome = 5',
    ),
    "an index of queues": ('CREATE INDEX history_queue ON history (queue_id, outcome, "offset")',),
    "indexes of traces": (
        "CREATE INDEX message_trace ON message (trace_id)",
        "CREATE INDEX history_trace ON history (trace_id, seq)",
    ),
}


@dataclass
class Figures:
    """Microseconds a message of each round."""

    settling: list[float] = field(default_factory=list)
    placing: list[float] = field(default_factory=list)
    removing: list[float] = field(default_factory=list)
    slices_ms: list[float] = field(default_factory=list)


def prepare(path: Path, number: int, queues: int, changes: tuple[str, ...]) -> sqlite3.Connection:
    """Create a database with live messages in many queues."""
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 0"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("PRAGMA cache_size = -65536")
    migrate(connection, migrations_folder())
    for change in changes:
        connection.execute(change)
    connection.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
        "INSERT INTO message (seq, token, queue_id, position, state, published_at, size, crc, "
        "trace_id) SELECT i, i * 7919, 1 + ((i * 2654435761) >> 11) % ?, i, 0, 0, 256, 0, "
        "hex(randomblob(18)) FROM n",
        (number, queues),
    )
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return connection


def settle(connection: sqlite3.Connection, number: int) -> float:
    """Settle all of them, one in twenty not as acked; return the seconds it took."""
    began_s = time.perf_counter()
    for first in range(1, number + 1, COMMIT):
        seqs = list(range(first, min(first + COMMIT, number + 1)))
        connection.execute("BEGIN IMMEDIATE")
        for outcome, reason, share in (
            (2, None, [seq for seq in seqs if seq % 20]),
            (4, "client", [seq for seq in seqs if not seq % 20]),
        ):
            many("batch", "settle_messages").run(connection.execute, share, (outcome, reason, 0))
            many("batch", "delete_messages").run(connection.execute, share)
        connection.execute("COMMIT")
        if first // COMMIT % (CHECKPOINT // COMMIT) == 0:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    return time.perf_counter() - began_s


def place(connection: sqlite3.Connection, slices_ms: list[float]) -> float:
    """Place all of them in slices; return the seconds it took, and note each slice."""
    places, since, began_s = HistoryIndexer(), 0, time.perf_counter()
    while True:
        slice_s = time.perf_counter()
        rows = places.run(connection, 0, is_idle=True)
        if not rows:
            return time.perf_counter() - began_s
        slices_ms.append((time.perf_counter() - slice_s) * 1_000)
        since += rows
        if since >= CHECKPOINT:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            since = 0


def remove(connection: sqlite3.Connection, number: int) -> float:
    """Remove all but one row as retention does; return the seconds it took."""
    store = SqliteStore(connection)
    bounds = retention.RetentionBounds(rows=1, deleted_share=0, age_ms=1 << 60)
    since, began_s = 0, time.perf_counter()
    while removed := retention.remove_expired(store, bounds, 0).rows:
        since += removed
        if since >= CHECKPOINT:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            since = 0
    return time.perf_counter() - began_s


def measure(
    folder: Path, number: int, queues: int, variant: str, *, is_placed: bool, found: Figures
) -> int:
    """Measure one variant once; return the size of its file with all messages settled."""
    path = folder / "h.db"
    connection = prepare(path, number, queues, VARIANTS[variant])
    found.settling.append(settle(connection, number) / number * 1e6)
    if is_placed:
        found.placing.append(place(connection, found.slices_ms) / number * 1e6)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = path.stat().st_size
    if variant != "first schema":  # without the table, today's retention does not run
        found.removing.append(remove(connection, number) / number * 1e6)
    connection.close()
    return size


def main() -> None:
    """Measure each variant in turn, so that all see the same machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--queues", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--data", type=Path, default=None)
    options = parser.parse_args()
    runs = [(name, False) for name in VARIANTS] + [("now", True)]
    found = {run: Figures() for run in runs}
    sizes: dict[tuple[str, bool], int] = {}
    for _ in range(options.rounds):
        for name, is_placed in runs:
            with tempfile.TemporaryDirectory(dir=options.data) as folder:
                sizes[name, is_placed] = measure(
                    Path(folder), options.messages, options.queues, name,
                    is_placed=is_placed, found=found[name, is_placed],
                )  # fmt: skip
    report(found, sizes)


def report(found: dict[tuple[str, bool], Figures], sizes: dict[tuple[str, bool], int]) -> None:
    """Print the medians."""
    print(f"{'µs a message, median':28}{'settling':>10}{'placing':>10}{'removing':>10}{'MB':>8}")
    for (name, is_placed), figures in found.items():
        columns = (figures.settling, figures.placing, figures.removing)
        texts = (f"{statistics.median(values):10.2f}" if values else " " * 10 for values in columns)
        label = f"{name}, placed" if is_placed else name
        print(f"{label:28}{''.join(texts)}{sizes[name, is_placed] / 1e6:8.1f}")
    for figures in found.values():
        if figures.slices_ms:
            worst = max(figures.slices_ms)
            print(f"slices: {statistics.median(figures.slices_ms):.1f} ms, worst {worst:.1f} ms")


if __name__ == "__main__":
    main()
