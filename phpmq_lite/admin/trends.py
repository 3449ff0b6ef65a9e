"""The last minutes of rates and depths, for the small charts of the overview.  Bounded, pure."""

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from phpmq_lite.server.status import Status

EVERY_S: Final = 5.0  # between two samples
SAMPLES: Final = 120  # kept: ten minutes
QUEUES_MAX: Final = 200  # with a chart of their own; about 2 KB each

TOTALS: Final = ("ready", "dispatched", "dead", "published", "acked")


class Series:
    """The newest ``SAMPLES`` numbers, oldest first."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values = array("f")

    def add(self, value: float) -> None:
        """Append a number; the oldest leaves when there are too many."""
        if len(self._values) >= SAMPLES:
            del self._values[0]
        self._values.append(value)

    @property
    def values(self) -> Sequence[float]:
        """Give the numbers, oldest first."""
        return self._values


class Trends:
    """Samples of one broker's status: totals over all queues, and rates of the first queues."""

    def __init__(self) -> None:
        self._totals = {name: Series() for name in TOTALS}
        self._queues: dict[int, Series] = {}  # published/s, by queue_id

    def add(self, status: Status) -> None:
        """Take a sample; to be called every ``EVERY_S``."""
        for name, value in totals(status).items():
            self._totals[name].add(value)
        alive = {queue.queue_id for queue in status.queues}
        for gone in self._queues.keys() - alive:
            del self._queues[gone]
        for queue in status.queues:
            series = self._queues.get(queue.queue_id)
            if series is None:
                if len(self._queues) >= QUEUES_MAX:
                    continue
                series = self._queues[queue.queue_id] = Series()
            series.add(queue.published_per_s)

    def total(self, name: str) -> Sequence[float]:
        """Give the samples of one of ``TOTALS``."""
        return self._totals[name].values

    def queue(self, queue_id: int) -> Sequence[float]:
        """Give the samples of published/s of a queue; empty where it has none."""
        series = self._queues.get(queue_id)
        return series.values if series is not None else ()


def totals(status: Status) -> dict[str, float]:
    """Add up what the tiles of the overview show, by the names of ``TOTALS``.

    Dead-letter records count as dead only, though they are ready in their own queues.
    """
    queues = status.queues
    return {
        "ready": sum(queue.ready for queue in queues if not queue.name.endswith(".dlq")),
        "dispatched": sum(queue.dispatched for queue in queues),
        "dead": sum(queue.dead for queue in queues),
        "published": sum(queue.published_per_s for queue in queues),
        "acked": sum(queue.acked_per_s for queue in queues),
    }


def polyline(values: Iterable[float], width: int = 120, height: int = 28) -> str:
    """Give the ``points`` of an SVG polyline, newest at the right edge; the scale starts at 0.

    Empty below two samples, and where there was nothing at all.
    """
    numbers = list(values)
    if len(numbers) < 2 or not any(numbers):
        return ""
    top = max(numbers) * 1.1
    step = width / (SAMPLES - 1)
    left = width - step * (len(numbers) - 1)
    room = height - 3  # the line keeps a pixel from the edges
    return " ".join(
        f"{left + at * step:.1f},{height - 1.5 - value / top * room:.1f}"
        for at, value in enumerate(numbers)
    )
