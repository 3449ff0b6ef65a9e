"""Schemathesis calls the HTTP API: no response may be a 5xx.

``PHPMQ_API_EXAMPLES=1000`` sends more requests; ``python -m tests.fuzz.api`` takes ``--minutes``.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup

from tests.fuzz import api_mutant
from tests.fuzz.api import FLAGS, Asked, operations_of, store_flags, wait_until_active
from tests.support.engine_stores import ENGINES
from tests.support.fork_server import BrokerProcess, broker_process

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

EXAMPLES = int(os.environ.get("PHPMQ_API_EXAMPLES", "12"))


@pytest.fixture(scope="module", params=ENGINES)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("api") / "data"
    with ExitStack() as stack:
        flags = [*FLAGS, *stack.enter_context(store_flags(request.param))]
        made = stack.enter_context(broker_process(data, *flags))
        wait_until_active(made)
        yield made
        assert made.process is not None
        assert made.process.poll() is None, made.log.read_text(encoding="utf-8")[-4_000:]


@pytest.fixture(scope="module")
def operations(broker: BrokerProcess) -> list[Any]:
    return operations_of(broker)


@pytest.mark.sample("sqlite-1-positive", "postgres-1-positive")
@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("examples", [1, pytest.param(EXAMPLES, marks=pytest.mark.slow)])
def test_api_never_fails(
    operations: list[Any], mode: GenerationMode, examples: int, figure: Callable[[str], None]
) -> None:
    assert len(operations) > 20
    asked = Asked()
    for operation in operations:
        asked.ask(operation, mode, examples)
    figure(f"HTTP API, {mode.value} requests: {asked}")
    assert asked.failed == 0


def test_schemathesis_finds_an_api_that_trusts_cursors(tmp_path: Path) -> None:
    program = ("-m", api_mutant.__name__)
    mutant = BrokerProcess(tmp_path / "data", list(FLAGS), program=program)
    mutant.start()
    try:
        (operation,) = [
            one for one in operations_of(mutant) if (one.path, one.method) == ("/queues", "get")
        ]
        with pytest.raises((FailureGroup, ExceptionGroup)):
            Asked().ask(operation, GenerationMode.POSITIVE, 50)
    finally:
        mutant.kill()
