"""A database with settled messages, for running retention step by step."""

from itertools import count
from pathlib import Path
from typing import Any

from phpmq_lite.storage import retention
from phpmq_lite.storage.retention import RetentionBounds, RetentionResult
from phpmq_lite.storage.sqlite.history_index import HistoryIndexer
from tests.support.stores import ON_POSTGRES, new_database

ACKED, DELETED = 2, 5
INDEXED = """\
SELECT m.queue_id, m.outcome, m."offset" FROM history_run AS run CROSS JOIN history AS m
  ON m."offset" BETWEEN first_offset AND first_offset + length - 1
    AND m.seq BETWEEN first_seq AND first_seq | 4095
    AND +m.queue_id = run.queue_id AND +m.outcome = run.outcome
    AND m."offset" >> 16 = block AND m.seq >> 16 = seq_block"""
NOW = 1_000_000
FOREVER = RetentionBounds(age_ms=NOW * 2)


def take(database: "RetentionDatabase", *given: Any, **others: Any) -> RetentionResult:
    """Run a step of the retention like maintenance, which counts settled messages first.

    Without a ``timer``, time stands still: on a busy machine, steps would end early.
    """
    database.count_settled()
    others.setdefault("timer", lambda: 0.0)
    return retention.remove_expired(database.store, *given, **others)


def step(database: "RetentionDatabase", *given: Any, **others: Any) -> int:
    return take(database, *given, **others).rows


class RetentionDatabase:
    def __init__(self, path: Path) -> None:
        self._database = new_database(path)
        self.store = self._database.open_store()
        self.connection: Any = self.store.connection
        self.execute: Any = self.store.execute
        self._seq = 0

    def close(self) -> None:
        self.connection.close()
        self._database.close()

    def count_settled(self) -> None:
        """Add settled messages to the totals and, in SQLite, to the index."""
        if ON_POSTGRES:
            from phpmq_lite.storage.postgres.backend import count_settled

            while count_settled(self.store):
                pass
        else:
            while HistoryIndexer().run(self.connection, 0, is_idle=True):
                pass

    def publish(self, size: int = 10) -> int:
        self._seq += 1
        self.execute(
            "INSERT INTO message (seq, token, queue_id, position, state, published_at, size, crc)"
            " VALUES (?, 1, 1, ?, 0, 0, ?, 0)",
            (self._seq, self._seq, size),
        )
        self.execute("INSERT INTO body VALUES (?, ?)", (self._seq, bytes(size)))
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
                'INSERT INTO history ("offset", seq, token, queue_id, position, outcome,'
                " settled_at, published_at, deliveries, charged, size, crc)"
                ' SELECT (SELECT coalesce(max("offset"), 0) + 1 FROM history),'
                " seq, token, queue_id, position, ?, ?, published_at, deliveries, charged,"
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
            if take(self, bounds, now) == (0, False):
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
        if ON_POSTGRES:
            return
        placed = 'SELECT queue_id, outcome, "offset" FROM history WHERE "offset" <= ? ORDER BY 3'
        indexed = self.execute(f"{INDEXED} ORDER BY 3").fetchall()
        assert indexed == self.execute(placed, upto).fetchall()
