"""Waits for a condition that another process brings about."""

import time
from collections.abc import Callable
from typing import Any

from tests.support.socket_client import WAIT_S


def until(reached: Callable[[], Any]) -> Any:
    ends_s = time.monotonic() + WAIT_S
    while not (value := reached()):
        assert time.monotonic() < ends_s, "the condition was not reached"
        time.sleep(0.02)
    return value
