"""Measure the cost of content inspection: confirmed publishing under each payload policy.

Each run has its own broker and publishes small envelopes; every second round runs in reverse order.
Ratios are of pairs in the same round; the medians are printed last::

    python benchmarks/payload_policies.py --rounds 9 --data .
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

from phpmq_lite.bench.processes import unwind_on_signals
from phpmq_lite.bench.traffic import ENVELOPE, PLAIN
from phpmq_lite.bench.workloads import PUBLISH, BenchObserver, BenchPlan, measure
from phpmq_lite.broker_process import isolated_broker

OPAQUE: Final = ("opaque", ENVELOPE)  # the baseline
RUNS: Final = (OPAQUE, ("opaque", PLAIN), ("observe", ENVELOPE), ("envelope", ENVELOPE))

Run = tuple[str, str]  # policy, content


def rate(run: Run, seconds: float, parent: Path) -> float:
    """Publish to a new broker; return stored messages per second."""
    policy, content = run
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        data = Path(folder) / "data"
        with isolated_broker(data, "--set", f"queues.payload_policy={policy}") as broker:
            plan = BenchPlan(
                seconds,
                workloads=(PUBLISH,),
                folder=Path(folder),
                address=broker.address,
                content=content,
            )
            return measure(plan, BenchObserver()).rates[0].per_second


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run")
    parser.add_argument("--data", type=Path, default=Path(), help="a folder on the disk to measure")
    options = parser.parse_args(arguments)
    ratios: dict[Run, list[float]] = {run: [] for run in RUNS}
    with unwind_on_signals():
        for number in range(options.rounds):
            order = RUNS if number % 2 == 0 else RUNS[::-1]
            rates = {run: rate(run, options.seconds, options.data) for run in order}
            for run in RUNS:
                ratios[run].append(rates[run] / rates[OPAQUE])
            shown = "  ".join(f"{rates[run]:,.0f} ({ratios[run][-1]:.2f})" for run in RUNS)
            print(f"round {number + 1}: {shown}", flush=True)
    for policy, content in RUNS:
        of = ratios[policy, content]
        print(
            f"{policy} queue, {content} contents: {median(of):.2f} of opaque with envelopes "
            f"({min(of):.2f} to {max(of):.2f})"
        )


if __name__ == "__main__":
    main()
