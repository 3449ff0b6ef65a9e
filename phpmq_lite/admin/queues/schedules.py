"""Schedules: their pages, the API, and what definitions contain of them."""

from base64 import b64encode
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Annotated, Any, Final, Literal, Self

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite import schedules
from phpmq_lite.admin.http import cursors
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.confirmation import Confirmation
from phpmq_lite.admin.http.endpoint import Done, Endpoints, From, H
from phpmq_lite.admin.http.fields import (
    EmptyInput,
    GroupName,
    ListQuery,
    Priority,
    QueueTarget,
    Ttl,
)
from phpmq_lite.admin.http.input import Untrimmed, check_queue_name
from phpmq_lite.admin.http.output import ListPage, ResponseModel
from phpmq_lite.admin.http.problems import not_found, problem_of
from phpmq_lite.admin.messages.publish import ContentInput
from phpmq_lite.broker.operator import schedule_operations
from phpmq_lite.errors import RefusedError
from phpmq_lite.frame_options import DEFAULT_PRIORITY
from phpmq_lite.model import Schedule
from phpmq_lite.roles import Role
from phpmq_lite.storage.read.schedules import ScheduleReader
from phpmq_lite.writes import ScheduleRun

endpoints: Final = Endpoints()
NEXT_RUNS: Final = 5
_FIELD_OF_CODE: Final = {
    "bad_name": "name", "bad_cron": "cron", "bad_timezone": "timezone", "too_large": "content",
}  # fmt: skip
_ENABLED: Final = "whether its ticks run; false if it is paused"
_END: Final = 1 << 62


async def _find(call: Call) -> Schedule:
    name = call.path("name")
    schedule = await ScheduleReader(call.context.readers).one(name)
    if schedule is None or not call.may_use(schedule.queue):
        raise not_found("schedule", name)
    return schedule


Found = Annotated[Schedule, From(_find)]


class ScheduleInput(ContentInput):
    """What a schedule publishes, and when; omitted members have their defaults."""

    cron: str = Field(description="minute, hour, day of the month, month and day of the week")
    timezone: str = Field("UTC", description="time zone of the expression, such as Europe/Berlin")
    queue: QueueTarget
    content: Annotated[str, Untrimmed()] = Field(
        "", description="content of each message, in the given encoding, with placeholders"
    )
    ttl_s: Ttl = None
    priority: Priority = DEFAULT_PRIORITY
    group: GroupName = None
    missed: Literal["skip", "once", "all"] = Field(
        "skip", description="how many ticks that are more than a minute late run"
    )
    missed_max: int = Field(
        10, ge=1, le=schedules.MISSED_MAX, description="how many of them run if all do"
    )
    is_enabled: bool | None = Field(
        None, description=f"{_ENABLED}; null: unchanged, and true for a new one"
    )

    def schedule(self, call: Call, name: str, old: Schedule | None = None) -> Schedule:
        """Return the checked schedule; raise a ``Problem`` that names the invalid field."""
        check_queue_name(self.queue)
        call.check_queue(self.queue)
        values = self.model_dump(exclude={"name", "content", "is_enabled"})
        was_enabled = old is None or old.is_enabled
        schedule = Schedule(
            0, name, content=self.body(), created_at=0, created_by="", changed_at=0, changed_by="",
            is_enabled=int(was_enabled if self.is_enabled is None else self.is_enabled),
            seen_upto=0, **values,
        )  # fmt: skip
        try:
            schedule_operations.check(schedule)
        except RefusedError as error:
            problem = problem_of(error)
            if problem is not None:
                problem.field = _FIELD_OF_CODE.get(error.code)
                raise problem from None
        return schedule


class NewScheduleInput(ScheduleInput):
    """A schedule to create."""

    name: str = Field(description=schedules.NAME_RULE)


class ScheduleView(ResponseModel):
    """A schedule."""

    name: str = Field(description="name of the schedule")
    cron: str = Field(description="minute, hour, day of the month, month and day of the week")
    timezone: str = Field(description="time zone of the expression")
    queue: str = Field(description="queue that gets the messages")
    content: str = Field(description="content of each message, with placeholders")
    encoding: str = Field(description="encoding of content: utf-8 or base64")
    ttl_s: int | None = Field(description="seconds to live (0: forever; null: queue default)")
    priority: int = Field(description="0 is first")
    group: str | None = Field(
        description="of which one message at a time is delivered; null if none"
    )
    missed: str = Field(description="which missed ticks run: skip (none), once or all")
    missed_max: int = Field(description="how many of them run if all do")
    is_enabled: bool = Field(description=_ENABLED)
    created_at: int = Field(description="when it was created, Unix ms")
    created_by: str = Field(description="who created it")
    changed_at: int = Field(description="when it was changed last, Unix ms")
    changed_by: str = Field(description="who changed it last")
    next_at: int | None = Field(None, description="next tick, Unix ms; null if paused")
    last_run_at: int | None = Field(None, description="tick of the last run, Unix ms; null if none")
    last_outcome: str | None = Field(None, description="published, failed or skipped; null if none")

    @classmethod
    def made_of(
        cls, schedule: Schedule, now_ms: int, last: ScheduleRun | None, **more: Any
    ) -> Self:
        """Return the view of a schedule and its last run."""
        return cls.of(
            schedule,
            content=_text_of(schedule, schedule.content),
            next_at=next(iter(next_ticks(schedule, now_ms, 1)), None),
            last_run_at=None if last is None else last.tick_ms,
            last_outcome=None if last is None else last.outcome,
            **more,
        )


class NextRunView(BaseModel):
    """A coming run of a schedule."""

    at: int = Field(description="its tick, Unix ms")
    local: str = Field(description="the same in the schedule's time zone")


class ScheduleDetailsView(ScheduleView):
    """A schedule with its next runs."""

    next_runs: list[NextRunView] = Field(description="the next five runs; empty if paused")
    preview: str = Field(description="content of the next message, in the same encoding")


class RunView(ResponseModel):
    """What happened to a tick of a schedule."""

    tick_at: int = Field(validation_alias="tick_ms", description="its time, Unix ms")
    at: int = Field(validation_alias="at_ms", description="when that was decided, Unix ms")
    outcome: str = Field(description="published, failed or skipped")
    detail: str = Field(description="why it failed or was skipped")
    message_id: str | None = Field(description="id of the message; null if there is none")
    run_by: str | None = Field(description="who requested it; null if the schedule did")


class ScheduleRunView(BaseModel):
    """The message that a schedule published on request."""

    id: str = Field(description="message id, 32 hex digits")


def definition_of(schedule: Schedule) -> dict[str, Any]:
    """Return what an export contains of a schedule: the members of ``ScheduleInput``."""
    view = ScheduleView.of(schedule, content=_text_of(schedule, schedule.content))
    return {name: getattr(view, name) for name in ScheduleInput.model_fields}


async def imported_schedules(
    call: Call, definitions: Mapping[str, ScheduleInput]
) -> list[Schedule]:
    """Return the schedules of an import; raise a ``Problem`` if one is not allowed."""
    rows = await ScheduleReader(call.context.readers).all() if definitions else []
    old = {schedule.name: schedule for schedule in rows}
    imported = []
    for name, body in definitions.items():
        if name in old:
            call.check_queue(old[name].queue, f"schedules.{name}")
        imported.append(body.schedule(call, name, old.get(name)))
    return imported


def _text_of(schedule: Schedule, content: bytes) -> str:
    return content.decode() if schedule.encoding == "utf-8" else b64encode(content).decode()


def next_ticks(schedule: Schedule, now_ms: int, count: int) -> list[int]:
    """Return the next ticks of a schedule, none if it is paused."""
    if not schedule.is_enabled:
        return []
    ticks = schedules.ticks_after(schedule.cron, schedule.timezone, now_ms)
    return list(islice(ticks, count))


async def visible_schedules(call: Call) -> list[Schedule]:
    """Return the schedules by name, except those of queues hidden from the caller."""
    rows = await ScheduleReader(call.context.readers).all()
    return [schedule for schedule in rows if call.may_use(schedule.queue)]


async def _details(call: Call, schedule: Schedule) -> ScheduleDetailsView:
    last = await ScheduleReader(call.context.readers).history_of(schedule.schedule_id, _END, 1)
    ticks = next_ticks(schedule, call.now_ms, NEXT_RUNS)
    runs = [NextRunView(at=at, local=schedules.format_tick(schedule, at)) for at in ticks]
    preview = _text_of(schedule, schedules.fill(schedule, ticks[0] if ticks else call.now_ms))
    return ScheduleDetailsView.made_of(
        schedule, call.now_ms, last[0] if last else None, next_runs=runs, preview=preview
    )


@endpoints.api("GET /schedules", "api-schedules", cli="schedule list")
async def list_schedules(call: Call) -> ListPage[ScheduleView]:
    """List the schedules by name, with their next and last runs."""
    last, items = await ScheduleReader(call.context.readers).last_runs(), []
    for number, schedule in enumerate(await visible_schedules(call)):
        if number % 20 == 0:
            await call.context.broker.pause()  # a next tick can take a millisecond
        run = last.get(schedule.schedule_id)
        items.append(ScheduleView.made_of(schedule, call.now_ms, run))
    return ListPage[ScheduleView](items=items)


@endpoints.page("/schedules", "schedules", data=list_schedules)
async def show_schedules(call: Call) -> web.Response:
    """List the schedules, with a form for a new one."""
    page = await list_schedules(call)
    return await call.render("schedules.html", schedules=page.items, **_choices(call))


def _choices(call: Call) -> dict[str, Any]:
    return {
        "missed": schedules.MISSED,
        "missed_max": schedules.MISSED_MAX,
        "placeholders": schedules.PLACEHOLDERS,
        "queues": [queue.name for queue in call.queues][:500],
    }


def _action(verb: str, path: str, **more: Any) -> Callable[[H], H]:
    """Declare a change of schedules; its route, audit rows and command are named after the verb."""
    name, audit = f"schedule-{verb}", f"schedule.{verb}"
    return endpoints.action(path, name, Role.OPERATOR, audit, cli=f"schedule {verb}", **more)


@_action("create", "/schedules", form_page="schedules", api="POST", status=201)
async def create_schedule(call: Call, body: NewScheduleInput) -> Done[ScheduleDetailsView]:
    """Create a schedule, and its queue if it does not exist; the first tick is the next one."""
    new = body.schedule(call, body.name)
    call.audit(body.name)
    schedule = await call.run(schedule_operations.create, new)
    text = f"The schedule {body.name} was created."
    to = call.url("schedule", name=body.name)
    return Done(await _details(call, schedule), text, to)


@endpoints.api("GET /schedules/{name}", "api-schedule", cli="schedule show")
async def get_schedule(call: Call, schedule: Found) -> ScheduleDetailsView:
    """Return a schedule with its next five runs."""
    return await _details(call, schedule)


@endpoints.page("/schedules/{name}", "schedule")
async def show_schedule(call: Call, schedule: Found, query: ListQuery) -> web.Response:
    """Show a schedule, its next five runs and the history of its runs."""
    page = await list_runs(call, schedule, query)
    return await call.render(
        "schedule.html",
        schedule=await _details(call, schedule),
        runs=page.items,
        next=page.next,
        is_first=query.cursor is None,
        local=lambda at: schedules.format_tick(schedule, at),
        **_choices(call),
    )


@endpoints.api("GET /schedules/{name}/runs", "api-schedule-runs")
async def list_runs(call: Call, schedule: Found, query: ListQuery) -> ListPage[RunView]:
    """List what happened to the ticks of a schedule, the last tick first."""
    scope, limit = f"schedule {schedule.name}", query.limit
    before = cursors.position_in(cursors.decode_cursor(scope, query.cursor)).get("before", _END)
    rows = await ScheduleReader(call.context.readers).history_of(
        schedule.schedule_id, before, limit + 1
    )
    items = [RunView.of(row) for row in rows[:limit]]
    more = len(rows) > limit
    next_ = cursors.encode_cursor(scope, "before", items[-1].tick_at) if more else None
    return ListPage[RunView](items=items, next=next_)


@_action("set", "/schedules/{name}", form_page="schedule", api="PUT")
async def change_schedule(call: Call, old: Found, body: ScheduleInput) -> Done[ScheduleDetailsView]:
    """Replace what a schedule says; its other ticks and the history of its runs stay."""
    new = body.schedule(call, old.name, old)
    call.audit(old.name)
    schedule = await call.run(schedule_operations.change, new)
    return Done(await _details(call, schedule), f"The schedule {old.name} was changed.")


def _ask_removal(call: Call, schedule: Schedule) -> Confirmation:
    page = call.url("schedule", name=schedule.name)
    return Confirmation(
        title=f"Delete the schedule {schedule.name}",
        button="Delete schedule",
        is_danger=True,
        text="The history of its runs is deleted, too. Messages that it published stay.",
        url=call.url("schedule-delete", name=schedule.name),
        back=page,
        crumbs=[("Schedules", call.url("schedules")), (schedule.name, page)],
    )


@_action(
    "delete", "/schedules/{name}/delete", ask=_ask_removal, api="DELETE /schedules/{name}",
    status=204,
)  # fmt: skip
async def delete_schedule(call: Call, schedule: Found) -> Done[None]:
    """Delete a schedule and the history of its runs."""
    call.audit(schedule.name)
    await call.run(schedule_operations.delete, schedule.name)
    return Done(None, f"The schedule {schedule.name} was deleted.", call.url("schedules"))


@_action("run", "/schedules/{name}/run", api="POST")
async def run_schedule(call: Call, schedule: Found, _body: EmptyInput) -> Done[ScheduleRunView]:
    """Publish the message of a schedule now, even if it is paused; its ticks are not affected."""
    call.audit(schedule.name)
    message_id = await call.run(schedule_operations.run_now, schedule.name)
    text, page = "Published a message.", call.url("schedule", name=schedule.name)
    return Done(ScheduleRunView(id=message_id), text, call.back(page))


def _declare(verb: str, *, paused: bool, summary: str) -> None:
    async def pause(call: Call, schedule: Found, _body: EmptyInput) -> Done[ScheduleDetailsView]:
        call.audit(schedule.name)
        changed = await call.run(schedule_operations.pause, schedule.name, paused=paused)
        text = f"The schedule {schedule.name} is {'paused' if paused else 'resumed'}."
        page = call.url("schedule", name=schedule.name)
        return Done(await _details(call, changed), text, call.back(page))

    pause.__doc__ = summary
    _action(verb, f"/schedules/{{name}}/{verb}", api="POST")(pause)


_declare("pause", paused=True, summary="Pause a schedule: its ticks pass without a run.")
_declare("resume", paused=False, summary="Resume a schedule, which continues with the next tick.")
