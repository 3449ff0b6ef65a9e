"""Rows staged by Spark tasks and published in one transaction (``docs/guides/pipeline.md``)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Final

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin.accounts.tokens import find_owner
from phpmq_lite.admin.http import cursors
from phpmq_lite.admin.http.body import read_body
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.context import Context
from phpmq_lite.admin.http.endpoint import Endpoints, From
from phpmq_lite.admin.http.fields import AppIdParameter, QueryModel, StrictInput
from phpmq_lite.admin.http.input import check_text, parse_number, read_query
from phpmq_lite.admin.http.output import ListPage, ResponseModel
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.messages.arrow_export import MEDIA, need_arrow
from phpmq_lite.admin.pipeline.arrow_rows import UploadedRows, read_rows
from phpmq_lite.broker.pipeline import staging
from phpmq_lite.broker.pipeline.state import StageWriter
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import AuditEntry
from phpmq_lite.roles import Role
from phpmq_lite.storage.read.consumers import StoredPipeline
from phpmq_lite.storage.read.read_pool import FairReadSlots, read_owner

UPLOADS: Final = 2  # maximum number of concurrent uploads of Spark rows, up to 64 MiB each
UPLOAD_SLOTS: Final = web.AppKey("upload slots", FairReadSlots)
TOKENS_BYTES: Final = 4 << 20  # maximum body size of a call with tokens
ROW_COUNT: Final = "X-Row-Count"
_SLOT_S: Final = 30.0  # maximum time to wait for an upload slot
endpoints: Final = Endpoints()


class StageQuery(QueryModel):
    """The token that identifies the staged rows."""

    token: str = Field(
        pattern=f"^{staging.TOKEN.pattern}$",
        description="random token that identifies these rows, 1 to 128 characters; use each "
        "token only once",
    )


class StageView(BaseModel):
    """The number and total size of the rows staged under a token."""

    rows: int = Field(description="number of rows staged under the token")
    bytes: int = Field(description="total size of the bodies in bytes")


class PublishStagedInput(StrictInput):
    """Tokens to publish together; the broker stores each ``app_id``'s highest ``version``."""

    app_id: AppIdParameter
    version: int = Field(
        ge=0, le=(1 << 63) - 1, description="each version of an app_id is published only once"
    )
    tokens: list[str] = Field(max_length=staging.TOKENS, description="tokens of staged rows")
    single_use: bool = Field(False, description="whether this app_id is used only once")
    in_parts: bool = Field(
        False, description="publish in parts; repeat the call until remaining is 0"
    )


class PublishStagedView(ResponseModel):
    """The number of published messages, and whether the version was already published."""

    published: int = Field(description="number of published messages")
    repeated: bool = Field(
        validation_alias="is_repeated", description="true if already published; nothing was stored"
    )
    quarantined: int = Field(0, description="published messages dead-lettered by queue rules")
    remaining: int = Field(0, description="messages left to publish; repeat the call until it is 0")
    resumed: bool = Field(
        False,
        validation_alias="is_resumed",
        description="whether the call published rows left over from an earlier call",
    )


class AppIdsQuery(QueryModel):
    """Query for a page of app_ids."""

    limit: int = Field(100, ge=1, le=1_000, description="maximum number of items")
    cursor: str = Field("", max_length=2_000, description="value of next in the previous page")


class TransferView(BaseModel):
    """The owner of an app_id."""

    app_id: str = Field(description="publisher name")
    owner: str | None = Field(description="user or token NAME; null means the next publisher")


class AppIdView(TransferView):
    """An app_id with its owner."""

    version: int = Field(description="highest published version")
    at_ms: int = Field(description="when that version was published, Unix ms")
    rows: int = Field(description="number of messages in that version")


class TransferInput(StrictInput):
    """The new owner of an app_id."""

    app_id: AppIdParameter
    owner: str | None = Field(description="user or token NAME; null means the next publisher")


class UnstageInput(StrictInput):
    """The tokens to drop, together with their rows; unknown tokens are ignored."""

    tokens: list[str] = Field(max_length=staging.TOKENS, description="tokens of staged rows")


class UnstageView(BaseModel):
    """The number of tokens that were dropped."""

    unstaged: int = Field(description="number of tokens dropped")


StageToken = Annotated[StageQuery, From(lambda call: read_query(call.request, StageQuery))]


@endpoints.api(
    "POST /pipeline/stage",
    "api-stage",
    Role.OPERATOR,
    "pipeline.stage",
    query=StageQuery,
    takes=bytes,
    media=MEDIA,
    body=staging.TOKEN_BYTES,
)
async def stage_rows(call: Call, query: StageToken) -> StageView:
    """Stage an Arrow IPC stream (columns body, queue and optionally ttl_s) under a token.

    A header ``X-Row-Count`` must equal the number of rows. ``publish`` later publishes the rows.
    """
    need_arrow()
    expected = _row_count(call)
    entry = call.audit(query.token)
    content_max = int(call.context.settings.limits.max_content)
    raw = await read_body(call.request)  # before taking a slot, because the body may arrive slowly
    async with _slot(call.context):
        upload = await asyncio.to_thread(read_rows, raw, content_max, call.check_queue)
        if expected not in (None, upload.rows):
            detail = f"{ROW_COUNT} is {expected}, but there are {upload.rows} rows."
            detail += " Nothing was staged."
            raise Problem(422, "row_count", detail, field=ROW_COUNT, bound=str(upload.rows))
        await _store(call.context, entry, query.token, upload)
    call.is_audit_deferred = True
    return StageView(rows=upload.rows, bytes=upload.bytes)


def _row_count(call: Call) -> int | None:
    text = call.request.headers.get(ROW_COUNT)
    if text is None:
        return None
    if (number := parse_number(text)) is None:
        detail = f"{ROW_COUNT} is {text[:50]!r}; it must be a number."
        raise Problem(422, "invalid", detail, field=ROW_COUNT, bound="0 or more")
    return number


@asynccontextmanager
async def _slot(context: Context) -> AsyncIterator[None]:
    """Hold an upload slot while rows are checked and stored; users get slots in turn."""
    owner = read_owner.get()
    try:
        async with asyncio.timeout(_SLOT_S):
            await context.app[UPLOAD_SLOTS].acquire(owner)
    except TimeoutError:
        detail = "Too many uploads are running. Nothing was staged. Try again later."
        headers = {"Retry-After": "5"}
        raise Problem(503, "busy", detail, bound=f"{UPLOADS} at a time", headers=headers) from None
    try:
        yield
    finally:
        context.app[UPLOAD_SLOTS].release(owner)


async def _store(context: Context, entry: AuditEntry, token: str, upload: UploadedRows) -> None:
    """Stage the rows slice by slice; drop the token if a slice fails."""
    run, after, chunks = context.broker.run, 0, upload.chunks()
    try:
        while (rows := await asyncio.to_thread(next, chunks, None)) is not None:
            await run(staging.stage, entry, token, rows, after=after, is_whole=False)
            after += len(rows)
        await run(staging.stage, entry, token, [], after=after, is_whole=True)
    except BaseException as error:
        # The first slice may be rejected because the token belongs to another user.
        if after or not isinstance(error, RefusedError):
            await asyncio.shield(run(staging.unstage, entry, [token], writer=StageWriter()))
        raise


@endpoints.api(
    "POST /pipeline/publish",
    "api-publish-staged",
    Role.OPERATOR,
    "pipeline.publish",
    body=TOKENS_BYTES,
    values=2 * staging.TOKENS,
)
async def publish_staged(call: Call, body: PublishStagedInput) -> PublishStagedView:
    """Publish the rows staged under the tokens in one transaction, once per app_id and version."""
    call.audit(body.app_id, detail=f"version {body.version}")
    result = await call.run(
        staging.publish_staged,
        body.app_id,
        body.version,
        body.tokens,
        writer=_writer(call),
        is_single=body.single_use,
        in_parts=body.in_parts,
    )
    return PublishStagedView.of(result)


@endpoints.api(
    "POST /pipeline/unstage",
    "api-unstage",
    Role.OPERATOR,
    "pipeline.unstage",
    body=TOKENS_BYTES,
    values=2 * staging.TOKENS,
)
async def drop_staged(call: Call, body: UnstageInput) -> UnstageView:
    """Drop unpublished tokens together with the rows staged under them."""
    call.audit(", ".join(body.tokens[:3]))
    count = await call.run(staging.unstage, body.tokens, writer=_writer(call))
    call.is_audit_deferred = True
    return UnstageView(unstaged=count)


def _writer(call: Call) -> StageWriter:
    return StageWriter(call.identity.owner, call.may_use)


@endpoints.api("GET /pipeline/app-ids", "api-app-ids", Role.ADMIN, cli="pipeline app-ids")
async def list_app_ids(call: Call, query: AppIdsQuery) -> ListPage[AppIdView]:
    """List the app_ids with their owners. Each version of an app_id is published only once."""
    call.check_all_queues("see every app_id")
    cursor = cursors.decode_cursor("app_ids", query.cursor)
    after = str(cursor.place[0]) if cursor and isinstance(cursor.place, list) else ""
    check_text(after, "cursor")
    rows = await StoredPipeline(call.context.readers).app_ids(after, query.limit)
    next_ = None
    if len(rows) == query.limit:
        next_ = cursors.encode_cursor("app_ids", "after", [rows[-1].app_id, 0])
    return ListPage[AppIdView](items=[AppIdView(**asdict(row)) for row in rows], next=next_)


@endpoints.api(
    "POST /pipeline/app-ids/transfer",
    "api-app-id-transfer",
    Role.ADMIN,
    "pipeline.transfer",
    cli="pipeline transfer",
)
async def transfer_app_id(call: Call, body: TransferInput) -> TransferView:
    """Transfer an app_id to another user."""
    call.check_all_queues("transfer an app_id")
    owner = None if body.owner is None else find_owner(call, body.owner)
    call.audit(body.app_id, detail=f"to {owner or 'the next writer'}")
    await call.run(staging.transfer_app_id, body.app_id, owner)
    return TransferView(app_id=body.app_id, owner=owner)
