"""The trace of the envelope that is being handled: what is published meanwhile continues it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_current: ContextVar[str | None] = ContextVar("phpmq_lite_trace_id", default=None)


@contextmanager
def handling(envelope: Mapping[str, Any]) -> Iterator[None]:
    """Have publishes inside continue the envelope's trace, unless they name another.

    A context variable: tasks and ``run_coroutine_threadsafe`` inherit it, new threads do not.
    """
    found = envelope.get("trace_id")
    token = _current.set(found if isinstance(found, str) else None)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> str | None:
    """Return the trace_id of the envelope that is being handled here; None outside."""
    return _current.get()
