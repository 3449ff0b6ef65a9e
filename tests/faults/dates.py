"""Dates and delays of messages over restarts, kills, failovers and clock changes.

``python -m tests.faults.dates`` prints the figures, and ends with 1 if a message was delivered
early, twice, never, or more than a second late.  ``--failover`` uses two brokers of a PostgreSQL
database; ``--short`` disturbs less often.
"""

import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle, pairwise, product
from math import inf
from statistics import median
from typing import Final

from tests.faults.sites import Site, Trial, main
from tests.support.socket_client import SocketClient, new_key
from tests.support.waiting import until

HOUR_S: Final = 3_600
DAY_S: Final = 24 * HOUR_S
JUMPS_S: Final = (HOUR_S, -HOUR_S, DAY_S, -DAY_S)
WAYS: Final = ("live", "kill", "stop")
# Each step publishes messages with these delays and dates, in seconds from then.
DELAYS_S: Final = (1.5, 3.0, 8.0)
DATES_S: Final = tuple(away + s for away in (0, HOUR_S, DAY_S) for s in (-1.0, 1.5, 3.0, 6.0))
KINDS: Final = (*((s, 0.0) for s in DELAYS_S), *((None, s) for s in DATES_S))
LATE_S: Final = 1.0
UNANSWERED_S: Final = 1.0  # an acknowledgement before a kill may be lost
END_S: Final = 60.0


@dataclass
class Spell:
    """A time in which the clock is not set, in monotonic seconds; a broker serves in most of it."""

    offset_s: float  # the wall clock less the monotonic one
    begins: float
    serves: float = inf  # from then on
    disturbed: float = inf
    ends: float = inf


@dataclass
class Sent:
    """A published message, with monotonic times."""

    delay_s: float | None
    date_ms: int
    sent: float
    confirmed: float = inf
    arrivals: list[float] = field(default_factory=list)

    def due(self, spell: Spell, published: float) -> float:
        """Return when the message is due if this spell lasts."""
        if self.delay_s is None:
            return self.date_ms / 1_000 - spell.offset_s
        return published + self.delay_s


class Dates(Trial):
    """Messages with a delay or a date, whose broker is stopped, killed, or has its clock set."""

    rounds = 14
    short = 4

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.limit_s = LATE_S
        self.messages: dict[str, Sent] = {}
        self.spells: list[Spell] = []
        self.ends: list[float] = []  # of the consumer's connections
        self.repeated = 0  # dispatched again because the acknowledgement was lost in a kill
        self.late_s: dict[str, list[float]] = {"delays": [], "dates": []}
        self.kept = 0  # messages that became ready before the clock was set
        self._blind_s = 0.5 if len(site.brokers) > 1 else 0.005  # reads the server's clock so often
        self._is_ended = threading.Event()

    def run(self, rounds: int) -> None:
        """Publish and disturb in turns; wait until everything has been delivered, and compare."""
        ways = [*product(WAYS, JUMPS_S), ("kill", 0), ("stop", 0)]
        self.site.random_.shuffle(ways)
        self.begin()
        self.serve()
        consumer = threading.Thread(target=self.consume)
        consumer.start()
        try:
            for way, jump_s in ways[:rounds]:
                self.publish()
                time.sleep(self.site.random_.uniform(0.1, 1.0))
                self.disturb(way, jump_s)
            self.disturb("live", 4 * DAY_S)
            with suppress(AssertionError):  # ``compare`` reports it
                until(lambda: all(one.arrivals for one in self.messages.values()), END_S)
            time.sleep(0.5)  # for what might be delivered twice
        finally:
            self._is_ended.set()
            consumer.join()
        self.compare()

    # -- what happens to the brokers

    def begin(self, jump_s: int = 0) -> None:
        """End the spell, set the clock, and begin the next one."""
        for spell in self.spells[-1:]:
            spell.ends = time.monotonic()
        self.site.set_clock(jump_s * 1_000)
        now = time.monotonic()
        self.spells.append(Spell(self.site.wall_ms / 1_000 - now, now))

    def serve(self) -> None:
        self.site.connect().close()
        self.spells[-1].serves = time.monotonic()

    def disturb(self, way: str, jump_s: int) -> None:
        """Set the clock of an idle broker, or while one is replaced; look again after a while."""
        self.spells[-1].disturbed = time.monotonic()
        self.site.ways[f"clock {jump_s // HOUR_S:+} h"] += 1
        if way == "live":
            self.begin(jump_s)
            self.spells[-1].serves = self.spells[-1].begins
        else:
            self.site.replace(way, lambda: self.begin(jump_s))
            self.serve()
        time.sleep(1.5)
        kept = self.site.api.queue("kept")
        if (kept["ready"], kept["scheduled"]) != (self.kept, 0):
            self.wrong.append(f"{kept['scheduled']} of {self.kept} are not ready any more")

    # -- clients

    def publish(self) -> None:
        """Publish messages of each kind; wait until one of another queue is ready."""
        site = self.site
        with site.connect() as peer:
            for delay_s, date_s in KINDS:
                name = f"{len(self.messages)} {delay_s} {date_s}"
                one = Sent(delay_s, site.wall_ms + round(date_s * 1_000), time.monotonic())
                self.messages[name] = one
                time_ = {"deliver_at": one.date_ms} if delay_s is None else {"delay_s": delay_s}
                peer.publish_with("dates", name.encode(), key := name.encode(), **time_)
                assert peer.receipt_for(key).reason is None
                one.confirmed = time.monotonic()
            peer.publish_with("kept", b"", key := new_key(), deliver_at=site.wall_ms + 100)
            assert peer.receipt_for(key).reason is None
        self.kept += 1
        until(lambda: site.api.queue("kept")["ready"] == self.kept)

    def consume(self) -> None:
        """Note and acknowledge each message; connect again at the end of a connection."""
        for port in cycle([broker.port for broker in self.site.brokers]):
            with suppress(OSError, AssertionError), SocketClient(port) as peer:
                peer.consume("dates", 1_000)
                peer.socket.settimeout(0.2)
                while not self._is_ended.is_set():
                    with suppress(TimeoutError):
                        (dispatch,) = peer.dispatches(1)
                        self.messages[dispatch.content.decode()].arrivals.append(time.monotonic())
                        peer.ack(dispatch)
            self.ends.append(time.monotonic())
            if self._is_ended.is_set():
                return
            time.sleep(0.02)

    # -- the end

    def compare(self) -> None:
        """Compare the arrival of each message with the times at which it was due."""
        for name, one in self.messages.items():
            if not one.arrivals:
                self.wrong.append(f"{name} was not delivered")
                continue
            first = one.arrivals[0]
            for before, again in pairwise(one.arrivals):
                if any(before <= end < again and end < before + UNANSWERED_S for end in self.ends):
                    self.repeated += 1
                else:
                    self.wrong.append(f"{name} was delivered again after {again - before:.3f} s")
            earliest = min(
                max(one.due(spell, one.sent), spell.begins, one.sent)
                for spell in self.spells
                if max(one.due(spell, one.sent), one.sent) < spell.ends + self._blind_s
            )
            if first < earliest - self._blind_s:
                self.wrong.append(f"{name} was delivered {earliest - first:.3f} s early")
            times = (
                (max(one.due(spell, one.confirmed), spell.serves, one.confirmed), spell.disturbed)
                for spell in self.spells
            )
            late_s = first - min(due for due, end in times if due + LATE_S <= end)
            self.late_s["dates" if one.delay_s is None else "delays"].append(late_s)
            if late_s > self.limit_s:
                self.wrong.append(f"{name} was delivered {late_s:.3f} s late")

    def result(self) -> str:
        late = ", ".join(
            f"{name} at most {max(all_s):.3f} s late (median {median(all_s):.3f})"
            for name, all_s in self.late_s.items()
        )
        return f"{len(self.messages)} messages, {self.repeated} repeated after a kill, {late}"


if __name__ == "__main__":
    sys.exit(main(Dates))
