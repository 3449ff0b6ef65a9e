"""Rows that Spark's tasks stage, and their publish in one transaction (``docs/pipeline.md``)."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin import cursors
from phpmq_lite.admin.access import people
from phpmq_lite.admin.access.identity import (
    check_all_queues,
    check_queue_right,
    entry_of,
    identity_of,
    leave_entry,
    may_use,
)
from phpmq_lite.admin.acting import pipeline
from phpmq_lite.admin.arrow import MEDIA, Upload, need_arrow, read_rows
from phpmq_lite.admin.context import UPLOADS, Context, context_of
from phpmq_lite.admin.lists import as_json
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.requests import check_text, json_of, query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.uploads import body_of
from phpmq_lite.broker.pipeline.staging import StagedRow
from phpmq_lite.broker.pipeline.state import StageWriter
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import AuditEntry
from phpmq_lite.storage.read.consumers import PipelineReaders
from phpmq_lite.storage.read.readers import asker

STAGE_BYTES: Final = 64 << 20  # of a token, as it travels
TOKENS_MAX: Final = 10_000  # in one call
TOKENS_BYTES: Final = 4 << 20  # of such a call
ROW_COUNT: Final = "X-Row-Count"
_SLOT_S: Final = 30.0  # waiting for a slot


class StageQuery(BaseModel):
    """Under which token to stage: random, used once."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    token: str = Field(pattern="^[!-~]{1,128}$")


class StageOut(BaseModel):
    """What lies under the token now."""

    rows: int
    bytes: int  # of the bodies


class PublishStagedIn(BaseModel):
    """Tokens to publish at once; of each ``app_id`` the highest ``version`` is kept."""

    model_config = ConfigDict(extra="forbid", strict=True)

    app_id: str = Field(min_length=1, max_length=256)
    version: int = Field(ge=0, le=(1 << 63) - 1)
    tokens: list[str] = Field(max_length=TOKENS_MAX)
    single_use: bool = False  # nothing else is ever published under this app_id
    in_parts: bool = False  # more than one transaction takes: the same call again for the rest


class PublishStagedOut(BaseModel):
    """How many messages were published; ``repeated``: this version was done before."""

    published: int
    repeated: bool
    quarantined: int = 0  # of them: dead at once, by the rules of their queue
    remaining: int = 0  # not published yet: send the same call again
    resumed: bool = False  # it went on with what an earlier call staged


class AppIdsQuery(BaseModel):
    """A page of app_ids."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    limit: int = Field(100, ge=1, le=1_000)
    cursor: str = Field("", max_length=2_000)


class AppIdOut(BaseModel):
    """An app_id; ``owner`` null: it belongs to the next who publishes under it."""

    app_id: str
    owner: str | None
    version: int  # the highest that was published
    at_ms: int  # when that was
    rows: int  # of that version


class AppIdsOut(BaseModel):
    """App_ids by name, without those of a single publish."""

    items: list[AppIdOut]
    next: str | None = None


class TransferIn(BaseModel):
    """Who is to own an app_id: a user, ``token NAME``, or null for the next who publishes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    app_id: str = Field(min_length=1, max_length=256)
    owner: str | None


class TransferOut(BaseModel):
    """To whom the app_id belongs now."""

    app_id: str
    owner: str | None


class UnstageIn(BaseModel):
    """Tokens to drop; those that are not there are passed over."""

    model_config = ConfigDict(extra="forbid", strict=True)

    tokens: list[str] = Field(max_length=TOKENS_MAX)


class UnstageOut(BaseModel):
    """How many tokens were dropped."""

    unstaged: int


async def stage(request: web.Request) -> web.StreamResponse:
    """Stage rows under a token: an Arrow IPC stream of body, queue and perhaps ttl_s.

    A header ``X-Row-Count`` is compared.  Nothing is published before ``publish`` names the token.
    """
    need_arrow()
    context, token = context_of(request), query_of(request, StageQuery).token
    expected = _row_count(request)
    entry = entry_of(request, target=token)
    content_max = int(context.settings.limits.max_content)
    raw = await body_of(request)  # without a slot: it may come slowly
    async with _slot(context):
        upload = await asyncio.to_thread(
            read_rows, raw, content_max, lambda name: check_queue_right(request, name)
        )
        if expected not in (None, upload.rows):
            raise Problem(
                422, "row_count", f"The stream has {upload.rows} rows, announced were {expected}. "
                "Nothing was staged.", field=ROW_COUNT, bound=str(upload.rows),
            )  # fmt: skip
        await _store(context, entry, token, upload)
    leave_entry(request)
    return as_json(StageOut(rows=upload.rows, bytes=upload.bytes))


def _row_count(request: web.Request) -> int | None:
    text = request.headers.get(ROW_COUNT)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise Problem(422, "invalid", f"{ROW_COUNT} is {text[:50]!r}, no number.", field=ROW_COUNT,
                      bound="0 or more")  # fmt: skip
    return int(text)


@asynccontextmanager
async def _slot(context: Context) -> AsyncIterator[None]:
    """Occupy one of the slots for uploads that are checked and stored; users take turns."""
    owner = asker.get()
    try:
        async with asyncio.timeout(_SLOT_S):
            await context.uploads.acquire(owner)
    except TimeoutError:
        raise Problem(
            503, "busy", "Too many rows are being staged at once. Nothing was staged.",
            bound=f"{UPLOADS} at a time", headers={"Retry-After": "5"},
        ) from None  # fmt: skip
    try:
        yield
    finally:
        context.uploads.release(owner)


async def _store(context: Context, entry: AuditEntry, token: str, upload: Upload) -> None:
    """Hand the rows to the broker slice by slice; what fails in the middle leaves nothing."""
    after, chunks = 0, upload.chunks()
    try:
        while (rows := await asyncio.to_thread(_next, chunks)) is not None:
            await pipeline.stage(context, entry, token, rows, after=after, is_whole=False)
            after += len(rows)
        await pipeline.stage(context, entry, token, [], after=after, is_whole=True)
    except BaseException as error:
        # A first slice that is refused may be so because the token is somebody else's.
        if after or not isinstance(error, RefusedError):
            await asyncio.shield(pipeline.unstage(context, entry, [token], StageWriter()))
        raise


def _next(chunks: Iterator[list[StagedRow]]) -> list[StagedRow] | None:
    return next(chunks, None)


async def publish(request: web.Request) -> web.StreamResponse:
    """Publish all rows of some tokens in one transaction, once per app_id and version."""
    context, asked = context_of(request), await json_of(request, PublishStagedIn)
    entry = entry_of(request, target=asked.app_id, detail=f"version {asked.version}")
    done = await pipeline.publish_staged(
        context, entry, asked.app_id, asked.version, asked.tokens,
        writer=_writer(request), is_single=asked.single_use, in_parts=asked.in_parts,
    )  # fmt: skip
    return as_json(
        PublishStagedOut(
            published=done.published, repeated=done.is_repeated, quarantined=done.quarantined,
            remaining=done.remaining, resumed=done.is_resumed,
        )
    )  # fmt: skip


async def unstage(request: web.Request) -> web.StreamResponse:
    """Drop tokens that are not published."""
    context, asked = context_of(request), await json_of(request, UnstageIn)
    entry = entry_of(request, target=", ".join(asked.tokens[:3]))
    count = await pipeline.unstage(context, entry, asked.tokens, _writer(request))
    leave_entry(request)
    return as_json(UnstageOut(unstaged=count))


def _writer(request: web.Request) -> StageWriter:
    return StageWriter(identity_of(request).owner, lambda queue: may_use(request, queue))


async def app_ids(request: web.Request) -> web.StreamResponse:
    """List the names under which each version is published once, and to whom they belong."""
    check_all_queues(request, "see every app_id")
    asked = query_of(request, AppIdsQuery)
    cursor = cursors.decode("app_ids", asked.cursor)
    after = str(cursor.place[0]) if cursor and isinstance(cursor.place, list) else ""
    check_text(after, "cursor")
    rows = await PipelineReaders(context_of(request).readers).app_ids(after, asked.limit)
    is_full = len(rows) == asked.limit
    return as_json(
        AppIdsOut(
            items=[AppIdOut(**asdict(row)) for row in rows],
            next=cursors.encode("app_ids", "after", [rows[-1].app_id, 0]) if is_full else None,
        )
    )


async def transfer(request: web.Request) -> web.StreamResponse:
    """Transfer an app_id to another user."""
    check_all_queues(request, "transfer an app_id")
    context, asked = context_of(request), await json_of(request, TransferIn)
    owner = None if asked.owner is None else people.owner_named(request, asked.owner)
    entry = entry_of(request, target=asked.app_id, detail=f"to {owner or 'the next writer'}")
    await pipeline.transfer_app_id(context, entry, asked.app_id, owner)
    return as_json(TransferOut(app_id=asked.app_id, owner=owner))


_PIPELINE: Final = "/api/v1/pipeline"

ROUTES: Final = (
    Route(
        "POST", f"{_PIPELINE}/stage", Role.OPERATOR, "api-stage", stage, "pipeline.stage",
        query=StageQuery, takes=bytes, media=MEDIA, gives=StageOut, body=STAGE_BYTES,
    ),
    Route(
        "POST", f"{_PIPELINE}/publish", Role.OPERATOR, "api-publish-staged", publish,
        "pipeline.publish", takes=PublishStagedIn, gives=PublishStagedOut,
        body=TOKENS_BYTES, values=2 * TOKENS_MAX,
    ),
    Route(
        "POST", f"{_PIPELINE}/unstage", Role.OPERATOR, "api-unstage", unstage,
        "pipeline.unstage", takes=UnstageIn, gives=UnstageOut, body=TOKENS_BYTES,
        values=2 * TOKENS_MAX,
    ),
    Route(
        "GET", f"{_PIPELINE}/app-ids", Role.ADMIN, "api-app-ids", app_ids,
        query=AppIdsQuery, gives=AppIdsOut, cli="pipeline app-ids",
    ),
    Route(
        "POST", f"{_PIPELINE}/app-ids/transfer", Role.ADMIN, "api-app-id-transfer", transfer,
        "pipeline.transfer", takes=TransferIn, gives=TransferOut, cli="pipeline transfer",
    ),
)  # fmt: skip
