"""Draw the results of ``curves.py``: the cost of a message relative to the first point.

An axis is ``{"title": str, "lines": {line: [{"value": int, "us": [float, …], …}, …]}}``. ``us`` has
the microseconds of all turns in order, so values of one turn have the same index. Points are drawn
at equal distances, because their values grow by a factor.
"""

import math
from html import escape
from statistics import median
from typing import Any, Final, NamedTuple

WIDTH: Final = 640
HEIGHT: Final = 330
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 62, 50
APART: Final = 14  # between lines at one point, so that none is hidden
LINEAR_UP_TO: Final = 4.0  # larger ratios use a logarithmic scale

STYLE: Final = """
text{font:12px system-ui,sans-serif;fill:#333}.page{fill:#fff}.grid{stroke:#ddd}.one{stroke:#888}
.c0{stroke:#0b5fa5;fill:#0b5fa5}.c1{stroke:#b3541e;fill:#b3541e}.c2{stroke:#2e7d32;fill:#2e7d32}
polyline{fill:none!important;stroke-width:1.5}
@media(prefers-color-scheme:dark){text{fill:#ddd}.page{fill:#161b22}.grid{stroke:#30363d}
.one{stroke:#8b949e}.c0{stroke:#6cb6ff;fill:#6cb6ff}.c1{stroke:#f0a070;fill:#f0a070}
.c2{stroke:#7ee08a;fill:#7ee08a}}
"""


class Spot(NamedTuple):
    """One point of a line: ratios to the first point over all turns."""

    low: float
    middle: float
    high: float


def spots(points: list[dict[str, Any]]) -> list[Spot]:
    """Return each point relative to the first one of the same turn."""
    first = points[0]["us"]
    found = []
    for point in points:
        ratios = [us / base for us, base in zip(point["us"], first, strict=True)]
        found.append(Spot(min(ratios), median(ratios), max(ratios)))
    return found


def summary(axis: dict[str, Any]) -> str:
    """Return the medians as text: microseconds, and the ratio to the first point."""
    lines = []
    for name, points in axis["lines"].items():
        cells = [
            f"{point['value']:,}: {median(point['us']):,.1f} us x{spot.middle:.2f}"
            for point, spot in zip(points, spots(points), strict=True)
        ]
        lines.append(f"  {name:14}" + "   ".join(cells))
    return "\n".join(lines)


class Scale:
    """Maps ratios to positions: linear from 0, or logarithmic for a large span."""

    def __init__(self, lowest: float, highest: float) -> None:
        self.is_linear = highest <= LINEAR_UP_TO
        if self.is_linear:
            top = max(2.0, math.ceil(highest * 2) / 2)
            self.ticks = [step / 2 for step in range(int(top * 2) + 1)]
        else:
            low = math.floor(math.log10(min(lowest, 1.0)))
            self.ticks = [10.0**power for power in range(low, math.ceil(math.log10(highest)) + 1)]

    def y(self, ratio: float) -> float:
        """Return the distance from the upper edge of the picture."""
        low, high, value = self.ticks[0], self.ticks[-1], ratio
        if not self.is_linear:
            low, high, value = math.log10(low), math.log10(high), math.log10(ratio)
        share = (value - low) / (high - low)
        return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)


def draw(axis: dict[str, Any]) -> str:
    """Return the picture of one axis, readable on light and dark pages."""
    lines = {name: spots(points) for name, points in axis["lines"].items()}
    values = [point["value"] for point in next(iter(axis["lines"].values()))]
    every = [spot for found in lines.values() for spot in found]
    scale = Scale(min(spot.low for spot in every), max(spot.high for spot in every))
    room = (WIDTH - LEFT - RIGHT) / len(values)
    centers = [LEFT + room * (index + 0.5) for index in range(len(values))]
    turns = len(next(iter(axis["lines"].values()))[0]["us"])
    title = f"Cost of a message by {axis['title']}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        text(LEFT, 20, f"Cost of a message; 1 is the first point. Median of {turns}, min to max."),
        *grid(scale),
        *(text(x, HEIGHT - 30, label(v), "middle") for x, v in zip(centers, values, strict=True)),
        text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, axis["title"], "middle"),
    ]
    wide = (WIDTH - LEFT - RIGHT) / len(lines)
    for number, (name, found) in enumerate(lines.items()):
        first_us = median(axis["lines"][name][0]["us"])
        key_x = LEFT + wide * number + 5
        parts += [
            marker(number, key_x, 40),
            text(key_x + 10, 44, f"{name} (1 = {first_us:,.1f} µs)"),
            *curve(number, found, [x + APART * (number - 1) for x in centers], scale),
        ]
    return "\n".join([*parts, "</svg>", ""])


def grid(scale: Scale) -> list[str]:
    """Return horizontal lines with their ratios; the line at 1 is highlighted."""
    parts = []
    for tick in scale.ticks:
        y = scale.y(tick)
        kind = "one" if tick == 1 else "grid"
        parts.append(
            f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(text(LEFT - 8, y + 4, f"{tick:,g}", "end"))
    return parts


def curve(number: int, found: list[Spot], xs: list[float], scale: Scale) -> list[str]:
    """Return one line: connected medians, each with a bar from minimum to maximum."""
    places = [(x, scale.y(spot.middle)) for x, spot in zip(xs, found, strict=True)]
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f'<polyline class="c{number}" points="{joined}"/>']
    for (x, y), spot in zip(places, found, strict=True):
        parts.append(
            f'<line class="c{number}" x1="{x:.1f}" x2="{x:.1f}"'
            f' y1="{scale.y(spot.low):.1f}" y2="{scale.y(spot.high):.1f}"/>'
        )
        parts.append(marker(number, x, y))
    return parts


def marker(number: int, x: float, y: float) -> str:
    """Return a circle, a square or a diamond, so that lines differ by more than their color."""
    if number == 0:
        return f'<circle class="c0" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    turned = f'transform="rotate(45 {x:.1f} {y:.1f})" ' if number == 2 else ""
    place = f'x="{x - 3.5:.1f}" y="{y - 3.5:.1f}"'
    return f'<rect class="c{number}" {turned}{place} width="7" height="7"/>'


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Return a text element."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def label(value: int) -> str:
    """Format the value of a point."""
    return f"{value:,}"
