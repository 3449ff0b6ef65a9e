"""What templates show of rows and figures.  Pure: the time is given, nothing is read."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from phpmq_lite.admin import formats
from phpmq_lite.admin.lists import ListedQueue
from phpmq_lite.admin.trends import Trends, polyline, totals
from phpmq_lite.broker.lifecycle import Event
from phpmq_lite.model import State
from phpmq_lite.server.status import ClientStatus, QueueStatus, Status
from phpmq_lite.storage.browse import EventRow, MessageRow, is_message_id

EXPIRY_NOTICE_MS: Final = 600_000  # ten minutes


@dataclass(slots=True, frozen=True)
class Notice:
    """Something that needs attention; ``route`` and ``values`` say where it is seen."""

    level: str  # bad, warn
    text: str
    route: str
    values: dict[str, str]
    link: str


@dataclass(slots=True, frozen=True)
class Step:
    """One turn of a message's life, for the timeline."""

    at_ms: int
    title: str
    kind: str  # CSS class: the state it led to
    detail: str | None = None
    message_id: str | None = None  # of the other message that the turn is about
    gap: str | None = None  # time since the step before


def tiles(status: Status, ages: Mapping[int, int], now_ms: int) -> dict[str, str]:
    """Give the numbers at the head of the overview, by the name of their live field."""
    sums = totals(status)
    shelves = {queue.queue_id for queue in status.queues if queue.name.endswith(".dlq")}
    oldest = min((at for key, at in ages.items() if key not in shelves), default=None)
    return {
        "total.ready": formats.number(int(sums["ready"])),
        "total.dispatched": formats.number(int(sums["dispatched"])),
        "total.dead": formats.number(int(sums["dead"])),
        "total.age": _age(oldest, now_ms),
        "total.in": formats.rate(sums["published"]),
        "total.out": formats.rate(sums["acked"]),
        "total.clients": formats.number(len(status.clients)),
        "total.queues": formats.number(len(status.queues)),
        "total.held": formats.size(status.held_bytes),
        "total.commit": f"{status.commit_ms_last:.1f} ms",
        "total.lag": f"{status.loop_lag_ms:.1f} ms",
        "total.up": formats.duration(now_ms - status.started_at),
    }


def queue_figures(queue: ListedQueue, now_ms: int) -> dict[str, str]:
    """Give what the cells of a queue show, by the name of their live field."""
    status = queue.status
    return {
        "ready": formats.number(status.ready),
        "dispatched": formats.number(status.dispatched),
        "dead": formats.number(status.dead),
        "age": _age(queue.oldest_at, now_ms),
        "in": formats.rate(status.published_per_s),
        "out": formats.rate(status.acked_per_s),
        "consumers": formats.number(status.consumers),
        "credit": formats.number(status.credit),
        "bytes": formats.size(status.bytes),
    }


def _age(since_ms: int | None, now_ms: int) -> str:
    if since_ms is None:
        return formats.DASH
    return formats.duration(now_ms - since_ms, with_seconds=False)


def charts(trends: Trends) -> dict[str, str]:
    """Give the points of the overview's small charts, by the name of their live field."""
    names = {"ready": "ready", "dispatched": "dispatched", "dead": "dead"}
    names |= {"in": "published", "out": "acked"}
    return {f"total.{key}": polyline(trends.total(name)) for key, name in names.items()}


def pauses(queue: QueueStatus) -> list[str]:
    """Name the sides of a queue that are paused."""
    sides = {"delivery paused": queue.delivery_paused, "publishing paused": queue.publishing_paused}
    return [text for text, is_paused in sides.items() if is_paused]


def notices(status: Status, expiring: Mapping[int, tuple[int, int]], now_ms: int) -> list[Notice]:
    """Say what needs attention, worst first; nothing where all is well."""
    found: list[Notice] = []
    if status.last_error:
        found.append(Notice("bad", f"Last error: {status.last_error}", "overview", {}, "Broker"))
    found += [notice for queue in status.queues if (notice := _of_queue(queue, expiring, now_ms))]
    for client in status.clients:
        if client.paused_reason:
            who = client_name(client.client, client.kind, client.address)
            text = f"{who} is not read: {client.paused_reason}"
            found.append(Notice("warn", text, "clients", {}, "Clients"))
    refusals = status.refused or {}
    if refused := sum(refusals.values()):
        reasons = ", ".join(f"{reason} {formats.number(n)}" for reason, n in refusals.items())
        text = f"{formats.number(refused)} refused since the start: {reasons}"
        found.append(Notice("warn", text, "queues", {}, "Publishes"))
    return sorted(found, key=lambda notice: notice.level)


def _of_queue(
    queue: QueueStatus, expiring: Mapping[int, tuple[int, int]], now_ms: int
) -> Notice | None:
    troubles = []
    # What is forwarded or made a dead letter when it expires is not lost.
    is_bad = (
        queue.queue_id in expiring and not queue.consumers and queue.settings.on_expire == "history"
    )
    if is_bad:
        troubles.append(_expiring(*expiring[queue.queue_id], now_ms))
    elif queue.ready and not queue.consumers and not _is_shelf(queue):
        troubles.append(f"{formats.number(queue.ready)} ready and no consumer")
    troubles += pauses(queue)
    if not troubles:
        return None
    level = "bad" if is_bad else "warn"
    return Notice(level, ", ".join(troubles), "queue", {"q": queue.name}, queue.name)


def _expiring(count: int, soonest_ms: int, now_ms: int) -> str:
    messages = plural(count, "message expires", "messages expire")
    return (
        f"{formats.number(count)} {messages} within 10 minutes with nobody consuming, "
        f"the first {formats.ago(soonest_ms, now_ms)}"
    )


def _is_shelf(queue: QueueStatus) -> bool:
    """Tell whether messages are meant to lie here: dead letters, and what waits for a retry."""
    return queue.name.endswith((".dlq", ".retry"))


def plural(count: int, one: str, many: str) -> str:
    """Choose the form of a word."""
    return one if count == 1 else many


def state_name(state: int) -> str:
    """Give the word for a state: ``ready``, ``dispatched``, ``acked``."""
    return State(state).name.lower()


def client_name(number: int | None, kind: str | None, address: str | None) -> str:
    """Say who a client was, as far as its row is still there."""
    if number is None:
        return "nobody"
    if number == 0:  # its row stands for everything published here
        return "this page or API"
    if address is None:
        return f"client {number}"
    return f"client {number} · {kind} {address}"


def consumers_of(status: Status, name: str) -> list[tuple[ClientStatus, int, int]]:
    """Give the clients that consume a queue, with credit and what they hold."""
    return [(c, *c.queues[name]) for c in status.clients if name in c.queues]


# -- the timeline


_TITLES: Final[dict[str, tuple[str, str]]] = {
    Event.REQUEUE: ("Requeued to the end of its queue", "ready"),
    Event.RETURN: ("Returned to its old place", "ready"),
    Event.FORWARD: ("Forwarded", "ready"),
    Event.DEAD_LETTER: ("Dead-letter record written", "dead"),
}
_SETTLED: Final = {
    State.ACKED: "Acknowledged",
    State.EXPIRED: "Expired",
    State.DEAD: "Dead",
    State.DELETED: "Deleted",
}


def timeline(row: MessageRow, events: Iterable[EventRow], now_ms: int) -> list[Step]:
    """Tell a message's life from its row and its events, oldest first, with the time between."""
    steps = [_published(row), *_dispatches(row), *(_event(row, event) for event in events)]
    if row.settled_at is not None:
        state = State(row.state)
        steps.append(Step(row.settled_at, _SETTLED[state], state_name(state), row.reason))
    steps.sort(key=lambda step: step.at_ms)  # equal times stay in the order of a life
    told = [
        Step(step.at_ms, step.title, step.kind, step.detail, step.message_id,
             formats.duration(step.at_ms - before.at_ms) if before else None)
        for before, step in zip([None, *steps], steps, strict=False)
    ]  # fmt: skip
    if row.state == State.READY and row.deadline_at is not None:
        told.append(
            Step(row.deadline_at, "Expires unless dispatched before", "ahead", None, None,
                 formats.duration(row.deadline_at - now_ms))
        )  # fmt: skip
    return told


def _published(row: MessageRow) -> Step:
    who = client_name(row.publisher, row.publisher_kind, row.publisher_address)
    return Step(row.published_at, "Published", "ready", f"by {who}")


def _dispatches(row: MessageRow) -> list[Step]:
    if row.first_dispatched_at is None:
        return []
    who = client_name(row.consumer, row.consumer_kind, row.consumer_address)
    if row.deliveries <= 1 or row.last_dispatched_at is None:
        return [Step(row.first_dispatched_at, "Dispatched", "dispatched", f"to {who}")]
    last = Step(
        row.last_dispatched_at, f"Dispatched, delivery {row.deliveries}", "dispatched", f"to {who}"
    )
    return [Step(row.first_dispatched_at, "First dispatched", "dispatched"), last]


def _event(row: MessageRow, event: EventRow) -> Step:
    other = event.detail if event.detail and is_message_id(event.detail) else None
    if event.kind == "redrive":
        is_source = other is not None and int(other[:16], 16) > row.seq
        title = "Redriven as a new message" if is_source else "Stored by a redrive"
        return Step(event.at_ms, title, "ready", None, other)
    title, kind = _TITLES.get(event.kind, (event.kind, ""))
    return Step(event.at_ms, title, kind, None if other else event.detail, other)
