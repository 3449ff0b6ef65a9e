"""Erases the data of chosen messages from the broker (``docs/guides/erase.md``)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Self

from pydantic import BaseModel, Field, model_validator

from phpmq_lite.admin.formats import count_of
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Endpoints
from phpmq_lite.admin.http.fields import StrictInput
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.messages.jobs import SLICE
from phpmq_lite.broker import reasons
from phpmq_lite.broker.operator.message_actions import ActionOptions, act_on_messages
from phpmq_lite.broker.pipeline import staging
from phpmq_lite.operator_actions import Action
from phpmq_lite.roles import Role
from phpmq_lite.storage.search.language import STATES, SearchQuery, states_search, traces_search

TRACES: Final = 100  # maximum number of traces, and of ranges, per request
MESSAGES: Final = 10_000  # maximum number of messages that a request selects
_HOUR_MS: Final = 3_600_000
_ROUNDS: Final = 16  # maximum number of links between a selected message and a copy
endpoints: Final = Endpoints()


class OffsetRange(StrictInput):
    """Offsets of the history, both inclusive."""

    first: int = Field(ge=1, description="first offset")
    last: int = Field(ge=1, description="last offset, inclusive")


class EraseInput(StrictInput):
    """The messages whose data to erase: those of all traces, and those at all offsets."""

    trace_ids: list[str] = Field([], max_length=TRACES, description="trace ids, matched exactly")
    offsets: list[OffsetRange] = Field(
        [], max_length=TRACES, description=f"ranges, together of at most {MESSAGES} offsets"
    )
    live: bool = Field(False, description="delete live messages, too, then erase their data")
    dry_run: bool = Field(False, description="count, and change nothing")

    @model_validator(mode="after")
    def _check_width(self) -> Self:
        width = sum(max(0, part.last - part.first + 1) for part in self.offsets)
        if width > MESSAGES:
            raise ValueError(f"offsets cover {width} messages, the limit is {MESSAGES}: send less")
        return self


class RemainsView(BaseModel):
    """A place that may still hold the data, and when retention removes it there."""

    where: str = Field(description="the place")
    until: int | None = Field(description="Unix ms; null if that depends on what happens")
    how: str = Field(description="what removes the data there")


class EraseView(BaseModel):
    """The number of messages whose data is erased, or would be in a dry run."""

    erased: int = Field(description="settled messages, including those that were live")
    live: int = Field(description="live messages and dead-letter records among the selected ones")
    already: int = Field(description="messages whose data had been erased before")
    ids: list[str] = Field(description="ids of all these messages")
    staged: int = Field(description="tokens of staged rows that are dropped with all their rows")
    more: bool = Field(description="whether there are more messages: repeat the request")
    remains: list[RemainsView] = Field(description="places that are not changed")


@endpoints.api("POST /pipeline/erase", "api-pipeline-erase", Role.ADMIN, "pipeline.erase")
async def erase_messages(call: Call, body: EraseInput) -> EraseView:
    """Erase the data of settled messages permanently; their rows stay in the history.

    Copies are erased, too: dead-letter records, and what was restored, redriven or edited. If any
    message is live and ``live`` is not set, nothing is changed: 409. Repeat an interrupted request.
    """
    call.check_all_queues("erase data")
    traces, ranges = len(body.trace_ids), len(body.offsets)
    call.audit(f"{count_of(traces, 'trace', 'traces')}, {ranges} ranges of offsets")
    reader = call.context.reader
    matched, has_more = await _matching(call, body)
    seqs = await reader.with_copies(matched, _ROUNDS)
    live, settled, already = await reader.stored(seqs)
    tokens = await reader.staged_tokens(body.trace_ids) if body.trace_ids else []
    view = EraseView(
        erased=len(settled) + (len(live) if body.live else 0), live=len(live), already=len(already),
        ids=[*(live | settled | already).values()], staged=len(tokens), more=has_more,
        remains=_remains(call),
    )  # fmt: skip
    if body.dry_run:
        call.is_audit_deferred = True
        return view
    if live and not body.live:
        count = count_of(len(live), "selected message is", "selected messages are")
        hint = "Wait until they are settled, or set live to delete them first."
        detail = f"{count} live, so nothing was erased. {hint}"
        raise Problem(409, "live_messages", detail, field="live")
    call.audit().count = view.erased
    if tokens:
        await call.run(staging.unstage, tokens)
    await _run(call, Action.DELETE, [*live])
    # Copies come first: if this is interrupted, the selected messages still lead to the others.
    doomed = {*live, *settled}
    await _run(call, Action.ERASE, [seq for seq in reversed(seqs) if seq in doomed])
    return view


async def _matching(call: Call, body: EraseInput) -> tuple[list[int], bool]:
    """Return the seqs that a request selects, and whether there are more."""
    seqs: dict[int, None] = {}
    has_more = False
    if body.trace_ids:
        terms = (*traces_search(*body.trace_ids).terms, *states_search(STATES).terms)
        frozen = await call.context.search.freeze(SearchQuery(terms), limit=MESSAGES)
        seqs, has_more = dict.fromkeys(frozen.seqs), not frozen.is_complete
    for part in body.offsets:
        seqs |= dict.fromkeys(await call.context.reader.seqs_at(part.first, part.last))
    return [*seqs], has_more


async def _run(call: Call, action: Action, seqs: Sequence[int]) -> None:
    """Apply an action in small batches, so that clients wait for none of them."""
    options = ActionOptions(with_dispatched=True, delete_reason=reasons.ERASED)
    entry = replace(call.audit(), action=f"message.{action}", result="running", count=0)
    for at in range(0, len(seqs), SLICE):
        if at + SLICE >= len(seqs):
            entry.result = "done"
        part = seqs[at : at + SLICE]
        await call.context.broker.run(act_on_messages, entry, action, part, options)


def _remains(call: Call) -> list[RemainsView]:
    """Return where the data may lie after an erase, with the time when it is removed there."""
    settings, now_ms = call.context.settings, call.now_ms
    backups, free = settings.backups, "VACUUM, or new rows that overwrite it"
    keys_ms = now_ms + round(settings.receipts.window_s * 1_000)
    is_scheduled = backups.every_h > 0
    backups_ms = now_ms + round((backups.keep + 1) * backups.every_h * _HOUR_MS)
    places: list[tuple[str, int | None, str]] = [
        ("backups", backups_ms if is_scheduled else None, f"{backups.keep} newer backups"),
        ("replicas and standbys", None, "their own retention"),
        ("free pages of the database", None, free),
        ("write-ahead log", None, "the next checkpoint that truncates it"),
        ("keys of confirmed publishes", keys_ms, "receipts.window_s"),
        ("texts of searches and reasons in the audit", now_ms + round(settings.audit.days * 24 *
         _HOUR_MS), "audit.days"),
        ("recorded frames of watched connections", None, "the end of the recording"),
        ("drafts, schedules and saved searches", None, "a change by their owner"),
    ]  # fmt: skip
    return [RemainsView(where=where, until=until, how=how) for where, until, how in places]
