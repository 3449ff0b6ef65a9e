"""The transition table: every pair of state and event."""

from itertools import product

import pytest

from phpmq_lite.broker.state_table import TRANSITIONS, StateEvent, next_state
from phpmq_lite.errors import TransitionError
from phpmq_lite.model import ALIVE, State

# By state: the state after each event.  All other events are refused.
EXPECTED = {
    State.READY: {
        "dispatch": State.DISPATCHED,
        "acknowledge": State.ACKED,
        "requeue": State.READY,
        "forward": State.READY,
        "move": State.READY,
        "place": State.READY,
        "expire": State.EXPIRED,
        "dead_letter": State.DEAD,
        "delete": State.DELETED,
        "block": State.BLOCKED,
        "schedule": State.SCHEDULED,
        "retry": State.SCHEDULED,
    },
    State.DISPATCHED: {  # README, Expiry: it does not expire before its return
        "acknowledge": State.ACKED,
        "requeue": State.READY,
        "return": State.READY,
        "release": State.READY,
        "dead_letter": State.DEAD,
        "delete": State.DELETED,
        "schedule": State.SCHEDULED,
        "retry": State.SCHEDULED,
    },
    State.SCHEDULED: {
        "ready": State.READY,
        "requeue": State.READY,
        "schedule": State.SCHEDULED,
        "acknowledge": State.ACKED,
        "move": State.SCHEDULED,
        "place": State.SCHEDULED,
        "dead_letter": State.DEAD,
        "delete": State.DELETED,
    },
    State.BLOCKED: {  # as a ready one, but it is not dispatched, and so never acknowledged late
        "ready": State.READY,
        "schedule": State.SCHEDULED,
        "requeue": State.READY,
        "forward": State.READY,
        "move": State.READY,
        "place": State.READY,
        "expire": State.EXPIRED,
        "dead_letter": State.DEAD,
        "delete": State.DELETED,
    },
}


@pytest.mark.parametrize(("state", "event"), list(product(State, StateEvent)))
def test_event_leads_to_the_expected_state_or_is_refused(state: State, event: StateEvent) -> None:
    expected = EXPECTED.get(state, {}).get(event.value)
    if expected is None:
        with pytest.raises(TransitionError, match=event.value):
            next_state(state, event)
    else:
        assert next_state(state, event) == expected


def test_settled_states_are_final() -> None:
    assert {state for state, _ in TRANSITIONS} == ALIVE


def test_every_state_is_reached() -> None:
    assert set(TRANSITIONS.values()) | {State.READY} == set(State)
