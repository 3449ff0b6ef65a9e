"""What a run of the benchmark measures, and who is told how far it has come."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from phpmq_lite.bench.clients import Address
from phpmq_lite.bench.streams import PLAIN

PUBLISH: Final = "publish"
FLOW: Final = "flow"
FLOW_PLAIN: Final = "flow-plain"
LATENCY: Final = "latency"
LARGE: Final = "large"
BACKLOG: Final = "backlog"
CONNECTIONS: Final = "connections"
WORKLOADS: Final = (PUBLISH, FLOW, FLOW_PLAIN, LATENCY, LARGE, BACKLOG, CONNECTIONS)
RATES: Final = (PUBLISH, FLOW, FLOW_PLAIN)
OWN_BROKER: Final = (BACKLOG, CONNECTIONS)  # needs its memory, its settings, its end

LARGE_SIZES: Final = (100_000, 1_000_000)
_SETTLE_S: Final = 2.0
SLOW: Final = 20_000  # messages a second, for a guess at the time


@dataclass(slots=True, frozen=True)
class Plan:
    """What to measure; ``address`` of a broker that runs already, None: one is started."""

    seconds: float = 5.0  # of each workload, besides the time until all is consumed
    size: int = 256  # bytes of a body
    window: int = 100  # unacknowledged messages of the consumer
    workloads: tuple[str, ...] = (PUBLISH, FLOW, LATENCY)
    folder: Path = field(default_factory=Path.cwd)  # on the disk that is measured
    address: Address | None = None
    content: str = PLAIN
    backlog: int = 100_000  # messages of that workload
    connections: int = 1_000  # of that workload

    @property
    def limit_seconds(self) -> float:
        """How long each limit of the machine is measured."""
        return min(1.0, self.seconds / 5)

    @property
    def large_seconds(self) -> float:
        """How long each of the steps with large bodies publishes: they fill a disk soon."""
        return self.seconds / 4

    @property
    def settle_seconds(self) -> float:
        """How long a broker rests before its memory is read: for checkpoints, and what it frees."""
        return min(_SETTLE_S, self.seconds)

    @property
    def planned_seconds(self) -> float:
        """About how long all takes."""
        own = {
            LARGE: 2 * len(LARGE_SIZES) * (self.large_seconds + self.limit_seconds),
            BACKLOG: 2 * self.backlog / SLOW + 3 * self.settle_seconds,
            CONNECTIONS: 2 * self.seconds + 2 * self.settle_seconds,
        }
        steps = sum(own.get(workload, self.seconds) for workload in self.workloads)
        return 5 * self.limit_seconds + steps


class Watcher:
    """Is told how far the run has come; this one does nothing."""

    def begin(self, step: str, seconds: float) -> None:
        """A step begins that takes about ``seconds``."""

    def tick(self) -> None:
        """Some time has passed; called a few times a second."""

    def end(self) -> None:
        """The step has ended."""
