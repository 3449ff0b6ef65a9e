"""Schedules on a real database against a plain computation, at rest and after a kill.

The model knows the period of a schedule, not its cron expression: its ticks are the multiples of
that.  The clock passes, is set, and is doubtful; publishing is refused and allowed again.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from phpmq_lite import schedules
from phpmq_lite.broker import schedule_runs
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.schedule_book import ScheduleBook
from phpmq_lite.queue_settings import QueueSettings
from tests.integration.test_schedules import new
from tests.support.core_and_store import Driver, run_operation

pytestmark = pytest.mark.timeout(1_800)

IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
CRONS = {1: "* * * * * *", 10: "*/10 * * * * *", 60: "* * * * *", 3_600: "0 * * * *"}
LATE_MS = 60_000
RUNS = "SELECT name, tick_ms, outcome FROM schedule_run JOIN schedule USING (schedule_id)"
ASKED = """
SELECT tick_ms, name, message_id FROM schedule_run JOIN schedule USING (schedule_id)
WHERE run_by IS NOT NULL"""
BODIES = "SELECT content FROM message JOIN body USING (seq)"

names = st.sampled_from(["a", "b"])
periods = st.sampled_from([*CRONS])
policies = st.sampled_from([("skip", 10), ("once", 10), ("all", 3), ("all", 100)])
spans = st.sampled_from([0, 0.4, 1, 7, 30, 60, 61, 150, 4_000])


@dataclass
class Plain:
    """A schedule as the documentation describes it; times are in ms of the wall clock."""

    period_ms: int
    missed: str
    missed_max: int
    seen_ms: int
    is_paused: bool = False
    runs: dict[int, str] = field(default_factory=dict)  # tick -> outcome

    def pass_to(self, now_ms: int, upto_ms: int, *, is_refused: bool) -> list[int]:
        """Decide now on the ticks up to a time; return those with a new message."""
        if self.is_paused:
            return []
        self.seen_ms = min(self.seen_ms, now_ms)
        first = (self.seen_ms // self.period_ms + 1) * self.period_ms
        due = [
            tick
            for tick in range(first, now_ms + 1, self.period_ms)
            if self.runs.get(tick) != "published"
        ]
        kept = {"skip": 0, "once": 1, "all": self.missed_max}[self.missed]
        last = due[max(0, len(due) - kept) :]
        running = [tick for tick in due if tick in last or now_ms - tick <= LATE_MS]
        if len(due) > len(running):
            self.runs[due[len(due) - len(running) - 1]] = "skipped"
        running = [tick for tick in running if tick <= upto_ms]
        self.runs |= dict.fromkeys(running, "failed" if is_refused else "published")
        if due:
            self.seen_ms = upto_ms
        return [] if is_refused else running


class SchedulesAgainstTicks(RuleBasedStateMachine):
    """``published`` has the message of each tick, also those of schedules that were deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self.driver = Driver(Path(self.folder.name), defaults=QueueSettings())
        self.plain: dict[str, Plain] = {}
        self.published: Counter[str] = Counter()
        self.is_refused = self.is_doubtful = False

    @initialize()
    def begin(self) -> None:
        self.driver.publish(b"none 0")
        self.published["none 0"] += 1

    def teardown(self) -> None:
        self.driver.close()
        self.folder.cleanup()

    @property
    def now_ms(self) -> int:
        return self.driver.clock.now().wall_ms

    def decide(self, seen_upto: Mapping[str, int] | None = None) -> None:
        """Decide in the model what the broker decided, up to now or to what it has stored."""
        for name, plain in self.plain.items():
            upto_ms = self.now_ms if seen_upto is None else seen_upto[name]
            if not self.is_doubtful and (seen_upto is None or plain.seen_ms < upto_ms):
                ticks = plain.pass_to(self.now_ms, upto_ms, is_refused=self.is_refused)
                self.published.update(f"{name} {tick}" for tick in ticks)

    def step(self) -> None:
        self.driver.step()
        self.decide()

    def ask(self, verb: str, *arguments: Any, **options: Any) -> Any:
        return run_operation(self.driver, verb, *arguments, **options)

    @invariant()
    def broker_agrees_with_the_model(self) -> None:
        bodies = [bytes(content).decode() for (content,) in self.driver.rows(BODIES)]
        assert Counter(bodies) == self.published
        rows = {(name, tick): outcome for name, tick, outcome in self.driver.rows(RUNS)}
        expected = {
            (name, tick): outcome
            for name, plain in self.plain.items()
            for tick, outcome in plain.runs.items()
        }
        assert rows == expected
        book = self.driver.core.schedules
        assert book.by_name.keys() == self.plain.keys()
        now_ms = self.now_ms
        assert self.is_doubtful or all(at_ms > now_ms for at_ms in book.next_at.values())

    # -- what operators do

    @rule(name=names, period_s=periods, policy=policies)
    def create_or_change(self, name: str, period_s: int, policy: tuple[str, int]) -> None:
        self.step()
        missed, missed_max = policy
        old = self.plain.get(name)
        schedule = new(
            name, CRONS[period_s], missed=missed, missed_max=missed_max,
            content=b"{{schedule}} {{tick_ms}}", is_enabled=old is None or not old.is_paused,
        )  # fmt: skip
        assert self.ask("schedule.put", schedule).name == name
        if old is None:
            self.plain[name] = Plain(period_s * 1_000, missed, missed_max, self.now_ms)
            return
        if old.period_ms != period_s * 1_000 or old.is_paused:
            old.seen_ms = self.now_ms
        old.period_ms, old.missed, old.missed_max = period_s * 1_000, missed, missed_max
        self.decide()

    @rule(name=names)
    def pause_or_resume(self, name: str) -> None:
        self.step()
        if (plain := self.plain.get(name)) is not None:
            plain.is_paused = not plain.is_paused
            plain.seen_ms = self.now_ms
            self.ask("schedule.pause", name, paused=plain.is_paused)

    @rule(name=names)
    def delete(self, name: str) -> None:
        self.step()
        if self.plain.pop(name, None) is not None:
            self.ask("schedule.delete", name)

    @rule(name=names)
    def run_now(self, name: str) -> None:
        self.step()
        if (plain := self.plain.get(name)) is None:
            return
        before = set(self.driver.rows(ASKED))
        answer = self.ask("schedule.run_now", name)
        assert (answer == "paused") == self.is_refused
        for tick_ms, *_ in (
            set(self.driver.rows(ASKED)) - before
        ):  # none: as at the same time before
            plain.runs[tick_ms] = "failed" if self.is_refused else "published"
            assert tick_ms % 1_000
            assert self.now_ms <= tick_ms < self.now_ms + 100
            if not self.is_refused:
                self.published[f"{name} {tick_ms}"] += 1

    @rule()
    def refuse_or_allow(self) -> None:
        self.step()
        self.is_refused = not self.is_refused
        self.ask("pause", "orders", "publishing", self.is_refused)

    # -- time, and kills

    @rule(seconds=spans)
    def pass_time(self, seconds: float) -> None:
        self.driver.clock.advance(seconds)
        self.step()

    @rule(seconds=spans, sign=st.sampled_from([1, -1]), is_down=st.booleans())
    def set_clock(self, seconds: float, sign: int, is_down: bool) -> None:
        self.step()
        self.driver.clock.set_wall(sign * seconds)
        self.restart() if is_down else self.driver.core.schedules.look_again()
        self.step()

    @rule(seconds=spans, when=st.sampled_from(["at once", "while it decides", "after the commit"]))
    def kill(self, seconds: float, when: str) -> None:
        self.driver.clock.advance(seconds)
        if when == "while it decides":
            self.driver.decide()
        elif when == "after the commit":
            self.driver.record()
            # The others would follow in the next batch.
            self.decide(dict(self.driver.rows("SELECT name, seen_upto FROM schedule")))
        self.driver.clock.advance(seconds / 3)
        self.restart()
        self.step()

    def restart(self) -> None:
        self.driver.kill_and_restart()
        self.driver.core.is_clock_doubtful = self.is_doubtful

    @rule()
    def doubt_or_decide(self) -> None:
        self.step()
        self.is_doubtful = not self.is_doubtful
        if self.is_doubtful:
            self.driver.core.is_clock_doubtful = True
        else:
            self.ask("decide_clock", 0, 1, is_right=False)
        self.step()


class SchedulesAtLength(SchedulesAgainstTicks):
    """The same with more examples."""


TestSchedules = SchedulesAgainstTicks.TestCase
TestSchedules.settings = settings(max_examples=30)
TestSchedulesAtLength = pytest.mark.slow(SchedulesAtLength.TestCase)
TestSchedulesAtLength.settings = settings(
    max_examples=max(150, settings().max_examples),
    stateful_step_count=settings().stateful_step_count * 2,
)


# -- mutants: rules that are broken on purpose


def _load_no_ticks(patch: pytest.MonkeyPatch) -> None:
    init = ScheduleBook.__init__
    patch.setattr(ScheduleBook, "__init__", lambda book, rows, _ran: init(book, rows, ()))


def _forget_ticks_that_ran(patch: pytest.MonkeyPatch) -> None:
    due_ticks = schedules.due_ticks
    patch.setattr(
        schedules, "due_ticks", lambda schedule, now_ms, _ran: due_ticks(schedule, now_ms)
    )


def _store_no_seen_ticks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(schedule_runs, "_set_seen", lambda _, of, at_ms: setattr(of, "seen_upto", at_ms))


def _believe_a_doubtful_clock(patch: pytest.MonkeyPatch) -> None:
    run_due = schedule_runs.run_due

    def run(core: Broker) -> None:
        core.is_clock_doubtful = False
        run_due(core)

    patch.setattr(schedule_runs, "run_due", run)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutate",
    [
        _load_no_ticks,
        _forget_ticks_that_ran,
        _store_no_seen_ticks,
        _believe_a_doubtful_clock,
        lambda patch: patch.setattr(schedules, "ON_TIME_MS", 59_999),
        lambda patch: patch.setattr(schedule_runs, "see_upto_now", lambda *_: None),
    ],
)
def test_machine_finds_a_broker_with_a_defect(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    generating = settings(
        max_examples=300, stateful_step_count=80, database=None, phases=[Phase.generate]
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(SchedulesAgainstTicks, settings=generating)
