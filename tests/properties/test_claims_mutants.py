"""The state machine of claims finds each defect in a rule that claims follow."""

from typing import Any, Final
from unittest.mock import patch

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from phpmq_lite.broker import delivery_limits
from phpmq_lite.broker.pipeline import claims
from phpmq_lite.broker.queue import Queue
from phpmq_lite.installation import build_kind
from tests.properties.test_claims_machine import ClaimsAgainstModel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PROCESS_PAGE: Final = claims._PagedClaim.process_page


def by_arrival(claim: Any, page: list[Any], is_last: bool) -> None:
    """Claim in order of arrival, whatever the priority."""
    PROCESS_PAGE(claim, sorted(page, key=lambda message: message.seq), is_last)


MUTANTS: Final[dict[str, tuple[Any, str, Any]]] = {
    "ClaimsByArrival": (claims._PagedClaim, "process_page", by_arrival),
    "ClaimsBeyondTheLimits": (delivery_limits, "free_dispatches", lambda _core, _queue: 1_000),
    "CountsNoClaimInFlight": (Queue, "dispatched", property(lambda queue: queue.held)),
    "PaysNothingForAClaim": (delivery_limits, "use_rate", lambda _core, _queue, _count: None),
    "ClaimsSeveralOfAGroup": (
        delivery_limits, "note_dispatched", lambda _core, _queue, _message: None,
    ),
}  # fmt: skip


@pytest.mark.skipif(build_kind() == "compiled", reason="compiled code cannot be replaced")
@pytest.mark.parametrize("name", MUTANTS)
def test_machine_finds(name: str) -> None:
    search = settings(
        max_examples=200, stateful_step_count=40, phases=[Phase.generate], database=None,
        report_multiple_bugs=False,
    )  # fmt: skip
    with patch.object(*MUTANTS[name]), pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(seed(1)(ClaimsAgainstModel), settings=search)
