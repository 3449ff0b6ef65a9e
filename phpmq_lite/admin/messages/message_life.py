"""The timeline of a message, and the messages related to it.  Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from phpmq_lite.admin import formats
from phpmq_lite.admin.formats import client_name
from phpmq_lite.broker.state_table import FAILURE_EVENT, StateEvent
from phpmq_lite.model import OUTCOMES, STATE_NAMES, State
from phpmq_lite.storage.read.messages import EventRow, LinkRow, MessageRow, is_message_id, seq_of


@dataclass(slots=True, frozen=True)
class LifeStep:
    """A step on a message's timeline."""

    at_ms: int
    title: str
    kind: str  # CSS class, which is the name of the resulting state
    detail: str | None = None
    message_id: str | None = None  # id of the other message involved, if any
    gap: str | None = None  # time since the previous step, as text
    of_seq: int | None = None  # seq of the related message to which the step belongs, if any
    next_at: int | None = None  # Unix ms of the next attempt, after a failed one
    traceback: str = ""


@dataclass(slots=True, frozen=True)
class Retry:
    """What a worker reported about an attempt of a message; missing texts are empty."""

    at_ms: int
    attempt: int | None = None  # None if the attempt did not count
    limit: int | None = None  # number of attempts that the worker allows
    error: str = ""  # class and message of the exception
    traceback: str = ""
    next_at: int | None = None  # Unix ms

    @classmethod
    def of(cls, event: EventRow) -> Self:
        """Return the retry of an event whose detail is a JSON object, or else the error."""
        try:
            detail = json.loads(event.detail or "{}")
        except ValueError:
            detail = None
        if not isinstance(detail, dict):
            return cls(event.at_ms, error=event.detail or "")
        texts = [str(detail[name]) for name in ("exception", "error") if detail.get(name)]
        numbers = {name: detail.get(name) for name in ("attempt", "limit", "next_at")}
        return cls(
            event.at_ms,
            error=": ".join(texts),
            traceback=str(detail.get("traceback") or ""),
            **{name: value for name, value in numbers.items() if isinstance(value, int)},
        )

    @property
    def title(self) -> str:
        """Return what happened, such as "Attempt 2 of 5 failed"."""
        return "Put off by its worker" if self.attempt is None else f"Attempt {self.summary}"

    @property
    def summary(self) -> str:
        """Return the same for a narrow column, such as "2 of 5 failed"."""
        if self.attempt is None:
            return "put off"
        of = f" of {self.limit}" if self.limit else ""
        return f"{self.attempt}{of} failed"


@dataclass(slots=True, frozen=True)
class RelatedMessage:
    """A message related to another one, and its row if the row still exists."""

    message_id: str
    how: str  # how the message is related, such as "Restored from"
    row: MessageRow | None

    @property
    def seq(self) -> int:
        return seq_of(self.message_id)


_TITLES: Final[dict[str, tuple[str, str]]] = {
    StateEvent.REQUEUE: ("Requeued to the end of its queue", "ready"),
    StateEvent.RETURN: ("Returned to its position", "ready"),
    StateEvent.FORWARD: ("Forwarded", "ready"),
    StateEvent.SCHEDULE: ("Delivery time changed", "scheduled"),
    StateEvent.DEAD_LETTER: ("Dead-letter record written", "dead"),
    "release": ("Released to its position", "ready"),
    "move": ("Moved", "ready"),
    "place": ("Moved back to its earlier position", "ready"),
    "erase": ("Body erased", "deleted"),
    "more": ("Further events", "ready"),
}
_PAIRS: Final = {  # maps a kind of event to its titles for the older and the newer message
    "redrive": ("Redriven as a new message", "Created by a redrive"),
    "restore": ("Restored as a new message", "Created by a restore"),
    "edit": ("Edited and published as a new message", "Created by an edit"),
}
_HOW: Final = {  # maps a kind of event to the labels for a newer and an older message
    "redrive": ("Redriven as", "Redriven from"),
    "restore": ("Restored as", "Restored from"),
    "edit": ("Edited as", "Edited from"),
    "dead_letter": ("Dead-letter record", "Dead-letter record of"),
}


def make_timeline(
    row: MessageRow,
    events: Iterable[EventRow],
    now_ms: int,
    others: Mapping[int, tuple[MessageRow, Sequence[EventRow]]] | None = None,
) -> list[LifeStep]:
    """Return the steps in a message's life, oldest first, with the time between them.

    ``others`` contains the messages from which this message was created and those created from it,
    keyed by seq.  Their steps are included, with ``of_seq`` set.
    """
    steps = _steps(row, events)
    for seq, (other, turns) in (others or {}).items():
        steps += [replace(step, of_seq=seq) for step in _steps(other, turns)]
    steps.sort(key=lambda step: step.at_ms)  # steps at the same time keep their order
    timeline = [
        replace(step, gap=formats.format_duration(step.at_ms - before.at_ms) if before else None)
        for before, step in zip([None, *steps], steps, strict=False)
    ]
    ahead: tuple[int | None, str] = (row.scheduled_for, "Becomes ready")
    if row.state in (State.READY, State.BLOCKED):
        ahead = (row.deadline_at, "Expires unless dispatched first")
    if ahead[0] is not None:
        gap = formats.format_duration(ahead[0] - now_ms)
        timeline.append(LifeStep(ahead[0], ahead[1], "ahead", gap=gap))
    return timeline


def _steps(row: MessageRow, events: Iterable[EventRow]) -> list[LifeStep]:
    publisher = client_name(row.publisher, row.publisher_kind, row.publisher_address)
    published = LifeStep(row.published_at, "Published", "ready", f"by {publisher}")
    steps = [published, *_dispatches(row), *(_event(row, event) for event in events)]
    if row.ready_at is not None:
        steps.append(LifeStep(row.ready_at, "Became ready", "ready"))
    if row.settled_at is not None:
        name = STATE_NAMES[row.state]
        steps.append(LifeStep(row.settled_at, OUTCOMES[name].label, name, row.reason))
    return steps


def _dispatches(row: MessageRow) -> list[LifeStep]:
    if row.first_dispatched_at is None:
        return []
    consumer = client_name(row.consumer, row.consumer_kind, row.consumer_address)
    if row.deliveries <= 1 or row.last_dispatched_at is None:
        return [LifeStep(row.first_dispatched_at, "Dispatched", "dispatched", f"to {consumer}")]
    last = LifeStep(
        row.last_dispatched_at,
        f"Dispatched, delivery {row.deliveries}",
        "dispatched",
        f"to {consumer}",
    )
    return [LifeStep(row.first_dispatched_at, "First dispatched", "dispatched"), last]


def _event(row: MessageRow, event: EventRow) -> LifeStep:
    if event.kind in (StateEvent.RETRY, FAILURE_EVENT):
        retry = Retry.of(event)
        is_last = event.kind == FAILURE_EVENT
        return LifeStep(
            event.at_ms,
            "Worker gave up" if is_last else retry.title,
            "dead" if is_last or retry.attempt else "scheduled",
            retry.error or None,
            next_at=retry.next_at,
            traceback=retry.traceback,
        )
    other = event.detail if event.detail and is_message_id(event.detail) else None
    if event.kind in _PAIRS:
        is_source = other is not None and seq_of(other) > row.seq
        title = _PAIRS[event.kind][0 if is_source else 1]
        return LifeStep(event.at_ms, title, "ready", None if other else event.detail, other)
    title, kind = _TITLES.get(event.kind, (event.kind, ""))
    detail = None if other else event.detail
    if event.last_at is not None:
        over = formats.format_duration(event.last_at - event.at_ms)
        text = f"{formats.format_number(event.count)} times within {over}"
        detail = text if detail is None else f"{detail}, {text}"
    return LifeStep(event.at_ms, title, kind, detail, other)


def list_relatives(
    row: MessageRow, links: Iterable[LinkRow], rows: Mapping[int, MessageRow]
) -> list[RelatedMessage]:
    """Return the messages from which this message was created, and those created from it.

    ``links`` are this message's events that refer to another message.
    """
    relatives: dict[str, RelatedMessage] = {}
    if row.source_id is not None:
        how = _HOW["dead_letter"][1]
        relatives[row.source_id] = RelatedMessage(row.source_id, how, rows.get(row.source_seq or 0))
    for link in links:
        if link.seq == row.seq and link.other_seq and link.kind in _HOW:
            how = _HOW[link.kind][0 if link.other_seq > row.seq else 1]
            relatives.setdefault(
                link.other, RelatedMessage(link.other, how, rows.get(link.other_seq))
            )
    return sorted(relatives.values(), key=lambda relative: relative.seq)


@dataclass(slots=True, frozen=True)
class MessageLife:
    """A message and its related messages, with their events; rows and events are keyed by seq."""

    rows: dict[int, MessageRow]
    events: dict[int, list[EventRow]]
    links: list[LinkRow]
