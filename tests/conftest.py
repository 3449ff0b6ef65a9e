"""What all tests share: how hard Hypothesis searches, and a place for the log.

``HYPOTHESIS_PROFILE=long python -m pytest`` searches longer, and somewhere else each time.  A
failure prints its seed and a line that reproduces it.
"""

import io
import logging
import os
from collections.abc import Iterator
from zlib import crc32

import pytest
import structlog
from hypothesis import HealthCheck, settings

# No deadline: a slow machine is no defect.
COMMON = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
# Derandomized: what decides about a change tries the same each time, so that the answer is about
# the change and not about luck.  New ground is for the long search.
settings.register_profile(
    "quick", COMMON, max_examples=60, stateful_step_count=30, derandomize=True
)
settings.register_profile("long", COMMON, max_examples=2_000, stateful_step_count=100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mix the files, always alike: workers take long stretches, and all browsers would be in one.

    What a file has stays together and in its order.
    """
    items.sort(key=lambda item: crc32(item.nodeid.partition("::")[0].encode()))


@pytest.fixture
def log_stream() -> Iterator[io.StringIO]:
    """Give a place for ``logs.configure``; afterwards all is as before."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []  # else pytest's are closed
    yield io.StringIO()
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()
