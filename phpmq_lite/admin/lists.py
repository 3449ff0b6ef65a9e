"""Lists: filter, order and page of the queues in memory; any list as JSON, JSON lines or CSV."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel

from phpmq_lite.admin import cursors
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.schemas import QueueQuery
from phpmq_lite.server.status import QueueStatus

_CSV_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


@dataclass(slots=True, frozen=True)
class ListedQueue:
    """A queue and when its first ready message was published (Unix ms)."""

    status: QueueStatus
    oldest_at: int | None

    @property
    def is_paused(self) -> bool:
        """Tell whether one of its sides is paused."""
        return self.status.delivery_paused or self.status.publishing_paused


@dataclass(slots=True, frozen=True)
class QueuePage:
    """One page of the list, and cursors to its neighbours."""

    queues: list[ListedQueue]
    matching: int  # over all pages
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


def is_named(name: str, pattern: str) -> bool:
    """Tell whether a name matches: a glob where it has ``*`` or ``?``, else a part of it."""
    name, pattern = name.casefold(), pattern.strip().casefold()
    if "*" in pattern or "?" in pattern:
        return fnmatchcase(name, pattern.replace("[", "[[]"))
    return pattern in name


def page_of_queues(
    statuses: Iterable[QueueStatus], ages: Mapping[int, int], query: QueueQuery
) -> QueuePage:
    """Give the page that a query asks for; equal values are in the order of names."""
    listed = [ListedQueue(status, ages.get(status.queue_id)) for status in statuses]
    if query.q:
        listed = [queue for queue in listed if is_named(queue.status.name, query.q)]
    if query.has:
        listed = [queue for queue in listed if _HAS[query.has](queue)]
    key, is_descending = _KEYS[query.sort.removeprefix("-")], query.sort.startswith("-")
    listed.sort(key=lambda queue: queue.status.name)
    listed.sort(key=key, reverse=is_descending)

    scope = f"queues {query.q} {query.has} {query.sort}"
    start, end = 0, query.limit
    cursor = cursors.decode(scope, query.cursor)
    if cursor is not None:
        place = _place_of(cursor, listed, key)
        behind = next(
            (
                at
                for at, queue in enumerate(listed)
                if _is_behind(_pair(queue, key), place, is_descending=is_descending)
            ),
            len(listed),
        )
        if cursor.direction == "after":
            start, end = behind, behind + query.limit
        else:
            ahead = behind - (behind > 0 and _pair(listed[behind - 1], key) == place)
            start, end = max(0, ahead - query.limit), ahead
    page = listed[start:end]
    return QueuePage(
        page,
        len(listed),
        cursors.encode(scope, "after", list(_pair(page[-1], key)))
        if page and end < len(listed)
        else None,
        cursors.encode(scope, "before", list(_pair(page[0], key))) if page and start else None,
    )


Pair = tuple[int | float | str, str]


def _pair(queue: ListedQueue, key: Callable[[ListedQueue], int | float | str]) -> Pair:
    return key(queue), queue.status.name


def _place_of(
    cursor: cursors.Cursor,
    listed: Sequence[ListedQueue],
    key: Callable[[ListedQueue], int | float | str],
) -> Pair:
    place = cursor.place
    if isinstance(place, list) and isinstance(place[1], str):
        is_text = isinstance(place[0], str)
        if not listed or is_text == isinstance(key(listed[0]), str):
            return place[0], place[1]
    raise Problem(422, "bad_cursor", "The cursor is malformed.", field="cursor")


def _is_behind(pair: Pair, place: Pair, *, is_descending: bool) -> bool:
    """Tell whether a row comes after a place; names ascend where the values are equal."""
    value: Any = pair[0]
    other: Any = place[0]
    if value == other:
        return pair[1] > place[1]
    return bool(value < other) if is_descending else bool(value > other)


# -- what is not HTML


def as_data(
    format_: str, model: type[BaseModel], items: Sequence[BaseModel], next_cursor: str | None = None
) -> web.Response:
    """Give a list as ``{items, next}``, as JSON lines with a last line ``complete``, or as CSV."""
    rows = [item.model_dump(mode="json") for item in items]
    if format_ == "jsonl":
        last = {"complete": True, "count": len(rows), "next": next_cursor}
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in [*rows, last])
        return web.Response(text=text, content_type="application/x-ndjson")
    if format_ == "csv":
        return web.Response(
            text=_as_csv(model.model_fields, rows),
            content_type="text/csv",
            headers={"Content-Disposition": 'attachment; filename="phpmq.csv"'},
        )
    return web.json_response({"items": rows, "next": next_cursor})


def _as_csv(fields: Iterable[str], rows: Iterable[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(fields)
    for row in rows:
        writer.writerow([csv_cell(value) for value in row.values()])
    return out.getvalue()


def csv_cell(value: Any) -> str:
    """Write a cell that no spreadsheet takes for a formula."""
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}" if text.startswith(_CSV_FORMULA) else text


def as_json(data: object, status: int = 200) -> web.Response:
    """Answer with a JSON document; a model is dumped."""
    if isinstance(data, BaseModel):
        data = data.model_dump(mode="json")
    return web.json_response(data, status=status)
