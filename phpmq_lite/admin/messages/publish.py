"""The form, the templates and the API for publishing and editing messages."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self
from uuid import uuid4

from aiohttp import web
from pydantic import BaseModel, Field, TypeAdapter, model_validator

from phpmq_lite.admin import formats
from phpmq_lite.admin.context import Context, context_of, status_of
from phpmq_lite.admin.http.body import memory_hold_of, read_json_body
from phpmq_lite.admin.http.browser_sessions import FlashMessage
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.fields import (
    PUBLISH_MAX,
    TTL_MAX_S,
    AuditReason,
    Form,
    StrictInput,
    TtlSeconds,
    check_queue_name,
    read_form,
)
from phpmq_lite.admin.http.identity import identity_of
from phpmq_lite.admin.http.permissions import (
    check_queue_right,
    find_message,
    find_queue,
    queue_name_of,
)
from phpmq_lite.admin.http.problems import Problem, problem_of
from phpmq_lite.admin.http.rendering import render_page
from phpmq_lite.admin.http.request_audit import audit_entry
from phpmq_lite.admin.http.responses import json_response
from phpmq_lite.admin.http.route import Role, Route
from phpmq_lite.admin.messages import drafts, envelope_card, saved_items
from phpmq_lite.admin.messages.actions import ActionResultView
from phpmq_lite.admin.messages.bodies import from_content
from phpmq_lite.admin.messages.undo import make_publish_undo
from phpmq_lite.admin.messages.wait import WaitPosition
from phpmq_lite.admin.resource import api_route
from phpmq_lite.admin.urls import own_path_or
from phpmq_lite.broker.operator import publishing
from phpmq_lite.envelopes.payload_schema import REASON as MISMATCH
from phpmq_lite.errors import RefusedError
from phpmq_lite.queue_settings import FORWARD, LONGEST_NAME, publish_target, retry_warning
from phpmq_lite.server.status import QueueStatus
from phpmq_lite.storage.read.accounts import NAME_MAX
from phpmq_lite.storage.read.messages import MessageRow


class ContentInput(StrictInput):
    """The content of a message, and its time to live."""

    content: str = Field(description="message body, in the given encoding")
    encoding: Literal["utf-8", "base64"] = Field("utf-8", description="encoding of content")
    ttl_s: TtlSeconds = None

    @model_validator(mode="after")
    def _is_decodable(self) -> Self:
        self.body()
        return self

    def body(self) -> bytes:
        """Return the bytes to store; raise ValueError if the content cannot be decoded."""
        return from_content(self.content, self.encoding)


class PublishInput(ContentInput):
    """A message to publish."""

    delay_s: int = Field(0, ge=0, le=TTL_MAX_S, description="wait in QUEUE.retry; excludes ttl_s")


KEY_BYTES: Final = 64
PUBLISH_LIST: Final = TypeAdapter(list[PublishInput])


class EditInput(ContentInput):
    """A new message based on an existing one."""

    queue: str | None = Field(
        None, min_length=1, max_length=LONGEST_NAME, description="target queue; null if unchanged"
    )
    reason: AuditReason = ""


class PublishedView(BaseModel):
    """The ids of the published messages, and a cursor for ``GET /wait``."""

    ids: list[str] = Field(description="message ids, in the order of the request")
    cursor: str = Field(description="value for after in GET /wait, to wait for later messages")
    # Messages with invalid envelopes are dead-lettered on arrival.
    quarantined: dict[str, str] = Field({}, description="reasons for dead-lettering, by message id")
    warning: str = Field("", description="why messages stay in a .retry queue; empty if none does")


async def publish_messages(request: web.Request) -> web.StreamResponse:
    """Publish one message or an array of messages; respond with 201 after the commit.

    A request that repeats an Idempotency-Key stores nothing and gets the original response, or 422
    if its messages differ.
    """
    context, name = context_of(request), queue_name_of(request)
    check_queue_name(name)
    check_queue_right(request, name)
    key = _key_of(request)
    data = await read_json_body(request)
    is_list = isinstance(data, list)
    asked = PUBLISH_LIST.validate_python(data) if is_list else [PublishInput.model_validate(data)]
    if not 1 <= len(asked) <= PUBLISH_MAX:
        raise Problem(422, "invalid", f"The array has {len(asked)} messages; 1 to {PUBLISH_MAX} "
                      "are allowed.", bound=f"1 to {PUBLISH_MAX}")  # fmt: skip
    targets = [publish_target(name, message.ttl_s, message.delay_s) for message in asked]
    if len(dict(targets)) > 1:
        raise Problem(422, "invalid", "Some messages have a delay_s, others have none; publish "
                      "them in two requests.", field="delay_s")  # fmt: skip
    check_target(request, name, target := targets[0][0])
    pieces = [(message.body(), ttl_s) for message, (_, ttl_s) in zip(asked, targets, strict=True)]
    for at, (body, _) in enumerate(pieces):
        check_size(context, body, f"{at}.content" if is_list else "content")
    entry = audit_entry(request, target=target)
    before = await WaitPosition.now(context.readers)  # read first, so that no event is missed
    ids = await context.engine.run(publishing.publish, entry, target, pieces, key=key)
    cursor = before.after(ids).text
    warning = max(warning_of(request, target, ttl_s) for ttl_s in {ttl for _, ttl in pieces})
    out = PublishedView(ids=ids, cursor=cursor, quarantined=ids.quarantined, warning=warning)
    return json_response(out, status=201)


def check_target(request: web.Request, name: str, target: str) -> None:
    """Raise an error if a message for ``name`` cannot wait in ``target``, its .retry queue."""
    check_queue_right(request, target)
    waiting = find_queue(request, target)
    if target != name and waiting and waiting.settings.on_expire != FORWARD + name:
        why = f"{target!r} does not forward to {name!r}; set its on_expire to {FORWARD + name!r}"
        raise RefusedError("bad_delay", why)


def warning_of(request: web.Request, name: str, ttl_s: int | None) -> str:
    """Return why a message stays in a .retry queue, or an empty text."""
    queue = find_queue(request, name)
    default_s = 0 if queue is None else queue.settings.default_ttl_s
    return retry_warning(name, default_s if ttl_s is None else ttl_s)


def _key_of(request: web.Request) -> bytes | None:
    text = request.headers.get("Idempotency-Key")
    if text is None:
        return None
    key = text.encode(errors="surrogateescape")
    if not 1 <= len(key) <= KEY_BYTES:
        raise Problem(
            422, "invalid", f"Idempotency-Key is {len(key)} bytes; it must be 1 to {KEY_BYTES}.",
            field="Idempotency-Key", bound=f"1 to {KEY_BYTES} bytes",
        )  # fmt: skip
    return key


def check_size(context: Context, body: bytes, field: str) -> None:
    """Reject content that is too large for a message.

    Raises:
        Problem: 413; the detail names the limit.
    """
    limit = int(context.settings.limits.max_content)
    if len(body) > limit:
        raise Problem(
            413, "too_large", f"{field} is {len(body)} bytes; the limit is {limit} "
            "(limits.max_content).", field=field, bound=f"{limit} bytes",
        )  # fmt: skip


async def edit_message(request: web.Request, asked: EditInput) -> ActionResultView:
    """Publish an edited copy of a message. The original message stays unchanged."""
    context = context_of(request)
    row = await find_message(request, context)
    name = asked.queue or row.queue
    if name is None:
        raise Problem(422, "invalid", "The queue no longer exists. Enter another.", field="queue")
    check_queue_name(name)
    check_queue_right(request, name)
    body = asked.body()
    check_size(context, body, "content")
    entry = audit_entry(request, target=row.message_id, reason=asked.reason)
    ids = await context.engine.run(
        publishing.publish, entry, name, [(body, asked.ttl_s)], source=(row.seq, "edit")
    )
    undo = make_publish_undo(ids, identity_of(request).actor, row.message_id)
    token = context.actions.undos.add(undo, context.now_ms())
    return ActionResultView(id=row.message_id, action="edit", new_id=ids[0], undo=token)


TOTAL_MAX: Final = 64 << 20  # maximum total size of all copies, in bytes
JUDGED_MAX: Final = 100  # number of copies that are checked before publishing
EDIT_MAX: Final = 1 << 20  # maximum size of a body to edit in the form, in bytes
_SAVED: Final = ("queue", "body", "kind", "ttl", "ttl_unit", "delay")
_KEPT: Final = (*_SAVED, "urn", "data", "template")


@dataclass(slots=True)
class PublishForm:
    """The content of the publish form, which is shown again if publishing fails."""

    queue: str = ""
    body: str = ""
    kind: str = "json"
    ttl: str = ""
    ttl_unit: str = ""
    delay: str = ""
    count: str = "1"
    fill: bool = True
    urn: str = ""
    data: str = ""
    template: str = ""  # name under which to save the template
    anyway: bool = False  # publish even if the queue or a schema rejects the message
    create: str = ""  # name of the queue to create
    code: str = ""  # error code if publishing failed
    checked: str = ""  # description of the checked body
    card: envelope_card.EnvelopeCard | None = None  # verdict on the envelope
    errors: dict[str, str] = field(default_factory=dict)  # error texts by field name


def _draft_of(form: Form) -> PublishForm:
    draft = PublishForm()
    for name in _KEPT:
        setattr(draft, name, form.raw(name))
    draft.kind = draft.kind if draft.kind in drafts.KINDS else "json"
    draft.count, draft.fill = form.text("count", 40) or "1", form.flag("fill")
    draft.anyway, draft.create = form.flag("anyway"), form.raw("create")
    return draft


async def show_publish_form(request: web.Request) -> web.StreamResponse:
    """Show the form for a new message, empty or filled from a template."""
    asked = request.query
    draft = PublishForm(queue=asked.get("queue", ""))
    name = asked.get("template", "")
    if name:
        saved = await saved_items.visible_item(request, "template", name)
        if saved is None:
            raise Problem(404, "unknown_template", f"There is no template named {name!r}.")
        draft = _from_template(name, saved.content, draft.queue)
    return await _show(request, draft)


def _from_template(name: str, content: Any, queue: str) -> PublishForm:
    """Fill the form from a template, skipping invalid members."""
    kept = content if isinstance(content, dict) else {}
    draft = PublishForm()
    for key in _KEPT:
        if isinstance(value := kept.get(key), str):
            setattr(draft, key, value)
    draft.template, draft.queue = name, queue or draft.queue
    draft.count = str(kept.get("count", "1"))
    draft.fill = bool(kept.get("fill", True))
    return draft


async def _show(
    request: web.Request, draft: PublishForm, row: MessageRow | None = None, status: int = 200
) -> web.Response:
    context = context_of(request)
    known = find_queue(request, draft.queue) if draft.queue else None
    return await render_page(
        request, "publish.html", status=status, draft=draft, source=row, known=known,
        queues=[queue.name for queue in status_of(request).queues][:500],
        templates=await saved_items.visible_items(request, "template"),
        max_content=int(context.settings.limits.max_content), max_count=PUBLISH_MAX,
        max_name=NAME_MAX,
    )  # fmt: skip


# -- form actions


async def submit_publish(request: web.Request) -> web.StreamResponse:
    """Publish the message; if that fails, show the form again with the reason."""
    form = await read_form(request)
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
        field = "body" if problem.field == "content" else problem.field or "form"
        draft.errors[field], draft.code = problem.detail, problem.code
        audit_entry(request).result = problem.code
        return await _show(request, draft, row, problem.status)
    # By default, show the form again, because users often publish several messages in a row.
    again = context_of(request).urls.to("publish", queue=draft.queue, template=draft.template)
    raise web.HTTPSeeOther(own_path_or(form.raw("next"), again))


async def _publish(
    request: web.Request, form: Form, draft: PublishForm, row: MessageRow | None
) -> None:
    context = context_of(request)
    name = form.queue("queue")
    if not name:
        raise Problem(422, "invalid", "Enter a queue name.", field="queue")
    check_queue_right(request, name)
    count = form.number("count", 1, PUBLISH_MAX) or 1
    if count > 1 and form.file("file") is None:
        await memory_hold_of(request).grow(min(len(draft.body) * count, TOTAL_MAX))
    target, ttl_s = publish_target(name, form.ttl_s(), form.number("delay", 0, TTL_MAX_S) or 0)
    check_target(request, name, target)
    made = await asyncio.to_thread(_bodies, context, form, draft, count)  # makes up to 1,000 copies
    queue = find_queue(request, name)
    if queue is None and draft.create != name:
        raise Problem(
            422, "unknown_queue", f"There is no queue {name!r}. Correct the name, or select "
            "the checkbox to create the queue.", field="queue",
        )  # fmt: skip
    if not draft.anyway:
        await asyncio.to_thread(_check_envelopes, context, queue, made)
    pieces = [(body, ttl_s) for body in made]
    entry = audit_entry(request, target=row.message_id if row else target, reason=form.reason())
    source = None if row is None else (row.seq, "edit")
    ids = await context.engine.run(publishing.publish, entry, target, pieces, source=source)
    undo = make_publish_undo(ids, identity_of(request).actor, target)
    token = context.actions.undos.add(undo, context.now_ms())
    link = (context.urls.to("message", id=ids[0]), f"#{int(ids[0][:16], 16)}")
    text = f"{formats.count_messages(len(ids))} published to {target}."
    if target != name:
        text += f" {'They move' if count > 1 else 'It moves'} to {name} after {ttl_s} s."
    elif warning := warning_of(request, name, ttl_s):
        text += f" Warning: {warning}."
    if refused := Counter(ids.quarantined.values()):
        reasons = ", ".join(f"{reason} {formats.format_number(n)}" for reason, n in refused.items())
        text += f" Of these, {formats.format_number(refused.total())} were quarantined: {reasons}."
    Call.of(request).tell(FlashMessage(text, token, link))


def _check_envelopes(context: Context, queue: QueueStatus | None, made: Sequence[bytes]) -> None:
    """Reject envelopes that the queue would quarantine, and data that does not match its schema.

    Large bodies, and bodies after the first ``JUDGED_MAX``, are validated only by the queue.

    Raises:
        Problem: 422; the detail names the reason.
    """
    settings = None if queue is None else queue.settings
    policy = "observe" if settings is None else settings.payload_policy
    if policy == "opaque":
        return
    asked = envelope_card.JudgeOptions(
        envelope_card.empty_list_data_of(settings),
        is_meant=policy == "envelope",
        is_strict=settings is not None and settings.schema_mode == "quarantine",
        schemas=context.schemas.registry,
    )
    cut = envelope_card.shorten
    for body in dict.fromkeys(made[:JUDGED_MAX]):
        if len(body) > envelope_card.CARD_BYTES:
            continue
        if (card := envelope_card.make_card(body, asked)) is None:
            continue
        found = card.verdict.problem
        if policy == "envelope" and found is not None:
            why = f"{found.reason}, {cut(found.detail)}"
            raise Problem(
                422, "bad_envelope", f"The envelope would be quarantined: {why}.", field="envelope"
            )
        mismatch = next((one for one in card.problems if one.reason == MISMATCH), None)
        if mismatch is not None:
            urn, why = cut(card.index.urn or ""), cut(mismatch.detail)
            raise Problem(
                422, MISMATCH, f"The data does not match the schema for {urn}: {MISMATCH}, {why}.",
                field="envelope",
            )  # fmt: skip


def _bodies(context: Context, form: Form, draft: PublishForm, count: int) -> Sequence[bytes]:
    """Return the bodies to store, after checking each size and the total size."""
    file = form.file("file")
    if file is not None:
        content = file.content
        _check_total(len(content), count)
        check_size(context, content, "content")
        return [content] * count
    _check_total(len(draft.body), count)
    made = drafts.make_bodies(
        draft.body, draft.kind, count, context.now_ms(), lambda: str(uuid4()), is_filled=draft.fill
    )
    for body in made:
        check_size(context, body, "content")
    return made


def _check_total(size: int, count: int) -> None:
    """Reject copies whose total size would exceed the limit, before any copy is created."""
    total = size * count
    if count > 1 and total > TOTAL_MAX:
        raise Problem(
            413, "too_large",
            f"{formats.format_number(count)} copies of this size take {formats.format_size(total)} "
            f"in total; the limit is {formats.format_size(TOTAL_MAX)}.",
            field="count", bound=formats.format_size(TOTAL_MAX),
        )  # fmt: skip


async def _check(request: web.Request, draft: PublishForm, row: MessageRow | None) -> web.Response:
    """Check the body and preview the first message."""
    context = context_of(request)
    audit_entry(request, target=draft.queue[:LONGEST_NAME]).result = "checked"
    made = drafts.make_bodies(
        draft.body, draft.kind, 1, context.now_ms(), lambda: str(uuid4()), is_filled=draft.fill
    )[0]
    check_size(context, made, "content")
    await _check_draft(request, draft, made)
    is_json = draft.kind == "json"
    draft.checked = f"{'JSON, ' if is_json else ''}{formats.format_size(len(made))}."
    return await _show(request, draft, row)


async def _check_draft(request: web.Request, draft: PublishForm, made: bytes) -> None:
    """Determine the verdict on the envelope; the page shows it next to the form."""
    queue = find_queue(request, draft.queue)
    if len(made) <= envelope_card.CARD_BYTES:
        draft.card = await envelope_card.inspect_content(
            made,
            queue.settings if queue is not None else None,
            context_of(request).schemas.registry,
        )


async def _wrap(request: web.Request, draft: PublishForm, row: MessageRow | None) -> web.Response:
    """Fill the form's body field with an envelope that can be checked and published."""
    audit_entry(request, target=draft.queue[:LONGEST_NAME]).result = "checked"
    draft.body = drafts.envelope_text(draft.urn, draft.data, draft.queue)
    draft.kind, draft.fill = "json", True
    made = drafts.fill_placeholders(
        draft.body, 1, context_of(request).now_ms(), lambda: str(uuid4())
    )
    await _check_draft(request, draft, made.encode())
    return await _show(request, draft, row)


async def _save(request: web.Request, draft: PublishForm, row: MessageRow | None) -> web.Response:
    name = draft.template.strip()
    if not 1 <= len(name) <= NAME_MAX:
        raise Problem(
            422, "invalid", "Enter a name for the template.", field="template",
            bound=f"1 to {NAME_MAX} characters",
        )  # fmt: skip
    content = {key: getattr(draft, key) for key in _SAVED}
    content |= {"count": draft.count, "fill": draft.fill}
    if len(draft.body) > EDIT_MAX:
        raise Problem(
            413, "too_large", "The body of a template must not exceed 1 MiB.", field="body",
            bound=formats.format_size(EDIT_MAX),
        )  # fmt: skip
    entry = audit_entry(request, target=name)
    entry.action = "template.save"
    await saved_items.check_item_change(request, "template", name, content)
    await saved_items.save_item(context_of(request), entry, "template", name, content)
    draft.checked = f"Saved as template {name}."
    return await _show(request, draft, row)


async def submit_template_removal(request: web.Request) -> web.StreamResponse:
    """Remove a saved template."""
    context, form = context_of(request), await read_form(request)
    name = form.raw("template")
    entry = audit_entry(request, target=name[:255])
    await saved_items.check_item_change(request, "template", name)
    await saved_items.forget_item(context, entry, "template", name)
    Call.of(request).tell(FlashMessage(f"The template {name[:NAME_MAX]} was removed."))
    raise web.HTTPSeeOther(context.urls.to("publish"))


# -- edit and publish


async def show_edit_form(request: web.Request) -> web.StreamResponse:
    """Show the form for publishing an edited copy of a message."""
    context = context_of(request)
    row = await find_message(request, context)
    body = await context.reader.whole_body(row) if row.size <= EDIT_MAX else None
    draft = PublishForm(queue=row.queue or "", fill=False)
    if body is not None:
        draft.body, draft.kind = drafts.as_form_text(body.content)
    elif row.size > EDIT_MAX:
        draft.errors["body"] = (
            f"The body is {formats.format_size(row.size)}; the limit for editing here is "
            f"{formats.format_size(EDIT_MAX)}. Download the body, edit it and upload the file."
        )
    else:
        draft.errors["body"] = "The body is no longer stored."
    return await _show(request, draft, row)


async def submit_edit(request: web.Request) -> web.StreamResponse:
    """Publish an edited copy of a message, and link the copy to the original."""
    form = await read_form(request)
    row = await find_message(request, context_of(request))
    return await _attempt(request, form, row)


ROUTES: Final = (
    Route(
        "POST", "/api/v1/queues/{q}/messages", Role.OPERATOR, "api-publish", publish_messages,
        "message.publish", takes=list[PublishInput], gives=PublishedView, status=201, cli="publish",
        has_content=True,
    ),
    api_route(
        "POST", "/api/v1/messages/{id}/edit", Role.OPERATOR, "api-message-edit", edit_message,
        "message.edit", has_content=True,
    ),
    Route("GET", "/publish", Role.OPERATOR, "publish", show_publish_form),
    Route(
        "POST", "/publish", Role.OPERATOR, "publish-send", submit_publish, "message.publish",
        has_content=True,
    ),
    Route(
        "POST", "/publish/forget", Role.OPERATOR, "template-forget", submit_template_removal,
        "template.forget",
    ),
    Route("GET", "/messages/{id}/edit", Role.OPERATOR, "message-edit-form", show_edit_form),
    Route(
        "POST", "/messages/{id}/edit", Role.OPERATOR, "message-edit", submit_edit, "message.edit",
        has_content=True,
    ),
)  # fmt: skip
