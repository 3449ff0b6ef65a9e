"""What is measured of a broker from outside: round trips, and its resident memory."""

import time

from tests.support.socket_client import SocketClient

MIB = 1 << 20


class LatencyProbe:
    """Publishes, receives and acknowledges on a queue of its own, as anybody would meanwhile."""

    def __init__(self, port: int) -> None:
        self.peer = SocketClient(port)
        self.peer.consume("probe", 1)

    def __enter__(self) -> "LatencyProbe":
        return self

    def __exit__(self, *_: object) -> None:
        self.peer.close()

    def round_trip_ms(self) -> float:
        """Return how long one message takes, from the publish to its dispatch."""
        began = time.perf_counter()
        self.peer.publish("probe", b"{}")
        (dispatch,) = self.peer.dispatches(1)
        took_ms = (time.perf_counter() - began) * 1_000
        self.peer.ack(dispatch)
        return took_ms

    def round_trips(self, number: int) -> "Latencies":
        """Measure some."""
        return Latencies([self.round_trip_ms() for _ in range(number)])


class Latencies:
    """Durations in milliseconds."""

    def __init__(self, all_ms: list[float]) -> None:
        self._sorted = sorted(all_ms)

    @property
    def p50(self) -> float:
        """The one in the middle."""
        return self._sorted[len(self._sorted) // 2]

    @property
    def max(self) -> float:
        """The longest."""
        return self._sorted[-1]

    def __str__(self) -> str:
        return f"p50 {self.p50:.2f} ms, max {self.max:.1f} ms"
