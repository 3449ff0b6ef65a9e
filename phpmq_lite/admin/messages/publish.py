"""The form, the templates and the API for publishing and editing messages."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, Self
from uuid import uuid4

from aiohttp import web
from pydantic import BaseModel, Field, TypeAdapter, model_validator

from phpmq_lite.admin import formats
from phpmq_lite.admin.http.body import memory_hold_of, read_json_body
from phpmq_lite.admin.http.browser_sessions import FlashMessage
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Done, Endpoints, Queue, QueueName
from phpmq_lite.admin.http.fields import (
    ActionInput,
    Delay,
    DeliverAt,
    GroupName,
    Priority,
    QueryModel,
    StrictInput,
)
from phpmq_lite.admin.http.input import Form, Untrimmed, check_queue_name, parse_time
from phpmq_lite.admin.http.output import json_response
from phpmq_lite.admin.http.problems import Problem, invalid, problem_of
from phpmq_lite.admin.messages import drafts, envelope_card, saved_items
from phpmq_lite.admin.messages.actions import (
    ActionResultView,
    TimeInput,
    apply_action,
    refuse_skipped,
)
from phpmq_lite.admin.messages.bodies import from_content
from phpmq_lite.admin.messages.jobs import stores_of
from phpmq_lite.admin.messages.message import Message
from phpmq_lite.admin.messages.owned_stores import make_publish_undo
from phpmq_lite.admin.messages.schemas import SCHEMAS
from phpmq_lite.admin.messages.wait import WaitPosition
from phpmq_lite.broker.operator import publishing
from phpmq_lite.broker.operator.publishing import PUBLISH_MAX, NewMessage
from phpmq_lite.envelopes.payload_schema import REASON as MISMATCH
from phpmq_lite.frame_options import (
    DEFAULT_PRIORITY,
    HIGHEST_PRIORITY,
    LONGEST_DELAY_S,
    LOWEST_PRIORITY,
    PUBLISH,
    PublishOptions,
    check_options,
)
from phpmq_lite.operator_actions import Action
from phpmq_lite.queue_settings import KEY_BYTES, LONGEST_NAME, LONGEST_TTL_S
from phpmq_lite.roles import Role
from phpmq_lite.server.status import QueueStatus
from phpmq_lite.storage.read.accounts import NAME_MAX
from phpmq_lite.storage.read.messages import MessageRow, seq_of

TOTAL_MAX: Final = 64 << 20  # maximum total size of all copies, in bytes
JUDGED_MAX: Final = 100  # number of copies that are checked before publishing
EDIT_MAX: Final = 1 << 20  # maximum size of a body to edit in the form, in bytes
endpoints: Final = Endpoints()


class ContentInput(StrictInput):
    """The content of a message, and its time to live."""

    content: str = Field(description="message body, in the given encoding")
    encoding: Literal["utf-8", "base64"] = Field("utf-8", description="encoding of content")
    ttl_s: Annotated[
        float | None,
        Field(
            ge=0,
            le=LONGEST_TTL_S,
            description="seconds to live once it is ready (0: forever; null: queue default)",
        ),
    ] = None

    @model_validator(mode="after")
    def _is_decodable(self) -> Self:
        self.body()
        return self

    def body(self) -> bytes:
        """Return the bytes to store; raise ValueError if the content cannot be decoded."""
        return from_content(self.content, self.encoding)


class PublishInput(ContentInput):
    """A message to publish."""

    delay_s: Delay = 0
    deliver_at: DeliverAt = None
    priority: Priority = DEFAULT_PRIORITY
    group: GroupName = None
    unique_key: str | None = Field(
        None, min_length=1, description="under which the queue holds one live message"
    )
    if_exists: Literal["keep", "replace"] = Field(
        "keep", description="what to do if a live message has the unique key"
    )

    def options(self) -> PublishOptions:
        """Return what the message asks for; raise OptionError if it contradicts itself."""
        names = {name: getattr(self, name) for name in PUBLISH}
        return PublishOptions.of(check_options(names, PUBLISH))


PUBLISH_LIST: Final = TypeAdapter(list[PublishInput])


class EditInput(ActionInput, ContentInput):
    """A new message based on an existing one."""

    queue: str | None = Field(
        None, min_length=1, max_length=LONGEST_NAME, description="target queue; null if unchanged"
    )


class PublishedView(BaseModel):
    """The ids of the published messages, and a cursor for ``GET /wait``."""

    ids: list[str] = Field(description="message ids, in the order of the request")
    cursor: str = Field(description="value for after in GET /wait, to wait for later messages")
    existing: list[str] = Field(
        [], description="ids of live messages with the unique keys of messages that were not stored"
    )
    # Messages with invalid envelopes are dead-lettered on arrival.
    quarantined: dict[str, str] = Field({}, description="reasons for dead-lettering, by message id")


# -- API


@endpoints.api(
    "POST /queues/{q}/messages",
    "api-publish",
    Role.OPERATOR,
    "message.publish",
    takes=list[PublishInput],
    status=201,
    others={200: "nothing was stored because live messages have the unique keys"},
    cli="publish",
    has_content=True,
    gives=PublishedView,
    takes_key=True,
)
async def publish_messages(call: Call, name: QueueName) -> web.Response:
    """Publish one message or an array of messages; respond after the commit.

    If live messages have the unique keys, ``ids`` are theirs. A request that repeats an
    Idempotency-Key stores nothing and gets the original response, or 422 if its messages differ.
    """
    check_queue_name(name)
    key = _key_of(call)
    data = await read_json_body(call.request)
    is_list = isinstance(data, list)
    messages = (
        PUBLISH_LIST.validate_python(data) if is_list else [PublishInput.model_validate(data)]
    )
    if not 1 <= len(messages) <= PUBLISH_MAX:
        bound = f"1 to {PUBLISH_MAX}"
        raise invalid(f"The array has {len(messages)} messages; {bound} are allowed.", bound=bound)
    call.check_queue(name)
    contents: list[NewMessage] = []
    for at, message in enumerate(messages):
        body = message.body()
        check_size(call, body, f"{at}.content" if is_list else "content")
        contents.append(NewMessage(body, message.ttl_s, message.options()))
    before = await WaitPosition.now(call.context.readers)  # read first, so that no event is missed
    call.audit(name)
    published = await call.run(publishing.publish, name, contents, key=key)
    view = PublishedView(
        ids=published.ids,
        cursor=before.after(published.stored).text,
        existing=sorted(published.existing),
        quarantined=published.quarantined,
    )
    return json_response(view, status=200 if published.existing == set(published.ids) else 201)


def _key_of(call: Call) -> bytes | None:
    text = call.request.headers.get("Idempotency-Key")
    if text is None:
        return None
    key = text.encode(errors="surrogateescape")
    if not 1 <= len(key) <= KEY_BYTES:
        detail = f"Idempotency-Key is {len(key)} bytes; it must be 1 to {KEY_BYTES}."
        raise invalid(detail, "Idempotency-Key", f"1 to {KEY_BYTES} bytes")
    return key


def check_size(call: Call, body: bytes, field: str) -> None:
    """Raise a 413 ``Problem`` that names the limit if content is too large for a message."""
    limit = int(call.context.settings.limits.max_content)
    if len(body) > limit:
        detail = f"{field} is {len(body)} bytes; the limit is {limit} (limits.max_content)."
        raise Problem(413, "too_large", detail, field=field, bound=f"{limit} bytes")


@endpoints.api(
    "POST /messages/{id}/edit", "api-message-edit", Role.OPERATOR, "message.edit", has_content=True
)
async def edit_message(call: Call, row: Message, edited: EditInput) -> ActionResultView:
    """Publish an edited copy of a message, with its priority and group.

    The original message stays unchanged.
    """
    name = edited.queue or row.queue
    if name is None:
        raise invalid("The queue no longer exists. Enter another.", "queue")
    check_queue_name(name)
    call.check_queue(name)
    body = edited.body()
    check_size(call, body, "content")
    call.audit(row.message_id)
    options = PublishOptions(edited.ttl_s, priority=row.priority, group=row.group)
    contents = [NewMessage(body, edited.ttl_s, options)]
    published = await call.run(publishing.publish, name, contents, source=(row.seq, "edit"))
    return ActionResultView(
        id=row.message_id,
        action="edit",
        new_id=published.ids[0],
        undo=_add_undo(call, published.ids, row.message_id),
    )


class UniqueKeyInput(ActionInput):
    """The unique key of a live message."""

    unique_key: str = Field(min_length=1, description="unique key of a live message in the queue")


class RescheduleKeyInput(UniqueKeyInput, TimeInput):
    """The unique key of a live message, and when the message becomes ready."""


async def _act_on_key(
    call: Call, queue: QueueStatus, action: Action, form: UniqueKeyInput
) -> ActionResultView:
    row = await call.context.reader.by_unique_key(queue.queue_id, form.unique_key)
    if row is None:
        detail = f"{queue.name!r} has no live message with the unique key {form.unique_key!r}."
        raise Problem(404, "unknown_unique_key", detail, field="unique_key")
    result = await apply_action(call, action, [row.seq], form, row.message_id)
    if not result.outcome.changed:
        refuse_skipped(action, *result.outcome.skipped)
    return ActionResultView(id=row.message_id, action=str(action), undo=result.undo)


@endpoints.api(
    "POST /queues/{q}/cancel", "api-cancel", Role.OPERATOR, "message.delete", cli="queue cancel"
)
async def cancel_message(call: Call, queue: Queue, body: UniqueKeyInput) -> ActionResultView:
    """Delete the live message with a unique key, unless a consumer holds it."""
    return await _act_on_key(call, queue, Action.DELETE, body)


@endpoints.api(
    "POST /queues/{q}/reschedule",
    "api-reschedule",
    Role.OPERATOR,
    "message.reschedule",
    cli="queue reschedule",
)
async def reschedule_message(
    call: Call, queue: Queue, body: RescheduleKeyInput
) -> ActionResultView:
    """Set the time of the live message with a unique key, unless a consumer holds it."""
    return await _act_on_key(call, queue, Action.RESCHEDULE, body)


def _add_undo(call: Call, ids: Sequence[str], target: str) -> str | None:
    undo = make_publish_undo(ids, call.actor, target)
    return stores_of(call).undos.add(undo, call.now_ms)


# -- the form


_IN_TEMPLATE: Final = (
    *("queue", "body", "kind", "ttl", "ttl_unit", "delay", "delay_unit", "deliver_at"),
    *("priority", "group", "unique_key"),
)
_TEXT_FIELDS: Final = (*_IN_TEMPLATE, "urn", "data", "template")


@dataclass(slots=True)
class PublishForm:
    """The content of the publish form, which is shown again if publishing fails."""

    queue: str = ""
    body: str = ""
    kind: str = "json"
    ttl: str = ""
    ttl_unit: str = ""
    delay: str = ""
    delay_unit: str = ""
    deliver_at: str = ""
    priority: str = ""
    group: str = ""
    unique_key: str = ""
    replace: bool = False  # the live message with this unique key
    count: str = "1"
    fill: bool = True
    urn: str = ""
    data: str = ""
    template: str = ""  # name under which to save the template
    anyway: bool = False  # publish even if the queue or a schema rejects the message
    create: str = ""  # name of the queue to create
    code: str = ""  # error code if publishing failed
    result: str = ""  # description of the checked body, or of the saved template
    card: envelope_card.EnvelopeCard | None = None  # verdict on the envelope
    errors: dict[str, str] = field(default_factory=dict)  # error texts by field name

    @classmethod
    def of(cls, form: Form) -> Self:
        draft = cls()
        for name in _TEXT_FIELDS:
            setattr(draft, name, form.raw(name))
        draft.kind = draft.kind if draft.kind in drafts.KINDS else "json"
        draft.count, draft.fill = form.text("count", 40) or "1", form.flag("fill")
        draft.anyway, draft.create = form.flag("anyway"), form.raw("create")
        draft.replace = form.flag("replace")
        return draft

    @classmethod
    def of_template(cls, name: str, content: Any, queue: str) -> Self:
        """Return a template's form, skipping invalid members; ``queue`` overrides its queue."""
        members = content if isinstance(content, dict) else {}
        draft = cls()
        for key in _TEXT_FIELDS:
            if isinstance(value := members.get(key), str):
                setattr(draft, key, value)
        draft.template, draft.queue = name, queue or draft.queue
        draft.count = str(members.get("count", "1"))
        draft.fill = bool(members.get("fill", True))
        return draft

    @property
    def has_limits(self) -> bool:
        """Whether the form asks for more than a time."""
        names = ("priority", "group", "unique_key", "if_exists")
        return any(getattr(self, name, "") or name in self.errors for name in names)

    def make_bodies(self, count: int, now_ms: int) -> Sequence[bytes]:
        """Return the bodies of ``count`` copies; raise a 422 ``Problem`` if the text is invalid."""
        return drafts.make_bodies(
            self.body, self.kind, count, now_ms, lambda: str(uuid4()), is_filled=self.fill
        )


class PublishPageQuery(QueryModel):
    """The queue and the template to fill the publish form from."""

    queue: str = ""
    template: str = ""


@endpoints.page("/publish", "publish", Role.OPERATOR)
async def show_publish_form(call: Call, query: PublishPageQuery) -> web.Response:
    """Show the form for a new message, empty or filled from a template."""
    draft, name = PublishForm(queue=query.queue), query.template
    if name:
        template = await saved_items.visible_item(call, "template", name)
        if template is None:
            raise Problem(404, "unknown_template", f"There is no template named {name!r}.")
        draft = PublishForm.of_template(name, template.content, draft.queue)
    return await _show(call, draft)


async def _show(
    call: Call, draft: PublishForm, row: MessageRow | None = None, status: int = 200
) -> web.Response:
    return await call.render(
        "publish.html",
        status=status,
        draft=draft,
        source=row,
        target=call.find_queue(draft.queue),
        queues=[queue.name for queue in call.queues][:500],
        templates=await saved_items.visible_items(call, "template"),
        max_content=int(call.context.settings.limits.max_content),
        max_count=PUBLISH_MAX,
        max_name=NAME_MAX,
    )


@endpoints.action("/publish", "publish-send", Role.OPERATOR, "message.publish", has_content=True)
async def submit_publish(call: Call, form: Form) -> web.Response | Done[None]:
    """Publish the message; if that fails, show the form again with the reason."""
    return await _submit(call, form, None)


async def _submit(call: Call, form: Form, row: MessageRow | None) -> web.Response | Done[None]:
    draft = PublishForm.of(form)
    status = 200
    try:
        match form.text("do", 20):
            case "check" | "envelope" as step:
                await _check(call, draft, has_data=step == "envelope")
            case "save":
                await _save(call, draft)
            case _:
                return await _publish(call, form, draft, row)
    except Exception as error:
        problem = problem_of(error)
        if problem is None:
            raise
        field = "body" if problem.field == "content" else problem.field or "form"
        draft.errors[field], draft.code = problem.detail, problem.code
        call.audit().result = problem.code
        status = problem.status
    return await _show(call, draft, row, status)


async def _publish(
    call: Call, form: Form, draft: PublishForm, row: MessageRow | None
) -> Done[None]:
    name = form.queue("queue")
    if not name:
        raise invalid("Enter a queue name.", "queue")
    call.check_queue(name)
    count = form.number("count", 1, PUBLISH_MAX) or 1
    if count > 1 and form.file("file") is None:
        await memory_hold_of(call.request).grow(min(len(draft.body) * count, TOTAL_MAX))
    options = _options(form, draft)
    bodies = await asyncio.to_thread(_bodies, call, form, draft, count)  # makes up to 1,000 copies
    queue = call.find_queue(name)
    if queue is None and draft.create != name:
        raise Problem(
            422,
            "unknown_queue",
            f"There is no queue {name!r}. Correct the name, or select the checkbox to create the "
            "queue.",
            field="queue",
        )
    if not draft.anyway:
        await asyncio.to_thread(_check_envelopes, call, queue, bodies)
    call.audit(row.message_id if row else name)
    contents = [NewMessage(body, options.ttl_s, options) for body in bodies]
    source = None if row is None else (row.seq, "edit")
    published = await call.run(publishing.publish, name, contents, source=source)
    stored = published.stored
    text = f"{formats.count_messages(len(stored))} published to {name}."
    if len(stored) < len(published.ids):
        text += " The queue has a live message with this unique key already."
    elif options.delay_s or options.deliver_at is not None:
        text += f" {'They become' if count > 1 else 'It becomes'} ready at the given time."
    if refused := Counter(published.quarantined.values()):
        reasons = ", ".join(f"{reason} {formats.format_number(n)}" for reason, n in refused.items())
        text += f" Of these, {formats.format_number(refused.total())} were quarantined: {reasons}."
    link = (call.url("message", id=published.ids[0]), f"#{seq_of(published.ids[0])}")
    # By default, show the form again, because users often publish several messages in a row.
    to = call.back(call.url("publish", queue=draft.queue, template=draft.template))
    return Done(None, FlashMessage(text, _add_undo(call, stored, name), link), to)


def _options(form: Form, draft: PublishForm) -> PublishOptions:
    """Return the delivery options of the form; raise a 422 ``Problem`` or OptionError."""
    if draft.delay and draft.deliver_at:
        raise invalid("Enter either a delay or a date.", "deliver_at")
    if draft.replace and not draft.unique_key:
        raise invalid("Enter the unique key of the message to replace.", "unique_key")
    return PublishOptions.of(
        check_options(
            {
                "ttl_s": form.seconds("ttl"),
                "delay_s": form.seconds("delay", LONGEST_DELAY_S),
                "deliver_at": parse_time(draft.deliver_at.strip(), "deliver_at"),
                "priority": form.number("priority", HIGHEST_PRIORITY, LOWEST_PRIORITY),
                "group": draft.group or None,
                "unique_key": draft.unique_key or None,
                "if_exists": "replace" if draft.replace else None,
            },
            PUBLISH,
        )
    )


def _check_envelopes(call: Call, queue: QueueStatus | None, bodies: Sequence[bytes]) -> None:
    """Reject envelopes that the queue would quarantine, and data that does not match its schema.

    Large bodies, and bodies after the first ``JUDGED_MAX``, are validated only by the queue.
    """
    if queue is not None and queue.settings.payload_policy == "opaque":
        return
    rules = _rules_of(call, queue)
    cut = envelope_card.shorten
    for body in dict.fromkeys(bodies[:JUDGED_MAX]):
        if len(body) > envelope_card.CARD_BYTES:
            continue
        if (card := envelope_card.make_card(body, rules)) is None:
            continue
        problem = card.verdict.problem
        if rules.is_meant and problem is not None:
            detail = f"The envelope would be quarantined: {problem.reason}, "
            detail += f"{cut(problem.detail)}."
            raise Problem(422, "bad_envelope", detail, field="envelope")
        mismatch = next((other for other in card.problems if other.reason == MISMATCH), None)
        if mismatch is not None:
            urn, reason = cut(card.index.urn or ""), cut(mismatch.detail)
            detail = f"The data does not match the schema for {urn}: {MISMATCH}, {reason}."
            raise Problem(422, MISMATCH, detail, field="envelope")


def _rules_of(call: Call, queue: QueueStatus | None) -> envelope_card.JudgeOptions:
    settings = None if queue is None else queue.settings
    return envelope_card.JudgeOptions.of(settings, call.context.app[SCHEMAS].registry)


def _bodies(call: Call, form: Form, draft: PublishForm, count: int) -> Sequence[bytes]:
    """Return the bodies to store, after checking each size and the total size."""
    file = form.file("file")
    if file is not None:
        _check_total(len(file.content), count)
        check_size(call, file.content, "content")
        return [file.content] * count
    _check_total(len(draft.body), count)
    bodies = draft.make_bodies(count, call.now_ms)
    for body in bodies:
        check_size(call, body, "content")
    return bodies


def _check_total(size: int, count: int) -> None:
    """Reject copies whose total size would exceed the limit, before any copy is created."""
    total = size * count
    if count > 1 and total > TOTAL_MAX:
        limit = formats.format_size(TOTAL_MAX)
        detail = (
            f"{formats.format_number(count)} copies of this size take {formats.format_size(total)} "
            f"in total; the limit is {limit}."
        )
        raise Problem(413, "too_large", detail, field="count", bound=limit)


async def _check(call: Call, draft: PublishForm, *, has_data: bool) -> None:
    """Check the body of the first message, which is an envelope around the form's data if any."""
    call.audit(draft.queue[:LONGEST_NAME]).result = "checked"
    if has_data:
        draft.body = drafts.envelope_text(draft.urn, draft.data, draft.queue)
        draft.kind, draft.fill = "json", True
    [body] = draft.make_bodies(1, call.now_ms)
    if not has_data:
        check_size(call, body, "content")
        is_json = draft.kind == "json"
        draft.result = f"{'JSON, ' if is_json else ''}{formats.format_size(len(body))}."
    if len(body) <= envelope_card.CARD_BYTES:
        rules = _rules_of(call, call.find_queue(draft.queue))
        draft.card = await envelope_card.inspect_content(body, rules)


async def _save(call: Call, draft: PublishForm) -> None:
    name = draft.template.strip()
    if not 1 <= len(name) <= NAME_MAX:
        raise invalid("Enter a name for the template.", "template", f"1 to {NAME_MAX} characters")
    if len(draft.body) > EDIT_MAX:
        detail = "The body of a template must not exceed 1 MiB."
        bound = formats.format_size(EDIT_MAX)
        raise Problem(413, "too_large", detail, field="body", bound=bound)
    call.audit(name).action = "template.save"
    content: dict[str, Any] = {key: getattr(draft, key) for key in _IN_TEMPLATE}
    content |= {"count": draft.count, "fill": draft.fill}
    await saved_items.change_item(call, "template", name, content)
    draft.result = f"Saved as template {name}."


class TemplateForm(StrictInput):
    """The name of a saved template."""

    template: Annotated[str, Untrimmed()] = ""


@endpoints.action("/publish/forget", "template-forget", Role.OPERATOR, "template.forget")
async def submit_template_removal(call: Call, form: TemplateForm) -> Done[None]:
    """Remove a saved template."""
    name = form.template
    call.audit(name[:255])
    await saved_items.change_item(call, "template", name)
    return Done(None, f"The template {name[:NAME_MAX]} was removed.", call.url("publish"))


# -- edit and publish


@endpoints.page("/messages/{id}/edit", "message-edit-form", Role.OPERATOR)
async def show_edit_form(call: Call, row: Message) -> web.Response:
    """Show the form for publishing an edited copy of a message."""
    is_small = row.size <= EDIT_MAX
    body = await call.context.reader.whole_body(row) if is_small else None
    draft = PublishForm(queue=row.queue or "", group=row.group or "", fill=False)
    if row.priority != DEFAULT_PRIORITY:
        draft.priority = str(row.priority)
    if body is not None:
        draft.body, draft.kind = drafts.as_form_text(body.content)
    elif is_small:
        draft.errors["body"] = "The body is no longer stored."
    else:
        draft.errors["body"] = (
            f"The body is {formats.format_size(row.size)}; the limit for editing here is "
            f"{formats.format_size(EDIT_MAX)}. Download the body, edit it and upload the file."
        )
    return await _show(call, draft, row)


@endpoints.action(
    "/messages/{id}/edit", "message-edit", Role.OPERATOR, "message.edit", has_content=True
)
async def submit_edit(call: Call, row: Message, form: Form) -> web.Response | Done[None]:
    """Publish an edited copy of a message, and link the copy to the original."""
    return await _submit(call, form, row)
