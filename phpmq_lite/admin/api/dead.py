"""Dead letters over HTTP."""

from typing import Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin.access.identity import allowed_queues, check_queue_right, entry_of
from phpmq_lite.admin.acting import bulk, commands
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_json
from phpmq_lite.admin.requests import check_queue_name, json_of, queue_name_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import TTL_MAX_S
from phpmq_lite.broker.operations import Action, Options


class RedriveIn(BaseModel):
    """Where dead-letter records go, how long they live there, and how fast."""

    model_config = ConfigDict(extra="forbid", strict=True)

    target: str | None = Field(None, min_length=1, max_length=255)  # null: where they died
    ttl_s: int | None = Field(None, ge=0, le=TTL_MAX_S)  # null: the queue's default; 0: never
    limit: int | None = Field(None, ge=1, le=1 << 50)  # the oldest only
    rate: int | None = Field(None, ge=1, le=100_000)  # messages a second, in the background


class RedrivenOut(BaseModel):
    """How many went back; with a rate, so far, and the ``job`` that goes on."""

    redriven: int
    job: int | None = None


async def redrive(request: web.Request) -> web.StreamResponse:
    """Send the records of a queue back to it, or to a target; with or without ``.dlq``."""
    context, asked = context_of(request), await json_of(request, RedriveIn)
    name = commands.dead_letter_queue(queue_name_of(request))
    check_queue_right(request, name)
    if asked.target is not None:
        check_queue_name(asked.target)
        check_queue_right(request, asked.target, "target")
    if asked.rate is not None:
        options = Options(ttl_s=asked.ttl_s, target=asked.target)
        order = bulk.Asked(Action.REDRIVE, options, asked.rate)
        job = await bulk.on_queue(request, name, order, ("ready",), asked.limit)
        return as_json(RedrivenOut(redriven=job.done, job=job.number))
    count = await commands.redrive(
        context, entry_of(request, target=name), name,
        target=asked.target, ttl_s=asked.ttl_s, limit=asked.limit, queues=allowed_queues(request),
    )  # fmt: skip
    return as_json(RedrivenOut(redriven=count))


ROUTES: Final = (
    Route(
        "POST", "/api/v1/dead/{q}/redrive", Role.OPERATOR, "api-redrive", redrive, "dead.redrive",
        takes=RedriveIn, gives=RedrivenOut, cli="dead redrive",
    ),
)  # fmt: skip
