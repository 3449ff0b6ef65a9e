"""Ticks of cron expressions, which of them run, and the content that a run publishes.  Pure.

Times are Unix milliseconds of the raw wall clock.  A cron expression has five fields, or six with
seconds as the first one, and is read in a time zone.  When clocks are set forward, a tick at a
fixed time in the missing hour runs right after it; when they are set back, it runs once, in the
first of the two hours.  Ticks whose minute or hour begins with ``*`` follow elapsed time.
"""

import re
from collections import deque
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from itertools import islice, takewhile
from os import urandom
from typing import Final, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from phpmq_lite.errors import RefusedError
from phpmq_lite.model import Schedule

SCHEDULES_MAX: Final = 500
CONTENT_BYTES: Final = 64 << 10
CRON_CHARACTERS: Final = 200
MISSED_MAX: Final = 100  # largest number of missed ticks that "all" runs
ON_TIME_MS: Final = 60_000  # a tick that runs at most this much later is not missed
KEPT_MS: Final = 7 * 86_400_000  # runs are kept this long, and the newest ones longer
KEPT_RUNS: Final = 100
NAME_RULE: Final = "1 to 64 characters: letters, digits and . _ -"
MISSED: Final = {
    "skip": "Skip them",
    "once": "Run the last one",
    "all": "Run the last ones, up to a number",
}
PLACEHOLDERS: Final = {
    "tick": "time of the tick in the schedule's zone, such as 2027-01-01T08:00:00+01:00",
    "tick_ms": "the same in Unix milliseconds",
    "date": "its date, such as 2027-01-01",
    "run_id": "name and tick of the run: the same again only for the same tick",
    "schedule": "name of the schedule",
    "uuid": "a new random UUID for each message",
}
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PLACEHOLDER: Final = re.compile(rb"\{\{(%b)\}\}" % "|".join(PLACEHOLDERS).encode())


class DueTicks(NamedTuple):
    """The ticks that are due, in order: first those that are skipped, then those that run."""

    skipped: list[int]
    run: list[int]
    is_cut: bool = False  # whether many more are skipped


def check_name(name: str) -> None:
    """Check the name of a schedule.  Raises RefusedError: ``bad_name``."""
    if not _NAME.fullmatch(name):
        raise RefusedError("bad_name", f"the name {name[:100]!r} is invalid; use {NAME_RULE}")


def check_times(cron: str, timezone: str) -> None:
    """Check that there is a tick.  Raises RefusedError: ``bad_cron`` or ``bad_timezone``."""
    try:
        ZoneInfo(timezone)
    except (KeyError, OSError, ValueError):  # not found, a folder, not a name
        detail = f"{timezone[:100]!r} is not a time zone; use a name such as Europe/Berlin, or UTC"
        raise RefusedError("bad_timezone", detail) from None
    if len(cron) > CRON_CHARACTERS:
        problem = f"has {len(cron)} characters; the limit is {CRON_CHARACTERS}"
        raise RefusedError("bad_cron", f"the cron expression {problem}")
    try:
        tick = next_tick(cron, timezone, 0)
    except (CronSimError, AssertionError, ValueError) as error:
        problem = str(error).lower() or "bad value"
        raise RefusedError(
            "bad_cron",
            f"{cron!r} is not a cron expression: {problem}. Use minute, hour, day of the month,"
            " month and day of the week, such as 30 8 * * MON-FRI",
        ) from None
    if tick is None:
        raise RefusedError("bad_cron", f"{cron!r} has no tick within 50 years")


def ticks_after(cron: str, timezone: str, after_ms: int) -> Iterator[int]:
    """Yield the ticks after a time (exclusive), in order."""
    zone = UTC if timezone == "UTC" else ZoneInfo(timezone)
    start = datetime.fromtimestamp(after_ms // 1_000, zone)
    for at in CronSim(cron, start):
        tick_ms = int(at.timestamp()) * 1_000
        if tick_ms > after_ms:  # in a repeated hour, cronsim begins with the first of the two
            yield tick_ms


def next_tick(cron: str, timezone: str, after_ms: int) -> int | None:
    """Return the next tick after a time (exclusive), or None if there is none within 50 years."""
    return next(ticks_after(cron, timezone, after_ms), None)


def last_ticks(cron: str, timezone: str, after_ms: int, upto_ms: int, limit: int) -> list[int]:
    """Return the last ``limit`` ticks after a time and not after another, in order.

    The effort does not depend on the length of the time: if it has more ticks, only its end is
    read, twice as much until that has enough.
    """
    first = takewhile(upto_ms.__ge__, ticks_after(cron, timezone, after_ms))
    ticks = deque(islice(first, limit + 1))
    if len(ticks) <= limit:
        return list(ticks)
    window_ms = ticks[-1] - after_ms  # long enough if the ticks are as dense everywhere
    while len(ticks) != limit:
        newest = ticks_after(cron, timezone, max(after_ms, upto_ms - window_ms))
        ticks = deque(takewhile(upto_ms.__ge__, newest), maxlen=limit)
        window_ms *= 2
    return list(ticks)


def due_ticks(schedule: Schedule, now_ms: int, ran: Collection[int] = ()) -> DueTicks:
    """Return what happens to the ticks after ``seen_upto`` and not after ``now_ms``.

    Those that are at most a minute late run, and as many of the last ones as the policy says.
    Ticks that ``ran`` are left out.
    """
    runs_missed = {"skip": 0, "once": 1}.get(schedule.missed, schedule.missed_max)
    limit = runs_missed + ON_TIME_MS // 1_000 + 2 + len(ran)
    ticks = last_ticks(schedule.cron, schedule.timezone, schedule.seen_upto, now_ms, limit + 1)
    due = [tick for tick in ticks if tick not in ran]
    on_time = sum(tick >= now_ms - ON_TIME_MS for tick in due)
    first = max(0, len(due) - max(on_time, runs_missed))
    return DueTicks(due[:first], due[first:], is_cut=len(ticks) > limit)


def describe_skipped(schedule: Schedule, due: DueTicks) -> str:
    """Return the text for a run that stands for the ticks that are skipped."""
    if due.is_cut:
        return "this tick and many before it were missed"
    if len(due.skipped) == 1:
        return "missed"
    first = format_tick(schedule, due.skipped[0])
    return f"{len(due.skipped)} ticks since {first} were missed"


def format_tick(schedule: Schedule, tick_ms: int) -> str:
    """Return a time in the schedule's zone, such as ``2027-01-01T08:00:00+01:00``."""
    zone = ZoneInfo(schedule.timezone)
    return datetime.fromtimestamp(tick_ms // 1_000, zone).isoformat()


def fill(schedule: Schedule, tick_ms: int) -> bytes:
    """Return the content of a run: placeholders in text are replaced, all else is unchanged."""
    if schedule.encoding != "utf-8":
        return schedule.content
    at = format_tick(schedule, tick_ms)
    values = {
        b"tick": at,
        b"tick_ms": str(tick_ms),
        b"date": at[:10],
        b"run_id": f"{schedule.name}@{tick_ms}",
        b"schedule": schedule.name,
    }

    def value(match: "re.Match[bytes]") -> bytes:
        text = values.get(match[1])
        return (str(UUID(bytes=urandom(16), version=4)) if text is None else text).encode()

    return _PLACEHOLDER.sub(value, schedule.content)
