"""Times to live while the wall clock is set, live, while the broker is stopped, and after a kill.

``python -m tests.faults.clock`` prints the figures and ends with 1 if a message expired early or
got stuck; ``--failover`` uses two brokers of a PostgreSQL database.  The monotonic clock of this
process is the true time.
"""

import sys
import time
from dataclasses import dataclass
from itertools import product
from typing import Final

from tests.faults.sites import Site, Trial, main
from tests.support.socket_client import SocketClient

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
CASES: Final = (*product(("live", "stop", "kill"), (HOUR_MS, -HOUR_MS, DAY_MS, -DAY_MS)),)
OFTEN: Final = 20  # messages of each kind
LONG_S: Final = 1_800  # would expire if an hour passed
SHORT_S: Final = 8  # would get stuck if the clock went back an hour
MARGIN_S: Final = 3.0  # for a loaded machine
EXPIRY_S: Final = 30.0  # time limit


@dataclass
class Lot:
    """Messages of one queue, published together."""

    queue: str
    ttl_s: int
    published_at: tuple[float, float]  # monotonic: first and last


class TimesToLive(Trial):
    """Messages with a TTL, and keys, of brokers whose clock is set."""

    rounds = len(CASES)
    short = rounds

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.cases = CASES
        self.lots: list[Lot] = []
        self.early = 0
        self.stuck = 0
        self.again = 0  # stored twice under one key
        self.wrong_ttl = 0  # dispatched with a TTL other than the remaining time
        self.checked = 0

    def run(self, rounds: int) -> None:
        """Set the clock in each way by each of the jumps; check after each, and at the end."""
        for number, (way, jump_ms) in enumerate(self.cases[:rounds]):
            self.jump(f"{way}-{number}", way, jump_ms)
        self.end()
        for name in ("early", "stuck", "again", "wrong_ttl"):
            if count := getattr(self, name):
                self.wrong.append(f"{name}: {count} messages")

    def jump(self, name: str, way: str, jump_ms: int) -> None:
        """Publish, set the clock, and check; publish again under the same keys, and check again.

        A message that expired at the jump is missing at the first check only: its repetition may
        take its place.
        """
        with self.site.connect() as peer:
            self.publish(peer, f"{name}-long", LONG_S)
            self.publish(peer, f"{name}-short", SHORT_S)
        self.site.ways[f"clock {jump_ms // HOUR_MS:+} h"] += 1
        if way == "live":
            self.site.set_clock(jump_ms)
        else:
            self.site.replace(way, lambda: self.site.set_clock(jump_ms))
        with self.site.connect() as peer:
            self.publish(peer, f"{name}-after", SHORT_S)
            self.check()
            self.publish(peer, f"{name}-long", LONG_S, is_new=False)
        self.check()

    def publish(self, peer: SocketClient, queue: str, ttl_s: int, *, is_new: bool = True) -> None:
        """Publish a lot under keys."""
        began = time.monotonic()
        for number in range(OFTEN):
            content = b"%d" % number
            assert peer.confirm(queue, content, ttl_s, key=f"{queue} {number}".encode()) is None
        if is_new:
            self.lots.append(Lot(queue, ttl_s, (began, time.monotonic())))

    def check(self) -> None:
        """Count messages that expired early, exist twice, or are stuck."""
        admin = self.site.api
        for lot in self.lots:
            asked_at = time.monotonic()
            ready = admin.queue(lot.queue)["ready"]
            self.checked += 1
            if time.monotonic() < lot.published_at[0] + lot.ttl_s:
                self.early += max(0, OFTEN - ready)
            if asked_at > lot.published_at[1] + lot.ttl_s + MARGIN_S:
                self.stuck += ready
            self.again += max(0, ready - OFTEN)

    def end(self) -> None:
        """Wait until all short messages should have expired; consume all long ones."""
        admin = self.site.api
        short = [lot for lot in self.lots if lot.ttl_s == SHORT_S]
        until = time.monotonic() + SHORT_S + EXPIRY_S
        while any(admin.queue(lot.queue)["ready"] for lot in short) and time.monotonic() < until:
            time.sleep(0.1)
        self.stuck += sum(admin.queue(lot.queue)["ready"] for lot in short)
        for lot in self.lots:
            if lot.ttl_s == LONG_S:
                self.take(lot, admin.queue(lot.queue)["ready"])

    def take(self, lot: Lot, ready: int) -> None:
        """Consume a lot, and check the TTLs of its messages."""
        self.early += max(0, OFTEN - ready)
        with self.site.connect() as peer:
            peer.consume(lot.queue, OFTEN)
            for dispatch in peer.dispatches(min(ready, OFTEN)):
                passed_s = time.monotonic() - lot.published_at[0]
                left_s = dispatch.ttl_s or 0
                self.wrong_ttl += not lot.ttl_s - passed_s - MARGIN_S <= left_s <= lot.ttl_s
                peer.ack(dispatch)

    def result(self) -> str:
        return (
            f"{len(self.lots) * OFTEN} messages, {self.early} expired early, {self.stuck} stuck, "
            f"{self.again} stored twice under a key, {self.wrong_ttl} dispatched with a wrong TTL; "
            f"{self.checked} checks"
        )


if __name__ == "__main__":
    sys.exit(main(TimesToLive))
