"""Settlements of a message that another connection holds, which may have died unnoticed."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from phpmq_lite.broker import commands, pending
from phpmq_lite.broker.pending import LateSettlements
from phpmq_lite.broker.queue import Connection
from phpmq_lite.broker.retries import RetryRequest
from phpmq_lite.model import Limits, Message, State
from phpmq_lite.queue_settings import QueueSettings
from tests.support.builds import NEEDS_SOURCES
from tests.support.core_rig import CoreRig, outcomes

Settle = Callable[[CoreRig, Connection, Message], object]


@pytest.fixture
def rig() -> CoreRig:
    return CoreRig(Limits(), QueueSettings(ack_timeout_s=60, max_deliveries=1))


def acknowledge(rig: CoreRig, connection: Connection, message: Message) -> object:
    return commands.acknowledge_late(rig.core, connection, "orders", message.message_id)


def dead_letter(rig: CoreRig, connection: Connection, message: Message) -> object:
    options = {"reason": "no stock"}
    return commands.dead_letter(rig.core, connection, "orders", message.message_id, options)


def retry(rig: CoreRig, connection: Connection, message: Message, delay_s: float = 30) -> object:
    request = RetryRequest(delay_s, 1, True, {"error": "no stock"}, None)
    return commands.retry(rig.core, connection, "orders", message.message_id, request)


def end(rig: CoreRig, holder: Connection, **named: Any) -> Any:
    return rig.run(lambda: commands.disconnect(rig.core, holder, None, None, "gone", **named))


def time_out(rig: CoreRig, _holder: Connection) -> Any:
    rig.advance(60)
    return rig.run()


def stop(rig: CoreRig, holder: Connection) -> Any:
    return rig.run(lambda: commands.consume(rig.core, holder, "orders", 0))


def send_nothing(rig: CoreRig, holder: Connection) -> Any:
    return rig.run(lambda: commands.undo_dispatches(rig.core, holder, held_by(holder)))


def held_by(holder: Connection) -> list[Message]:
    return [m for consumer in holder.consumers.values() for m in consumer.held.values()]


ENDS = pytest.mark.parametrize("end", [end, time_out, stop, send_nothing])


@ENDS
@pytest.mark.parametrize(
    ("settle", "state"), [(acknowledge, State.ACKED), (dead_letter, State.DEAD), (retry, None)]
)
def test_settlement_is_done_when_the_hold_of_another_connection_ends(
    rig: CoreRig,
    settle: Settle,
    state: State | None,
    end: Callable[[CoreRig, Connection], Any],
) -> None:
    """Nothing is charged, or ``max_deliveries`` would have dead-lettered it."""
    holder, held = rig.hold()
    other = rig.connect()
    assert outcomes(rig.run(lambda: settle(rig, other, held))) == {}
    batch = end(rig, holder)
    assert [found for found, _ in outcomes(batch)] == ([] if state is None else [state])
    assert (held.state == State.SCHEDULED) == (state is None)
    assert (held.charged, held.options.retries) == (0, int(state is None))
    assert (rig.core.held, len(rig.core.late)) == (0, 0)


@pytest.mark.parametrize("number", [0, 2])
def test_last_settlement_counts(rig: CoreRig, number: int) -> None:
    holder, held = rig.hold()
    other = rig.connect()
    order: list[Settle] = [retry, dead_letter, acknowledge]
    for settle in (*order[number:], *order[:number]):
        rig.run(partial(settle, rig, other, held))
    batch = end(rig, holder)
    assert [state for state, _ in outcomes(batch)] == [[State.ACKED], [], [State.DEAD]][number]


@pytest.mark.parametrize(
    "settle",
    [
        partial(retry, delay_s=0),
        lambda rig, holder, held: commands.requeue(rig.core, holder, "orders", held.message_id, 0),
    ],
    ids=["retry", "requeue"],
)
def test_settlement_of_the_holder_goes_before(settle: Settle) -> None:
    """The message comes back to the same connection, whose next hold is another one."""
    rig = CoreRig()
    holder, held = rig.hold()
    rig.run(partial(acknowledge, rig, rig.connect(), held))
    rig.run(partial(settle, rig, holder, held))
    assert held_by(holder) == [held]
    assert outcomes(end(rig, holder)) == {}
    assert held.state == State.READY


def test_acknowledgement_of_the_holder_settles_once() -> None:
    rig = CoreRig()
    holder, held = rig.hold()
    rig.run(partial(dead_letter, rig, rig.connect(), held))
    acks = [("orders", held.message_id)]
    batch = rig.run(lambda: commands.acknowledge_held(rig.core, holder, acks))
    assert outcomes(batch) == {(State.ACKED, None): [held.seq]}
    assert outcomes(end(rig, holder)) == {}


def test_repeated_retry_is_not_kept() -> None:
    """A client sends its last settlements again, while another one makes the next attempt."""
    rig = CoreRig()
    first, held = rig.hold()
    rig.run(partial(retry, rig, first, held, delay_s=0))
    assert held_by(first) == [held]
    rig.run(partial(retry, rig, rig.connect(), held, delay_s=0))
    assert rig.core.ignored == {"repeated": 1}
    end(rig, first)
    assert (held.state, held.options.retries, held.charged) == (State.READY, 1, 1)


@NEEDS_SOURCES
def test_settlements_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "LATE_MAX", 3)
    monkeypatch.setattr(pending, "LATE_BYTES_MAX", 10)
    late = LateSettlements()
    for seq in (1, 2, 3, 1, 4):
        late.keep(seq, print, 1)
    assert (list(late), late.size) == ([3, 1, 4], 3)
    late.keep(5, print, 9)
    assert (list(late), late.size) == ([4, 5], 10)
    late.keep(6, print, 11)
    assert (list(late), late.size) == ([], 0)
