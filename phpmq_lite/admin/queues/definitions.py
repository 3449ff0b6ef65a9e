"""Export and import of definitions: settings of queues, schedules, labels, views, templates."""

from json import dumps
from typing import Any, Final

from pydantic import BaseModel, Field, JsonValue

from phpmq_lite.admin.http.call import Call, ignore_reply
from phpmq_lite.admin.http.endpoint import Endpoints
from phpmq_lite.admin.http.fields import StrictInput
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.messages import saved_items
from phpmq_lite.admin.queues import schedules
from phpmq_lite.admin.queues.schedules import ScheduleInput
from phpmq_lite.admin.queues.settings import SettingsInput
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.operator import queue_operations, schedule_operations
from phpmq_lite.model import Reply
from phpmq_lite.queue_settings import (
    check_name,
    check_no_cycle,
    check_no_forward_cycle,
    check_settings,
)
from phpmq_lite.roles import Role
from phpmq_lite.schedules import SCHEDULES_MAX
from phpmq_lite.storage.read.accounts import NAME_MAX, SAVED_MAX, saved_item_write

endpoints: Final = Endpoints()
_KINDS: Final = {"labels": "label", "views": "view", "templates": "template"}
QUEUES_MAX: Final = 10_000
VALUES_MAX: Final = 500_000  # maximum number of values; 10,000 queues with all settings use 250,000
DETAIL_MAX: Final = 10_000  # maximum length of the list of names in the audit row, in characters


class DefinitionsInput(StrictInput):
    """The definitions to import; definitions not listed here stay unchanged."""

    queues: dict[str, SettingsInput] = Field(
        default={}, max_length=QUEUES_MAX, description="queue settings by queue name"
    )
    schedules: dict[str, ScheduleInput] = Field(
        default={}, max_length=SCHEDULES_MAX, description="schedules by name"
    )
    labels: dict[str, JsonValue] = Field(
        default={}, max_length=SAVED_MAX, description="labels by address or network"
    )
    views: dict[str, JsonValue] = Field(
        default={}, max_length=SAVED_MAX, description="saved searches"
    )
    templates: dict[str, JsonValue] = Field(
        default={}, max_length=SAVED_MAX, description="templates for the Publish page"
    )


class DefinitionsView(BaseModel):
    """Queue settings that differ from the defaults, schedules, labels, views and templates."""

    queues: dict[str, dict[str, JsonValue]] = Field(description="non-default queue settings")
    schedules: dict[str, dict[str, JsonValue]] = Field(description="schedules by name")
    labels: dict[str, JsonValue] = Field(description="labels by address or network")
    views: dict[str, JsonValue] = Field(description="saved searches")
    templates: dict[str, JsonValue] = Field(description="templates for the Publish page")


@endpoints.api("GET /definitions", "api-definitions")
async def export_definitions(call: Call) -> DefinitionsView:
    """Export queue settings, schedules, labels, views and templates."""

    def read(core: Broker, reply: Reply) -> None:
        reply({name: dict(core.queues[name].row.own) for name in sorted(core.queues)})

    own = await call.context.broker.run(read)  # all settings at once, between two batches
    kinds = {
        member: {item.name: item.content for item in await saved_items.visible_items(call, kind)}
        for member, kind in _KINDS.items()
    }
    queues = {name: settings for name, settings in own.items() if call.may_use(name)}
    jobs = {
        schedule.name: schedules.definition_of(schedule)
        for schedule in await schedules.visible_schedules(call)
    }
    return DefinitionsView(queues=queues, schedules=jobs, **kinds)


@endpoints.api(
    "PUT /definitions",
    "api-define",
    Role.ADMIN,
    "definitions.put",
    has_content=True,
    values=VALUES_MAX,
)
async def import_definitions(call: Call, body: DefinitionsInput) -> DefinitionsView:
    """Import all definitions or none; each listed queue gets exactly the settings given for it."""
    queues = {name: settings.changes() for name, settings in body.queues.items()}
    for name, settings in queues.items():
        check_name(name)
        call.check_queue(name, f"queues.{name}")
        call.check_setting_targets(settings, f"queues.{name}.")
        check_settings(name, settings)
    jobs = await schedules.imported_schedules(call, body.schedules)
    named = {"queues": list(queues), "schedules": list(body.schedules)} | {
        member: list(getattr(body, member)) for member in _KINDS
    }
    entry = call.audit("definitions", detail=dumps(named, ensure_ascii=False)[:DETAIL_MAX])
    rows = [
        saved_item_write(kind, name, content, call.now_ms, entry.actor)
        for member, kind in _KINDS.items()
        for name, content in _checked(member, getattr(body, member)).items()
    ]
    for member in ("views", "templates"):  # the caller's queue limits may forbid a change
        for name, content in getattr(body, member).items():
            await saved_items.check_item_change(call, _KINDS[member], name, content or {})
    queue_operations.check_rows(rows)  # check all rows before the batch changes anything

    def run(core: Broker, reply: Reply) -> None:
        named = {*queues, *(schedule.queue for schedule in jobs)}
        core.check_queues(entry.actor, len(named - core.queues.keys()))
        schedule_operations.check_room(core, [schedule.name for schedule in jobs])
        _check_cycles(core, queues)
        for name, settings in queues.items():
            queue_operations.create_queue(core, ignore_reply, entry, name)
            changes = dict.fromkeys(core.queues[name].row.own) | settings
            queue_operations.configure(core, ignore_reply, entry, name, changes, has_no_cycles=True)
        for schedule in jobs:
            schedule_operations.put(core, ignore_reply, entry, schedule)
        queue_operations.write(core, reply, entry, rows)

    await call.context.broker.run(run)
    return await export_definitions(call)


def _check_cycles(core: Broker, queues: dict[str, dict[str, Any]]) -> None:
    """Reject settings that would make dead-letter queues or ``on_expire`` form a cycle."""
    named = {name: queue.settings.dead_letter_queue for name, queue in core.queues.items()} | {
        name: settings.get("dead_letter_queue") or "" for name, settings in queues.items()
    }
    for name, settings in queues.items():
        if target := settings.get("dead_letter_queue"):
            check_no_cycle(name, target, named.get)
    registry = core.registry
    imported = {
        name: settings.get("on_expire") or registry.default_on_expire(name)
        for name, settings in queues.items()
    }

    def on_expire(name: str) -> str:
        return imported.get(name) or registry.on_expire_of(name)

    for name, value in imported.items():
        check_no_forward_cycle(name, value, on_expire)


def _checked(member: str, items: dict[str, Any]) -> dict[str, Any]:
    for name in items:
        if not 1 <= len(name) <= NAME_MAX:
            detail = f"A name in {member} has {len(name)} characters; use 1 to {NAME_MAX}."
            bound = f"1 to {NAME_MAX} characters"
            raise Problem(422, "invalid", detail, field=member, bound=bound)
    try:
        dumps(items, allow_nan=False)
    except ValueError:
        detail = f"{member} contains NaN or Infinity."
        raise Problem(422, "invalid", detail, field=member, bound="JSON") from None
    return items
