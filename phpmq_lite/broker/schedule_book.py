"""The schedules that the core keeps in memory, and when the next tick is due."""

from collections import Counter
from collections.abc import Sequence

from phpmq_lite import schedules
from phpmq_lite.model import Schedule


class ScheduleBook:
    """All schedules; times are Unix ms of the raw wall clock.

    ``next_at`` has those that are not paused.  A time that has passed, such as 0, means that the
    schedule must be looked at, because it was loaded or the clock was set.
    """

    __slots__ = ("by_name", "counts", "next_at", "next_ms", "ran")

    def __init__(self, rows: Sequence[Schedule], ran: Sequence[tuple[int, int]]) -> None:
        self.by_name = {schedule.name: schedule for schedule in rows}
        self.ran: dict[int, set[int]] = {}  # by number, ticks after seen_upto that have a message
        for schedule_id, tick_ms in ran:
            self.ran.setdefault(schedule_id, set()).add(tick_ms)
        self.counts: Counter[str] = Counter()  # runs since startup, by outcome
        self.next_at: dict[str, int] = {}  # by name
        self.next_ms: int | None = None  # the earliest of them
        self.look_again()

    def look_again(self) -> None:
        """Look at all schedules in the next batch, because the clock was set."""
        for schedule in self.by_name.values():
            self.look_at(schedule)

    def find_next(self, schedule: Schedule, now_ms: int) -> None:
        """Note when the next tick of a schedule after now is due."""
        tick_ms = schedules.next_tick(schedule.cron, schedule.timezone, now_ms)
        self.next_at.pop(schedule.name, None)
        if tick_ms is not None and schedule.is_enabled:
            self.next_at[schedule.name] = tick_ms

    def look_at(self, schedule: Schedule) -> None:
        """Look at a schedule in the next batch."""
        if schedule.is_enabled:
            self.next_at[schedule.name] = self.next_ms = 0

    def note_next(self) -> None:
        """Note when the first tick of all schedules is due."""
        self.next_ms = min(self.next_at.values(), default=None)

    def remove(self, schedule: Schedule) -> None:
        del self.by_name[schedule.name]
        self.next_at.pop(schedule.name, None)
        self.ran.pop(schedule.schedule_id, None)
        self.note_next()
