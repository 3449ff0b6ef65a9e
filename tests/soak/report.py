"""The report of a soak as Markdown, and the problems it found."""

from collections.abc import Iterator, Sequence
from statistics import quantiles
from typing import Final

from tests.soak.broker import ProcessRun
from tests.soak.run import Soak
from tests.soak.slopes import Filling, Slope, slope_of

# Each of the five queues and two totals keeps an hour of points, of 430 bytes each.
CHARTS: Final = Filling("points of the charts", 7 * 360 * 430 / (1 << 20), 3_600.0)
MEMORY: Final = 1.0  # MiB per hour, without the points
DESCRIPTORS: Final = 0.0  # per hour


def problems_of(soak: Soak) -> list[str]:
    """Return all violations, including slopes above their bounds."""
    found = list(soak.ledger.problems)
    for name, slope, bound in _slopes(soak):
        if slope is not None and slope.least > bound:
            found.append(f"{name} grow by at least {slope.least:.2f} per hour, above {bound:g}")
    return found


def _slopes(soak: Soak) -> Iterator[tuple[str, Slope | None, float]]:
    """Yield name, slope and bound of each measurement of the longest run."""
    run = _longest_run(soak)
    name = f"resident MiB, without {CHARTS.amount:.1f} for the {CHARTS.name} in the first hour"
    yield name, slope_of(run.memory, [CHARTS]), MEMORY
    for kind, samples in run.descriptors.items():
        yield f"descriptors, {kind}", slope_of(samples), DESCRIPTORS


def _longest_run(soak: Soak) -> ProcessRun:
    return max(soak.broker.runs, key=lambda one: one.memory[-1][0] if one.memory else 0.0)


def readings(soak: Soak) -> str:
    run = _longest_run(soak)
    lines = [",".join(("seconds", "resident_mib", *run.descriptors))]
    for (at, mib), *counts in zip(run.memory, *run.descriptors.values(), strict=True):
        lines.append(",".join([f"{at:.1f}", f"{mib:.2f}", *(f"{count:g}" for _, count in counts)]))
    return "\n".join([*lines, ""])


def report(soak: Soak) -> str:
    ledger, broker, counts = soak.ledger, soak.broker, soak.ledger.counts
    per_1000 = 1_000 * counts["duplicates"] / max(1, counts["dispatched"])
    rows = [
        ("confirmed", f"{counts['confirmed']:,}"),
        ("confirmed and lost", f"{counts['lost']:,}"),
        ("ends stored (acknowledged, dead-lettered)", f"{counts['ended']:,}"),
        ("dispatched after a stored end", f"{counts['again']:,}"),
        ("dispatched", f"{counts['dispatched']:,}"),
        ("duplicates per 1,000 dispatches", f"{per_1000:.2f}"),
        ("published without a key", f"{counts['unkeyed']:,}"),
        ("publishes refused", _counted(ledger.refusals) or "0"),
        ("faults", f"{soak.nemesis.done.total()}: {_counted(soak.nemesis.done)}"),
        ("largest WAL", f"{broker.largest_wal / (1 << 20):.1f} MiB"),
        ("loop lag", _spread(broker.lags_ms, "ms", 1_000)),
        ("restart", _spread(broker.starts_ms[1:], "ms", 100)),
        ("SIGTERM to exit", _spread(soak.nemesis.stops_s, "s", 100)),
        ("publishing again after a full disk", _spread(soak.nemesis.resumes_s, "s", 100)),
        (
            "HTTP answers",
            ", ".join(f"{n:,} x {code}" for code, n in sorted(broker.answers.items())),
        ),
    ]
    for name, slope, bound in _slopes(soak):
        text = "no run was long enough"
        if slope is not None:
            text = (
                f"{slope.median:+.2f} per hour over {slope.hours * 60:.0f} minutes, "
                f"at least {slope.least:+.2f}; bound {bound:g}"
            )
        rows.append((f"{name}, slope of the longest run", text))
    wrong = problems_of(soak)
    title = f"# Soak: {soak.took_s / 60:.1f} minutes, seed {soak.plan.seed}"
    table = ["| what | figure |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows)]
    end = [f"**{len(wrong)} problems**", *(f"- {text}" for text in wrong[:50])]
    return "\n".join([title, "", *table, "", *end, ""])


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))


def _spread(values: Sequence[float], unit: str, parts: int) -> str:
    """Return the median, a high quantile (99 % or 99.9 %) and the maximum as text."""
    if not values:
        return "none"
    ordered = sorted(values)
    high = quantiles(ordered, n=parts, method="inclusive")[-1] if len(ordered) > 1 else ordered[0]
    share = 100 - 100 / parts
    return (
        f"p50 {ordered[len(ordered) // 2]:.1f} {unit}, p{share:g} {high:.1f} {unit}, "
        f"max {ordered[-1]:.1f} {unit}, of {len(ordered):,}"
    )
