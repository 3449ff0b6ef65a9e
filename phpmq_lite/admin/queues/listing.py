"""Filters and sorts lists of queues, and formats their statistics."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any, Final, Literal

from pydantic import Field

from phpmq_lite.admin import formats
from phpmq_lite.admin.formats import count_of
from phpmq_lite.admin.http import output
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.fields import ListQuery
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.queue_settings import LONGEST_NAME, home_of
from phpmq_lite.server.status import BrokerStatus, ClientStatus, QueueStatus

QueueSort = Literal[
    "name", "-name", "ready", "-ready", "dispatched", "-dispatched", "dead", "-dead",
    "age", "-age", "in", "-in", "out", "-out", "consumers", "-consumers", "bytes", "-bytes",
]  # fmt: skip


class QueueQuery(ListQuery):
    """Filters and sort order for a list of queues."""

    q: str = Field("", max_length=LONGEST_NAME, description="part of a queue name, or a glob")
    has: Literal["backlog", "no-consumer", "paused", "dead"] | None = Field(
        None,
        description="only queues that have ready messages, have no consumers, are paused, or "
        "have dead letters",
    )
    sort: QueueSort = Field(
        "name",
        description="sort key, with - for descending; in, out: published, acked per second; "
        "age: oldest ready message",
    )


@dataclass(slots=True, frozen=True)
class ListedQueue:
    """A queue, and the time in Unix ms when its first ready message was published."""

    status: QueueStatus
    oldest_at: int | None

    @property
    def is_paused(self) -> bool:
        """Return whether delivery or publishing is paused."""
        return self.status.delivery_paused or self.status.publishing_paused


@dataclass(slots=True, frozen=True)
class QueuePage:
    """One page of the list, with cursors for the next and the previous page."""

    queues: list[ListedQueue]
    matching: int  # number of matching queues on all pages
    next: str | None
    previous: str | None


_KEYS: Final[dict[str, Callable[[ListedQueue], int | float | str]]] = {
    "name": lambda queue: queue.status.name,
    "ready": lambda queue: queue.status.ready,
    "dispatched": lambda queue: queue.status.dispatched,
    "dead": lambda queue: queue.status.dead,
    "age": lambda queue: -queue.oldest_at if queue.oldest_at is not None else -(1 << 62),
    "in": lambda queue: queue.status.published_per_s,
    "out": lambda queue: queue.status.acked_per_s,
    "consumers": lambda queue: queue.status.consumers,
    "bytes": lambda queue: queue.status.bytes,
}
_HAS: Final[dict[str, Callable[[ListedQueue], bool]]] = {
    "backlog": lambda queue: queue.status.ready > 0,
    "no-consumer": lambda queue: queue.status.consumers == 0,
    "paused": lambda queue: queue.is_paused,
    "dead": lambda queue: queue.status.dead > 0,
}


def matches_name(name: str, pattern: str) -> bool:
    """Return whether a name matches a glob or, if the pattern has no wildcards, contains it."""
    name, pattern = name.casefold(), pattern.strip().casefold()
    if "*" in pattern or "?" in pattern:
        return fnmatchcase(name, pattern.replace("[", "[[]"))
    return pattern in name


def make_queue_page(
    statuses: Iterable[QueueStatus], ages: Mapping[int, int], query: QueueQuery
) -> QueuePage:
    """Return the requested page; queues with equal values are sorted by name."""
    listed = [ListedQueue(status, ages.get(status.queue_id)) for status in statuses]
    if query.q:
        listed = [queue for queue in listed if matches_name(queue.status.name, query.q)]
    if query.has:
        listed = [queue for queue in listed if _HAS[query.has](queue)]
    key, is_descending = _KEYS[query.sort.removeprefix("-")], query.sort.startswith("-")
    listed.sort(key=lambda queue: queue.status.name)
    listed.sort(key=key, reverse=is_descending)

    scope = f"queues {query.q} {query.has} {query.sort}"
    start, end = 0, query.limit
    cursor = output.decode_cursor(scope, query.cursor)
    if cursor is not None:
        place = _place_of(cursor, listed, key)
        behind = sum(
            not _is_behind(_pair(queue, key), place, is_descending=is_descending)
            for queue in listed
        )
        if cursor.direction == "after":
            start, end = behind, behind + query.limit
        else:
            ahead = behind - (behind > 0 and _pair(listed[behind - 1], key) == place)
            start, end = max(0, ahead - query.limit), ahead
    page = listed[start:end]
    following = previous = None
    if page and end < len(listed):
        following = output.encode_cursor(scope, "after", list(_pair(page[-1], key)))
    if page and start:
        previous = output.encode_cursor(scope, "before", list(_pair(page[0], key)))
    return QueuePage(page, len(listed), following, previous)


SortedPair = tuple[int | float | str, str]


def _pair(queue: ListedQueue, key: Callable[[ListedQueue], int | float | str]) -> SortedPair:
    return key(queue), queue.status.name


def _place_of(
    cursor: output.ListCursor,
    listed: Sequence[ListedQueue],
    key: Callable[[ListedQueue], int | float | str],
) -> SortedPair:
    place = cursor.place
    if isinstance(place, list) and isinstance(place[1], str):
        is_text = isinstance(place[0], str)
        if not listed or is_text == isinstance(key(listed[0]), str):
            return place[0], place[1]
    raise Problem(422, "bad_cursor", "The cursor is malformed.", field="cursor")


def _is_behind(pair: SortedPair, place: SortedPair, *, is_descending: bool) -> bool:
    """Return whether a row comes after a position; rows with equal values are sorted by name."""
    value: Any = pair[0]
    other: Any = place[0]
    if value == other:
        return pair[1] > place[1]
    return bool(value < other) if is_descending else bool(value > other)


def sum_totals(status: BrokerStatus) -> dict[str, float]:
    """Return the totals over all queues, as shown in the tiles of the overview.

    Dead-letter records count only as dead, not as ready in their own queues.
    """
    queues = status.queues
    return {
        "ready": sum(queue.ready for queue in queues if not queue.is_dead_letter_queue),
        "dispatched": sum(queue.dispatched for queue in queues),
        "dead": sum(queue.dead for queue in queues),
        "published": sum(queue.published_per_s for queue in queues),
        "acked": sum(queue.acked_per_s for queue in queues),
    }


def overview_tiles(status: BrokerStatus, ages: Mapping[int, int], now_ms: int) -> dict[str, str]:
    """Return the values shown at the top of the overview, keyed by the name of the live field."""
    sums = sum_totals(status)
    dead_letter_ids = {queue.queue_id for queue in status.queues if queue.is_dead_letter_queue}
    oldest = min((at for key, at in ages.items() if key not in dead_letter_ids), default=None)
    return {
        "total.ready": formats.format_number(int(sums["ready"])),
        "total.dispatched": formats.format_number(int(sums["dispatched"])),
        "total.dead": formats.format_number(int(sums["dead"])),
        "total.age": _age(oldest, now_ms),
        "total.in": formats.format_rate(sums["published"]),
        "total.out": formats.format_rate(sums["acked"]),
        "total.clients": formats.format_number(len(status.clients)),
        "total.queues": formats.format_number(len(status.queues)),
        "total.held": formats.format_size(status.held_bytes),
        "total.commit": f"{status.commits.last_ms:.1f} ms",
        "total.lag": f"{status.loop_lag_ms:.1f} ms",
        "total.up": formats.format_duration(now_ms - status.started_at),
    }


def queue_figures(queue: ListedQueue, now_ms: int) -> dict[str, str]:
    """Return the table cells for a queue, keyed by the name of the live field."""
    status = queue.status
    return {
        "ready": formats.format_number(status.ready),
        "dispatched": formats.format_number(status.dispatched),
        "dead": formats.format_number(status.dead),
        "age": _age(queue.oldest_at, now_ms),
        "in": formats.format_rate(status.published_per_s),
        "out": formats.format_rate(status.acked_per_s),
        "consumers": formats.format_number(status.consumers),
        "credit": formats.format_number(status.credit),
        "bytes": formats.format_size(status.bytes),
    }


def common_prefixes(names: Sequence[str]) -> dict[str, str]:
    """Map each name to the prefix, such as ``orders.``, that it shares with the name above it."""
    prefixes = {}
    for above, name in pairwise(names):
        parts, others = name.split("."), above.split(".")
        alike = 0
        while alike < min(len(parts) - 1, len(others)) and parts[alike] == others[alike] != "":
            alike += 1
        if alike:
            prefixes[name] = ".".join(parts[:alike]) + "."
    return prefixes


def _age(since_ms: int | None, now_ms: int) -> str:
    if since_ms is None:
        return formats.DASH
    return formats.format_duration(now_ms - since_ms, with_seconds=False)


def consumers_of(status: BrokerStatus, name: str) -> list[tuple[ClientStatus, int, int]]:
    """Return a queue's consumers, each with its credit and the number of messages it holds."""
    return [(c, *c.queues[name]) for c in status.clients if name in c.queues]


AGES_READ_MAX: Final = 200  # maximum number of queues whose ages are read from the database


async def read_oldest_ready(call: Call, queues: Iterable[QueueStatus]) -> dict[int, int]:
    """Return when the first ready message of each queue was published.

    For many queues, the times come from the last sample, which may be up to 10 s old.
    """
    ready = [queue.queue_id for queue in queues if queue.ready > 0]
    if len(ready) <= AGES_READ_MAX:
        return await call.context.reader.oldest_ready(ready)
    ages = call.context.rollups.ages
    return {queue_id: ages[queue_id] for queue_id in ready if queue_id in ages}


def retry_hint(queue: QueueStatus) -> str:
    """Return a warning if a queue for delayed messages has consumers, else an empty text."""
    home = home_of(queue.name)
    if home is None or not queue.consumers:
        return ""
    consumers = count_of(queue.consumers, "consumer receives", "consumers receive")
    return f"{consumers} messages before their delay ends; the queue forwards them to {home}"


def paused_sides(queue: QueueStatus) -> list[str]:
    """Return what is paused in a queue: delivery, publishing, both or nothing."""
    sides = {"delivery paused": queue.delivery_paused, "publishing paused": queue.publishing_paused}
    return [text for text, is_paused in sides.items() if is_paused]
