"""The state machine finds each defect in a rule about deliveries.

Each search has a fixed seed, the rules that matter, and few queues; it ends at the first failure.
"""

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from phpmq_lite.installation import build_kind
from tests.properties.machine_mutants import MUTANTS, with_defect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]
SEARCH = settings(
    max_examples=250,  # two seeds find each within 70
    stateful_step_count=60,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    database=None,
)


@pytest.mark.skipif(build_kind() == "compiled", reason="compiled code cannot be replaced")
@pytest.mark.parametrize("name", MUTANTS)
def test_machine_finds(name: str) -> None:
    with with_defect(name) as machine, pytest.raises((AssertionError, KeyError, ValueError)):
        run_state_machine_as_test(seed(1)(machine), settings=SEARCH)
