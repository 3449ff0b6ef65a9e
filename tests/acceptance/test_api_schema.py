"""The HTTP API asked by schemathesis: what its document allows, what it forbids, and oddities.

Nothing may be answered with 500, and what is answered has the shape that the document says.
``PHPMQ_API_EXAMPLES=1000`` asks for longer.
"""

import os
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error

from phpmq_lite.testing import BrokerProcess, broker_process

pytestmark = pytest.mark.acceptance

schemathesis.serializer.alias("application/vnd.apache.arrow.stream", "application/octet-stream")

EXAMPLES = int(os.environ.get("PHPMQ_API_EXAMPLES", "12"))
LONG = ("/events", "/wait")  # they answer when something happens


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    flags = ("--admin", "127.0.0.1:0", "--set", "limits.max_content=1MiB")
    with broker_process(tmp_path_factory.mktemp("api") / "data", *flags) as made:
        yield made


@pytest.fixture(scope="module")
def operations(broker: BrokerProcess) -> list[Any]:
    base = broker.admin[0].rstrip("/")
    schema = schemathesis.openapi.from_url(f"{base}/api/v1/openapi.json")
    schema.config.update(base_url=f"{base}/api/v1")
    found: list[Any] = [one.ok() for one in schema.get_all_operations()]  # type: ignore[union-attr]
    return [operation for operation in found if operation.path not in LONG]


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_api_never_fails(operations: list[Any], mode: schemathesis.GenerationMode) -> None:
    assert len(operations) > 20
    for operation in operations:
        ask(operation, mode)


def ask(operation: Any, mode: schemathesis.GenerationMode) -> None:
    """Send generated requests to one operation; nothing may be answered with a 5xx."""

    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def send(case: Any) -> None:
        case.call_and_validate(checks=[not_a_server_error], timeout=30)

    try:
        send()
    except hypothesis.errors.Unsatisfiable:  # this operation has no such requests
        assert mode is schemathesis.GenerationMode.NEGATIVE
