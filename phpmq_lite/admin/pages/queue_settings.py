"""The settings of one queue: the form is a part of its page, here is what its button does."""

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from phpmq_lite.admin import queue_settings
from phpmq_lite.admin.access.identity import check_forward_right, entry_of
from phpmq_lite.admin.acting import commands
from phpmq_lite.admin.acting.flash import leave
from phpmq_lite.admin.acting.forms import Form, form_of
from phpmq_lite.admin.acting.notes import Note
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.pages.queue import QueuePageQuery, show
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.queue_settings import KINDS, BadFieldError
from phpmq_lite.admin.requests import find_queue, queue_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.errors import RefusedError
from phpmq_lite.queue_settings import home_of
from phpmq_lite.server.status import QueueStatus


async def configure(request: web.Request) -> web.StreamResponse:
    """Change the settings of a queue, or take one back to its default."""
    context, queue, form = context_of(request), queue_of(request), await form_of(request)
    defaults = context.settings.queues.model_dump()
    home = find_queue(request, home_of(queue.name) or "")
    try:
        reset = form.raw("reset")
        changes: Mapping[str, Any] = (
            {reset: None}
            if reset in KINDS
            else queue_settings.changes(queue, defaults, form.raw, home=home)
        )
        if changes:
            check_forward_right(request, changes.get("on_expire"))
            await commands.configure(context, entry_of(request), queue.name, changes)
    except BadFieldError as error:
        return await _again(request, queue, form, error.field, str(error))
    except RefusedError as error:
        if error.code != "bad_setting":
            raise
        field, _, text = str(error).partition(" ")
        return await _again(request, queue, form, field, f"{text[:1].upper()}{text[1:]}.")
    leave(request, Note(_said(changes)))
    raise web.HTTPSeeOther(context.urls.to("queue", q=queue.name, tab="settings"))


def _said(changes: Mapping[str, Any]) -> str:
    if not changes:
        return "Nothing was changed."
    titles = ", ".join(KINDS[name].title.lower() for name in changes)
    return f"Saved: {titles}."


async def _again(
    request: web.Request, queue: QueueStatus, form: Form, field: str, text: str
) -> web.StreamResponse:
    """Show the form as it was typed, with what is wrong beside the field.

    Raises:
        Problem: 422 where the page has no such field; nothing was changed either way.
    """
    if field not in KINDS:
        raise Problem(422, "bad_setting", f"{field} {text}", field=field)
    entry_of(request).result = "bad_setting"
    typed = {name: form.raw(name) for name in (*KINDS, "forward_to")}
    defaults = context_of(request).settings.queues.model_dump()
    home = find_queue(request, home_of(queue.name) or "")
    return await show(
        request, queue, QueuePageQuery(tab="settings"), 422,
        fields=queue_settings.fields(queue, defaults, typed, (field, text), home=home),
        has_error=True,
    )  # fmt: skip


ROUTES: Final = (
    Route("POST", "/queues/{q}/settings", Role.ADMIN, "queue-settings", configure,
          "queue.configure"),
)  # fmt: skip
