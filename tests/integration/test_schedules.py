"""Schedules on a real database: ticks, policies, clock changes, refusals, and restarts."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite import schedules
from phpmq_lite.broker import schedule_runs
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.schedule_book import ScheduleBook
from phpmq_lite.model import Schedule
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.schedules import KEPT_RUNS, SCHEDULES_MAX
from tests.support.builds import NEEDS_SOURCES
from tests.support.core_and_store import (
    CLOCK_STEP_MS,
    START_MS,
    Driver,
    drivers_in,
    run_operation,
    stored_bodies,
)

FIRST_MS = START_MS + CLOCK_STEP_MS  # wall clock at the start
MINUTE, HOUR_MS = 60, 3_600_000
NEXT_MS = FIRST_MS - FIRST_MS % 60_000 + 60_000  # the first tick of each minute


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    with drivers_in(tmp_path) as make:
        made = make(defaults=QueueSettings())
        made.clock.advance((NEXT_MS - FIRST_MS) / 1_000 - 60)  # on a whole minute
        yield made


def new(name: str = "each", cron: str = "* * * * *", **own: Any) -> Schedule:
    values: dict[str, Any] = {
        "timezone": "UTC", "queue": "orders", "content": b"{{tick_ms}}", "encoding": "utf-8",
        "ttl_s": None, "priority": 128, "group": None, "is_enabled": True, "missed": "skip",
        "missed_max": 10,
    }  # fmt: skip
    return Schedule(0, name, cron, **values | own, created_at=0, created_by="", changed_at=0,
                    changed_by="", seen_upto=0)  # fmt: skip


def create(driver: Driver, *given: str, **own: Any) -> Schedule:
    made = run_operation(driver, "schedule.create", new(*given, **own))
    assert isinstance(made, Schedule), made
    return made


def later(driver: Driver, seconds: float) -> None:
    driver.clock.advance(seconds)
    driver.step()


def set_clock(driver: Driver, seconds: float) -> None:
    """Set the wall clock, as the loop of the engine notices."""
    driver.clock.set_wall(seconds)
    driver.core.schedules.look_again()
    driver.step()


def published(driver: Driver) -> list[int]:
    return [int(body) for body in stored_bodies(driver)]


def runs(driver: Driver) -> list[tuple[int, str]]:
    return driver.rows("SELECT tick_ms, outcome FROM schedule_run ORDER BY tick_ms")


def details(driver: Driver) -> list[str]:
    return [text for (text,) in driver.rows("SELECT detail FROM schedule_run ORDER BY tick_ms")]


def minutes(*numbers: int) -> list[int]:
    """Return the ticks of each minute, counted from the first."""
    return [NEXT_MS + 60_000 * number for number in numbers]


def test_each_tick_publishes_one_message_with_what_the_schedule_says(driver: Driver) -> None:
    create(driver, content=b"{{run_id}}", ttl_s=700, priority=3, group="g")
    later(driver, 59.999)
    assert runs(driver) == []
    later(driver, 0.001)
    later(driver, 60)
    assert stored_bodies(driver) == [f"each@{tick}".encode() for tick in minutes(0, 1)]
    assert runs(driver) == [(tick, "published") for tick in minutes(0, 1)]
    rows = driver.rows("SELECT ttl_s, position >> 48, group_name, seq, token FROM message")
    assert [row[:3] for row in rows] == [(700, 3 - 128, "g")] * 2
    ids = [f"{seq:016x}{token:016x}" for *_, seq, token in rows]
    assert driver.rows("SELECT message_id FROM schedule_run ORDER BY tick_ms") == [
        (id_,) for id_ in ids
    ]
    clients = "SELECT DISTINCT kind, address FROM client JOIN message ON client = publisher"
    assert driver.rows(clients) == [("schedule", "schedule each (broker)")]
    assert driver.rows("SELECT action FROM audit") == [("queue.schedule.create",)]  # no ticks


@pytest.mark.parametrize(
    ("missed", "expected"),
    [("skip", []), ("once", [3]), ("all", [2, 3])],
)
@pytest.mark.parametrize("how", ["down", "jump"])
def test_missed_ticks_run_by_the_policy(
    driver: Driver, how: str, missed: str, expected: list[int]
) -> None:
    create(driver, cron="*/2 * * * *", missed=missed, missed_max=2)
    first = 0 if NEXT_MS // 60_000 % 2 == 0 else 1
    ticks = [NEXT_MS + 60_000 * (first + 2 * number) for number in range(4)]
    seconds = (ticks[-1] - NEXT_MS) / 1_000 + 60 + 61  # the last one is 61 s late
    if how == "down":
        driver.clock.advance(seconds)
        driver.kill_and_restart()
        driver.step()
    else:
        set_clock(driver, seconds)
    assert published(driver) == [ticks[number] for number in expected]
    skipped = 3 - len(expected)
    assert runs(driver) == [
        *[(ticks[skipped], "skipped")] * (skipped >= 0),
        *[(ticks[number], "published") for number in expected],
    ]
    assert details(driver)[0].endswith("were missed")


def test_tick_that_is_a_minute_late_is_not_missed(driver: Driver) -> None:
    create(driver)
    driver.clock.advance(60 + 60)
    driver.kill_and_restart()
    driver.step()
    assert published(driver) == minutes(0, 1)


def test_ticks_that_ran_do_not_run_again_when_the_clock_is_set_back(driver: Driver) -> None:
    create(driver)
    for _ in range(5):
        later(driver, 60)
    set_clock(driver, -3 * MINUTE)
    for _ in range(5):
        later(driver, 60)
    assert published(driver) == minutes(0, 1, 2, 3, 4, 5, 6)
    set_clock(driver, -10 * MINUTE)
    driver.kill_and_restart()
    for _ in range(12):
        later(driver, 60)
    assert sorted(published(driver)) == minutes(*range(-3, 9))  # also those before it was created


def test_skipped_and_failed_ticks_run_when_the_clock_is_set_back(driver: Driver) -> None:
    create(driver)
    run_operation(driver, "pause", "orders", "publishing", True)
    later(driver, 60)
    run_operation(driver, "pause", "orders", "publishing", False)
    set_clock(driver, 300)  # minutes 1 to 3 are missed
    assert runs(driver) == [
        (minutes(0)[0], "failed"),
        (minutes(3)[0], "skipped"),
        *[(tick, "published") for tick in minutes(4, 5)],
    ]
    set_clock(driver, -360)
    for _ in range(7):
        later(driver, 60)
    assert sorted(published(driver)) == minutes(0, 1, 2, 3, 4, 5, 6)
    assert [outcome for _, outcome in runs(driver)] == ["published"] * 7


def test_ticks_of_a_clock_that_was_ahead_are_kept_until_they_pass(driver: Driver) -> None:
    create(driver, missed="once")
    set_clock(driver, 60 * 86_400 + 30)
    [ahead] = published(driver)
    set_clock(driver, -60 * 86_400 - 30)
    driver.kill_and_restart()
    later(driver, 60)
    assert published(driver) == [ahead, *minutes(0)]
    assert runs(driver)[-1] == (ahead, "published")
    set_clock(driver, (ahead - minutes(0)[0]) / 1_000)
    assert published(driver).count(ahead) == 1


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        (lambda driver: run_operation(driver, "pause", "orders", "publishing", True), "paused"),
        (lambda driver: run_operation(driver, "configure", "orders", {"max_messages": 1}), "full"),
        (lambda driver: run_operation(driver, "remove_queue", "orders"), "orders"),
    ],
    ids=["paused", "full", "gone"],
)
def test_refused_tick_is_a_failed_run(
    driver: Driver, stop: Callable[[Driver], object], reason: str
) -> None:
    create(driver)
    stop(driver)
    if reason == "full":
        driver.publish(b"1")
    later(driver, 60)
    assert runs(driver) == [(minutes(0)[0], "failed")]
    assert reason in details(driver)[0] or "max_messages" in details(driver)[0]
    assert driver.core.schedules.counts == {"failed": 1}
    assert "orders" in driver.core.queues or reason == "orders"  # a tick creates no queue


def test_paused_schedule_goes_on_with_the_next_tick(driver: Driver) -> None:
    create(driver, missed="all")
    run_operation(driver, "schedule.pause", "each", paused=True)
    later(driver, 150)
    assert runs(driver) == []
    run_operation(driver, "schedule.pause", "each", paused=False)
    driver.kill_and_restart()
    later(driver, 30)
    assert published(driver) == minutes(2)


def test_other_times_begin_with_the_next_tick(driver: Driver) -> None:
    create(driver, cron="0 0 1 1 *", missed="all")
    later(driver, 150)
    changed = run_operation(driver, "schedule.change", new(missed="all"))
    assert (changed.schedule_id, runs(driver)) == (1, [])
    later(driver, 30)
    run_operation(driver, "schedule.change", new(missed="all", content=b"0"))
    later(driver, 60)
    assert published(driver) == [*minutes(2), 0]


def test_run_by_hand_leaves_the_ticks_alone(driver: Driver) -> None:
    create(driver)
    run_operation(driver, "schedule.pause", "each", paused=True)
    asked = [driver.ask("schedule.run_now", "each") for _ in range(2)]
    driver.step()
    [first, second] = [question.answer for question in asked]
    assert first != second
    rows = driver.rows("SELECT tick_ms, run_by, message_id FROM schedule_run ORDER BY tick_ms")
    start = NEXT_MS - 60_000
    assert rows == [(start + 1, "anna", first), (start + 2, "anna", second)]
    run_operation(driver, "schedule.pause", "each", paused=False)
    run_operation(driver, "pause", "orders", "publishing", True)
    assert run_operation(driver, "schedule.run_now", "each") == "paused"
    assert [outcome for _, outcome in runs(driver)] == ["published", "published", "failed"]
    run_operation(driver, "pause", "orders", "publishing", False)
    later(driver, 60)
    assert published(driver)[2:] == minutes(0)


def test_schedules_are_checked(driver: Driver) -> None:
    create(driver)
    refused = {
        "taken": new(),
        "bad_name": new("a b"),
        "bad_cron": new("x", "no"),
        "bad_timezone": new("x", timezone="Mars"),
        "too_large": new("x", content=b"x" * (64 << 10) + b"x"),
    }
    for code, schedule in refused.items():
        assert run_operation(driver, "schedule.create", schedule) == code
    assert run_operation(driver, "schedule.create", new("x", queue="")) == "bad_name"
    for verb in ("delete", "run_now", "pause"):
        options = {"paused": True} if verb == "pause" else {}
        assert run_operation(driver, f"schedule.{verb}", "x", **options) == "unknown_schedule"
    assert run_operation(driver, "schedule.change", new("x")) == "unknown_schedule"
    assert list(driver.core.schedules.by_name) == ["each"]
    for number in range(SCHEDULES_MAX - 1):
        driver.ask("schedule.create", new(f"n{number}", "0 0 1 1 *"))
    driver.step()
    assert run_operation(driver, "schedule.create", new("x")) == "too_many_schedules"


def test_deleted_schedule_leaves_nothing(driver: Driver) -> None:
    create(driver)
    later(driver, 60)
    run_operation(driver, "schedule.delete", "each")
    later(driver, 60)
    assert (len(published(driver)), runs(driver)) == (1, [])
    assert driver.rows("SELECT count(*) FROM schedule") == [(0,)]


def test_old_runs_are_removed_except_the_newest(driver: Driver) -> None:
    create(driver, "each", "0 * * * *", missed="all", missed_max=100)
    for _ in range(2):
        later(driver, 100 * 3_600)
    assert len(runs(driver)) == 7 * 24
    later(driver, 30 * 86_400)
    assert len(runs(driver)) == KEPT_RUNS + 1


@pytest.mark.parametrize("is_right", [False, True])
def test_doubtful_clock_delays_ticks_until_it_is_decided(driver: Driver, is_right: bool) -> None:
    create(driver, missed="all")
    driver.core.is_clock_doubtful = True
    later(driver, 90)
    assert (runs(driver), driver.core.next_date_ms) == ([], None)
    run_operation(driver, "decide_clock", 0, 1, is_right=is_right)
    later(driver, 0)
    assert published(driver) == minutes(0)


def test_draining_broker_runs_no_ticks(driver: Driver) -> None:
    create(driver)
    driver.core.drain(lambda _answer: None)
    later(driver, 90)
    assert runs(driver) == []
    driver.kill_and_restart()
    driver.step()
    assert published(driver) == minutes(0)


def test_many_schedules_at_the_same_time(driver: Driver) -> None:
    for number in range(120):
        driver.ask("schedule.create", new(f"n{number}"))
    driver.step()
    driver.clock.advance(60)
    cycles = driver.step()
    assert published(driver) == minutes(0) * 120
    assert max(len(cycle.batch.created) for cycle in cycles) == 20


def test_many_missed_ticks_run_in_several_batches(driver: Driver) -> None:
    for number in range(2):
        driver.ask("schedule.create", new(f"n{number}", missed="all", missed_max=70))
    driver.step()
    driver.clock.advance(86_400)
    cycles = driver.step()
    assert sorted(published(driver)) == sorted(minutes(*range(1_370, 1_440)) * 2)
    assert max(len(cycle.batch.created) for cycle in cycles) == 20


def test_a_tick_has_one_message_over_kills_and_clock_changes(driver: Driver) -> None:
    """Compare the ticks of each second with a plain computation, over 40 disturbances."""
    random_ = random.Random(42)
    create(driver, "each", "* * * * * *", missed="all", missed_max=100)
    create(driver, "third", "*/3 * * * * *", content=b"-{{tick_ms}}")

    def wall_ms() -> int:
        return driver.clock.now().wall_ms

    start_ms, reached_ms = wall_ms(), wall_ms()
    for _ in range(40):
        for _ in range(random_.randrange(8)):
            later(driver, random_.choice((0.2, 0.5, 1, 2.5)))
        match random_.randrange(4):
            case 0:
                driver.kill_and_restart()
            case 1:  # decided, but not committed
                driver.clock.advance(1)
                driver.decide()
                driver.kill_and_restart()
            case 2:
                driver.clock.advance(random_.randrange(60))
                driver.kill_and_restart()
            case _:
                reached_ms = max(reached_ms, wall_ms())
                set_clock(driver, random_.randrange(-40, 40))
        driver.step()
        reached_ms = max(reached_ms, wall_ms())
    while wall_ms() < reached_ms:
        later(driver, 1)
    ticks = range(start_ms - start_ms % 1_000 + 1_000, reached_ms + 1, 1_000)
    numbers = published(driver)
    assert sorted(number for number in numbers if number > 0 and number > start_ms) == [*ticks]
    third = [-number for number in numbers if number < 0 and -number > start_ms]
    assert sorted(third) == [tick for tick in ticks if tick % 3_000 == 0]
    assert driver.rows("SELECT DISTINCT outcome FROM schedule_run") == [("published",)]


# -- mutants: brokers with a defect, which these tests find


def _with_core(**values: object) -> Callable[[pytest.MonkeyPatch], None]:
    """Return a mutant for which the core always has other values when ticks are due."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        run_due = schedule_runs.run_due

        def run(core: Broker) -> None:
            former = {name: getattr(core, name) for name in values}
            for name, value in values.items():
                setattr(core, name, value)
            run_due(core)
            for name, value in former.items():
                setattr(core, name, value)

        patch.setattr(schedule_runs, "run_due", run)

    return mutate


def _forget_ticks_that_ran(patch: pytest.MonkeyPatch) -> None:
    due_ticks = schedules.due_ticks
    patch.setattr(
        schedules, "due_ticks", lambda schedule, now_ms, _ran: due_ticks(schedule, now_ms)
    )


def _load_no_ticks(patch: pytest.MonkeyPatch) -> None:
    init = ScheduleBook.__init__
    patch.setattr(ScheduleBook, "__init__", lambda book, rows, _ran: init(book, rows, ()))


def _remove_runs_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(schedules, "KEPT_MS", -(1 << 50))
    patch.setattr(schedules, "KEPT_RUNS", 0)


@NEEDS_SOURCES
@pytest.mark.parametrize(
    ("mutate", "finds"),
    [
        (_forget_ticks_that_ran, test_ticks_that_ran_do_not_run_again_when_the_clock_is_set_back),
        (_load_no_ticks, test_ticks_that_ran_do_not_run_again_when_the_clock_is_set_back),
        (_remove_runs_too_early, test_ticks_that_ran_do_not_run_again_when_the_clock_is_set_back),
        (
            lambda patch: patch.setattr(schedule_runs, "see_upto_now", lambda *_: None),
            test_skipped_and_failed_ticks_run_when_the_clock_is_set_back,
        ),
        (
            lambda patch: patch.setattr(schedules, "ON_TIME_MS", 0),
            test_tick_that_is_a_minute_late_is_not_missed,
        ),
        (
            _with_core(is_clock_doubtful=False),
            partial(test_doubtful_clock_delays_ticks_until_it_is_decided, is_right=True),
        ),
        (_with_core(on_drained=None), test_draining_broker_runs_no_ticks),
    ],
)
def test_tests_find_a_broker_with_a_defect(
    driver: Driver,
    monkeypatch: pytest.MonkeyPatch,
    mutate: Callable[[pytest.MonkeyPatch], None],
    finds: Callable[[Driver], None],
) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        finds(driver)
