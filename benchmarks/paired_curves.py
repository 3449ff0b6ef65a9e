"""Compare versions at points of the curves, in turns, so that noise affects all of them.

::

    python benchmarks/paired_curves.py --axis queues --points 10,1000 BEFORE AFTER

BEFORE, AFTER and any others are Python interpreters of virtual environments, each with one version.
Each has a running broker.  Prints messages/s of each, divided by those of the first: median and
quartiles over the rounds.
"""

import argparse
import random
import statistics
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from curves import AXES, Effort, Sample

from phpmq_lite.bench.processes import unwind_on_signals
from phpmq_lite.bench.workloads import temporary_folder
from phpmq_lite.broker_process import BrokerProcess


@dataclass
class VersionProcess(BrokerProcess):
    """A broker of the version that ``python`` has installed."""

    python: str = ""

    @property
    def command(self) -> list[str]:
        """The command line, with another interpreter."""
        return [self.python, *super().command[1:]]


def compare(
    versions: list[str], axis: str, value: int, rounds: int, effort: Effort, folder: Path
) -> None:
    """Measure one point with all versions and print each line."""
    found: list[list[dict[str, Sample]]] = [[] for _ in versions]
    more = list(AXES[axis].settings(value))
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(
                VersionProcess(folder / f"{value}-{number}", more, is_isolated=True, python=python)
            )
            for number, python in enumerate(versions)
        ]
        for broker in brokers:
            AXES[axis].prepare(broker, value)
        for _ in range(rounds):
            for number in random.sample(range(len(versions)), len(versions)):
                found[number].append(AXES[axis].turn(brokers[number], value, effort))
    for line in found[0][0]:
        rates = [[1e6 / turn[line].us for turn in turns] for turns in found]
        for python, own in zip(versions[1:], rates[1:], strict=True):
            ratios = [mine / first for mine, first in zip(own, rates[0], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            before, after = statistics.median(rates[0]), statistics.median(own)
            print(
                f"{axis} {value:,}, {line}: {middle:.3f} ({low:.3f} to {high:.3f}), "
                f"{before:,.0f} and {after:,.0f} messages/s with {python}",
                flush=True,
            )


def main() -> None:
    """Compare the versions at each point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("versions", nargs="+", metavar="PYTHON", help="the first is compared with")
    parser.add_argument("--axis", choices=AXES, required=True)
    parser.add_argument("--points", required=True, help="such as 10,1000")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="per measurement of a flow")
    parser.add_argument("--messages", type=int, default=30_000, help="per measurement of others")
    parser.add_argument("--data", type=Path, default=Path(), help="folder on the disk to measure")
    options = parser.parse_args()
    effort = Effort(options.seconds, options.messages)
    for value in map(int, options.points.split(",")):
        with unwind_on_signals(), temporary_folder(options.data) as folder:
            compare(options.versions, options.axis, value, options.rounds, effort, folder)


if __name__ == "__main__":
    main()
