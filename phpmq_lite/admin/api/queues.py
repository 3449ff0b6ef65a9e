"""Queues over HTTP: their figures, make, set, remove, purge, pause."""

from collections.abc import Callable
from dataclasses import asdict
from hashlib import sha256
from json import dumps
from typing import Annotated, Any, Final, Literal, Self, cast

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, create_model

from phpmq_lite.admin import paging
from phpmq_lite.admin.access.identity import check_forward_right, check_queue_right, entry_of
from phpmq_lite.admin.acting import commands
from phpmq_lite.admin.context import Context, context_of, status_of
from phpmq_lite.admin.lists import as_data, as_json, page_of_queues
from phpmq_lite.admin.requests import check_queue_name, json_of, query_of, queue_name_of, queue_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import PauseIn, QueueOut, QueueQuery
from phpmq_lite.broker.broker import Broker
from phpmq_lite.errors import RefusedError
from phpmq_lite.queue_settings import (
    DEFINITIONS,
    FORWARD,
    LONGEST_NAME,
    QueueSettings,
    SettingDefinition,
    to_dict,
)
from phpmq_lite.server.status import QueueStatus


class QueuesOut(BaseModel):
    """A page of queues."""

    items: list[QueueOut]
    next: str | None


_ALL: Final[dict[str, Any]] = {
    name: (each.type, Field(description=each.help)) for name, each in DEFINITIONS.items()
}
_AllSettings: Any = cast(Any, create_model("_AllSettings", **_ALL))


class SettingsOut(_AllSettings):  # type: ignore[misc]  # made of DEFINITIONS
    """All settings of a queue, the broker's defaults filled in."""

    @classmethod
    def of(cls, settings: QueueSettings) -> Self:
        """Take over what the broker has."""
        return cls(**to_dict(settings))


class QueueDetailOut(QueueOut):
    """A queue with its live figures and its settings."""

    settings: SettingsOut


def _changed_field(setting: SettingDefinition) -> tuple[Any, Any]:
    """Return type and field of a setting to change, for ``create_model``."""
    of_type: Any = setting.type
    if setting.type is int:
        of_type = Annotated[int, Field(ge=0, le=setting.maximum)]
    elif setting.name == "on_expire":
        of_type = Annotated[str, Field(max_length=len(FORWARD) + LONGEST_NAME)]
    elif setting.choices:
        of_type = Literal[tuple(setting.choices)]
    elif setting.type is str:
        of_type = Annotated[str, Field(max_length=setting.max_length)]
    return of_type | None, Field(None, description=setting.help)


_CHANGED: Final[dict[str, Any]] = {name: _changed_field(each) for name, each in DEFINITIONS.items()}
_STRICT: Final = ConfigDict(extra="forbid", strict=True)
_ChangedSettings: Any = cast(Any, create_model("_ChangedSettings", __config__=_STRICT, **_CHANGED))


class SettingsIn(_ChangedSettings):  # type: ignore[misc]  # made of DEFINITIONS
    """Settings to change; null goes back to the broker's default, what is missing stays."""

    def changes(self) -> dict[str, Any]:
        """Give what was named."""
        changed: dict[str, Any] = self.model_dump(exclude_unset=True)
        return changed


class NothingIn(BaseModel):
    """An empty object."""

    model_config = ConfigDict(extra="forbid", strict=True)


class CreatedOut(BaseModel):
    """A queue that is there now."""

    queue: str
    is_new: bool


class PurgeIn(BaseModel):
    """What a purge takes along."""

    model_config = ConfigDict(extra="forbid", strict=True)

    dispatched: bool = False  # also what consumers hold
    limit: int | None = Field(None, ge=1, le=1 << 50)  # the oldest only


class PurgedOut(BaseModel):
    """How many messages were settled as deleted."""

    settled: int


class PausedOut(BaseModel):
    """How a side of a queue stands now."""

    queue: str
    side: str
    paused: bool


async def queues(request: web.Request) -> web.StreamResponse:
    """List queues with their live figures."""
    context, query = context_of(request), query_of(request, QueueQuery)
    status = status_of(request)
    ages = await paging.oldest(context, status.queues)
    listed = page_of_queues(status.queues, ages, query)
    now_ms = context.now_ms()
    items = [QueueOut.of(q.status, q.oldest_at, now_ms) for q in listed.queues]
    return as_data(query.format, QueueOut, items, listed.next)


async def queue(request: web.Request) -> web.StreamResponse:
    """Give one queue with its settings; the ETag is that of the settings."""
    context = context_of(request)
    status = queue_of(request)
    out = await _detail(context, status)
    response = as_json(out)
    response.headers["ETag"] = etag_of(asdict(status.settings))
    return response


async def _detail(context: Context, status: QueueStatus) -> QueueDetailOut:
    ages = await paging.oldest(context, [status])
    figures = QueueOut.of(status, ages.get(status.queue_id), context.now_ms())
    return QueueDetailOut(**figures.model_dump(), settings=SettingsOut.of(status.settings))


async def create(request: web.Request) -> web.StreamResponse:
    """Make a queue: 201, or 200 where it is there already."""
    context, name = context_of(request), queue_name_of(request)
    await json_of(request, NothingIn)
    check_queue_name(name)
    check_queue_right(request, name)
    is_new = await commands.create_queue(context, entry_of(request, target=name), name)
    return as_json(CreatedOut(queue=name, is_new=is_new), status=201 if is_new else 200)


async def configure(request: web.Request) -> web.StreamResponse:
    """Change settings of a queue; with If-Match only where nobody else has changed them."""
    context, name = context_of(request), queue_of(request).name
    changes = (await json_of(request, SettingsIn)).changes()
    check_forward_right(request, changes.get("on_expire"))
    if target := changes.get("dead_letter_queue"):
        check_queue_right(request, target, "dead_letter_queue")
    made = await commands.configure(
        context, entry_of(request, target=name), name, changes, _matching(request, name)
    )
    response = as_json(SettingsOut(**made))
    response.headers["ETag"] = etag_of(made)
    return response


async def remove(request: web.Request) -> web.StreamResponse:
    """Remove a queue that is empty, not pinned and has no consumers; its history stays."""
    context, name = context_of(request), queue_of(request).name
    entry = entry_of(request, target=name)
    await commands.remove_queue(context, entry, name, _matching(request, name))
    return web.Response(status=204)


def etag_of(settings: dict[str, Any]) -> str:
    """Give the tag of a set of settings."""
    return f'"{sha256(dumps(settings, sort_keys=True).encode()).hexdigest()[:16]}"'


def _matching(request: web.Request, name: str) -> Callable[[Broker], None]:
    """Give the check of If-Match; it is made in the batch of the change."""
    given = request.headers.get("If-Match")

    def check(core: Broker) -> None:
        if given is None or given.strip() == "*" or name not in core.state.queues:
            return
        known = etag_of(asdict(core.state.queues[name].settings))
        if known not in {tag.strip() for tag in given.split(",")}:
            raise RefusedError(
                "stale", f"the settings of {name!r} were changed meanwhile: they are {known} now"
            )

    return check


async def purge(request: web.Request) -> web.StreamResponse:
    """Settle what is in a queue as deleted, or the oldest of it."""
    context, asked = context_of(request), await json_of(request, PurgeIn)
    name = _existing(request)
    count = await commands.purge(
        context, entry_of(request, target=name), name,
        with_dispatched=asked.dispatched, limit=asked.limit,
    )  # fmt: skip
    return as_json(PurgedOut(settled=count))


async def pause(request: web.Request) -> web.StreamResponse:
    """Stop delivery or publishing of a queue; it stays so over a restart."""
    return await _turn(request, is_paused=True)


async def resume(request: web.Request) -> web.StreamResponse:
    """Let delivery or publishing of a queue go on."""
    return await _turn(request, is_paused=False)


async def _turn(request: web.Request, *, is_paused: bool) -> web.StreamResponse:
    context, asked = context_of(request), await json_of(request, PauseIn)
    name = _existing(request)
    entry = entry_of(request, target=name)
    await commands.pause(context, entry, name, asked.side, is_paused=is_paused)
    return as_json(PausedOut(queue=name, side=asked.side, paused=is_paused))


def _existing(request: web.Request) -> str:
    """Give the name of a queue that is there and that they may use."""
    return queue_of(request).name


_Q: Final = "/api/v1/queues/{q}"

ROUTES: Final = (
    Route(
        "GET", "/api/v1/queues", Role.VIEWER, "api-queues", queues,
        query=QueueQuery, gives=QueuesOut, cli="queue ls",
    ),
    Route(
        "GET", _Q, Role.VIEWER, "api-queue", queue, gives=QueueDetailOut, cli="queue show",
    ),
    Route(
        "PUT", _Q, Role.OPERATOR, "api-queue-create", create, "queue.create",
        takes=NothingIn, gives=CreatedOut, cli="queue create",
    ),
    Route(
        "PATCH", _Q, Role.ADMIN, "api-queue-configure", configure, "queue.configure",
        takes=SettingsIn, gives=SettingsOut, cli="queue set",
    ),
    Route(
        "DELETE", _Q, Role.OPERATOR, "api-queue-remove", remove, "queue.remove",
        status=204, cli="queue rm",
    ),
    Route(
        "POST", f"{_Q}/purge", Role.OPERATOR, "api-purge", purge, "queue.purge",
        takes=PurgeIn, gives=PurgedOut, cli="queue purge",
    ),
    Route(
        "POST", f"{_Q}/pause", Role.OPERATOR, "api-pause", pause, "queue.pause",
        takes=PauseIn, gives=PausedOut, cli="queue pause",
    ),
    Route(
        "POST", f"{_Q}/resume", Role.OPERATOR, "api-resume", resume, "queue.resume",
        takes=PauseIn, gives=PausedOut, cli="queue resume",
    ),
)  # fmt: skip
