"""What `limits.max_queues` does without being asked is logged, with its count."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite import connect_blocking
from phpmq_lite.broker import commands
from phpmq_lite.broker.commands import CommandResult
from phpmq_lite.errors import ClientError
from phpmq_lite.model import Limits
from tests.support.core_rig import CoreRig
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.waiting import until


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    flags = ["--admin", "none", "--log-format", "json", "--set", "limits.max_queues=1"]
    flags += ["--set", "queues.on_expire=forward:late"]
    with broker_process(tmp_path / "data", *flags) as running:
        yield running


def lines(broker: BrokerProcess, event: str) -> list[dict[str, Any]]:
    text = broker.log.read_text(encoding="utf-8")
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [line for line in found if line["event"] == event]


@pytest.mark.acceptance
def test_operator_reads_of_each_effect_of_the_limit_of_queues(broker: BrokerProcess) -> None:
    with connect_blocking("127.0.0.1", broker.port) as client:
        for _ in range(3):
            client.publish_confirmed("orders", b"x", 1)
        until(lambda: lines(broker, "dead_lettered_not_forwarded"))
        with pytest.raises(ClientError, match="too many queues"):
            client.publish_confirmed("more", b"x")
    with (
        connect_blocking("127.0.0.1", broker.port, reconnect=False) as client,
        pytest.raises(ClientError),
        client.consume("others", 1, 10) as consumer,
    ):
        next(consumer)
    until(lambda: lines(broker, "consumers_refused"))
    until(lambda: lines(broker, "publishes_refused"))
    [line] = lines(broker, "dead_lettered_not_forwarded")
    assert (line["setting"], line["limit"], line["queue"]) == ("limits.max_queues", 1, "late")
    assert 1 <= line["count"] <= 3
    [line] = lines(broker, "publishes_refused")
    assert (line["count"], line["queue"]) == (1, "more")


def test_client_learns_that_a_forced_publish_was_refused() -> None:
    """Acknowledgements wait after it; it was dropped without a word."""
    rig = CoreRig(Limits(queues=1))
    one = rig.connect()
    rig.run(lambda: commands.publish(rig.core, one, "orders", b"a", None, b"1"))
    rig.begin()
    assert (
        commands.publish(rig.core, one, "new", b"b", None, None, is_forced=True)
        is CommandResult.CLOSE
    )
    rig.finish()
    assert rig.core.refused["too many queues"] == 1
