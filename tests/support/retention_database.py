"""A database with settled messages, for running retention step by step."""

import sqlite3
import weakref
from itertools import count
from pathlib import Path
from typing import Any

from phpmq_lite.installation import migrations_folder
from phpmq_lite.storage import retention
from phpmq_lite.storage.retention import RetentionBounds, RetentionResult
from phpmq_lite.storage.sqlite.history_index import HistoryIndexer
from phpmq_lite.storage.sqlite.migrate import migrate
from phpmq_lite.storage.sqlite.store import SqliteStore

ACKED, DELETED = 2, 5
INDEXED = """\
SELECT m.queue_id, m.outcome, m."offset" FROM history_run AS run JOIN history AS m
  ON m."offset" BETWEEN first_offset AND first_offset + length - 1
    AND m.seq BETWEEN first_seq AND first_seq | 4095
    AND m.queue_id = run.queue_id AND m.outcome = run.outcome
    AND m."offset" >> 16 = block AND m.seq >> 16 = seq_block"""
NOW = 1_000_000
FOREVER = RetentionBounds(age_ms=NOW * 2)


def take(connection: sqlite3.Connection, *given: Any, **others: Any) -> RetentionResult:
    """Run a step of the retention like maintenance, which indexes settled messages first."""
    while HistoryIndexer().run(connection, 0, is_idle=True):
        pass
    return retention.remove_expired(SqliteStore(connection), *given, **others)


def step(connection: sqlite3.Connection, *given: Any, **others: Any) -> int:
    return take(connection, *given, **others).rows


class RetentionDatabase:
    """A migrated database, filled as the writer does it."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self.connection.close)  # CPython 3.13 warns about one left open
        self.execute = self.connection.execute
        self.execute("PRAGMA journal_mode=WAL").fetchall()
        migrate(self.connection, migrations_folder())
        self._seq = 0

    def publish(self, size: int = 10) -> int:
        self._seq += 1
        self.execute(
            "INSERT INTO message (seq, token, queue_id, position, state, published_at, size, crc)"
            " VALUES (?, 1, 1, ?, 0, 0, ?, 0)",
            (self._seq, self._seq, size),
        )
        self.execute("INSERT INTO body VALUES (?, zeroblob(?))", (self._seq, size))
        return self._seq

    def tell(self, seq: int, events: int = 1) -> None:
        self.execute(
            "INSERT INTO event (seq, at_ms, kind) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL"
            " SELECT i + 1 FROM n WHERE i < ?) SELECT ?, 0, 'requeue' FROM n",
            (events, seq),
        )

    def settle(self, *seqs: int, outcome: int = ACKED, at: int = NOW) -> None:
        for seq in seqs:
            self.execute(
                "INSERT INTO history (seq, token, queue_id, position, outcome, settled_at,"
                " published_at, deliveries, charged, size, crc)"
                " SELECT seq, token, queue_id, position, ?, ?, published_at, deliveries, charged,"
                " size, crc FROM message WHERE seq = ?",
                (outcome, at, seq),
            )
            self.execute("DELETE FROM message WHERE seq = ?", (seq,))

    def fill(self, number: int, *, size: int = 10, outcome: int = ACKED, at: int = NOW) -> None:
        self.execute("BEGIN")
        for _ in range(number):
            self.settle(self.publish(size), outcome=outcome, at=at)
        self.execute("COMMIT")

    def offsets(self) -> list[int]:
        return [row[0] for row in self.execute('SELECT "offset" FROM history ORDER BY "offset"')]

    def number(self, sql: str) -> int:
        value: int = self.execute(sql).fetchone()[0]
        return value

    def counters(self) -> dict[str, int]:
        return dict(self.execute("SELECT name, value FROM counter").fetchall())

    def keep(self, bounds: RetentionBounds, now: int = NOW) -> int:
        """Run steps until no work is left; return their number."""
        for steps in count():
            if take(self.connection, bounds, now) == (0, False):
                return steps
            self.check()
        raise AssertionError

    def check(self) -> None:
        """Compare the counters with the tables, and the bodies with their messages."""
        counters = self.counters()
        upto = (counters.get("placed_upto", 0),)
        for name, test in (("history", "<>"), ("deleted", "=")):
            found = self.execute(
                "SELECT count(*), coalesce(sum(size), 0) FROM history "
                f'WHERE outcome {test} 5 AND "offset" <= ?',
                upto,
            ).fetchone()
            assert (counters.get(f"{name}_rows", 0), counters.get(f"{name}_bytes", 0)) == found
        owners = "SELECT seq FROM message UNION ALL SELECT seq FROM history ORDER BY seq"
        newest = 'SELECT seq FROM history ORDER BY "offset" DESC LIMIT 1'  # may be without
        missing = {*self.execute(owners)} - {*self.execute("SELECT seq FROM body")}
        assert missing <= {*self.execute(newest)}
        assert {*self.execute("SELECT seq FROM body")} <= {*self.execute(owners)}
        placed = 'SELECT queue_id, outcome, "offset" FROM history WHERE "offset" <= ? ORDER BY 3'
        indexed = self.execute(f"{INDEXED} ORDER BY 3").fetchall()
        assert indexed == self.execute(placed, upto).fetchall()

    def place(self) -> None:
        """Index the rows that are not indexed yet."""
        HistoryIndexer().run(self.connection, 0, is_idle=True)
