"""Exports the history and claims to Spark as Arrow streams (``docs/guides/pipeline.md``)."""

import asyncio
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.http.fields import (
    QueryModel,
    StrictInput,
    SubscriptionName,
    check_queue_name,
    check_text,
    read_query,
)
from phpmq_lite.admin.http.identity import identity_of
from phpmq_lite.admin.http.permissions import (
    check_queue_right,
    globs_digest,
    globs_in_force,
    may_use,
)
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.request_audit import audit_entry, keep_audit_entry
from phpmq_lite.admin.http.route import Role, Route
from phpmq_lite.admin.resource import api_route
from phpmq_lite.broker.pipeline import history_readers
from phpmq_lite.errors import RefusedError
from phpmq_lite.export.exports import RunningExport
from phpmq_lite.installation import install_command
from phpmq_lite.logs import get_logger, is_quiet
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.storage.read.consumers import StoredPipeline

MEDIA: Final = "application/vnd.apache.arrow.stream"


def need_arrow() -> None:
    """Reject the request if pyarrow is not installed; do not import it, which would take 0.3 s.

    Raises:
        Problem: 501; the detail names the extra to install.
    """
    if find_spec("pyarrow") is None:
        raise Problem(
            501, "no_arrow", "Arrow exports require pyarrow, which is not installed here. Install "
            f"the export extra: {install_command('export')}",
        )  # fmt: skip


OFFSET_MAX: Final = 1 << 62
# An export is aborted if its reader accepts no data for this long; other clients get only 30 s.
# A Spark task reads while its sink writes, and a lock or commit can block the sink for longer.
# Disconnecting would fail the Spark job. Other exports wait up to ``WHOLE_S`` seconds for a slot.
STALLED_S: Final = 300.0
WHOLE_S: Final = 600.0  # maximum duration of an export, excluding the broker's pauses
RETRY_S: Final = 1  # Retry-After value in seconds, sent while all export slots are in use
NAMES: Final = 1_000  # maximum number of queue names in a request

_log = get_logger(__name__)


class ReaderInput(StrictInput):
    """The name of a history reader."""

    reader: str = Field(min_length=1, max_length=255, description="reader name")


class ReaderPositionInput(ReaderInput):
    """How far a history reader has come."""

    position: int = Field(ge=0, le=OFFSET_MAX, description="last processed offset")


class RemovedReaderView(ReaderInput):
    """The reader whose position was removed."""


class ExportBoundsInput(QueryModel):
    """A time whose offset is looked up."""

    at_ms: int | None = Field(
        None,
        ge=0,
        le=OFFSET_MAX,
        description="if set, look up the last offset settled before this time, Unix ms",
    )
    queues: Literal["0", "1"] = Field("0", description="1 to include all queue names")


class ExportBoundsView(BaseModel):
    """The offset range of the history. Compare offsets only within one ``history_id``."""

    history_id: str = Field(description="id of the history that the offsets belong to")
    lo: int = Field(description="rows after this offset are complete, except for deleted messages")
    hi: int = Field(description="last offset in the history; 0 if it is empty")
    lo_deleted: int = Field(description="rows after this offset are complete, even deleted ones")
    offset: int | None = Field(description="last offset before at_ms, else lo; null without at_ms")
    queues: list[str] | None = Field(description="all queue names; null if not requested")
    allowed: list[str] = Field(
        description="queue globs that limit the caller; missing if there are none",
        exclude_if=lambda globs: not globs,
    )


class RangeInput(QueryModel):
    """A range of rows (after ``lo``, up to and including ``hi``), and the columns to return."""

    lo: int = Field(ge=0, le=OFFSET_MAX, description="lower bound, exclusive")
    hi: int = Field(ge=0, le=OFFSET_MAX, description="last offset (may exceed the newest offset)")
    queue: list[str] = Field(
        default=[], max_length=NAMES, description="queue name; may be repeated"
    )
    queues: str = Field("", max_length=100_000, description="comma-separated names; default is all")
    pattern: str = Field("", max_length=LONGEST_NAME, description="queue name glob; default is all")
    outcomes: str = Field(
        "",
        max_length=100,
        description="comma-separated outcomes (acked, expired, dead, deleted); default is all",
    )
    columns: str = Field(
        "", max_length=1_000, description="comma-separated columns; default is all except body"
    )
    body: Literal["0", "1"] = Field("0", description="1 to include the body column")
    gap: Literal["fail", "ok"] = Field("fail", description="on missing rows: fail, or ok to skip")
    history: str = Field("", max_length=64, description="history_id that must match, if set")


class ClaimsInput(QueryModel):
    """A range of claims, numbered from ``lo`` (exclusive) to ``hi`` (inclusive)."""

    subscription: SubscriptionName
    lo: int = Field(ge=0, le=OFFSET_MAX, description="lower bound, exclusive")
    hi: int = Field(ge=0, le=OFFSET_MAX, description="last claim, inclusive")


async def get_bounds(request: web.Request, asked: ExportBoundsInput) -> ExportBoundsView:
    """Return the history's first and last offsets."""
    context = context_of(request)
    stored = StoredPipeline(context.readers)
    bounds = await stored.history_bounds()
    offset = None
    if asked.at_ms is not None:
        offset = await stored.offset_at(bounds, asked.at_ms)
    names = None
    if asked.queues == "1":
        names = [name for name in await stored.queue_names() if may_use(request, name)]
    allowed = globs_in_force(request)
    return ExportBoundsView(**asdict(bounds), offset=offset, queues=names, allowed=allowed)


async def report_reader(request: web.Request, asked: ReaderPositionInput) -> ExportBoundsView:
    """Record a history reader's position, and return the history's bounds.

    The reader belongs to the user who reports first; only an admin can take it over. A user can
    have 20 readers. The audit log shows when a reader is created or taken over.
    """
    check_text(asked.reader, "reader")
    identity = identity_of(request)
    entry = audit_entry(request, target=asked.reader)
    is_audited = await context_of(request).engine.run(
        history_readers.report, entry, asked.reader, asked.position,
        owner=identity.owner, is_admin=identity.role is Role.ADMIN,
    )  # fmt: skip
    if not is_audited:
        keep_audit_entry(request)
    return await get_bounds(request, ExportBoundsInput())


async def remove_reader(request: web.Request, asked: ReaderInput) -> RemovedReaderView:
    """Remove a history reader's position, by its owner or an admin."""
    check_text(asked.reader, "reader")
    identity = identity_of(request)
    entry = audit_entry(request, target=asked.reader)
    await context_of(request).engine.run(
        history_readers.remove, entry, asked.reader,
        owner=identity.owner, is_admin=identity.role is Role.ADMIN,
    )  # fmt: skip
    return RemovedReaderView(reader=asked.reader)


async def stream_history(request: web.Request) -> web.StreamResponse:
    """Stream the settled messages in an offset range as Arrow; ``X-Row-Count`` is the row count."""
    query = dict(request.query) | {"queue": request.query.getall("queue", [])}
    asked = RangeInput.model_validate({key: value for key, value in query.items() if value})
    names = [*filter(None, asked.queue), *filter(None, asked.queues.split(","))]
    for name in names:
        check_queue_name(name)
        check_queue_right(request, name)
    selection = {
        "lo": asked.lo,
        "hi": asked.hi,
        "queues": names,
        "pattern": asked.pattern or None,
        "outcomes": [*filter(None, asked.outcomes.split(","))],
        "columns": [*filter(None, asked.columns.split(","))],
        "body": asked.body == "1",
        "allowed": identity_of(request).queues,
        "history_id": asked.history or None,
    }
    # The export may read a replica, which may have rows that are not confirmed yet.
    upto = (await StoredPipeline(context_of(request).readers).history_bounds()).hi
    wanted = {"of": "history", "selection": selection, "is_gap_ok": asked.gap == "ok", "upto": upto}
    return await _export(request, wanted)


async def stream_claims(request: web.Request) -> web.StreamResponse:
    """Stream a subscription's claimed messages as Arrow, in the order they were claimed."""
    asked = read_query(request, ClaimsInput)
    check_text(asked.subscription, "subscription")
    wanted = {"of": "claims", **asked.model_dump(), "allowed": identity_of(request).queues}
    return await _export(request, wanted)


# -- streaming


async def _export(request: web.Request, wanted: dict[str, Any]) -> web.StreamResponse:
    exports = context_of(request).exports
    need_arrow()
    wanted["is_head"] = request.method == "HEAD"
    try:
        async with exports.open(wanted) as export:
            response = _response(request, export)
            if request.method == "HEAD":
                await export.finish()
                return response
            await response.prepare(request)
            is_whole = await _relay(request, response, export)
    except RefusedError as error:
        if error.code != "busy":
            raise
        exports.ends["busy"] += 1
        headers = {"Retry-After": str(RETRY_S)}
        raise Problem(503, "busy", f"{error}.".capitalize(), headers=headers) from None
    if is_whole:  # end the response only after the export slot has been released
        await response.write_eof()
    return response


def _response(request: web.Request, export: RunningExport) -> web.StreamResponse:
    header = export.header
    return web.StreamResponse(
        headers={
            "Content-Type": MEDIA,
            "X-Row-Count": str(header.rows),
            "X-History-Id": header.history_id,
            "X-Offset-Lo": str(header.lo),
            "X-Offset-Hi": str(header.hi),
            "X-Queue-Globs": globs_digest(globs_in_force(request)),
        }
    )


async def _relay(request: web.Request, response: web.StreamResponse, export: RunningExport) -> bool:
    """Forward all pieces to the reader. Return False if the export failed and was aborted."""
    end, reason = "broken", ""
    try:
        async with asyncio.timeout(WHOLE_S) as limit:
            until = limit.when() or 0.0
            async for piece in export.pieces():
                limit.reschedule(until + export.paused_s)
                await _send_piece(response, piece)
        end = "whole"
    except _StalledError:
        end, reason = "stalled", f"the reader accepted no data for {STALLED_S:g} s"
    except TimeoutError:
        end, reason = "stalled", f"the reader did not finish within {WHOLE_S:g} s"
    except ConnectionError as error:
        end, reason = "left", repr(error)
    except Exception as error:  # the export process reported an error
        reason = repr(error)
    finally:  # this also runs when the request is cancelled
        context_of(request).exports.ends[end] += 1
        if end != "whole" and request.transport is not None:
            request.transport.abort()
    if reason and not is_quiet("export_broken"):
        actor = identity_of(request).actor
        _log.warning("export_broken", end=end, reason=reason[:200], actor=actor)
    return end == "whole"


class _StalledError(Exception):
    """The peer has stopped reading."""


async def _send_piece(response: web.StreamResponse, piece: bytes) -> None:
    try:
        async with asyncio.timeout(STALLED_S):
            await response.write(piece)
    except TimeoutError:
        raise _StalledError from None


ROUTES: Final = (
    api_route(
        "GET", "/api/v1/pipeline/history/bounds", Role.VIEWER, "api-pipeline-bounds", get_bounds
    ),
    api_route(
        "POST", "/api/v1/pipeline/history/bounds", Role.VIEWER, "api-pipeline-reader",
        report_reader, "reader.report",
    ),
    api_route(
        "POST", "/api/v1/pipeline/history/readers/remove", Role.VIEWER,
        "api-pipeline-reader-remove", remove_reader, "reader.remove",
    ),
    Route(
        "GET", "/api/v1/pipeline/history/arrow", Role.VIEWER, "api-pipeline-history",
        stream_history, query=RangeInput, gives=bytes, gives_media=MEDIA,
    ),
    Route(
        "GET", "/api/v1/pipeline/claims/arrow", Role.OPERATOR, "api-pipeline-claims", stream_claims,
        query=ClaimsInput, gives=bytes, gives_media=MEDIA,
    ),
)  # fmt: skip
