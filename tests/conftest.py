"""Shared by all tests: profiles of Hypothesis, order and markers, a log stream, and figures.

``HYPOTHESIS_PROFILE=long python -m pytest`` searches longer, with a new seed each time.  A failure
prints its seed and a line that reproduces it.
"""

import gc
import io
import logging
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
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


_SPARK: Final = "tests/spark/"


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
    children.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    template_branches.install()


def pytest_unconfigure() -> None:
    """Write which branches of the templates this process has rendered."""
    template_branches.save()


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark cases outside the sample of their test as slow, then shuffle the files reproducibly.

    Workers take long runs of the list, so one worker would get all browser tests.  The tests of a
    file stay together and in order.  Spark's tests come first, so that one worker runs them all in
    one JVM: a second JVM would spend 20 s of processor time on starting and compiling.
    """
    if ON_POSTGRES:
        _leave_out(items, config)
    for item in items:
        sample = item.get_closest_marker("sample")
        if sample is not None and item.name.partition("[")[2].removesuffix("]") not in sample.args:
            item.add_marker("slow")

    def file(item: pytest.Item) -> str:
        return item.nodeid.partition("::")[0]

    items.sort(key=lambda item: (not file(item).startswith(_SPARK), crc32(file(item).encode())))


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
