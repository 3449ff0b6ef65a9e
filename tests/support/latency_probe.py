"""Measure round trips of a broker from outside."""

import time
from collections.abc import Callable

from tests.support.socket_client import SocketClient

MIB = 1 << 20
Figure = Callable[[str], None]  # the fixture ``figure``


class LatencyProbe:
    """A client that publishes, receives and acknowledges on its own queue."""

    def __init__(self, port: int) -> None:
        self.peer = SocketClient(port)
        self.peer.consume("probe", 1)

    def __enter__(self) -> "LatencyProbe":
        return self

    def __exit__(self, *_: object) -> None:
        self.peer.close()

    def round_trip_ms(self) -> float:
        began = time.perf_counter()
        self.peer.publish("probe", b"{}")
        (dispatch,) = self.peer.dispatches(1)
        took_ms = (time.perf_counter() - began) * 1_000
        self.peer.ack(dispatch)
        return took_ms

    def round_trips(self, number: int) -> "Latencies":
        return Latencies([self.round_trip_ms() for _ in range(number)])


class Latencies:
    def __init__(self, all_ms: list[float]) -> None:
        self._sorted = sorted(all_ms)

    @property
    def p50(self) -> float:
        return self._sorted[len(self._sorted) // 2]

    @property
    def max(self) -> float:
        return self._sorted[-1]

    def __str__(self) -> str:
        return f"p50 {self.p50:.2f} ms, max {self.max:.1f} ms"
