"""What operators have selected, started and can undo; none of it survives a restart."""

from collections.abc import Callable
from typing import Final

from aiohttp import web

from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.messages.jobs import BulkJobs
from phpmq_lite.admin.messages.selection_store import SelectionStore
from phpmq_lite.admin.messages.undo import UndoStore


class MessageStores:
    """Selections, bulk jobs and undo records of all callers."""

    __slots__ = ("jobs", "selections", "undos")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.selections = SelectionStore()
        self.jobs = BulkJobs(now_ms)
        self.undos = UndoStore()


STORES: Final = web.AppKey("message stores", MessageStores)


def stores_of(call: Call) -> MessageStores:
    """Return the selections, bulk jobs and undo records."""
    return call.context.app[STORES]
