"""A message that ends its consumer's connection is dead-lettered; other messages are not."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.ledger import read_only
from tests.faults.mutants import mutant_process
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.socket_client import SocketClient

pytestmark = pytest.mark.faults

DISPATCH_S = 5.0  # time limit
MOST = 20  # deliveries, by default
POISON = b"poison"
GOOD = [b"good %d" % number for number in range(30)]


def consume_all(broker: BrokerProcess) -> tuple[int, float]:
    """Consume with workers that crash on the poison; return the connections and milliseconds."""
    with SocketClient(broker.port) as publisher:
        publisher.store("work", *GOOD[:10], POISON, *GOOD[10:])
    done: list[bytes] = []
    connections, began = 0, time.perf_counter()
    while len(done) < len(GOOD):
        connections += 1
        assert connections <= 2 * MOST, f"{POISON!r} is redelivered without end"
        with SocketClient(broker.port) as peer:
            peer.consume("work", 10)
            peer.socket.settimeout(DISPATCH_S)
            while len(done) < len(GOOD):
                (dispatch,) = peer.dispatches(1)
                if dispatch.content == POISON:
                    peer.reset()
                    break
                done.append(dispatch.content)
                peer.ack(dispatch)
            else:
                peer.barrier()
    took_ms = (time.perf_counter() - began) * 1_000
    assert done == GOOD, "in their order"
    return connections, took_ms


def settlements(broker: BrokerProcess) -> dict[bytes, tuple[Any, ...]]:
    """Return outcome, reason, deliveries and charged deliveries by settled content."""
    with read_only(broker.data) as database:
        rows = database.execute(
            "SELECT content, outcome, reason, deliveries, charged FROM history "
            "JOIN body USING (seq) JOIN queue USING (queue_id) WHERE name = 'work'"
        ).fetchall()
    return {row[0]: row[1:] for row in rows}


def judge(broker: BrokerProcess) -> tuple[int, float]:
    """Consume everything, and check the charged deliveries."""
    connections, took_ms = consume_all(broker)
    ends = settlements(broker)
    assert ends.pop(POISON) == (4, "max_deliveries", MOST, MOST)  # dead
    charged = {content: end for content, end in ends.items() if end[0] != 2 or end[-1]}
    assert charged == {}, "neighbours that were charged, or not acknowledged"
    with SocketClient(broker.port) as peer:
        peer.consume("work.dlq", 5)
        assert b'"raw":"poison"' in peer.bodies(1)[0]
    return connections, took_ms


def test_poison_dies_and_its_neighbours_are_charged_nothing(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with broker_process(tmp_path / "data") as broker:
        connections, took_ms = judge(broker)
    figure(
        f"poison: dead after {MOST} deliveries, which ended {connections - 1} connections; "
        f"{len(GOOD)} neighbours charged nothing, the last of them after {took_ms:.0f} ms"
    )


def test_neighbours_show_a_broker_that_charges_all_that_was_held(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with (
        mutant_process(tmp_path / "data", "ChargesAllThatWasHeld") as broker,
        pytest.raises((AssertionError, TimeoutError)) as found,
    ):
        judge(broker)
    figure(f"mutant ChargesAllThatWasHeld: found: {str(found.value).splitlines()[0][:80]}")
