"""Waits for a condition that another process brings about."""

import time
from collections.abc import Callable
from typing import Any

from tests.support.socket_client import WAIT_S


def until(reached: Callable[[], Any], limit_s: float = WAIT_S) -> Any:
    """Wait for a true value and return it."""
    ends_s = time.monotonic() + limit_s
    while not (value := reached()):
        assert time.monotonic() < ends_s, "the condition was not reached"
        time.sleep(0.02)
    return value
