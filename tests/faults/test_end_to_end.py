"""A short run of ``end_to_end.py``, which compares a broker with a ledger from outside."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.faults.shimmed_broker import NEEDS_SHIM

pytestmark = [pytest.mark.faults, NEEDS_SHIM]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_broker_keeps_its_promises_from_end_to_end(figure: Callable[[str], None]) -> None:
    command = [sys.executable, "-m", "tests.faults.end_to_end", "--examples", "6"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    figure(done.stdout.strip().splitlines()[-1] if done.stdout else done.stderr[-500:])
    assert done.returncode == 0, done.stdout + done.stderr
