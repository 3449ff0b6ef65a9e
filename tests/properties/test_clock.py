"""The clock against true time: it is set, the process stops, the machine boots, at any moment.

A naive model has the one time that nobody can read, and for each message how long it may live of
it.  What the broker has are two clocks, and what it stored last.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from phpmq_lite.clock import DOUBT_MS, JUMP_MS, Clock
from phpmq_lite.model import ClockReading

SECOND, DAY = 1_000, 86_400_000
SEEN_EACH_MS = 60 * SECOND
TIMES = st.one_of(st.integers(1, 5 * SECOND), st.integers(1, 3 * DAY))
SETTINGS = st.one_of(
    st.integers(-2 * JUMP_MS, 2 * JUMP_MS), st.integers(-400 * DAY, 400 * DAY),
    st.sampled_from([-3_600 * SECOND, 3_600 * SECOND, -DAY, DAY]),
)  # fmt: skip


@dataclass
class Machine:
    wall_ms: int = 1_700_000_000_000
    running_ms: int = 5_000_000
    boot: int = 1

    def read(self) -> tuple[int, int]:
        return self.wall_ms, self.running_ms

    def pass_by(self, ms: int) -> None:
        self.wall_ms += ms
        self.running_ms += ms


@dataclass
class Life:
    """A message: its deadline as the broker keeps it, and as it is in truth."""

    deadline_ms: int
    ends_at: int


class ClockAgainstTrueTime(RuleBasedStateMachine):
    """``late_ms`` is what the broker may be behind the truth: what it could not know."""

    kind: type[Clock] = Clock

    @initialize()
    def begin(self) -> None:
        self.machine = Machine()
        self.true_ms = 0
        self.late_ms = 0
        self.lives: list[Life] = []
        self.stored: dict[str, int] = {}
        self.clock = self.make()
        self.highest_ms = self.clock.now().steady_ms
        self.store()

    def make(self) -> Clock:
        return self.kind(self.stored, read=self.machine.read, boot=self.machine.boot)

    def store(self) -> None:
        self.stored = self.clock.counters(self.clock.now())
        self.stored_at = self.true_ms

    @rule(ttl_ms=TIMES)
    def publish(self, ttl_ms: int) -> None:
        self.lives.append(Life(self.clock.now().steady_ms + ttl_ms, self.true_ms + ttl_ms))

    @rule(ms=TIMES)
    def pass_by(self, ms: int) -> None:
        self.machine.pass_by(ms)
        self.true_ms += ms
        if self.true_ms - self.stored_at >= SEEN_EACH_MS:
            self.store()

    @rule(ms=st.integers(1, 10 * DAY))
    def freeze(self, ms: int) -> None:
        """The wall clock stops, or the machine sleeps and the clock is not set afterwards."""
        self.machine.running_ms += ms
        self.true_ms += ms
        self.heed()

    @rule(ms=SETTINGS)
    def be_set(self, ms: int) -> None:
        self.machine.wall_ms += ms
        self.heed()

    def heed(self) -> None:
        self.clock.now()
        if self.clock.is_disturbed:
            self.clock.take_disturbance()
            self.store()

    @rule(away_ms=TIMES, set_ms=SETTINGS)
    def restart(self, away_ms: int, set_ms: int) -> None:
        """Without a boot, the elapsed time is known, however the clock is set meanwhile."""
        self.machine.pass_by(away_ms)
        self.true_ms += away_ms
        self.machine.wall_ms += set_ms
        self.clock = self.make()
        self.store()

    @rule(away_ms=TIMES)
    def boot(self, away_ms: int) -> None:
        """The wall clock is believed, as far as it can be."""
        self.reboot(away_ms, 0)

    @precondition(lambda self: self.true_ms - self.stored_at < SEEN_EACH_MS)
    @rule(away_ms=TIMES, set_ms=st.integers(-400 * DAY, -4 * DAY))
    def boot_behind(self, away_ms: int, set_ms: int) -> None:
        """A flat battery: nothing expires early, and what it loses is bounded by the time away."""
        self.reboot(away_ms, set_ms)

    @precondition(lambda self: self.true_ms - self.stored_at < SEEN_EACH_MS)
    @rule(away_ms=TIMES, set_ms=st.integers(8 * DAY, 400 * DAY))
    def boot_far_ahead(self, away_ms: int, set_ms: int) -> None:
        self.reboot(away_ms, set_ms)
        assert self.clock.is_doubt_new
        assert self.clock.doubt_ms > DOUBT_MS

    def reboot(self, away_ms: int, set_ms: int) -> None:
        assume(away_ms + SEEN_EACH_MS < DOUBT_MS)
        drift_ms = self.stored["clock_step_ms"] - (self.machine.wall_ms - self.steady())
        before_ms = self.steady()
        self.machine.wall_ms += away_ms + set_ms
        self.machine.running_ms = 1_000
        self.machine.boot += 1
        self.true_ms += away_ms
        self.clock = self.make()
        went_ms = self.steady() - before_ms
        assert went_ms <= away_ms + abs(drift_ms), "it went ahead of true time"
        self.late_ms += away_ms - went_ms
        if not set_ms:
            assert abs(went_ms - away_ms) <= JUMP_MS, "the wall clock was right"
        assert went_ms >= -SEEN_EACH_MS, "it went back behind what was stored"
        self.highest_ms = self.steady()
        self.store()

    def steady(self) -> int:
        return self.clock.now().steady_ms

    @invariant()
    def nothing_expires_early_and_nothing_sticks(self) -> None:
        now_ms = self.steady()
        assert now_ms >= self.highest_ms, "it went back while the broker ran"
        self.highest_ms = now_ms
        boots = self.machine.boot
        for life in self.lives:
            if life.deadline_ms <= now_ms:
                assert self.true_ms >= life.ends_at - boots * JUMP_MS, "expired early"
            else:
                assert self.true_ms < life.ends_at + self.late_ms + boots * JUMP_MS, "it sticks"


TestClockAgainstTrueTime = ClockAgainstTrueTime.TestCase
TestClockAgainstTrueTime.settings = settings(max_examples=150, stateful_step_count=25)


class LiveWallClock(Clock):
    """Expires by the wall clock as it is."""

    def now(self) -> ClockReading:
        wall_ms, _ = self._read()
        return ClockReading(wall_ms, wall_ms)


class ForgetsTheBoot(Clock):
    """Believes the wall clock at each start."""

    def counters(self, now: ClockReading) -> dict[str, int]:
        return super().counters(now) | {"clock_boot": 0}


class FollowsSmallSteps(Clock):
    """Compares each reading with the one before only, so a clock that stands still stops it."""

    def now(self) -> ClockReading:
        wall_ms, running_ms = self._read()
        if abs(wall_ms - running_ms - self._wall_offset_ms) <= JUMP_MS:
            self._base_ms += wall_ms - running_ms - self._wall_offset_ms
            self._wall_offset_ms = wall_ms - running_ms
        return super().now()


class NeverDoubts(Clock):
    """Believes the wall clock after a boot, however far ahead it is."""

    def _resume(self, stored: Mapping[str, int], wall_ms: int, running_ms: int) -> int:
        steady_ms = super()._resume(stored, wall_ms, running_ms)
        return steady_ms + self.doubt_ms


@pytest.mark.parametrize("mutant", [LiveWallClock, ForgetsTheBoot, FollowsSmallSteps, NeverDoubts])
def test_model_catches_a_clock_that(mutant: type[Clock]) -> None:
    machine = type(mutant.__name__, (ClockAgainstTrueTime,), {"kind": mutant})
    given = settings(max_examples=300, derandomize=True, phases=[Phase.generate],
                     stateful_step_count=25, database=None)  # fmt: skip
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=given)
