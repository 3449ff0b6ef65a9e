"""Ticks of schedules over stops, kills and clock changes, against a plain computation.

``python -m tests.faults.schedules --rounds 20`` prints the figures, and ends with 1 if a tick does
not have the messages of the computation.  ``--failover`` uses two brokers of a PostgreSQL database
instead, of which the active one is killed or stopped; ``--short`` disturbs less often.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from tests.faults.sites import Site, Trial, main

LATE_MS: Final = 60_000  # a tick that is later is missed
SLACK_MS: Final = 5_000  # of a loaded machine
JUMPS_MS: Final = (-30_000, 20_000, 90_000, -100_000)
# Name -> cron expression, period in seconds, and what happens to missed ticks.
SCHEDULES: Final[Mapping[str, tuple[str, int, str]]] = {
    "each": ("* * * * * *", 1, "all"),
    "fifth": ("*/5 * * * * *", 5, "skip"),
    "minute": ("* * * * *", 60, "all"),
}
CONTENT: Final = '["{{schedule}}",{{tick_ms}}]'
# The trial begins up to a minute before one of these changes of daylight saving.
CHANGES: Final = (
    ("Europe/Berlin", "2027-03-28T01:00Z"),
    ("Europe/Berlin", "2027-10-31T01:00Z"),
    ("America/New_York", "2027-03-14T07:00Z"),
    ("America/New_York", "2027-11-07T06:00Z"),
)


class Schedules(Trial):
    """Schedules whose broker is stopped, killed, replaced, and whose clock is set."""

    rounds = 20
    short = 6

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.start_ms = 0
        self.reached_ms = 0  # the latest time of the wall clock
        self.skipped_ms: list[tuple[int, int]] = []  # jumped over by more than 60 s
        self.messages = 0
        self.zone, self.change = site.random_.choice(CHANGES)

    def run(self, rounds: int) -> None:
        """Create the schedules, disturb the broker, and compare."""
        site = self.site
        change_ms = round(datetime.fromisoformat(self.change).timestamp() * 1_000)
        site.set_clock(change_ms - site.random_.randrange(60_000) - site.wall_ms)
        self.start_ms = site.wall_ms
        for name, (cron, _, missed) in SCHEDULES.items():
            body = {"cron": cron, "missed": missed, "missed_max": 100, "queue": "ticks"}
            body |= {"name": name, "timezone": self.zone, "content": CONTENT}
            site.api.post("/api/v1/schedules", body)
        for _ in range(rounds):
            time.sleep(site.random_.uniform(0.5, 3))
            self.disturb()
        while site.wall_ms < self.reached_ms:  # a clock that was set back reaches it again
            self.set_clock(min(50_000, self.reached_ms - site.wall_ms + 1_500))
            time.sleep(1)
        site.connect().close()
        for broker in site.brokers:
            broker.terminate()
        self.reached_ms = site.wall_ms
        self.compare()

    def disturb(self) -> None:
        """Stop or kill the active broker, or set the clock, also while none runs."""
        site = self.site
        way = site.random_.choice(("stop", "kill", "jump"))
        self.reached_ms = max(self.reached_ms, site.wall_ms)
        if way == "jump":
            site.ways[way] += 1
            self.set_clock(site.random_.choice(JUMPS_MS))
        elif site.random_.random() < 0.3:
            site.ways["jump while down"] += 1
            site.replace(way, lambda: self.set_clock(site.random_.choice(JUMPS_MS)))
        else:
            site.replace(way)

    def set_clock(self, jump_ms: int) -> None:
        before_ms = self.site.wall_ms
        self.site.set_clock(jump_ms)
        if jump_ms > LATE_MS - 2 * SLACK_MS:  # the broker may have been down before
            end_ms = self.site.wall_ms - LATE_MS + SLACK_MS
            self.skipped_ms.append((before_ms - SLACK_MS, end_ms))
        self.reached_ms = max(self.reached_ms, self.site.wall_ms)

    def compare(self) -> None:
        """Compare the messages of each schedule with its ticks."""
        found: dict[str, Counter[int]] = {name: Counter() for name in SCHEDULES}
        for (content,) in self.site.rows("SELECT content FROM body"):
            name, tick_ms = json.loads(bytes(content))
            found[name][tick_ms] += 1
            self.messages += 1
        runs = "SELECT outcome, count(*) FROM schedule_run GROUP BY outcome"
        outcomes = dict(self.site.rows(runs))
        if outcomes.pop("published") != self.messages or outcomes.pop("failed", 0):
            self.wrong.append(f"{self.messages} messages, but runs: {outcomes}")
        for name, (_, period_s, missed) in SCHEDULES.items():
            period_ms = period_s * 1_000
            first_ms = self.start_ms + SLACK_MS - (self.start_ms + SLACK_MS) % -period_ms
            due = range(first_ms - first_ms % period_ms, self.reached_ms - SLACK_MS, period_ms)
            times = found[name]
            again = [tick for tick, count in times.items() if count > 1]
            lost = [tick for tick in due if tick not in times]
            if missed == "skip":
                lost = [tick for tick in lost if not self.may_be_skipped(tick)]
            odd = [tick for tick in times if tick % period_ms or tick > self.reached_ms]
            for text, ticks in (("ran twice", again), ("never ran", lost), ("are none", odd)):
                if ticks:
                    self.wrong.append(f"{name}: {len(ticks)} ticks {text}, such as {ticks[0]}")

    def may_be_skipped(self, tick_ms: int) -> bool:
        return any(start <= tick_ms <= end for start, end in self.skipped_ms)

    def result(self) -> str:
        return f"{self.messages} messages of ticks from {self.change} in {self.zone}"


if __name__ == "__main__":
    sys.exit(main(Schedules))
