"""Selections of messages, previewed before a bulk action."""

from typing import Final, Self

from aiohttp import web
from pydantic import Field

from phpmq_lite.admin.actions import bulk, flash_messages
from phpmq_lite.admin.actions.selections import MessageSelection
from phpmq_lite.admin.actions.single_message import read_options
from phpmq_lite.admin.auth.permissions import allowed_queues, check_queue_right
from phpmq_lite.admin.base.context import context_of, status_of
from phpmq_lite.admin.base.identity import identity_of
from phpmq_lite.admin.base.input import (
    Form,
    StrictInput,
    check_queue_name,
    read_form,
)
from phpmq_lite.admin.base.problems import Problem
from phpmq_lite.admin.base.responses import ResponseModel
from phpmq_lite.admin.base.route import Role, Route
from phpmq_lite.admin.base.search_query import parse_search
from phpmq_lite.admin.base.urls import own_path_or
from phpmq_lite.admin.resource import api_route
from phpmq_lite.admin.resources.bulk_jobs import next_page_after
from phpmq_lite.admin.resources.messages import MessageView
from phpmq_lite.admin.views.dead_letter_queues import dead_letter_queues_named, has_records
from phpmq_lite.admin.views.rendering import render_page
from phpmq_lite.broker.operator.message_actions import Action, ActionOptions
from phpmq_lite.model import AuditEntry

RATE_MAX: Final = 100_000
PLANNED: Final = 500  # maximum number of records in a redrive plan
_NEEDS: Final = {  # message states that each action accepts, least destructive action first
    Action.REQUEUE: {"ready", "dispatched"},
    Action.RELEASE: {"dispatched"},
    Action.MOVE: {"ready"},
    Action.REDRIVE: {"ready"},
    Action.RESTORE: {"deleted"},
    Action.DELETE: {"ready", "dispatched"},
}


async def submit_selection(request: web.Request) -> web.StreamResponse:
    """Select the messages that match a search, and show the selection for review."""
    context, form = context_of(request), await read_form(request)
    to, action = own_path_or(form.raw("next"), ""), form.text("action", 40)
    selection = await bulk.freeze_selection(request, parse_search(form.text("q")), action)
    raise web.HTTPSeeOther(
        context.urls.to("selection", token=selection.token, action=action, next=to)
    )


async def show_selection(request: web.Request) -> web.StreamResponse:
    """Show the messages in a selection, and the actions available for the selection."""
    context = context_of(request)
    found = bulk.find_selection(request, request.match_info["token"])
    fitting = possible_actions(found, dead_letter_queues_named(status_of(request).queues))
    asked = request.query.get("action", "")
    action = asked if asked in fitting else next(iter(fitting), "")
    plan, planned = await _plan(request, found, action)
    return await render_page(
        request, "selection.html", plan=plan, planned=planned,
        plan_target=request.query.get("target", ""), selection=found, action=action,
        actions=fitting, frozen=found.frozen, fits=_fits(found, action) if action else 0,
        typed=bulk.texts_to_type_for(request, found),
        leaves=await bulk.history_loss(context, found.count, found.frozen.size),
        back=own_path_or(request.query.get("next", ""), context.urls.to("queues")),
    )  # fmt: skip


async def _plan(
    request: web.Request, selection: MessageSelection, action: str
) -> tuple[bulk.RedrivePlan | None, int]:
    """Return a pair: a redrive plan for the first records, and how many records it covers."""
    if action != Action.REDRIVE:
        return None, 0
    seqs = selection.frozen.seqs[:PLANNED]
    target = request.query.get("target") or None
    if target is not None:
        check_queue_name(target)
        check_queue_right(request, target, "target")
    options = ActionOptions(target=target, queues=allowed_queues(request))
    # A plan is not audited, but the engine call requires an audit entry.
    entry = AuditEntry(identity_of(request).actor, "ui", request.remote or "", "dead.redrive")
    return await bulk.plan_redrive(context_of(request), entry, seqs, options), len(seqs)


def _fits(selection: MessageSelection, action: str) -> int:
    """Count the messages that an action accepts; for deletion, count only ready messages."""
    states = {"ready"} if action == Action.DELETE else _NEEDS.get(Action(action), set())
    return sum(selection.frozen.by_state.get(state, 0) for state in states)


def possible_actions(
    selection: MessageSelection, others: frozenset[str] = frozenset()
) -> dict[str, str]:
    """Return the actions available for a selection, each with the verb for its button.

    ``others`` contains the dead-letter queues named in queue settings.
    """
    frozen = selection.frozen
    states = {state for state, count in frozen.by_state.items() if count}
    is_record = any(has_records(name, others) for name in frozen.by_queue)
    return {
        str(action): flash_messages.VERBS[action]
        for action in fitting_actions(states, may_redrive=is_record)
    }


def fitting_actions(states: set[str], *, may_redrive: bool) -> list[Action]:
    """Return the actions available for messages in these states, least destructive first."""
    fitting = [action for action, needed in _NEEDS.items() if needed & states]
    return [action for action in fitting if may_redrive or action is not Action.REDRIVE]


def read_action(form: Form) -> Action:
    """Return the bulk action that a form requests.

    Raises:
        Problem: 422 if the action does not exist.
    """
    name = form.text("action", 40)
    if name not in _NEEDS:
        raise Problem(422, "invalid", "Unknown action.", field="action", bound=", ".join(_NEEDS))
    return Action(name)


async def submit_bulk_action(request: web.Request) -> web.StreamResponse:
    """Apply an action to a selection; submitting the form again redirects to the same job."""
    form = await read_form(request)
    action = read_action(form)
    asked = bulk.BulkRequest(
        action, read_options(form), form.number("rate", 1, RATE_MAX), form.reason(),
        form.raw("confirm"),
    )  # fmt: skip
    token = request.match_info["token"]
    is_earlier = bulk.earlier_job(request, token, action) is not None
    job = await bulk.apply_to_selection(request, token, asked)
    to = own_path_or(form.raw("next"), "")
    raise web.HTTPSeeOther(next_page_after(request, job, to, is_earlier=is_earlier))


class SelectionInput(StrictInput):
    """The search that selects messages; only live messages match unless ``state:`` is used."""

    q: str = Field(max_length=1_000, description="search; only live messages match without state:")


class SelectionView(ResponseModel):
    """A selection; if ``to_confirm`` has texts, ``POST /bulk`` requires one of these texts."""

    token: str = Field(description="token for POST /bulk, valid for ten minutes")
    q: str = Field(description="the search as parsed")
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
    def of_selection(
        cls, selection: MessageSelection, to_confirm: tuple[str, ...], leaves_history: int
    ) -> Self:
        """Return the API view of a selection."""
        return cls.of(
            selection.frozen,
            token=selection.token,
            q=selection.query,
            count=selection.count,
            leaves_history=leaves_history,
            samples=[MessageView.of_row(row) for row in selection.frozen.samples],
            to_confirm=list(to_confirm),
            expires_at=selection.expires_at,
        )


async def create_selection(request: web.Request, asked: SelectionInput) -> SelectionView:
    """Select all messages that match a search; the selection's token is valid for ten minutes."""
    return await _view_of(request, await bulk.freeze_selection(request, parse_search(asked.q)))


async def get_selection(request: web.Request) -> SelectionView:
    """Return a selection; only the user who created it can read it."""
    return await _view_of(request, bulk.find_selection(request, request.match_info["token"]))


async def _view_of(request: web.Request, selection: MessageSelection) -> SelectionView:
    going = await bulk.history_loss(context_of(request), selection.count, selection.frozen.size)
    return SelectionView.of_selection(selection, bulk.texts_to_type_for(request, selection), going)


ROUTES: Final = (
    Route(
        "POST", "/selections", Role.OPERATOR, "selection-new", submit_selection, "selection.make",
    ),
    Route("GET", "/selections/{token}", Role.OPERATOR, "selection", show_selection),
    Route(
        "POST", "/selections/{token}/apply", Role.OPERATOR, "selection-apply", submit_bulk_action,
        "selection.apply",
    ),
    api_route(
        "POST", "/api/v1/selections", Role.OPERATOR, "api-selection-make", create_selection,
        "selection.make", status=201,
    ),
    api_route(
        "GET", "/api/v1/selections/{token}", Role.OPERATOR, "api-selection", get_selection,
    ),
)  # fmt: skip
