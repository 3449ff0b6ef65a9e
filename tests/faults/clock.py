"""A broker whose wall clock is set while it runs, while it is stopped, and after a kill.

``python -m tests.faults.clock --rounds 5`` prints the figures and ends with 1 if a message expired
early or got stuck.  The monotonic clock of this process is the true time.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.faults.shim import Shim
from tests.faults.shimmed_broker import shimmed_broker
from tests.support.fork_server import BrokerProcess
from tests.support.socket_client import AdminApi, SocketClient

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
JUMPS_MS: Final = (HOUR_MS, -HOUR_MS, DAY_MS, -DAY_MS)
WAYS: Final = ("live", "stop", "kill")
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


@dataclass
class Trial:
    """A broker under the shim, its messages, and its errors."""

    broker: BrokerProcess
    shim: Shim
    lots: list[Lot] = field(default_factory=list)
    jumps: Counter[str] = field(default_factory=Counter)  # by way
    early: int = 0
    stuck: int = 0
    again: int = 0  # stored twice under one key
    wrong_ttl: int = 0  # dispatched with a TTL other than the remaining time
    checked: int = 0

    @classmethod
    def of(cls, folder: Path, mutant: str = "") -> "Trial":
        """Use an empty folder; ``mutant`` names a broker with a defect."""
        shim = Shim(folder)
        return cls(shimmed_broker(shim, "--admin", "127.0.0.1:0", mutant=mutant), shim)

    def run(self, jumps_ms: tuple[int, ...] = JUMPS_MS, ways: tuple[str, ...] = WAYS) -> None:
        """Set the clock in each way by each of the jumps; check after each, and at the end."""
        with self.broker:
            for way in ways:
                for jump_ms in jumps_ms:
                    self.jump(way, jump_ms)
            self.end()

    def jump(self, way: str, jump_ms: int) -> None:
        """Publish, set the clock, and check; publish again under the same keys, and check again.

        A message that expired at the jump is missing at the first check only: its repetition may
        take its place.
        """
        name = f"{way}-{self.jumps.total()}"
        with SocketClient(self.broker.port) as peer:
            self.publish(peer, f"{name}-long", LONG_S)
            self.publish(peer, f"{name}-short", SHORT_S)
        if way == "stop":
            self.broker.terminate()
        elif way == "kill":
            self.broker.kill()
        self.shim.clock_offset_ms += jump_ms
        if way != "live":
            self.broker.start()
        self.jumps[way] += 1
        with SocketClient(self.broker.port) as peer:
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
        admin = AdminApi(self.broker.admin[0])
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
        admin = AdminApi(self.broker.admin[0])
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
        with SocketClient(self.broker.port) as peer:
            peer.consume(lot.queue, OFTEN)
            for dispatch in peer.dispatches(min(ready, OFTEN)):
                passed_s = time.monotonic() - lot.published_at[0]
                left_s = dispatch.ttl_s or 0
                self.wrong_ttl += not lot.ttl_s - passed_s - MARGIN_S <= left_s <= lot.ttl_s
                peer.ack(dispatch)

    @property
    def faults(self) -> int:
        return self.early + self.stuck + self.again + self.wrong_ttl

    def figures(self, seconds: float) -> Iterator[str]:
        """Return the report in lines."""
        sizes = ", ".join(f"{jump_ms / HOUR_MS:+g} h" for jump_ms in dict.fromkeys(JUMPS_MS))
        ways = ", ".join(f"{count} {way}" for way, count in self.jumps.items())
        yield (
            f"clock set {self.jumps.total()} times ({sizes}; {ways}): "
            f"{len(self.lots) * OFTEN} messages, {self.early} expired early, {self.stuck} stuck, "
            f"{self.again} stored twice under a key, {self.wrong_ttl} dispatched with a wrong TTL; "
            f"{self.checked} checks in {seconds:.0f} s"
        )


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.clock", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--mutant", default="")
    given = parser.parse_args()
    faults = 0
    for _ in range(given.rounds):
        with TemporaryDirectory() as folder:
            began = time.monotonic()
            trial = Trial.of(Path(folder), given.mutant)
            trial.run()
            for line in trial.figures(time.monotonic() - began):
                print(line, flush=True)
            faults += trial.faults
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
