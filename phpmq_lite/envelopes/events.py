"""What a worker tells: one event for each turn of a job, to the log or to a hook of yours."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

Level = Literal["info", "warning", "error"]
Hook = Callable[[Level, str, Mapping[str, Any]], None]
"""Called with level, event and context: queue, urn, trace_id, message_id, attempt, delay_s, reason.

What is not known is not there; never a content.
"""

Event = Literal[
    "job.ack",  # handled and acknowledged
    "job.retry",  # failed, a copy waits for its next run
    "job.released",  # back in the queue as it was: reason unknown_urn, in_flight, shutdown …
    "job.dead_letter",  # failed for good, unknown or malformed: it has a record
    "job.dropped",  # acknowledged without having been handled, as the settings wish
    "job.duplicate",  # handled before: acknowledged without a run
    "job.warning",  # outdated members of an envelope; each warning once
    "reserve.failed",  # no message could be taken; the worker tries again
    "process.failed",  # a job could not be ended, or its handler ended the worker
    "worker.started",
    "worker.stopping",  # reason: stopped, exit, jobs, runtime, memory, orphaned, empty
]

_log = logging.getLogger("phpmq_lite.worker")
_LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def log(level: Level, event: str, context: Mapping[str, Any]) -> None:
    """Write an event to the logger ``phpmq_lite.worker``: the hook where no other is given."""
    told = " ".join(f"{name}={value}" for name, value in context.items())
    _log.log(_LEVELS[level], "%s %s", event, told)


class Events:
    """Hands events to a hook; what the hook raises is logged and ends nothing."""

    __slots__ = ("hook",)

    def __init__(self, hook: Hook = log) -> None:
        self.hook = hook

    def emit(self, level: Level, event: Event, **context: Any) -> None:
        """Tell an event; members that are None are left out."""
        known = {name: value for name, value in context.items() if value is not None}
        try:
            self.hook(level, event, known)
        except Exception:
            _log.exception("the hook failed at %s", event)
