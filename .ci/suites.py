"""Run the suites of ``.ci/run``, then repeat the tests that failed, once and alone.

On a loaded machine, one test of 12,000 that waits for something may fail in any run.  A test that
passes when it is repeated does not refuse the change; it is printed as unstable, because it still
needs a cause.  A test that fails twice, more than ``MOST_REPEATED`` failed tests, or a suite that
did not run to its end refuse the change.  So does a branch of a template that neither the fast
nor the slow suite rendered.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

MOST_REPEATED = 5
SOME_FAILED = 1  # pytest's exit code; all others but 0 mean that a suite did not run to its end


class Suite(NamedTuple):
    """A run of pytest: its name, its arguments, and what its environment adds."""

    name: str
    arguments: tuple[str, ...]
    environment: dict[str, str] = {}  # noqa: RUF012  # never changed


def suites(arguments: list[str], branches: Path) -> list[Suite]:
    """Return the suites, with additional ``arguments`` for the first; two fill ``branches``."""
    templates = {"TEMPLATE_BRANCHES": str(branches)}
    postgres = {"PHPMQ_TEST_STORE": "postgres", "HYPOTHESIS_PROFILE": "brief"}
    return [
        Suite("fast", ("-n", "auto", *arguments), templates),  # the test command of the README
        Suite("slow", ("-n", "auto", "-m", "slow"), templates),  # what takes minutes
        # The broker on PostgreSQL: the state machines, the protocol, and brokers in processes.
        Suite(
            "postgres",
            ("-n", "auto", "tests/properties", "tests/conformance", "tests/acceptance"),
            postgres,
        ),
    ]


def run(suite: Suite, folder: Path, *more: str) -> int:
    """Run a suite with its own cache below ``folder``; return pytest's exit code."""
    command = (sys.executable, "-m", "pytest", "-o", f"cache_dir={folder / suite.name}")
    environment = os.environ | suite.environment
    begin = time.monotonic()
    code = subprocess.run([*command, *suite.arguments, *more], env=environment, check=False)
    minutes, seconds = divmod(round(time.monotonic() - begin), 60)
    print(f"suite {suite.name}: exit {code.returncode} after {minutes} min {seconds} s", flush=True)
    return code.returncode


def failed_tests(suite: Suite, folder: Path) -> list[str]:
    """Return the ids of the tests that failed in the last run of a suite."""
    path = folder / suite.name / "v" / "cache" / "lastfailed"
    return sorted(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []


def check(all_suites: list[Suite], folder: Path) -> str | None:
    """Run the suites and repeat what failed; return why the change is refused, or None."""
    failed: dict[int, list[str]] = {}  # by the suite's number
    for number, suite in enumerate(all_suites):
        code = run(suite, folder)
        if code not in {0, SOME_FAILED}:
            return f"the suite {suite.name} did not run to its end: exit code {code}"
        if code == SOME_FAILED:
            failed[number] = failed_tests(suite, folder)
            if not failed[number]:
                return f"the suite {suite.name} failed, but none of its tests"
        count = sum(map(len, failed.values()))
        if count > MOST_REPEATED:
            return f"{count} tests failed; at most {MOST_REPEATED} are repeated"
    for number in failed:
        suite = all_suites[number]
        print(f"\nrepeating {len(failed[number])} tests of the suite {suite.name}", flush=True)
        # -n 0 after the suite's own: nothing runs beside them.
        if run(suite, folder, "-n", "0", "--last-failed", "--last-failed-no-failures", "none"):
            return "failed twice: " + ", ".join(failed_tests(suite, folder))
    if failed:
        print("\n======== unstable: failed once, passed when repeated ========")
        for number, tests in failed.items():
            print(*(f"{all_suites[number].name}: {test}" for test in tests), sep="\n", flush=True)
    return None


def check_templates(branches: Path) -> str | None:
    """Print the branches of the templates that were not rendered; return the refusal, or None."""
    command = (sys.executable, "-m", "tests.support.template_branches", str(branches))
    if subprocess.run(command, check=False).returncode:
        return "the fast and slow suites did not render every branch of the templates"
    return None


def main() -> int:
    """Check the change; return the exit code of ``.ci/run``."""
    arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as branches:
        refusal = check(suites(arguments, Path(branches)), Path(folder))
        if refusal is None and not arguments:  # with arguments, it may not be the whole suite
            refusal = check_templates(Path(branches))
    if refusal:
        print(f"\nrefused: {refusal}", file=sys.stderr)
    return 1 if refusal else 0


if __name__ == "__main__":
    sys.exit(main())
