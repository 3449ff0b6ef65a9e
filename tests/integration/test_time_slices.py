"""Time slices, as Linux shows them."""

import os
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from phpmq_lite.broker_process import broker_process
from phpmq_lite.time_slices import SHORT_US, set_time_slice

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the call is Linux's")


def slice_ns(task: Path) -> int:
    """Return a task's time slice, or 0 where the kernel does not show it."""
    try:
        found = re.search(r"^se\.slice\s*:\s*(\d+)$", (task / "sched").read_text(), re.MULTILINE)
    except FileNotFoundError:
        return 0
    return int(found[1]) if found else 0


def test_slice_is_of_a_thread_and_leaves_its_priority() -> None:
    def change() -> tuple[list[bool], list[int], int, int]:
        task = Path(f"/proc/self/task/{threading.get_native_id()}")
        accepted, slices = [], []
        for microseconds in (0, SHORT_US, 0):  # first, because a test may have set one before
            accepted.append(set_time_slice(microseconds))
            slices.append(slice_ns(task))
        return accepted, slices, os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)

    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    with ThreadPoolExecutor(1) as thread:
        accepted, (before, short, after), priority, policy = thread.submit(change).result()
    assert accepted == [True, True, True]
    assert (priority, policy) == (niceness, os.SCHED_OTHER)
    assert before == after
    assert not before or short == SHORT_US * 1_000 < before


def test_threads_of_the_broker_have_a_short_slice(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        tasks = [*Path(f"/proc/{broker.pid}/task").iterdir()]
        assert len(tasks) > 1
        assert {slice_ns(task) for task in tasks} <= {0, SHORT_US * 1_000}


def test_chosen_policy_is_kept() -> None:
    def change() -> tuple[bool, int]:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        return set_time_slice(SHORT_US), os.sched_getscheduler(0)

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(change).result() == (False, os.SCHED_BATCH)
