"""The page that publishes: queue, body, time to live, count, file, envelope, templates."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from aiohttp import web

from phpmq_lite.admin import envelopes, formats, saved_items
from phpmq_lite.admin.access.identity import check_queue_right, entry_of, identity_of
from phpmq_lite.admin.acting import commands, drafts, words
from phpmq_lite.admin.acting.flash import back, leave
from phpmq_lite.admin.acting.forms import Form, form_of
from phpmq_lite.admin.acting.notes import Note
from phpmq_lite.admin.acting.undo import undo_of_publish
from phpmq_lite.admin.api.message_actions import check_size
from phpmq_lite.admin.context import Context, context_of, status_of
from phpmq_lite.admin.problems import Problem, problem_of
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import find_queue, message_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import PUBLISH_MAX
from phpmq_lite.admin.uploads import hold_of
from phpmq_lite.envelopes.schema.rules import REASON as MISMATCH
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.server.status import QueueStatus
from phpmq_lite.storage.read.accounts import NAME_MAX
from phpmq_lite.storage.read.messages import MessageRow

TOTAL_MAX: Final = 64 << 20  # bytes of all copies
JUDGED_MAX: Final = 100  # copies that differ, before they are sent
EDIT_MAX: Final = 1 << 20  # bytes that a form takes up for editing
_KEPT: Final = ("queue", "body", "kind", "ttl", "ttl_unit", "urn", "data", "template")


@dataclass(slots=True)
class Draft:
    """What stands in the form; kept when it cannot be published."""

    queue: str = ""
    body: str = ""
    kind: str = "json"
    ttl: str = ""
    ttl_unit: str = ""
    count: str = "1"
    fill: bool = True
    urn: str = ""
    data: str = ""
    template: str = ""  # its name, to save it
    anyway: bool = False  # although the queue would quarantine it, or a schema refuses its data
    create: str = ""  # the queue that may be created
    code: str = ""  # why it was not published
    checked: str = ""  # the answer of "Check"
    card: envelopes.Card | None = None  # what "Check" found in an envelope
    errors: dict[str, str] = field(default_factory=dict)  # field -> what is wrong


def _draft_of(form: Form) -> Draft:
    draft = Draft()
    for name in _KEPT:
        setattr(draft, name, form.raw(name))
    draft.kind = draft.kind if draft.kind in drafts.KINDS else "json"
    draft.count, draft.fill = form.text("count", 40) or "1", form.flag("fill")
    draft.anyway, draft.create = form.flag("anyway"), form.raw("create")
    return draft


async def publish_page(request: web.Request) -> web.StreamResponse:
    """Write a message, from nothing or from a template."""
    asked = request.query
    draft = Draft(queue=asked.get("queue", ""))
    name = asked.get("template", "")
    if name:
        saved = await saved_items.visible_one(request, "template", name)
        if saved is None:
            raise Problem(404, "unknown_template", f"There is no template {name!r}.")
        draft = _from_template(name, saved.content, draft.queue)
    return await _show(request, draft)


def _from_template(name: str, content: Any, queue: str) -> Draft:
    """Take over a template; what is odd about it stays out."""
    kept = content if isinstance(content, dict) else {}
    draft = Draft()
    for key in _KEPT:
        if isinstance(value := kept.get(key), str):
            setattr(draft, key, value)
    draft.template, draft.queue = name, queue or draft.queue
    draft.count = str(kept.get("count", "1"))
    draft.fill = bool(kept.get("fill", True))
    return draft


async def _show(
    request: web.Request, draft: Draft, row: MessageRow | None = None, status: int = 200
) -> web.Response:
    context = context_of(request)
    known = find_queue(request, draft.queue) if draft.queue else None
    return await page(
        request, "publish.html", status=status, draft=draft, source=row, known=known,
        queues=[queue.name for queue in status_of(request).queues][:500],
        templates=await saved_items.visible(request, "template"),
        max_content=int(context.settings.limits.max_content), max_count=PUBLISH_MAX,
        max_name=NAME_MAX,
    )  # fmt: skip


# -- what its buttons do


async def publish(request: web.Request) -> web.StreamResponse:
    """Publish what was written; where that fails, the form is kept and says why."""
    form = await form_of(request)
    return await _attempt(request, form, None)


async def _attempt(request: web.Request, form: Form, row: MessageRow | None) -> web.StreamResponse:
    draft = _draft_of(form)
    try:
        match form.text("do", 20):
            case "check":
                return await _check(request, draft, row)
            case "envelope":
                return await _wrap(request, draft, row)
            case "save":
                return await _save(request, draft, row)
            case _:
                await _publish(request, form, draft, row)
    except web.HTTPRedirection:
        raise
    except Exception as error:
        problem = problem_of(error)
        if problem is None:
            raise
        draft.errors[_field_of(problem)], draft.code = problem.detail, problem.code
        entry_of(request).result = problem.code
        return await _show(request, draft, row, problem.status)
    raise web.HTTPSeeOther(back(form.raw("next"), _after(request, draft)))


def _field_of(problem: Problem) -> str:
    return "body" if problem.field == "content" else problem.field or "form"


async def _publish(request: web.Request, form: Form, draft: Draft, row: MessageRow | None) -> None:
    context = context_of(request)
    name = form.queue("queue")
    if not name:
        raise Problem(422, "invalid", "Name a queue.", field="queue")
    check_queue_right(request, name)
    count = form.number("count", 1, PUBLISH_MAX) or 1
    if count > 1 and form.file("file") is None:
        await hold_of(request).grow(min(len(draft.body) * count, TOTAL_MAX))
    ttl_s = form.ttl_s()
    made = await asyncio.to_thread(_bodies, context, form, draft, count)  # a thousand checks
    queue = find_queue(request, name)
    if queue is None and draft.create != name:
        raise Problem(
            422, "unknown_queue", f"There is no queue {name!r}. Correct the name, or tick that it "
            "is to be created.", field="queue",
        )  # fmt: skip
    if not draft.anyway:
        await asyncio.to_thread(_check_envelopes, context, queue, made)
    pieces = [(body, ttl_s) for body in made]
    entry = entry_of(request, target=row.message_id if row else name, reason=form.reason())
    source = None if row is None else (row.seq, "edit")
    ids = await commands.publish(context, entry, name, pieces, source=source)
    undo = undo_of_publish(ids, identity_of(request).actor, name)
    token = context.acting.undos.add(undo, context.now_ms())
    link = (context.urls.to("message", id=ids[0]), f"#{int(ids[0][:16], 16)}")
    told = f"{words.messages(len(ids))} published to {name}."
    if refused := Counter(ids.quarantined.values()):
        reasons = ", ".join(f"{reason} {formats.number(n)}" for reason, n in refused.items())
        told += f" Of those {formats.number(refused.total())} were quarantined: {reasons}."
    leave(request, Note(told, token, link))


def _check_envelopes(context: Context, queue: QueueStatus | None, made: Sequence[bytes]) -> None:
    """Refuse what the queue would quarantine, and data that its schema refuses, before it is sent.

    The queue itself judges large bodies, and those after the first ``JUDGED_MAX``.

    Raises:
        Problem: 422 with the reason.
    """
    settings = None if queue is None else queue.settings
    policy = "observe" if settings is None else settings.payload_policy
    if policy == "opaque":
        return
    asked = envelopes.Asked(
        envelopes.empty_list_data_of(settings),
        is_meant=policy == "envelope",
        is_strict=settings is not None and settings.schema_mode == "quarantine",
        schemas=context.schemas.registry,
    )
    for body in dict.fromkeys(made[:JUDGED_MAX]):
        card = envelopes.make_card(body, asked) if len(body) <= envelopes.CARD_BYTES else None
        if card is None:
            continue
        found = card.verdict.problem
        if policy == "envelope" and found is not None:
            why = f"{found.reason}, {envelopes.cut(found.detail)}"
            raise Problem(
                422, "bad_envelope", f"The queue would quarantine it: {why}.", field="envelope"
            )
        mismatch = next((one for one in card.problems if one.reason == MISMATCH), None)
        if mismatch is not None:
            urn, why = envelopes.cut(card.index.urn or ""), envelopes.cut(mismatch.detail)
            raise Problem(
                422, MISMATCH, f"The schema of {urn} does not allow its data: {MISMATCH}, {why}.",
                field="envelope",
            )  # fmt: skip


def _bodies(context: Context, form: Form, draft: Draft, count: int) -> Sequence[bytes]:
    """Give the bodies to store, each within its bound and all of them within theirs."""
    file = form.file("file")
    if file is not None:
        content = file.content
        _check_total(len(content), count)
        check_size(context, content, "content")
        return [content] * count
    _check_total(len(draft.body), count)
    made = drafts.bodies(
        draft.body, draft.kind, count, context.now_ms(), lambda: str(uuid4()), is_filled=draft.fill
    )
    for body in made:
        check_size(context, body, "content")
    return made


def _check_total(size: int, count: int) -> None:
    """Refuse copies that are too large together, before they are made."""
    total = size * count
    if count > 1 and total > TOTAL_MAX:
        raise Problem(
            413, "too_large",
            f"{formats.number(count)} messages of that size are {formats.size(total)} in all.",
            field="count", bound=formats.size(TOTAL_MAX),
        )  # fmt: skip


def _after(request: web.Request, draft: Draft) -> str:
    """Go back to the page: one message is seldom the last."""
    return context_of(request).urls.to("publish", queue=draft.queue, template=draft.template)


async def _check(request: web.Request, draft: Draft, row: MessageRow | None) -> web.Response:
    """Check the body, and show what the first message would be."""
    context = context_of(request)
    entry_of(request, target=draft.queue[:LONGEST_NAME]).result = "checked"
    made = drafts.bodies(
        draft.body, draft.kind, 1, context.now_ms(), lambda: str(uuid4()), is_filled=draft.fill
    )[0]
    check_size(context, made, "content")
    await _judge(request, draft, made)
    is_json = draft.kind == "json"
    draft.checked = f"{'JSON, ' if is_json else ''}{formats.size(len(made))}."
    return await _show(request, draft, row)


async def _judge(request: web.Request, draft: Draft, made: bytes) -> None:
    """Put the verdict of an envelope beside the form."""
    queue = find_queue(request, draft.queue)
    if len(made) <= envelopes.CARD_BYTES:
        draft.card = await envelopes.judged(
            made,
            queue.settings if queue is not None else None,
            context_of(request).schemas.registry,
        )


async def _wrap(request: web.Request, draft: Draft, row: MessageRow | None) -> web.Response:
    """Write the envelope into the body, for the eye to check and for publishing."""
    entry_of(request, target=draft.queue[:LONGEST_NAME]).result = "checked"
    draft.body = drafts.envelope(draft.urn, draft.data, draft.queue)
    draft.kind, draft.fill = "json", True
    made = drafts.fill(draft.body, 1, context_of(request).now_ms(), lambda: str(uuid4()))
    await _judge(request, draft, made.encode())
    return await _show(request, draft, row)


async def _save(request: web.Request, draft: Draft, row: MessageRow | None) -> web.Response:
    """Save what was written as a template."""
    name = draft.template.strip()
    if not 1 <= len(name) <= NAME_MAX:
        raise Problem(
            422, "invalid", "A template needs a name.", field="template",
            bound=f"1 to {NAME_MAX} characters",
        )  # fmt: skip
    content = {key: getattr(draft, key) for key in ("queue", "body", "kind", "ttl", "ttl_unit")}
    content |= {"count": draft.count, "fill": draft.fill}
    if len(draft.body) > EDIT_MAX:
        raise Problem(
            413, "too_large", "A template is at most 1 MiB.", field="body",
            bound=formats.size(EDIT_MAX),
        )  # fmt: skip
    entry = entry_of(request, target=name)
    entry.action = "template.save"
    await saved_items.check_change(request, "template", name, content)
    await commands.save(context_of(request), entry, "template", name, content)
    draft.checked = f"Saved as {name}."
    return await _show(request, draft, row)


async def forget(request: web.Request) -> web.StreamResponse:
    """Take a template away."""
    context, form = context_of(request), await form_of(request)
    name = form.raw("template")
    entry = entry_of(request, target=name[:255])
    await saved_items.check_change(request, "template", name)
    await commands.forget(context, entry, "template", name)
    leave(request, Note(f"The template {name[:NAME_MAX]} is gone."))
    raise web.HTTPSeeOther(context.urls.to("publish"))


# -- edit and publish


async def edit_page(request: web.Request) -> web.StreamResponse:
    """Write a new message from an old one, which stays as it is."""
    context = context_of(request)
    row = await message_of(request, context)
    body = await context.reader.whole_body(row) if row.size <= EDIT_MAX else None
    draft = Draft(queue=row.queue or "", fill=False)
    if body is not None:
        draft.body, draft.kind = drafts.as_written(body.content)
    elif row.size > EDIT_MAX:
        draft.errors["body"] = (
            f"The body is {formats.size(row.size)}; above {formats.size(EDIT_MAX)} it is not "
            "edited here. Download it, change it, and choose the file."
        )
    else:
        draft.errors["body"] = "The body is not stored any more."
    return await _show(request, draft, row)


async def edit(request: web.Request) -> web.StreamResponse:
    """Publish what was made from an old message; the two are tied to each other."""
    form = await form_of(request)
    row = await message_of(request, context_of(request))
    return await _attempt(request, form, row)


ROUTES: Final = (
    Route("GET", "/publish", Role.OPERATOR, "publish", publish_page),
    Route("POST", "/publish", Role.OPERATOR, "publish-send", publish, "message.publish",
          has_content=True),
    Route(
        "POST", "/publish/forget", Role.OPERATOR, "template-forget", forget, "template.forget"
    ),
    Route("GET", "/messages/{id}/edit", Role.OPERATOR, "message-edit-form", edit_page),
    Route("POST", "/messages/{id}/edit", Role.OPERATOR, "message-edit", edit, "message.edit",
          has_content=True),
)  # fmt: skip
