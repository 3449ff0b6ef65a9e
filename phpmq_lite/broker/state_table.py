"""The state table: the next state for each allowed combination of state and event."""

from enum import StrEnum
from typing import Final

from phpmq_lite.errors import TransitionError
from phpmq_lite.model import STATE_NAMES, State


class StateEvent(StrEnum):
    """Events that can happen to a live message; the values are stored as event kinds."""

    DISPATCH = "dispatch"
    SCHEDULE = "schedule"
    BLOCK = "block"
    RETRY = "retry"
    BECOME_READY = "ready"
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


FAILURE_EVENT: Final = "failure"  # what a worker reported of a message that it dead-lettered

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
    (State.READY, StateEvent.BLOCK): State.BLOCKED,
    (State.READY, StateEvent.SCHEDULE): State.SCHEDULED,  # by an operator
    (State.READY, StateEvent.RETRY): State.SCHEDULED,  # late, after a reconnect
    (State.DISPATCHED, StateEvent.ACKNOWLEDGE): State.ACKED,
    (State.DISPATCHED, StateEvent.REQUEUE): State.READY,
    (State.DISPATCHED, StateEvent.RETURN): State.READY,  # returns to its old position
    (State.DISPATCHED, StateEvent.RELEASE): State.READY,  # returned by an operator
    (State.DISPATCHED, StateEvent.DEAD_LETTER): State.DEAD,
    (State.DISPATCHED, StateEvent.DELETE): State.DELETED,
    (State.DISPATCHED, StateEvent.SCHEDULE): State.SCHEDULED,  # by an operator
    (State.DISPATCHED, StateEvent.RETRY): State.SCHEDULED,  # by the worker that failed
    (State.SCHEDULED, StateEvent.BECOME_READY): State.READY,  # its time has come, or an operator's
    (State.SCHEDULED, StateEvent.SCHEDULE): State.SCHEDULED,  # another time
    (State.SCHEDULED, StateEvent.REQUEUE): State.READY,  # by an operator
    (State.SCHEDULED, StateEvent.ACKNOWLEDGE): State.ACKED,  # late, after a retry
    (State.SCHEDULED, StateEvent.MOVE): State.SCHEDULED,
    (State.SCHEDULED, StateEvent.PLACE): State.SCHEDULED,
    (State.SCHEDULED, StateEvent.DEAD_LETTER): State.DEAD,
    (State.SCHEDULED, StateEvent.DELETE): State.DELETED,
    # Behind the head of its group, a message is as if it were ready, except for dispatching.
    (State.BLOCKED, StateEvent.BECOME_READY): State.READY,
    (State.BLOCKED, StateEvent.SCHEDULE): State.SCHEDULED,
    (State.BLOCKED, StateEvent.REQUEUE): State.READY,
    (State.BLOCKED, StateEvent.FORWARD): State.READY,
    (State.BLOCKED, StateEvent.MOVE): State.READY,
    (State.BLOCKED, StateEvent.PLACE): State.READY,
    (State.BLOCKED, StateEvent.EXPIRE): State.EXPIRED,
    (State.BLOCKED, StateEvent.DEAD_LETTER): State.DEAD,
    (State.BLOCKED, StateEvent.DELETE): State.DELETED,
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
BLOCKED: Final = next_state(State.READY, StateEvent.BLOCK)
SCHEDULED: Final = next_state(State.READY, StateEvent.SCHEDULE)
ACKED: Final = next_state(State.DISPATCHED, StateEvent.ACKNOWLEDGE)
EXPIRED: Final = next_state(State.READY, StateEvent.EXPIRE)
DEAD: Final = next_state(State.DISPATCHED, StateEvent.DEAD_LETTER)
