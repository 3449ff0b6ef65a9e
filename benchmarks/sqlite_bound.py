"""Compare the flow with SQLite alone, which writes the same rows in batches of the same size.

::

    python benchmarks/sqlite_bound.py --rounds 7 --data .    # needs gcc and SQLite's headers
    python benchmarks/sqlite_bound.py --rounds 1 --seconds 1

Each round measures one confirmed producer and one consumer through a broker, then runs
``sqlite_flow.c`` with as many messages per commit as the broker had. The schema of that program
does not change with the broker's, so the ratio also shows what a new schema saves.
"""

import argparse
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from phpmq_lite.bench.workloads import FLOW, BenchObserver, BenchPlan, BenchRunner, temporary_folder
from phpmq_lite.broker_process import isolated_broker

SOURCE: Final = Path(__file__).with_name("sqlite_flow.c")
COMMITS: Final = "phpmq_commit_seconds_count"


def build(folder: Path) -> Path:
    """Compile the C program; return its path."""
    program = folder / "sqlite_flow"
    subprocess.run(["gcc", "-O2", "-o", str(program), str(SOURCE), "-lsqlite3"], check=True)
    return program


def count_commits(admin: str) -> float:
    """Return how many transactions a broker has committed; ``admin`` is its URL."""
    with urlopen(f"{admin}metrics", timeout=30) as reply:
        lines = reply.read().decode().splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith(COMMITS)))


def measure_flow(plan: BenchPlan, folder: Path) -> tuple[float, float]:
    """Return the messages per second of the flow, and its messages per commit."""
    with isolated_broker(folder / "data", "--admin", "127.0.0.1:0") as broker:
        before = count_commits(broker.admin[0])
        flow = BenchRunner(plan, BenchObserver()).measure_rate(broker.address, broker.pid, FLOW)
        commits = count_commits(broker.admin[0]) - before
    return flow.per_second, flow.messages / commits


def measure_sqlite(program: Path, folder: Path, batch: int, plan: BenchPlan) -> float:
    """Return the messages per second of SQLite alone."""
    arguments = [folder / "flow.db", batch, plan.size, plan.seconds]
    done = subprocess.run(
        [str(program), *map(str, arguments)], check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def main() -> None:
    """Print each round, then the median ratio with its quartiles."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--size", type=int, default=256, help="bytes of a body")
    parser.add_argument("--data", type=Path, default=Path(), help="a folder on the disk to measure")
    options = parser.parse_args()
    plan = BenchPlan(seconds=options.seconds, size=options.size, folder=options.data)
    ratios = []
    with temporary_folder(options.data) as folder:
        program = build(folder)
        for number in range(1, options.rounds + 1):
            with temporary_folder(options.data) as data:
                rate, batch = measure_flow(plan, data)
                alone = measure_sqlite(program, data, max(1, round(batch)), plan)
            ratios.append(rate / alone)
            print(
                f"round {number}: flow {rate:,.0f}/s, {batch:,.0f} messages per commit;"
                f" SQLite alone {alone:,.0f}/s; ratio {ratios[-1]:.3f}",
                file=sys.stderr,
            )
    if len(ratios) == 1:
        print(f"flow, relative to SQLite alone: {ratios[0]:.3f}")
        return
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"flow, relative to SQLite alone: {middle:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
