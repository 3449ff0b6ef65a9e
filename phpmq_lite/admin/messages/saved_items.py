"""Saved templates, views and labels, and the rules for who can see and change them."""

from typing import Any

from aiohttp import web

from phpmq_lite.admin.context import Context, context_of
from phpmq_lite.admin.http.identity import identity_of
from phpmq_lite.admin.http.permissions import check_queue_right, may_use
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.messages.search_query import parse_search
from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.model import AuditEntry
from phpmq_lite.storage.read.accounts import SavedItem, SavedItems, saved_item_write
from phpmq_lite.writes import DeleteSavedItem


async def visible_items(request: web.Request, kind: str) -> list[SavedItem]:
    """Return the saved items of a kind, except any that name queues hidden from the caller."""
    rows = await SavedItems(context_of(request).readers).all(kind)
    return [row for row in rows if _may_see(request, kind, row.content)]


async def visible_item(request: web.Request, kind: str, name: str) -> SavedItem | None:
    """Return a saved item by name, or None if it is missing or hidden from the caller."""
    row = await SavedItems(context_of(request).readers).one(kind, name)
    return row if row is not None and _may_see(request, kind, row.content) else None


async def check_item_change(
    request: web.Request, kind: str, name: str, content: Any = None
) -> None:
    """Check that the caller is allowed to save an item or, if ``content`` is None, remove it.

    A caller limited to some queues can change only items that name at least one of these queues
    and no other queues.

    Raises:
        Problem: 403 if this is not allowed, 409 if the name is taken.
    """
    if not identity_of(request).queues:
        return
    if content is not None:
        queues = _queues(kind, content)
        for queue in queues:
            check_queue_right(request, queue)
        if not queues:
            raise Problem(
                403, "foreign_queue", f"{identity_of(request).actor!r} can save a {kind} only for "
                "queues that they are allowed to use. Choose one of those queues.", field="queue",
                bound=", ".join(identity_of(request).queues),
            )  # fmt: skip
    row = await SavedItems(context_of(request).readers).one(kind, name)
    if row is None:
        return
    named = _queues(kind, row.content)
    if not named or not all(may_use(request, queue) for queue in named):
        raise Problem(409, "taken", f"The {kind} {name!r} belongs to other queues.", field="name")


async def save_item(
    context: Context, entry: AuditEntry, kind: str, name: str, content: object
) -> None:
    """Save a view, template or label, replacing any existing one with the same name."""
    row = saved_item_write(kind, name, content, context.now_ms(), entry.actor)
    await context.engine.run(queue_operations.write, entry, [row])


async def forget_item(context: Context, entry: AuditEntry, kind: str, name: str) -> None:
    """Remove a saved view, template or label."""
    await context.engine.run(queue_operations.write, entry, [DeleteSavedItem(kind, name)])


def _may_see(request: web.Request, kind: str, content: Any) -> bool:
    return all(may_use(request, queue) for queue in _queues(kind, content))


def _queues(kind: str, content: Any) -> list[str]:
    """Return the queue names and patterns in a saved item."""
    if not isinstance(content, dict):
        return []
    if kind == "template":
        queue = content.get("queue")
        return [queue] if isinstance(queue, str) and queue else []
    try:
        terms = parse_search(str(content.get("q", ""))).terms
    except Problem:
        return []
    return [term.value for term in terms if term.kind in ("queue", "origin")]
