"""Compare a broker on PostgreSQL with SQLite, and with psycopg alone doing the same rows.

::

    python -m benchmarks.postgres_bound --sqlite BEFORE=PYTHON --sqlite NOW=PYTHON --rounds 7
    python -m benchmarks.postgres_bound --rounds 1 --seconds 1

Three PostgreSQL servers run on this machine; a commit waits until one of the standbys has flushed
it.  Each round measures confirmed publishing, one producer and one consumer, and one message in
flight through a broker there; then plain psycopg writes the same rows with as many messages in a
transaction as the broker had; then ``phpmq-lite bench`` of each PYTHON measures its SQLite.  The
order alternates.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.sqlite_bound import count_commits
from phpmq_lite.bench.workloads import (
    FLOW,
    LATENCY,
    PUBLISH,
    BenchObserver,
    BenchPlan,
    BenchRunner,
    temporary_folder,
)
from phpmq_lite.broker_process import isolated_broker
from phpmq_lite.model import checksum
from tests.support.postgres_nodes import ReplicatedPostgres

# One transaction, in a pipeline: its parameters are in ``rows``.
STORE: Final = (
    "UPDATE epoch SET batch = batch + 1, seen_at = clock_timestamp() WHERE shard = 0",
    """INSERT INTO message (seq, token, queue_id, position, state, published_at,
         first_dispatched_at, last_dispatched_at, deliveries, charged, size, crc, publisher)
       SELECT seq, seq, 1, seq, 0, %(now)b, NULL, NULL, 0, 0, %(size)b, crc, 1
       FROM unnest(%(seqs)b::bigint[], %(crcs)b::bigint[]) AS given (seq, crc)""",
    """INSERT INTO body (seq, content)
       SELECT * FROM unnest(%(seqs)b::bigint[], %(bodies)b::bytea[])""",
    "INSERT INTO receipt VALUES (%(last)b, 1, %(first)b, %(now)b, 16, %(keys)b)",
    """UPDATE queue SET live_count = %(live)b, live_bytes = %(live)b::bigint * %(size)b
       WHERE queue_id = 1""",
)
# The messages of the transaction before: all but those that fill the window are acknowledged.
FINISH: Final = (
    """UPDATE message SET state = 1, deliveries = 1, consumer = 2, first_dispatched_at = %(now)b,
         last_dispatched_at = %(now)b
       WHERE seq BETWEEN %(held)b AND %(first)b - 1""",
    """INSERT INTO history ("offset", seq, token, queue_id, position, outcome, settled_at,
         published_at, first_dispatched_at, last_dispatched_at, deliveries, charged, size, crc,
         publisher, consumer)
       SELECT seq, seq, token, queue_id, position, 2, %(now)b, published_at, %(now)b, %(now)b,
         1, charged, size, crc, publisher, 2
       FROM message WHERE seq BETWEEN %(settled)b AND %(held)b - 1""",
    "DELETE FROM message WHERE seq BETWEEN %(settled)b AND %(held)b - 1",
)
RATES: Final = (PUBLISH, FLOW)


def measure_broker(url: str, plan: BenchPlan, folder: Path) -> dict[str, tuple[float, float]]:
    """Return messages/s and messages per commit of each rate; milliseconds of one in flight."""
    runner = BenchRunner(plan, BenchObserver())
    found: dict[str, tuple[float, float]] = {}
    flags = ("--admin", "127.0.0.1:0", "--store", url)
    with isolated_broker(folder / "data", *flags) as broker:
        # The first one also waits until the broker is active.
        found[LATENCY] = runner.measure_latency(broker.address).receive.p50, 1.0
        for workload in RATES:
            before = count_commits(broker.admin[0])
            rate = runner.measure_rate(broker.address, broker.pid, workload)
            commits = count_commits(broker.admin[0]) - before
            found[workload] = rate.per_second, rate.messages / commits
    return found


def measure_psycopg(
    nodes: ReplicatedPostgres, name: str, batch: int, workload: str, plan: BenchPlan
) -> float:
    """Return the messages per second of psycopg alone, in the tables of a broker."""
    statements = STORE + FINISH if workload == FLOW else STORE
    body, first, settled = b"x" * plan.size, 1, 1
    with nodes.connect(dbname=name) as connection:
        connection.prepare_threshold = 0
        connection.execute("TRUNCATE message, body, receipt, history")
        connection.execute("DELETE FROM queue")
        connection.execute("INSERT INTO queue (queue_id, name, created_at) VALUES (1, 'q', 0)")
        began = time.monotonic()
        while time.monotonic() < began + plan.seconds:
            seqs = [*range(first, first + batch)]
            rows: dict[str, Any] = {
                "now": time.time_ns() // 1_000_000, "size": plan.size, "live": batch,
                "first": first, "last": seqs[-1], "settled": settled,
                "held": max(settled, first - plan.window), "seqs": seqs,
                "crcs": [checksum(seq, body) for seq in seqs], "bodies": [body] * batch,
                "keys": b"".join(b"%016x" % seq for seq in seqs),
            }  # fmt: skip
            with connection.pipeline(), connection.transaction():
                for statement in statements:
                    connection.execute(statement, rows)
            settled, first = rows["held"], first + batch
        return (first - 1) / (time.monotonic() - began)


def measure_sqlite(python: str, plan: BenchPlan, folder: Path) -> dict[str, float]:
    """Return the same figures of ``phpmq-lite bench``, which runs on SQLite."""
    workloads = ",".join((*RATES, LATENCY))
    command = [
        python, "-m", "phpmq_lite", "bench", "--workloads", workloads, "--seconds",
        str(plan.seconds), "--size", str(plan.size), "--data", ".", "-o", "json",
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    report: dict[str, Any] = json.loads(done.stdout)
    found = {rate["workload"]: float(rate["per_second"]) for rate in report["rates"]}
    return found | {LATENCY: float(report["latency"]["receive_ms"]["p50"])}


def main() -> None:
    """Print each round, then the medians with their quartiles."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--size", type=int, default=256, help="bytes of a body")
    parser.add_argument("--data", type=Path, default=Path(), help="a folder on the disk to measure")
    parser.add_argument("--sqlite", metavar="NAME=PYTHON", action="append", default=[])
    options = parser.parse_args()
    others = dict(each.split("=", 1) for each in options.sqlite)
    plan = BenchPlan(seconds=options.seconds, size=options.size, folder=options.data)
    figures: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        figures.setdefault(name, []).append(value)

    with ReplicatedPostgres(settings={"max_wal_size": "2GB"}) as nodes:
        for number in range(1, options.rounds + 1):
            with temporary_folder(options.data) as folder:
                name = f"round_{number}"
                nodes.create_database(name)
                sqlite: dict[str, dict[str, float]] = {}
                if number % 2 == 0:
                    sqlite = {
                        who: measure_sqlite(what, plan, folder) for who, what in others.items()
                    }
                broker = measure_broker(nodes.url().replace("/phpmq?", f"/{name}?"), plan, folder)
                for workload in RATES:
                    rate, batch = broker[workload]
                    alone = measure_psycopg(nodes, name, max(1, round(batch)), workload, plan)
                    note(f"{workload}, messages/s", rate)
                    note(f"{workload}, messages per commit", batch)
                    note(f"{workload}, relative to psycopg alone", rate / alone)
                note("one in flight, p50 in ms", broker[LATENCY][0])
                if number % 2:
                    sqlite = {
                        who: measure_sqlite(what, plan, folder) for who, what in others.items()
                    }
                for who, found in sqlite.items():
                    for workload in RATES:
                        ratio = broker[workload][0] / found[workload]
                        note(f"{workload}, relative to SQLite, {who}", ratio)
                    note(f"one in flight of SQLite, {who}, p50 in ms", found[LATENCY])
            nodes.query(f"DROP DATABASE {name} WITH (FORCE)")
            last = "; ".join(f"{key} {values[-1]:,.2f}" for key, values in figures.items())
            print(f"round {number}: {last}", file=sys.stderr, flush=True)
    for key, values in figures.items():
        low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
        print(f"{key}: {middle:,.2f} ({low:,.2f} to {high:,.2f})")


if __name__ == "__main__":
    main()
