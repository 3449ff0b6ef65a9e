"""The state table: the next state for each allowed combination of state and event."""

from enum import StrEnum
from typing import Final

from phpmq_lite.errors import TransitionError
from phpmq_lite.model import STATE_NAMES, State


class StateEvent(StrEnum):
    """Events that can happen to a live message; the values are stored as event kinds."""

    DISPATCH = "dispatch"
    ACKNOWLEDGE = "acknowledge"
    REQUEUE = "requeue"
    RETURN = "return"
    RELEASE = "release"
    MOVE = "move"
    PLACE = "place"
    FORWARD = "forward"
    EXPIRE = "expire"
    DEAD_LETTER = "dead_letter"
    DELETE = "delete"


TRANSITIONS: Final[dict[tuple[State, StateEvent], State]] = {
    (State.READY, StateEvent.DISPATCH): State.DISPATCHED,
    (State.READY, StateEvent.ACKNOWLEDGE): State.ACKED,  # late acknowledgement, after a reconnect
    (State.READY, StateEvent.REQUEUE): State.READY,  # moves to the end of the queue
    (State.READY, StateEvent.FORWARD): State.READY,  # moves to another queue, keeping its id
    (State.READY, StateEvent.MOVE): State.READY,  # moved to another queue by an operator
    (State.READY, StateEvent.PLACE): State.READY,  # undoes a requeue or move
    (State.READY, StateEvent.EXPIRE): State.EXPIRED,
    (State.READY, StateEvent.DEAD_LETTER): State.DEAD,
    (State.READY, StateEvent.DELETE): State.DELETED,
    (State.DISPATCHED, StateEvent.ACKNOWLEDGE): State.ACKED,
    (State.DISPATCHED, StateEvent.REQUEUE): State.READY,
    (State.DISPATCHED, StateEvent.RETURN): State.READY,  # returns to its old position
    (State.DISPATCHED, StateEvent.RELEASE): State.READY,  # returned by an operator
    (State.DISPATCHED, StateEvent.DEAD_LETTER): State.DEAD,
    (State.DISPATCHED, StateEvent.DELETE): State.DELETED,
}


_NUMBERS: Final = {(int(of), event): int(to) for (of, event), to in TRANSITIONS.items()}


def next_state(state: int, event: StateEvent) -> int:
    """Return the number of the state after ``event``.  A settled state is final.

    A plain number, because rows with other types cannot be passed to the writer process.  Raises
    TransitionError: the event is not allowed in this state; nothing has changed.
    """
    try:
        return _NUMBERS[state, event]
    except KeyError:
        name = STATE_NAMES[state]
        raise TransitionError(f"event {event} is not allowed in state {name}") from None


# Looked up once, because these events are frequent or come from several states.
DISPATCHED: Final = next_state(State.READY, StateEvent.DISPATCH)
ACKED: Final = next_state(State.DISPATCHED, StateEvent.ACKNOWLEDGE)
EXPIRED: Final = next_state(State.READY, StateEvent.EXPIRE)
DEAD: Final = next_state(State.DISPATCHED, StateEvent.DEAD_LETTER)
