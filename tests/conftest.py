"""Shared by all tests: profiles of Hypothesis, order and markers, a log stream, and figures.

``HYPOTHESIS_PROFILE=long python -m pytest`` searches longer, with a new seed each time.  A failure
prints its seed and a line that reproduces it.
"""

import gc
import io
import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zlib import crc32

import argon2
import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support import template_branches
from tests.support.engine_differences import OF_ONE_ENGINE, SKIPPED, reason_of
from tests.support.stores import (
    ON_POSTGRES,
    returning_databases,
    shared_server,
    stop_server,
    use_postgres,
)

if TYPE_CHECKING:
    from tests.support.postgres_server import PostgresServer

# No deadline: a slow machine is not a defect.
COMMON = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
# Derandomized: the tests of a change try the same examples each time, so that a failure comes from
# the change.  The long profile tries new examples.
settings.register_profile(
    "quick", COMMON, max_examples=60, stateful_step_count=30, derandomize=True
)
settings.register_profile("brief", settings.get_profile("quick"), max_examples=15)
settings.register_profile("long", COMMON, max_examples=2_000, stateful_step_count=100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


# What ``-m slow`` runs, although each test takes seconds: together they would double the run.
SLOW: Final = (
    "tests/faults/", "tests/spark/", "tests/docs/test_three_machines.py",
    "tests/browser/test_clocks.py", "tests/browser/test_numbers.py", "tests/browser/test_pages.py",
    "tests/browser/test_reach.py", "tests/integration/test_postgres_writer.py",
    "tests/integration/test_heap.py", "tests/integration/test_stop_signals.py",
    "tests/integration/test_store_copy.py", "tests/test_duplicates.py",
)  # fmt: skip

IN_MEMORY: Final = Path("/dev/shm")
MEMORY_BYTES: Final = 4 << 30  # needed there; the folders of tests that have passed are removed

# What takes longest, each line for the beginning of one worker: begun late, it would be the end of
# the run with idle processors.  One worker runs all tests of Spark in one JVM: a second JVM would
# spend 20 s of processor time on starting and compiling.
LONGEST: Final = (
    ("tests/spark/",),
    (
        "tests/browser/test_numbers.py", "tests/browser/test_clocks.py",
        "tests/browser/test_pages.py",
    ),
    (
        "tests/test_quality.py", "tests/docs/test_three_machines.py",
        "tests/properties/test_broker_machine.py", "tests/test_duplicates.py",
        "tests/integration/test_store_copy.py",
    ),
    (
        "tests/faults/test_copy.py", "tests/integration/test_postgres_writer.py",
        "tests/faults/test_writer_process.py", "tests/faults/test_power.py",
        "tests/faults/test_clock.py", "tests/integration/test_stop_signals.py",
    ),
)  # fmt: skip


def pytest_xdist_auto_num_workers() -> int:
    """Return two workers per core for ``-n auto``.

    With one per core, two cores are idle for 60 % of the run: brokers start and stop, sync files,
    and wait for deadlines.
    """
    return 2 * len(os.sched_getaffinity(0))


if ON_POSTGRES:
    use_postgres()  # before tests import what it replaces


def pytest_configure() -> None:
    """Restore SIGINT for the processes that tests start, if this run started in the background.

    A shell without job control makes its background commands ignore SIGINT, and so do their
    children.  Temporary folders are in memory if it has room: brokers sync files 40,000 times.
    """
    if IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free >= MEMORY_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    template_branches.install()


def pytest_unconfigure() -> None:
    """Write which branches of the templates this process has rendered."""
    template_branches.save()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without garbage collection, which would take 1.2 s of 8 s in each worker."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Mark ``SLOW`` files, and cases outside the sample of their test, as slow; set the order.

    Workers take long runs of the list, so the files are shuffled reproducibly: else one worker
    would get all browser tests.  The tests of a file stay together and in order.
    """
    if ON_POSTGRES:
        _leave_out(items, config)
    for item in items:
        sample = item.get_closest_marker("sample")
        case = item.name.partition("[")[2].removesuffix("]")
        if item.nodeid.startswith(SLOW) or (sample is not None and case not in sample.args):
            item.add_marker("slow")

    yield
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = _in_order(items, workers)


def _in_order(items: list[pytest.Item], workers: int) -> Iterator[pytest.Item]:
    """Yield the tests of each worker's first share: some of the longest files, then others."""

    def line(item: pytest.Item) -> int:
        """Return the line of ``LONGEST`` with the item's file, or -1."""
        return next((n for n, files in enumerate(LONGEST) if item.nodeid.startswith(files)), -1)

    lines: dict[int, list[pytest.Item]] = {}
    for item in sorted(items, key=lambda item: crc32(item.nodeid.partition("::")[0].encode())):
        lines.setdefault(line(item), []).append(item)
    others, remaining = iter(lines.get(-1, [])), len(items)
    for worker in range(workers):
        size = remaining // (workers - worker)  # as pytest-xdist divides them
        remaining -= size
        longest = [item for n in range(worker, len(LONGEST), workers) for item in lines.get(n, [])]
        yield from longest
        yield from islice(others, max(0, size - len(longest)))
    yield from others


def _leave_out(items: list[pytest.Item], config: pytest.Config) -> None:
    """Deselect the tests of one engine, and skip those that differ."""
    own = [item for item in items if reason_of(item.nodeid, OF_ONE_ENGINE)]
    config.hook.pytest_deselected(items=own)
    items[:] = [item for item in items if item not in own]
    for item in items:
        if reason := reason_of(item.nodeid, SKIPPED):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Exempt the half million objects that collection creates from garbage collection.

    Each full collection would traverse them again, for 0.3 s of processor time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _cheap_passwords() -> Iterator[None]:
    """Reduce the cost of password hashes in this process; tests of the real cost undo it."""
    cheap = partial(argon2.PasswordHasher, time_cost=1, memory_cost=8, parallelism=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argon2, "PasswordHasher", cheap)
        yield


@pytest.fixture(scope="session", autouse=True)
def _session_databases() -> Iterator[None]:
    os.environ.pop("PHPMQ_TEST_STORE", None)  # the command line warns about unknown settings
    with returning_databases():
        yield
    stop_server()


@pytest.fixture(scope="module", autouse=True)
def _module_databases() -> Iterator[None]:
    with returning_databases():
        yield


@pytest.fixture(autouse=True)
def _test_databases() -> Iterator[None]:
    """Return the databases of a test's brokers; those of its file's brokers remain."""
    with returning_databases():
        yield


@pytest.fixture
def log_stream() -> Iterator[io.StringIO]:
    """Return a stream for ``logs.configure``; restore logging afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []  # or else pytest's handlers are closed
    yield io.StringIO()
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def postgres() -> "PostgresServer":
    """Return the PostgreSQL server of this worker."""
    return shared_server()


@pytest.fixture
def postgres_database(postgres: "PostgresServer") -> Iterator[str]:
    """Return the libpq address of a migrated PostgreSQL database of this test."""
    with postgres.database() as name:
        yield postgres.conninfo(name)


_FIGURE: Final = "figure"


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Return a function that adds a line to the end of the run's output, for figures."""
    properties = request.node.user_properties
    return lambda line: properties.append((_FIGURE, line))


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter") -> None:
    """Write the figures of all tests, unless one failed: then the output ends with failures."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        return
    reports = [each for some in terminalreporter.stats.values() for each in some]
    lines = [
        line
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, line in report.user_properties
        if name == _FIGURE
    ]
    if lines:
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.write_line(line)
