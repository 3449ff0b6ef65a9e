"""Saved templates, views and labels, and the rules for who can see and change them."""

from typing import Any

from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.errors import SearchError
from phpmq_lite.storage.read.accounts import SavedItem, SavedItems, saved_item_write
from phpmq_lite.storage.search.language import parse_search
from phpmq_lite.writes import DeleteSavedItem


async def visible_items(call: Call, kind: str) -> list[SavedItem]:
    """Return the saved items of a kind, except any that name queues hidden from the caller."""
    items = await SavedItems(call.context.readers).all(kind)
    return [item for item in items if _may_see(call, kind, item.content)]


async def visible_item(call: Call, kind: str, name: str) -> SavedItem | None:
    """Return a saved item by name, or None if it is missing or hidden from the caller."""
    item = await SavedItems(call.context.readers).one(kind, name)
    return item if item is not None and _may_see(call, kind, item.content) else None


async def check_item_change(call: Call, kind: str, name: str, content: Any = None) -> None:
    """Check that the caller is allowed to save an item or, if ``content`` is None, remove it.

    A caller limited to some queues can change only items that name at least one of these queues
    and no other queues.

    Raises:
        Problem: 403 if this is not allowed, 409 if the name is taken.
    """
    if not call.identity.queues:
        return
    if content is not None:
        queues = _queues(kind, content)
        for queue in queues:
            call.check_queue(queue)
        if not queues:
            raise Problem(
                403,
                "foreign_queue",
                f"{call.actor!r} can save a {kind} only for queues that they are allowed to use. "
                "Choose one of those queues.",
                field="queue",
                bound=", ".join(call.identity.queues),
            )
    item = await SavedItems(call.context.readers).one(kind, name)
    if item is None:
        return
    queues = _queues(kind, item.content)
    if not queues or not all(map(call.may_use, queues)):
        raise Problem(409, "taken", f"The {kind} {name!r} belongs to other queues.", field="name")


async def change_item(call: Call, kind: str, name: str, content: Any = None) -> None:
    """Save an item, or remove it if ``content`` is None, after ``check_item_change``."""
    await check_item_change(call, kind, name, content)
    await store_item(call, kind, name, content)


async def store_item(call: Call, kind: str, name: str, content: Any = None) -> None:
    """Save an item, or remove it if ``content`` is None, for a caller who is allowed to."""
    if content is None:
        await call.run(queue_operations.write, [DeleteSavedItem(kind, name)])
        return
    row = saved_item_write(kind, name, content, call.now_ms, call.actor)
    await call.run(queue_operations.write, [row])


def _may_see(call: Call, kind: str, content: Any) -> bool:
    return all(map(call.may_use, _queues(kind, content)))


def _queues(kind: str, content: Any) -> list[str]:
    """Return the queue names and patterns in a saved item."""
    if not isinstance(content, dict):
        return []
    if kind == "template":
        queue = content.get("queue")
        return [queue] if isinstance(queue, str) and queue else []
    try:
        terms = parse_search(str(content.get("q", ""))).terms
    except SearchError:
        return []
    return [term.value for term in terms if term.kind in ("queue", "origin")]
