"""Stored schedules and their runs; times are in Unix ms of the raw wall clock."""

from dataclasses import dataclass

from phpmq_lite.model import Schedule
from phpmq_lite.storage.read.read_pool import RowReader
from phpmq_lite.writes import ScheduleRun


@dataclass(slots=True, frozen=True)
class ScheduleFailures:
    """Failed runs of a schedule."""

    name: str
    queue: str
    count: int
    detail: str  # of the last one


class ScheduleReader(RowReader):
    """Reads the tables ``schedule`` and ``schedule_run``."""

    file = "schedules"

    async def all(self) -> list[Schedule]:
        """Return all schedules, by name."""
        return await self._all(Schedule, "all")

    async def one(self, name: str) -> Schedule | None:
        """Return a schedule, or None."""
        return await self._one(Schedule, "one", name=name)

    async def last_runs(self) -> dict[int, ScheduleRun]:
        """Return the run with the last tick of each schedule, by its number."""
        return {run.schedule_id: run for run in await self._all(ScheduleRun, "last_runs")}

    async def history_of(self, schedule_id: int, before_ms: int, limit: int) -> list[ScheduleRun]:
        """Return the runs of a schedule before a tick, the last tick first."""
        return await self._all(
            ScheduleRun, "runs", schedule_id=schedule_id, before=before_ms, limit=limit
        )

    async def failures(self, since_ms: int) -> list[ScheduleFailures]:
        """Return which schedules have failed runs since a time."""
        return await self._all(ScheduleFailures, "failures", since=since_ms)
