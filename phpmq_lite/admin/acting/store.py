"""What acting keeps in memory, made once per application."""

from collections.abc import Callable

from phpmq_lite.admin.acting.jobs import Jobs
from phpmq_lite.admin.acting.selections import Selections
from phpmq_lite.admin.acting.undo import Undos


class Acting:
    """Selections, bulk work and what can be taken back; all of it ends with the process."""

    __slots__ = ("jobs", "selections", "undos")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.selections = Selections()
        self.jobs = Jobs(now_ms)
        self.undos = Undos()
