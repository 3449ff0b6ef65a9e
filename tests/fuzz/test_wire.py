"""Any bytes on real connections; ``python -m tests.fuzz.wire`` opens more of them."""

from collections.abc import Callable

import pytest

from tests.fuzz.test_fuzz import SEED
from tests.fuzz.wire import run

CONNECTIONS = 3_000


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_broker_goes_on_after_connections_with_any_bytes(
    engine: str, figure: Callable[[str], None]
) -> None:
    outcomes, tracebacks = run(engine, CONNECTIONS, SEED)
    figure(f"any bytes on {CONNECTIONS:,} connections, {engine}: {dict(outcomes)}, seed {SEED}")
    assert tracebacks == []
    assert outcomes.total() == CONNECTIONS
    assert not outcomes["wrong, and left open"]
    assert min(outcomes["closed by the broker"], outcomes["left open"]) > CONNECTIONS // 20
