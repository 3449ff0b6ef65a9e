"""Tests that run on several event loops."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest
import uvloop

AsyncTest = Callable[..., Coroutine[Any, Any, None]]


def on_both_loops(test: AsyncTest) -> Callable[..., None]:
    """Run a test on the loop of the standard library and on uvloop's."""

    @wraps(test)
    def run(new_loop: Callable[[], asyncio.AbstractEventLoop], **fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(test(**fixtures))

    names = [*inspect.signature(test).parameters.values()]
    new_loop = inspect.Parameter("new_loop", inspect.Parameter.KEYWORD_ONLY)
    run.__dict__["__signature__"] = inspect.Signature([*names, new_loop])
    both = pytest.mark.parametrize(
        "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
    )
    marked: Callable[..., None] = both(run)
    return marked
