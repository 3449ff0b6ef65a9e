"""Compare two versions with `phpmq-lite bench`, alternating, so that noise affects both.

::

    python benchmarks/paired.py BEFORE AFTER --rounds 12

BEFORE and AFTER are Python interpreters of two virtual environments, each with one version of the
package. Every round runs the same workloads with both, in alternating order, and yields one ratio
per figure. On a shared machine, rates and latencies vary by a factor of two within minutes; noise
affects CPU time per message least.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any


def measure(python: str, workloads: str, seconds: float, folder: str) -> dict[str, float]:
    """Run the benchmark once; return each figure by name."""
    command = [
        python, "-m", "phpmq_lite", "bench", "--workloads", workloads, "--seconds", str(seconds),
        "--data", ".", "-o", "json",
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    return dict(_figures(json.loads(done.stdout)))


def _figures(report: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for rate in report["rates"]:
        name = rate["workload"]
        yield f"{name}, messages/s", rate["per_second"]
        cpu_s = rate["load"]["broker"] * rate["seconds"]
        yield f"{name}, processor time of the broker per message", cpu_s / rate["messages"]
    for name in ("receive_ms", "receipt_ms") if report["latency"] else ():
        yield f"latency, {name} p50", report["latency"][name]["p50"]


def main() -> None:
    """Print the median ratio AFTER / BEFORE of every figure, with its quartiles."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--workloads", default="publish,flow,latency")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    ratios: dict[str, list[float]] = {}
    for number in range(options.rounds):
        pair = [options.before, options.after]
        found = {}
        with tempfile.TemporaryDirectory(dir=".") as folder:
            for python in pair if number % 2 == 0 else reversed(pair):
                found[python] = measure(python, options.workloads, options.seconds, folder)
        for name, value in found[options.after].items():
            if found[options.before].get(name):
                ratios.setdefault(name, []).append(value / found[options.before][name])
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    for name, values in ratios.items():
        low, middle, high = statistics.quantiles(values, n=4)
        print(f"{name}: {middle:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
