"""Selections of messages, previewed before a bulk action."""

from collections.abc import Sequence
from typing import Any, Final, Self

from pydantic import Field

from phpmq_lite.admin import formats
from phpmq_lite.admin.dead_letter_queues import dead_letter_queues_named, has_records
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.confirmation import FormField
from phpmq_lite.admin.http.endpoint import Done, Endpoints
from phpmq_lite.admin.http.fields import QueryModel, StrictInput
from phpmq_lite.admin.http.input import check_queue_name
from phpmq_lite.admin.http.output import ResponseModel
from phpmq_lite.admin.messages import bulk
from phpmq_lite.admin.messages.actions import fields_of
from phpmq_lite.admin.messages.bulk import BulkForm, BulkJobView, RedrivePlan, Selection
from phpmq_lite.admin.messages.listing import MessageView
from phpmq_lite.admin.messages.owned_stores import MessageSelection
from phpmq_lite.broker.operator.message_actions import ActionOptions
from phpmq_lite.model import STATE_NAMES, AuditEntry, State
from phpmq_lite.operator_actions import ACTIONS, Action, suiting_actions
from phpmq_lite.roles import Role
from phpmq_lite.storage.search.language import parse_search

PLANNED: Final = 500  # maximum number of records in a redrive plan
endpoints: Final = Endpoints()


class SelectionInput(StrictInput):
    """The search that selects messages; only live messages match unless ``state:`` is used."""

    q: str = Field(max_length=1_000, description="search; only live messages match without state:")


class SelectionForm(StrictInput):
    """The search that selects messages, and the action to choose on the selection's page."""

    q: str = Field("", max_length=1_000)
    action: str = Field("", max_length=40)


class SelectionQuery(QueryModel):
    """What a selection's page shows: an action, and another target for the plan of a redrive."""

    action: str = ""
    target: str = ""


class SelectionView(ResponseModel):
    """A selection; if ``to_confirm`` has texts, ``POST /bulk`` requires one of these texts."""

    token: str = Field(description="token for POST /bulk, valid for ten minutes")
    q: str = Field(validation_alias="query", description="the search as parsed")
    count: int = Field(description="number of selected messages")
    is_complete: bool = Field(description="false if too many messages match for one selection")
    oldest: int | None = Field(
        validation_alias="oldest_at", description="oldest publish time, Unix ms; null if none"
    )
    newest: int | None = Field(
        validation_alias="newest_at", description="newest publish time, Unix ms; null if none"
    )
    bytes: int = Field(validation_alias="size", description="total size of the bodies in bytes")
    held: int = Field(description="number of messages held by consumers")
    expired: int = Field(description="number of settled messages past their deadline")
    leaves_history: int = Field(description="deleted messages that will be removed to make room")
    by_queue: dict[str, int] = Field(description="number of messages by queue")
    by_state: dict[str, int] = Field(description="number of messages by state")
    by_urn: dict[str, int] = Field(description="messages by URN; ~other combines the rest")
    samples: list[MessageView] = Field(description="the first, middle and last messages")
    to_confirm: list[str] = Field(description="accepted values for confirm; empty if not required")
    expires_at: int = Field(description="when the selection expires, Unix ms")

    @classmethod
    async def of_selection(cls, call: Call, selection: MessageSelection) -> Self:
        frozen = selection.frozen
        return cls.of(
            frozen,
            token=selection.token,
            q=selection.query,
            count=selection.count,
            leaves_history=await bulk.history_loss(call, selection.count, frozen.size),
            samples=[MessageView.of_row(row) for row in frozen.samples],
            to_confirm=list(bulk.texts_to_type_for(call, selection)),
            expires_at=selection.expires_at,
        )


@endpoints.action("/selections", "selection-new", Role.OPERATOR, "selection.make")
async def submit_selection(call: Call, form: SelectionForm) -> Any:
    """Select the messages that match a search, and show the selection for review."""
    selection = await bulk.freeze_selection(call, parse_search(form.q), form.action)
    raise call.redirect("selection", token=selection.token, action=form.action, next=call.back(""))


@endpoints.page("/selections/{token}", "selection", Role.OPERATOR)
async def show_selection(call: Call, selection: Selection, query: SelectionQuery) -> Any:
    """Show the messages in a selection, and the actions available for the selection."""
    frozen, others = selection.frozen, dead_letter_queues_named(call.queues)
    states = {state for state, count in frozen.by_state.items() if count}
    is_record = any(has_records(name, others) for name in frozen.by_queue)
    suiting = suiting_actions(states, may_redrive=is_record)
    action = next((fit for fit in suiting if fit == query.action), next(iter(suiting), None))
    is_redrive = action is Action.REDRIVE
    planned = frozen.seqs[:PLANNED] if is_redrive else ()
    return await call.render(
        "selection.html",
        selection=selection,
        frozen=frozen,
        action=action,
        suiting=suiting,
        fields=_fields(selection, action, query.target) if action else (),
        fits=_fits(selection, action) if action else 0,
        plan=await _plan(call, planned, query.target or None) if is_redrive else None,
        planned=len(planned),
        plan_target=query.target,
        typed=bulk.texts_to_type_for(call, selection),
        leaves=await bulk.history_loss(call, selection.count, frozen.size),
        back=call.back(call.url("queues")),
    )


def _fields(selection: MessageSelection, action: Action, target: str) -> list[FormField]:
    origin = "for the queue where each record was dead-lettered"
    fields = fields_of(action, ACTIONS[action].keeps_many, origin, target)
    if action is Action.DELETE and (held := selection.frozen.held):
        label = f"Also delete {formats.count_messages(held)} held by consumers"
        help_ = "The consumers' acknowledgements will be ignored."
        fields.append(("check_field", ("dispatched", label, help_)))
    if action is Action.REDRIVE:
        fields.append(("rate_field", ()))
    return fields


async def _plan(call: Call, seqs: Sequence[int], target: str | None) -> RedrivePlan:
    if target is not None:
        check_queue_name(target)
        call.check_queue(target, "target")
    # A plan is not audited, but the engine call requires an audit entry.
    entry = AuditEntry(call.actor, "ui", call.request.remote or "", "dead.redrive")
    options = ActionOptions(target=target, queues=call.allowed)
    return await bulk.plan_redrive(call.context, entry, seqs, options)


def _fits(selection: MessageSelection, action: Action) -> int:
    """Count the messages that an action suits; for deletion, without those that are held."""
    states = ACTIONS[action].suits - ({State.DISPATCHED} if action is Action.DELETE else set())
    return sum(selection.frozen.by_state.get(STATE_NAMES[state], 0) for state in states)


@endpoints.action(
    "/selections/{token}/apply",
    "selection-apply",
    Role.OPERATOR,
    "selection.apply",
    form_page="selection",
)
async def submit_bulk_action(call: Call, form: BulkForm) -> Done[BulkJobView]:
    """Apply an action to a selection; submitting the form again redirects to the same job."""
    token = call.path("token")
    is_earlier = bulk.earlier_job(call, token, Action(form.action)) is not None
    job = await bulk.apply_to_selection(call, token, form)
    return bulk.done_after(call, job, call.back(""), is_earlier=is_earlier)


@endpoints.api(
    "POST /selections", "api-selection-make", Role.OPERATOR, "selection.make", status=201
)
async def create_selection(call: Call, body: SelectionInput) -> SelectionView:
    """Select all messages that match a search; the selection's token is valid for ten minutes."""
    selection = await bulk.freeze_selection(call, parse_search(body.q))
    return await SelectionView.of_selection(call, selection)


@endpoints.api("GET /selections/{token}", "api-selection", Role.OPERATOR)
async def get_selection(call: Call, selection: Selection) -> SelectionView:
    """Return a selection; only the user who created it can read it."""
    return await SelectionView.of_selection(call, selection)
