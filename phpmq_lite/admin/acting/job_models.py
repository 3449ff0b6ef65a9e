"""Bulk work as programs get it: over the API, and as the list of its page."""

from typing import Self

from pydantic import BaseModel

from phpmq_lite.admin.acting.jobs import Job
from phpmq_lite.admin.acting.progress import total_of
from phpmq_lite.storage.read.audit import BulkJobRow


class JobOut(BaseModel):
    """Bulk work; ``skipped`` counts by reason, ``undo`` is a token for POST /undo/{token}."""

    job: int
    action: str
    what: str
    total: int | None
    done: int
    skipped: dict[str, int]
    state: str  # running, done, cancelled, stopped; of an earlier start: interrupted
    started_at: int
    ended_at: int | None
    error: str | None = None
    undo: str | None = None

    @classmethod
    def of(cls, job: Job) -> Self:
        """Take over work that is remembered."""
        return cls(
            job=job.number,
            action=str(job.order.action),
            what=job.order.what,
            total=job.total,
            done=job.done,
            skipped=dict(job.skipped),
            state=str(job.state),
            started_at=job.started_at,
            ended_at=job.ended_at,
            error=job.error,
            undo=job.undo,
        )

    @classmethod
    def of_row(cls, number: int, row: BulkJobRow) -> Self:
        """Take over what the audit has of work that is not remembered."""
        return cls(
            job=number,
            action=row.action.rpartition(".")[2],
            what=row.target,
            total=total_of(row),
            done=row.count,
            skipped={},
            state=row.result,
            started_at=row.at_ms,
            ended_at=None,
        )
