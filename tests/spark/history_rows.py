"""Made-up rows of the history, the same ones for Spark and for SQLite."""

import os
import random
import sqlite3
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from phpmq_lite.storage import arrow
from phpmq_lite.storage.arrow import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_MS: Final = 86_400_000
START_MS: Final = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1000)

COLUMNS: Final = arrow_schema((*arrow.READER_COLUMNS, arrow.BODY))

HISTORY_ID: Final = "0123456789abcdef" * 2
Row = dict[str, Any]


def history_row(offset: int, **given: Any) -> Row:
    """Return a row that is published, dispatched and acked within a second by default."""
    published = given.get("published_at", START_MS + offset * 1000)
    row: Row = dict.fromkeys(COLUMNS.names)
    row |= {
        "offset": offset,
        "seq": offset,
        "message_id": f"{offset:032x}",
        "queue": "orders",
        "position": offset,
        "outcome": "acked",
        "published_at": published,
        "first_dispatched_at": published + 10,
        "last_dispatched_at": published + 10,
        "settled_at": published + 30,
        "deliveries": 1,
        "size": 100,
        "publisher": 1,
        "consumer": 2,
        "ready_at": published,
        "priority": 128,
        "retries": 0,
        "charged": 1,
        "history_id": HISTORY_ID,
        "broker": HISTORY_ID,
        "history_offset": offset,
        "body": f'{{"n":{offset}}}'.encode(),
    }
    return row | given


def history_rows(count: int, *, days: int = 4, seed: int = 5) -> list[Row]:
    """Return rows of all outcomes over ``days``, in the order in which they were settled.

    Some settle after midnight, some are retries of others, and in some the clock goes back.
    """
    dice = random.Random(seed)
    rows = [_one(seq, dice, days) for seq in range(1, count + 1)]
    rows += [again for row in rows for again in _retries(row, dice)]
    for seq, row in enumerate(sorted(rows, key=lambda row: int(row["published_at"])), 1):
        row["seq"] = row["position"] = seq
    rows.sort(key=lambda row: (row["settled_at"], row["seq"]))
    for offset, row in enumerate(rows, 1):
        row["offset"] = row["history_offset"] = offset
        row["message_id"] = f"{row['seq']:032x}"
    return rows


def _one(seq: int, dice: random.Random, days: int) -> Row:
    published = START_MS + dice.randrange(days * DAY_MS)
    outcome = dice.choices(["acked", "expired", "dead", "deleted"], [80, 8, 8, 4])[0]
    deliveries = dice.choices([0, 1, 2, 5], [10, 80, 8, 2])[0]
    if outcome == "acked":
        deliveries = max(1, deliveries)
    first = published + dice.choice([0, 3, 50, 4_000, 3_000_000, -20]) if deliveries else None
    last = None if first is None else first + (dice.randrange(90_000_000) if deliveries > 1 else 0)
    end = (last or published) + dice.choice([1, 12, 900, 61_000, 7_200_000])
    is_envelope = dice.random() < 0.7
    return history_row(
        seq,
        queue=dice.choice(["orders", "orders", "mail", "stock.é"]),
        outcome=outcome,
        reason=dice.choice(["client", "max_deliveries", "poison"]) if outcome == "dead" else None,
        published_at=published,
        first_dispatched_at=first,
        last_dispatched_at=last,
        settled_at=end,
        ready_at=_ready_at(published, first, last, dice),
        deliveries=deliveries,
        size=dice.randrange(5_000),
        urn=dice.choice(["urn:a", "urn:b"]) if is_envelope else None,
        trace_id=f"trace-{dice.randrange(seq // 3 + 1)}" if is_envelope else None,
        meta_id=f"meta-{seq}" if is_envelope else None,
        attempts=0 if is_envelope else None,
    )


def _ready_at(published: int, first: int | None, last: int | None, dice: random.Random) -> int:
    """Return when a message became ready, some of them after a delay, some after a retry."""
    if first is None or last is None or dice.random() < 0.7:
        return published
    return dice.randint(min(first, last), last) if last > first else (published + first) // 2


def _retries(row: Row, dice: random.Random) -> Iterable[Row]:
    """Return the retry that a worker publishes before it acknowledges the failed row."""
    if row["outcome"] != "acked" or row["meta_id"] is None or dice.random() > 0.2:
        return
    published = dice.randint(row["last_dispatched_at"], row["settled_at"])
    yield row | {
        "published_at": published,
        "ready_at": published,
        "first_dispatched_at": published + 1,
        "last_dispatched_at": published + 1,
        "settled_at": published + dice.choice([2, 5_000, 50_000_000]),
        "deliveries": 1,
        "attempts": 1,
    }


def to_sqlite(rows: Iterable[Row]) -> sqlite3.Connection:
    """Create a table ``history`` with the same columns; times are milliseconds."""
    database = sqlite3.connect(":memory:")
    database.row_factory = sqlite3.Row
    columns = ", ".join(f'"{name}"' for name in COLUMNS.names)
    database.execute(f"CREATE TABLE history ({columns})")
    places = ", ".join(f":{name}" for name in COLUMNS.names)
    database.executemany(f"INSERT INTO history VALUES ({places})", rows)
    database.execute("CREATE INDEX retries ON history (meta_id)")
    return database


def to_arrow(rows: Sequence[Row]) -> pa.Table:
    """Return the rows in the types of the history."""
    return pa.Table.from_pylist(rows, schema=COLUMNS)


def to_parquet(rows: Sequence[Row], file: Path) -> None:
    """Write a file that Spark reads as the history's columns, after the others in its folder.

    A stream follows files by their time, and systems may give two of them the same.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(to_arrow(rows), file)
    at_s = 1_700_000_000 + len(list(file.parent.iterdir()))
    os.utime(file, (at_s, at_s))


def stream(spark: "SparkSession", folder: Path) -> "DataFrame":
    """Return a stream of such files, with one file per batch and the columns of the archive's."""
    from phpmq_lite.spark.columns import FILE_SCHEMA

    reader = spark.readStream.schema(FILE_SCHEMA).option("maxFilesPerTrigger", "1")
    return reader.parquet(str(folder))
