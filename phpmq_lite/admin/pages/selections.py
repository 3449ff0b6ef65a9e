"""The preview ahead of bulk work: what exactly matched, and one button that says what it does."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin.access.identity import allowed_queues, check_queue_right, identity_of
from phpmq_lite.admin.acting import bulk, commands, words
from phpmq_lite.admin.acting.flash import back, leave
from phpmq_lite.admin.acting.forms import form_of
from phpmq_lite.admin.acting.jobs import Job, JobState
from phpmq_lite.admin.acting.selections import Selection
from phpmq_lite.admin.context import context_of, status_of
from phpmq_lite.admin.pages.message_forms import options_of
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.query import parse
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import check_queue_name
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.shelves import has_records, named
from phpmq_lite.broker.operator.message_actions import Action, ActionOptions
from phpmq_lite.model import AuditEntry

RATE_MAX: Final = 100_000
PLANNED: Final = 500  # records that a plan looks at
_NEEDS: Final = {  # action -> the states of which it takes messages
    Action.REQUEUE: {"ready", "dispatched"},
    Action.RELEASE: {"dispatched"},
    Action.MOVE: {"ready"},
    Action.DELETE: {"ready", "dispatched"},
    Action.REDRIVE: {"ready"},
    Action.RESTORE: {"deleted"},
}


async def make(request: web.Request) -> web.StreamResponse:
    """Freeze what matches a search, and show it before anything is done."""
    context, form = context_of(request), await form_of(request)
    to, action = back(form.raw("next"), ""), form.text("action", 40)
    selection = await bulk.select(request, parse(form.text("q")), action)
    raise web.HTTPSeeOther(
        context.urls.to("selection", token=selection.token, action=action, next=to)
    )


async def selection(request: web.Request) -> web.StreamResponse:
    """What a frozen selection has, and what can be done to it."""
    context = context_of(request)
    found = bulk.selection_of(request, request.match_info["token"])
    fitting = actions_of(found, named(status_of(request).queues))
    asked = request.query.get("action", "")
    action = asked if asked in fitting else next(iter(fitting), "")
    plan, planned = await _plan(request, found, action)
    return await page(
        request, "selection.html", plan=plan, planned=planned,
        plan_target=request.query.get("target", ""), selection=found, action=action,
        actions=fitting, frozen=found.frozen, fits=_fits(found, action) if action else 0,
        typed=bulk.typed_for(request, found),
        leaves=await bulk.leaves(context, found.count, found.frozen.size),
        back=back(request.query.get("next", ""), context.urls.to("queues")),
    )  # fmt: skip


async def _plan(
    request: web.Request, selection: Selection, action: str
) -> tuple[commands.Plan | None, int]:
    """Say what a redrive would do, of the first records, and how many those are."""
    if action != Action.REDRIVE:
        return None, 0
    seqs = selection.frozen.seqs[:PLANNED]
    target = request.query.get("target") or None
    if target is not None:
        check_queue_name(target)
        check_queue_right(request, target, "target")
    options = ActionOptions(target=target, queues=allowed_queues(request))
    # Looking is not audited; the core wants to know who asks all the same.
    entry = AuditEntry(identity_of(request).actor, "ui", request.remote or "", "dead.redrive")
    return await commands.plan_redrive(context_of(request), entry, seqs, options), len(seqs)


def _fits(selection: Selection, action: str) -> int:
    """Count the messages that an action takes as they are; what is held only where it is ticked."""
    states = {"ready"} if action == Action.DELETE else _NEEDS.get(Action(action), set())
    return sum(selection.frozen.by_state.get(state, 0) for state in states)


def actions_of(selection: Selection, others: frozenset[str] = frozenset()) -> dict[str, str]:
    """Give what can be done to the messages of a selection: action -> its verb.

    ``others`` are queues of dead-letter records that settings name.
    """
    frozen = selection.frozen
    states = {state for state, count in frozen.by_state.items() if count}
    fitting = {action for action, needed in _NEEDS.items() if needed & states}
    if not any(has_records(name, others) for name in frozen.by_queue):
        fitting.discard(Action.REDRIVE)
    return {str(action): words.VERBS[action] for action in _NEEDS if action in fitting}


async def apply(request: web.Request) -> web.StreamResponse:
    """Act on a frozen selection; the same form again leads to the same work."""
    form = await form_of(request)
    try:
        action = Action(form.text("action", 40))
    except ValueError:
        raise Problem(
            422, "invalid", "There is no such action.", field="action", bound=", ".join(_NEEDS)
        ) from None
    if action not in _NEEDS:
        raise Problem(
            422, "invalid", "That is not done to many.", field="action", bound=", ".join(_NEEDS)
        )
    asked = bulk.Asked(
        action, options_of(form), form.number("rate", 1, RATE_MAX), form.reason(),
        form.raw("confirm"),
    )  # fmt: skip
    job = await bulk.apply(request, request.match_info["token"], asked)
    raise web.HTTPSeeOther(after(request, job, back(form.raw("next"), "")))


def after(request: web.Request, job: Job, to: str) -> str:
    """Say where to go after bulk work began: back where it is done, else to its progress."""
    context = context_of(request)
    progress = context.urls.to("bulk-job", job=job.number, next=to)
    if job.state is JobState.RUNNING or not to:
        return progress
    leave(request, bulk.note_of(job, (progress, "Details")))
    return to


ROUTES: Final = (
    Route("POST", "/selections", Role.OPERATOR, "selection-new", make, "selection.make"),
    Route("GET", "/selections/{token}", Role.OPERATOR, "selection", selection),
    Route(
        "POST", "/selections/{token}/apply", Role.OPERATOR, "selection-apply", apply,
        "selection.apply",
    ),
)  # fmt: skip
