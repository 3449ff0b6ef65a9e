r"""Compare brokers in rounds of ``peers.py``, in another order each time, by ratios within a round.

::

    python benchmarks/peer_rounds.py ../bench --rounds 7 --dir ./peers-data --json rounds.json \
        --brokers phpmq-lite,redis-always-xdel,nats --workloads W1,W2,W3

The figures of each broker in ``--ours`` are divided by those of the others. Each round writes a
file of its own beside ``--json`` (``rounds-1.json``), and existing files are used, not measured
again: an interrupted comparison continues, more rounds can be added.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

PEERS = Path(__file__).with_name("peers.py")
FIGURES = ("median", "receive_p50", "cycle_p50")


def measure_round(options: argparse.Namespace, brokers: list[str], path: Path) -> None:
    """Run the harness once, unless the file has the result."""
    if path.exists():
        return
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    arguments = ["--brokers", ",".join(brokers), "--workloads", options.workloads]
    arguments += ["--repeats", "1", "--seconds", str(options.seconds), "--rounds", "1000"]
    arguments += ["--dir", str(options.dir), "--json", str(part)]
    command = [sys.executable, str(PEERS), options.harness, *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    part.rename(path)


def read_figures(path: Path) -> dict[tuple[str, str], dict[str, float]]:
    """Return the figures of a round: (workload and variant, figure) to values by broker."""
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for cell in json.loads(path.read_text())["cells"]:
        name = f"{cell['workload']} {cell.get('variant', '')}"
        for figure in FIGURES:
            if figure in cell:
                value = cell[figure]
                number = value["median"] if isinstance(value, dict) else value
                found[name, figure][cell["broker"]] = number
    return found


def summarize(values: list[float], digits: int) -> str:
    """Return the median and the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def print_table(rounds: list[dict[tuple[str, str], dict[str, float]]], ours: list[str]) -> None:
    """Print each broker's value, and the ratio of each of ours to it."""
    for name, figure in rounds[0]:
        is_rate = figure == "median"
        print(f"\n{name}, {'messages/s' if is_rate else f'{figure}, ms'}")
        for broker in rounds[0][name, figure]:
            cells = [r[name, figure] for r in rounds if broker in r.get((name, figure), {})]
            if len(cells) < 2:
                continue
            line = summarize([c[broker] for c in cells], 0 if is_rate else 3)
            ratios = (
                f"{own} {summarize([c[own] / c[broker] for c in cells if own in c], 2)}"
                for own in ours
                if own != broker and any(own in c for c in cells)
            )
            print(f"  {broker:24} {line:32} " + "; ".join(ratios))


def main() -> None:
    """Measure the missing rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("harness", help="folder of the harness")
    parser.add_argument("--brokers", required=True, help="names, with commas")
    parser.add_argument("--ours", default="phpmq-lite", help="the ones to divide, with commas")
    parser.add_argument("--workloads", default="W1,W2,W3")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--dir", type=Path, required=True, help="folder for the data")
    parser.add_argument("--json", type=Path, required=True, help="start of the results' names")
    options = parser.parse_args()
    brokers = options.brokers.split(",")
    rounds = []
    for number in range(options.rounds):
        turn = number % len(brokers)
        path = options.json.with_name(f"{options.json.stem}-{number + 1}.json")
        measure_round(options, brokers[turn:] + brokers[:turn], path)
        rounds.append(read_figures(path))
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    print_table(rounds, options.ours.split(","))


if __name__ == "__main__":
    main()
