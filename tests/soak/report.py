"""What a soak says at its end, as markdown, and whether it was right."""

from collections.abc import Iterator, Sequence
from statistics import quantiles
from typing import Final

from tests.soak.broker import ProcessRun
from tests.soak.run import Soak
from tests.soak.slopes import Filling, Slope, slope_of

# The last hour of each queue is kept in points of 430 bytes; there are five, and two for all.
CHARTS: Final = Filling("points of the charts", 7 * 360 * 430 / (1 << 20), 3_600.0)
MEMORY: Final = 1.0  # MiB an hour, beside them
DESCRIPTORS: Final = 0.0


def offences_of(soak: Soak) -> list[str]:
    """Give all that was wrong, slopes too."""
    found = list(soak.books.offences)
    for name, slope, bound in _slopes(soak):
        if slope is not None and slope.least > bound:
            found.append(f"{name} grow by more than {bound:g} an hour: {slope.least:.2f} at least")
    return found


def _slopes(soak: Soak) -> Iterator[tuple[str, Slope | None, float]]:
    """Yield those of the longest life, with what they may be an hour."""
    life = _longest(soak)
    name = f"resident MiB, beside {CHARTS.amount:.1f} for the {CHARTS.name} in the first hour"
    yield name, slope_of(life.memory, [CHARTS]), MEMORY
    for kind, samples in life.descriptors.items():
        yield f"descriptors, {kind}", slope_of(samples), DESCRIPTORS


def _longest(soak: Soak) -> ProcessRun:
    return max(soak.house.lives, key=lambda one: one.memory[-1][0] if one.memory else 0.0)


def readings(soak: Soak) -> str:
    """Give what was read of the longest life, as CSV: to see what a slope is made of."""
    life = _longest(soak)
    lines = [",".join(("seconds", "resident_mib", *life.descriptors))]
    for (at, mib), *counts in zip(life.memory, *life.descriptors.values(), strict=True):
        lines.append(",".join([f"{at:.1f}", f"{mib:.2f}", *(f"{count:g}" for _, count in counts)]))
    return "\n".join([*lines, ""])


def report(soak: Soak) -> str:
    """Say what was seen."""
    books, house, counts = soak.books, soak.house, soak.books.counts
    per_1000 = 1_000 * counts["duplicates"] / max(1, counts["dispatched"])
    rows = [
        ("confirmed", f"{counts['confirmed']:,}"),
        ("confirmed and lost", f"{counts['lost']:,}"),
        ("ends stored (acknowledged, dead-lettered)", f"{counts['ended']:,}"),
        ("dispatched after a stored end", f"{counts['again']:,}"),
        ("dispatched", f"{counts['dispatched']:,}"),
        ("duplicates per 1,000 dispatches", f"{per_1000:.2f}"),
        ("published without a key", f"{counts['unkeyed']:,}"),
        ("publishes refused", _counted(books.refusals) or "0"),
        ("befell it", f"{soak.nemesis.done.total()}: {_counted(soak.nemesis.done)}"),
        ("largest WAL", f"{house.largest_wal / (1 << 20):.1f} MiB"),
        ("loop lag", _spread(house.lags_ms, "ms", 1_000)),
        ("restart", _spread(house.starts_ms[1:], "ms", 100)),
        ("SIGTERM to exit", _spread(soak.nemesis.stops_s, "s", 100)),
        ("publishing again after a full disk", _spread(soak.nemesis.resumes_s, "s", 100)),
        ("HTTP answers", ", ".join(f"{n:,} x {code}" for code, n in sorted(house.answers.items()))),
    ]
    for name, slope, bound in _slopes(soak):
        says = "no life was long enough"
        if slope is not None:
            says = (
                f"{slope.usual:+.2f} an hour over {slope.hours * 60:.0f} minutes, "
                f"{slope.least:+.2f} at least; bound {bound:g}"
            )
        rows.append((f"{name}, slope of the longest life", says))
    wrong = offences_of(soak)
    title = f"# Soak: {soak.took_s / 60:.1f} minutes, seed {soak.plan.seed}"
    table = ["| what | figure |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows)]
    end = [f"**{len(wrong)} offences**", *(f"- {text}" for text in wrong[:50])]
    return "\n".join([title, "", *table, "", *end, ""])


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))


def _spread(values: Sequence[float], unit: str, parts: int) -> str:
    """Give the median, a high quantile (99 % or 99.9 %) and the most."""
    if not values:
        return "none"
    ordered = sorted(values)
    high = quantiles(ordered, n=parts, method="inclusive")[-1] if len(ordered) > 1 else ordered[0]
    share = 100 - 100 / parts
    return (
        f"p50 {ordered[len(ordered) // 2]:.1f} {unit}, p{share:g} {high:.1f} {unit}, "
        f"max {ordered[-1]:.1f} {unit}, of {len(ordered):,}"
    )
