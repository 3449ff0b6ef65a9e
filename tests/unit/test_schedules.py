"""Ticks of cron expressions against a plain computation that tries each minute."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite import schedules
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import Schedule
from phpmq_lite.schedules import due_ticks, fill, last_ticks, next_tick, ticks_after

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
CHANGES = {  # zone -> days on which its clocks are set forward and back
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
}
SCHEDULE = Schedule(
    1, "nightly", "*/5 * * * *", "UTC", "jobs", b"{}", "utf-8", None, 128, None, True, "skip", 10,
    0, "anna", 0, "anna", 0,
)  # fmt: skip


def ms(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 1_000


def matches(field: str, value: int) -> bool:
    for term in field.split(","):
        span, _, step = term.partition("/")
        low, _, high = span.partition("-")
        first = 0 if span == "*" else int(low)
        last = 59 if span == "*" or (step and not high) else int(high or low)
        if first <= value <= last and (value - first) % int(step or 1) == 0:
            return True
    return False


def plain_ticks(cron: str, zone: str, after_ms: int, upto_ms: int) -> list[int]:
    """Return the ticks between two times: of minute and hour only, trying each minute.

    If neither begins with a star, a tick is a time of the local clock: one in the missing hour is
    right after it, and one in the repeated hour is in the first.  Otherwise, each minute of elapsed
    time whose local time matches is a tick.
    """
    minute, hour, *_ = cron.split()
    ticks = set()
    is_fixed = not minute.startswith("*") and not hour.startswith("*")
    if not is_fixed:
        for tick_ms in range(after_ms - after_ms % 60_000, upto_ms + 1, 60_000):
            at = datetime.fromtimestamp(tick_ms // 1_000, ZoneInfo(zone))
            if matches(minute, at.minute) and matches(hour, at.hour):
                ticks.add(tick_ms)
    else:
        start = datetime.fromtimestamp(after_ms // 1_000, UTC).replace(tzinfo=None, second=0)
        for offset in range(-1_500, (upto_ms - after_ms) // 60_000 + 1_500):
            local = start + timedelta(minutes=offset)
            if not (matches(minute, local.minute) and matches(hour, local.hour)):
                continue
            while True:  # the missing hour ends at its next minute that exists
                at = local.replace(tzinfo=ZoneInfo(zone))
                if at.astimezone(UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None) == local:
                    break
                local += timedelta(minutes=1)
            ticks.add(int(at.timestamp()) * 1_000)
    return sorted(tick for tick in ticks if after_ms < tick <= upto_ms)


CRONS = [
    "* * * * *", "*/7 * * * *", "0 * * * *", "30 * * * *", "30 2 * * *", "0 2 * * *", "0 3 * * *",
    "30 1 * * *", "0 0 * * *", "59 1 * * *", "15,45 1-3 * * *", "*/20 2 * * *", "5 */2 * * *",
    "0 */3 * * *", "10-50/20 0-4/2 * * *",
]  # fmt: skip


@pytest.mark.parametrize("cron", CRONS)
@pytest.mark.parametrize(
    ("zone", "day"), [(zone, day) for zone, days in CHANGES.items() for day in days]
)
def test_ticks_around_a_change_of_daylight_saving(zone: str, day: str, cron: str) -> None:
    after_ms = ms(f"{day}T00:00", zone) - 12 * HOUR_MS
    upto_ms = after_ms + 48 * HOUR_MS
    expected = plain_ticks(cron, zone, after_ms, upto_ms)
    assert last_ticks(cron, zone, after_ms, upto_ms, 10_000) == expected
    ticks = ticks_after(cron, zone, after_ms)
    assert list(islice(ticks, len(expected) + 1))[:-1] == expected
    # Evaluations continue wherever the last one ended, also within the repeated hour.
    for start_ms in range(after_ms + 5 * HOUR_MS, upto_ms - 20 * HOUR_MS, 20 * 60_000):
        later = [tick for tick in expected if tick > start_ms][:5]
        assert list(islice(ticks_after(cron, zone, start_ms), len(later))) == later


@pytest.mark.parametrize(
    ("cron", "zone", "day", "hours"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-03-29", ["01:00"]),  # 03:00 of summer time
        ("30 2 * * *", "Europe/Berlin", "2026-10-25", ["00:30"]),  # only the first 02:30
        ("*/30 2 * * *", "Europe/Berlin", "2026-03-29", []),
        ("*/30 2 * * *", "Europe/Berlin", "2026-10-25", ["00:00", "00:30", "01:00", "01:30"]),
        ("30 2 * * *", "America/New_York", "2026-03-08", ["07:00"]),
        ("30 1 * * *", "America/New_York", "2026-11-01", ["05:30"]),
    ],
)
def test_daylight_saving_by_hand(cron: str, zone: str, day: str, hours: list[str]) -> None:
    start_ms = ms(f"{day}T00:00") - 1_000
    ticks = last_ticks(cron, zone, start_ms, start_ms + 10 * HOUR_MS, 100)
    assert [datetime.fromtimestamp(t / 1_000, UTC).strftime("%H:%M") for t in ticks] == hours


@given(
    st.sampled_from([*CRONS, "*/13 * * * * *", "30 8 1 * *", "0 0 * * MON"]),
    st.sampled_from([*CHANGES, "UTC"]),
    st.integers(0, 400 * DAY_MS),
    st.integers(0, 40 * DAY_MS),
    st.integers(1, 150),
)
def test_last_ticks_are_those_at_the_end(
    cron: str, zone: str, offset_ms: int, length_ms: int, most: int
) -> None:
    after_ms = ms("2026-01-01") + offset_ms
    upto_ms = after_ms + (length_ms // 1_000 if cron.count(" ") == 5 else length_ms)
    every: list[int] = []
    for tick_ms in ticks_after(cron, zone, after_ms):
        if tick_ms > upto_ms or len(every) > 500:
            break
        every.append(tick_ms)
    if len(every) <= 500:
        assert last_ticks(cron, zone, after_ms, upto_ms, most) == every[-most:]


MINUTE, LATE = 60_000, 61_000
SIX_HOURS = [tick * 5 * MINUTE for tick in range(1, 73)]  # of */5


@pytest.mark.parametrize(
    ("missed", "late_ms", "run"),
    [
        ("skip", 0, SIX_HOURS[-1:]),  # on time
        ("skip", MINUTE, SIX_HOURS[-1:]),
        ("skip", MINUTE + 1, []),
        ("once", MINUTE + 1, SIX_HOURS[-1:]),
        ("once", 0, SIX_HOURS[-1:]),
        ("all", 2 * MINUTE, SIX_HOURS[-10:]),
        ("all", 0, SIX_HOURS[-10:]),
    ],
)
def test_policy_for_missed_ticks(missed: str, late_ms: int, run: list[int]) -> None:
    now_ms = SIX_HOURS[-1] + late_ms
    due = due_ticks(replace(SCHEDULE, missed=missed), now_ms)
    assert due.run == run
    skipped = SIX_HOURS[: len(SIX_HOURS) - len(run)]
    assert due.skipped == skipped[-len(due.skipped) :]
    assert due.is_cut == (len(due.skipped) < len(skipped))


def test_ticks_that_ran_are_left_out_before_the_policy_counts() -> None:
    ran = {*SIX_HOURS[-3:], *SIX_HOURS[:5]}
    due = due_ticks(replace(SCHEDULE, missed="once"), SIX_HOURS[-1], ran)
    assert (due.skipped[0], due.skipped[-1], due.run) == (
        SIX_HOURS[5], SIX_HOURS[-5], [SIX_HOURS[-4]]
    )  # fmt: skip


def test_row_of_skipped_ticks_names_the_first() -> None:
    texts = [
        schedules.describe_skipped(SCHEDULE, due_ticks(SCHEDULE, ticks * 5 * MINUTE + LATE))
        for ticks in (1, 12, 1_000)
    ]
    assert texts == [
        "missed",
        "12 ticks since 1970-01-01T00:05:00+00:00 were missed",
        "this tick and many before it were missed",
    ]


def test_each_second_on_time_is_at_most_a_minute() -> None:
    due = due_ticks(replace(SCHEDULE, cron="* * * * * *", missed="skip"), DAY_MS)
    assert (len(due.run), due.run[0]) == (61, DAY_MS - MINUTE)
    assert "many before it" in schedules.describe_skipped(SCHEDULE, due)


def test_a_long_absence_costs_no_more_than_a_short_one() -> None:
    due = due_ticks(replace(SCHEDULE, cron="* * * * * *", missed="all"), 3_000 * DAY_MS)
    assert len(due.run) == 61


@pytest.mark.parametrize(
    ("cron", "zone", "code"),
    [
        ("", "UTC", "bad_cron"), ("* * * *", "UTC", "bad_cron"), ("60 * * * *", "UTC", "bad_cron"),
        ("0 0 31 2 *", "UTC", "bad_cron"), ("0 0 L-1 * *", "UTC", "bad_cron"),
        ("*/0 * * * *", "UTC", "bad_cron"), ("0 0 * * 1#2/3", "UTC", "bad_cron"),
        ("a b c d e", "UTC", "bad_cron"), ("L * * * *", "UTC", "bad_cron"),
        ("1," * 200 + "1 * * * *", "UTC", "bad_cron"), ("* * * * *", "Europe/X", "bad_timezone"),
        ("* * * * *", "", "bad_timezone"), ("* * * * *", "../etc/passwd", "bad_timezone"),
        ("* * * * *", "Europe", "bad_timezone"), ("* * * * *", "\0", "bad_timezone"),
        ("* * * * *", "\udcff", "bad_timezone"), ("\udcff * * * *", "UTC", "bad_cron"),
    ],
)  # fmt: skip
def test_bad_times_are_refused(cron: str, zone: str, code: str) -> None:
    with pytest.raises(RefusedError) as refused:
        schedules.check_times(cron, zone)
    assert refused.value.code == code


@given(st.text(max_size=30), st.text(alphabet="0123456789*/,-#L MON", max_size=20))
def test_any_text_is_a_cron_expression_or_refused(text: str, cron: str) -> None:
    for expression in (text, cron, f"{cron} * * * *"):
        try:
            schedules.check_times(expression, "Europe/Berlin")
        except RefusedError:
            continue
        assert next_tick(expression, "Europe/Berlin", 0) is not None


def test_placeholders_are_filled_in_text_only() -> None:
    text = b"{{tick}} {{tick_ms}} {{date}} {{run_id}} {{schedule}} {{uuid}} {{other}} {{ tick }}"
    berlin = replace(SCHEDULE, timezone="Europe/Berlin", content=text)
    tick_ms = ms("2027-01-01T08:00", "Europe/Berlin")
    *words, uuid, _, _, _, _ = fill(berlin, tick_ms).decode().split(" ")
    assert words == [
        "2027-01-01T08:00:00+01:00", str(tick_ms), "2027-01-01", f"nightly@{tick_ms}", "nightly"
    ]  # fmt: skip
    assert UUID(uuid).version == 4
    assert fill(berlin, tick_ms).endswith(b" {{other}} {{ tick }}")
    assert fill(berlin, tick_ms) != fill(berlin, tick_ms)
    assert fill(replace(berlin, encoding="base64"), tick_ms) == text
    assert all(re.search(rb"\{\{%b\}\}" % name.encode(), text) for name in schedules.PLACEHOLDERS)
