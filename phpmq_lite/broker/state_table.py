"""The state table: the next state for each allowed combination of state and event."""

from enum import StrEnum
from typing import Final

from phpmq_lite.errors import TransitionError
from phpmq_lite.model import State


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


def next_state(state: State, event: StateEvent) -> State:
    """Return the state after ``event``.  A settled state is final.

    Raises TransitionError: the event is not allowed in this state; nothing has changed.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise TransitionError(
            f"event {event} is not allowed in state {state.name.lower()}"
        ) from None


# These are looked up once because each call to next_state takes 0.4 µs.  They are plain numbers,
# because rows with other types cannot be passed to the writer process.
DISPATCHED: Final = int(next_state(State.READY, StateEvent.DISPATCH))
READY_AGAIN: Final = int(next_state(State.DISPATCHED, StateEvent.RETURN))
ACKED: Final = int(next_state(State.DISPATCHED, StateEvent.ACKNOWLEDGE))
EXPIRED: Final = int(next_state(State.READY, StateEvent.EXPIRE))
DEAD: Final = int(next_state(State.DISPATCHED, StateEvent.DEAD_LETTER))
DELETED: Final = int(next_state(State.READY, StateEvent.DELETE))
