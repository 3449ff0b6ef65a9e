"""How a transaction that is held open on the primary slows a broker on PostgreSQL.

``python -m benchmarks.held_snapshot --minutes 30`` starts three servers with two databases, and a
broker on each.  In one database a repeatable-read transaction is held open, or with ``--dump``
pg_dump runs: VACUUM can then remove nothing there, and every update leaves a version of its row.
Most of the time its broker works; in between, both are measured in turn.  ``--short`` takes two
minutes.  The result is the ratio of the last third of the rounds; it ends with 1 if it is below
0.6.
"""

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from phpmq_lite.bench import traffic
from phpmq_lite.bench.processes import BenchJob, run_together
from phpmq_lite.bench.workloads import elapsed_span
from phpmq_lite.broker_process import BrokerProcess
from tests.support.postgres_nodes import AS_POSTGRES, BIN, ReplicatedPostgres

LEAST: Final = 0.6
BYTES: Final = 256
WINDOW: Final = 100
MEASURED_S: Final = 10.0
HISTORY_ROWS: Final = 200_000  # so that retention removes rows all the time
DUMP_BYTES_S: Final = 1 << 20  # read from pg_dump per second, so that it runs for a while


def rate(broker: BrokerProcess, seconds: float) -> float:
    """Return messages per second that are published, confirmed, dispatched and acknowledged."""
    host, _, port = broker.phpmq[0].rpartition(":")
    target = ((host, int(port)), "bench", BYTES)
    timings = run_together(
        {
            "producer": BenchJob(traffic.publish, (*target, seconds, True)),
            "consumer": BenchJob(traffic.consume, (*target, WINDOW)),
        },
        10 * seconds + 60,
    )
    return float(timings["producer"].value) / elapsed_span(timings)


@contextmanager
def dumping(nodes: ReplicatedPostgres, database: str) -> Iterator[None]:
    """Run pg_dump again and again, and read its output slowly."""
    is_stopped = threading.Event()
    where = f"host={nodes.hosts[nodes.primary]} port={nodes.ports[nodes.primary]} user=postgres"

    def dump() -> None:
        while not is_stopped.is_set():
            with subprocess.Popen(
                [*AS_POSTGRES, BIN / "pg_dump", "-d", f"{where} dbname={database}"],
                stdout=subprocess.PIPE,
            ) as process:
                assert process.stdout is not None
                while process.stdout.read(DUMP_BYTES_S // 10) and not is_stopped.wait(0.1):
                    pass
                process.kill()

    thread = threading.Thread(target=dump)
    thread.start()
    try:
        yield
    finally:
        is_stopped.set()
        thread.join()


def show_logs(brokers: list[BrokerProcess], *error: object) -> None:
    """Print what the brokers have logged, after an error."""
    for broker in brokers if error[0] else ():
        print(broker.log.read_text(encoding="utf-8")[-3_000:], file=sys.stderr)


def main() -> int:
    """Run the rounds, and print the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--short", action="store_true", help="two minutes")
    parser.add_argument("--dump", action="store_true", help="with pg_dump")
    given = parser.parse_args()
    minutes = 2.0 if given.short else given.minutes
    work_s = min(40.0, minutes * 60 / 6)  # of the broker with the snapshot, between two rounds
    ratios: list[float] = []
    with ExitStack() as stack:
        nodes = stack.enter_context(ReplicatedPostgres(settings={"max_wal_size": "2GB"}))
        folder = Path(stack.enter_context(TemporaryDirectory()))
        brokers = []
        for name in ("normal", "held"):
            nodes.create_database(name)
            url = nodes.url().replace("/phpmq?", f"/{name}?")
            flags = ["--store", url, "--set", f"history.rows={HISTORY_ROWS}"]
            brokers.append(stack.enter_context(BrokerProcess(folder / name, flags)))
        normal, held = brokers
        for broker in brokers:
            rate(broker, 2.0)
        if given.dump:
            stack.enter_context(dumping(nodes, "held"))
        else:
            connection = stack.enter_context(nodes.connect(dbname="held", autocommit=False))
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SELECT count(*) FROM message")
        began = time.monotonic()
        print(f"{'minute':>6} {'normal':>8} {'held':>8} {'ratio':>6}  load", flush=True)
        stack.push(partial(show_logs, brokers))
        while time.monotonic() < began + minutes * 60:
            worked = rate(held, work_s)
            before, one = rate(normal, MEASURED_S / 2), rate(held, MEASURED_S)
            usual = (before + rate(normal, MEASURED_S / 2)) / 2
            ratios.append(one / usual)
            print(
                f"{(time.monotonic() - began) / 60:6.1f} {usual:8,.0f} {one:8,.0f} "
                f"{ratios[-1]:6.2f}  {os.getloadavg()[0]:.1f} ({worked:,.0f}/s in between)",
                flush=True,
            )
    ratio = statistics.median(ratios[-max(1, len(ratios) // 3) :])
    print(f"ratio at the end: {ratio:.2f}, at least {LEAST} is required")
    return int(ratio < LEAST)


if __name__ == "__main__":
    sys.exit(main())
