"""Figures: what a test measured is shown at the end of the run, whether it passed or not."""

from collections.abc import Callable

import pytest

LINES = pytest.StashKey[list[str]]()


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Have a line shown at the end of the run."""
    return request.config.stash.setdefault(LINES, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the figures of all tests."""
    lines = terminalreporter.config.stash.get(LINES, [])
    if lines:
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.write_line(line)
