"""Selections, bulk jobs and undo records of one application."""

from collections.abc import Callable

from phpmq_lite.admin.actions.bulk_jobs import BulkJobs
from phpmq_lite.admin.actions.selections import SelectionStore
from phpmq_lite.admin.actions.undo import UndoStore


class ActionState:
    """Selections, bulk work and what can be taken back; all of it ends with the process."""

    __slots__ = ("jobs", "selections", "undos")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.selections = SelectionStore()
        self.jobs = BulkJobs(now_ms)
        self.undos = UndoStore()
