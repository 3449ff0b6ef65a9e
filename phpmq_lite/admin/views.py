"""What templates show of rows and figures.  Pure: the time is given, nothing is read."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from phpmq_lite.admin import formats
from phpmq_lite.admin.lists import ListedQueue
from phpmq_lite.admin.shelves import has_records, named
from phpmq_lite.model import State
from phpmq_lite.server.status import BrokerStatus, ClientStatus


def totals(status: BrokerStatus) -> dict[str, float]:
    """Add up what the tiles of the overview show.

    Dead-letter records count as dead only, though they are ready in their own queues; and once,
    though a queue, its ``.retry`` queue and others may share the queue of their records.
    """
    queues, others = status.queues, named(status.queues)
    records = {queue.dead_letter_queue: queue.dead for queue in queues if queue.dead}
    return {
        "ready": sum(queue.ready for queue in queues if not has_records(queue.name, others)),
        "dispatched": sum(queue.dispatched for queue in queues),
        "dead": sum(records.values()),
        "published": sum(queue.published_per_s for queue in queues),
        "acked": sum(queue.acked_per_s for queue in queues),
    }


def tiles(status: BrokerStatus, ages: Mapping[int, int], now_ms: int) -> dict[str, str]:
    """Give the numbers at the head of the overview, by the name of their live field."""
    sums = totals(status)
    others = named(status.queues)
    shelves = {queue.queue_id for queue in status.queues if has_records(queue.name, others)}
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


def stems(names: Sequence[str]) -> dict[str, str]:
    """Say what each name has in common with the one above it, up to a ``.``: ``orders.``."""
    found = {}
    for above, name in pairwise(names):
        parts, others = name.split("."), above.split(".")
        alike = 0
        while alike < min(len(parts) - 1, len(others)) and parts[alike] == others[alike] != "":
            alike += 1
        if alike:
            found[name] = ".".join(parts[:alike]) + "."
    return found


def _age(since_ms: int | None, now_ms: int) -> str:
    if since_ms is None:
        return formats.DASH
    return formats.duration(now_ms - since_ms, with_seconds=False)


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


def consumers_of(status: BrokerStatus, name: str) -> list[tuple[ClientStatus, int, int]]:
    """Give the clients that consume a queue, with credit and what they hold."""
    return [(c, *c.queues[name]) for c in status.clients if name in c.queues]
