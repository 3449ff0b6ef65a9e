"""Exports the history and claims to Spark as Arrow streams (``docs/guides/pipeline.md``)."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict
from hashlib import sha256
from importlib.util import find_spec
from typing import Annotated, Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Endpoints, From
from phpmq_lite.admin.http.fields import QueryModel, StrictInput, SubscriptionName
from phpmq_lite.admin.http.input import check_queue_name, check_text
from phpmq_lite.admin.http.output import abort_response
from phpmq_lite.admin.http.problems import Problem, invalid
from phpmq_lite.broker.pipeline import readers
from phpmq_lite.errors import RefusedError
from phpmq_lite.export.exports import ExportProcesses, RunningExport
from phpmq_lite.installation import install_command
from phpmq_lite.logs import get_logger, is_quiet
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.roles import Role
from phpmq_lite.storage.read.consumers import StoredPipeline

endpoints: Final = Endpoints()
EXPORTS: Final = web.AppKey("exports", ExportProcesses)  # which run in separate processes
MEDIA: Final = "application/vnd.apache.arrow.stream"


def need_arrow() -> None:
    """Raise a 501 ``Problem`` if pyarrow is not installed; importing it would take 0.3 s."""
    if find_spec("pyarrow") is None:
        raise Problem(
            501,
            "no_arrow",
            "Arrow exports require pyarrow, which is not installed here. Install the export extra: "
            f"{install_command('export')}",
        )


OFFSET_MAX: Final = 1 << 62
# An export is aborted if its reader accepts no data for this long; other clients get only 30 s.
# A Spark task reads while its sink writes, and a lock or commit can block the sink for longer.
# Disconnecting would fail the Spark job. Other exports wait up to ``WHOLE_S`` seconds for a slot.
STALLED_S: Final = 300.0
WHOLE_S: Final = 600.0  # maximum duration of an export, excluding the broker's pauses
RETRY_S: Final = 1  # Retry-After value in seconds, sent while all export slots are in use
NAMES: Final = 1_000  # maximum number of queue names in a request, and of URNs and traces
EVENT_OFFSETS: Final = 1_000_000  # maximum range of a request for events
TEXT_LENGTH: Final = 1_000  # of an URN or a trace

_log = get_logger(__name__)


class ReaderInput(StrictInput):
    """The name of a history reader."""

    reader: str = Field(min_length=1, max_length=255, description="reader name")


class ReaderPositionInput(ReaderInput):
    """How far a history reader has come."""

    position: int = Field(ge=0, le=OFFSET_MAX, description="last processed offset")


class RemovedReaderView(ReaderInput):
    """The reader whose position was removed."""


def _time(description: str) -> Any:
    return Field(ge=0, le=OFFSET_MAX, description=f"{description} this time, Unix ms")


SettledFrom = Annotated[int | None, _time("settled at or after")]
SettledUntil = Annotated[int | None, _time("settled before")]
PublishedFrom = Annotated[int | None, _time("published at or after")]
PublishedUntil = Annotated[int | None, _time("published before")]


class ExportBoundsInput(QueryModel):
    """Times whose offsets are looked up."""

    at_ms: int | None = Field(
        None,
        ge=0,
        le=OFFSET_MAX,
        description="if set, look up the last offset settled before this time, Unix ms",
    )
    settled_from_ms: SettledFrom = None
    settled_until_ms: SettledUntil = None
    queues: Literal["0", "1"] = Field("0", description="1 to include all queue names")


class ExportBoundsView(BaseModel):
    """The offset range of the history. Compare offsets only within one ``history_id``."""

    history_id: str = Field(description="id of the history that the offsets belong to")
    lo: int = Field(description="rows after this offset are complete, except for deleted messages")
    hi: int = Field(description="last offset in the history; 0 if it is empty")
    lo_deleted: int = Field(description="rows after this offset are complete, even deleted ones")
    offset: int | None = Field(description="last offset before at_ms, else lo; null without at_ms")
    settled_lo: int | None = Field(
        description="offset before the first row of the requested time; null if none is requested"
    )
    settled_hi: int | None = Field(
        description="last offset that may be of that time; settled_lo: no rows; null as there"
    )
    queues: list[str] | None = Field(description="all queue names; null if not requested")
    allowed: list[str] = Field(
        description="queue globs that limit the caller; missing if there are none",
        exclude_if=lambda globs: not globs,
    )


class SelectionInput(QueryModel):
    """A range of offsets (after ``lo``, up to and including ``hi``), and its messages."""

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
    gap: Literal["fail", "ok"] = Field("fail", description="on missing rows: fail, or ok to skip")
    history: str = Field("", max_length=64, description="history_id that must match, if set")

    def selection(self, call: Call) -> dict[str, Any]:
        """Return the members of ``RowSelection``, or raise a ``Problem`` for a queue."""
        names = [*filter(None, self.queue), *filter(None, self.queues.split(","))]
        for name in names:
            check_queue_name(name)
            call.check_queue(name)
        return {
            "lo": self.lo,
            "hi": self.hi,
            "queues": names,
            "pattern": self.pattern or None,
            "outcomes": [*filter(None, self.outcomes.split(","))],
            "allowed": call.identity.queues,
            "history_id": self.history or None,
            "filters": {},
        }


class RangeInput(SelectionInput):
    """A range of rows (after ``lo``, up to and including ``hi``), and the columns to return."""

    columns: str = Field(
        "", max_length=1_000, description="comma-separated columns; default is all except body"
    )
    body: Literal["0", "1"] = Field("0", description="1 to include the body column")
    settled_from_ms: SettledFrom = None
    settled_until_ms: SettledUntil = None
    published_from_ms: PublishedFrom = None
    published_until_ms: PublishedUntil = None
    urn: list[str] = Field(default=[], max_length=NAMES, description="URN; may be repeated")
    trace_id: list[str] = Field(default=[], max_length=NAMES, description="trace; may be repeated")

    def filters(self) -> dict[str, Any]:
        """Return the members of ``RowFilters`` that are set, in their order.

        Raises:
            Problem: 422 for a condition that is invalid.
        """
        for begin_name, until_name in (
            ("settled_from_ms", "settled_until_ms"),
            ("published_from_ms", "published_until_ms"),
        ):
            begin, until = getattr(self, begin_name), getattr(self, until_name)
            if begin is not None and until is not None and begin >= until:
                detail = f"{begin_name} is {begin}, which is not before {until_name}, {until}."
                raise invalid(detail, begin_name, f"less than {until}")
        for name, texts in (("urn", self.urn), ("trace_id", self.trace_id)):
            for text in texts:
                check_text(text, name)
                if len(text) > TEXT_LENGTH or "\0" in text:
                    bound = f"1 to {TEXT_LENGTH} characters other than NUL"
                    raise invalid(f"{name} is {text[:50]!r}; it must have {bound}.", name, bound)
        times = ("settled_from", "settled_until", "published_from", "published_until")
        values = {name: getattr(self, f"{name}_ms") for name in times}
        values |= {"urns": self.urn, "traces": self.trace_id}
        return {name: value for name, value in values.items() if value not in (None, [])}


class ClaimsInput(QueryModel):
    """A range of claims, numbered from ``lo`` (exclusive) to ``hi`` (inclusive)."""

    subscription: SubscriptionName
    lo: int = Field(ge=0, le=OFFSET_MAX, description="lower bound, exclusive")
    hi: int = Field(ge=0, le=OFFSET_MAX, description="last claim, inclusive")


@endpoints.api("GET /pipeline/history/bounds", "api-pipeline-bounds")
async def get_bounds(call: Call, query: ExportBoundsInput) -> ExportBoundsView:
    """Return the history's first and last offsets."""
    stored = StoredPipeline(call.context.readers)
    bounds = await stored.history_bounds()
    has_names = query.queues == "1"
    begin, until = query.settled_from_ms, query.settled_until_ms
    settled: tuple[int | None, int | None] = None, None
    if begin is not None or until is not None:
        settled = await stored.settled_range(bounds, begin, until)
    return ExportBoundsView(
        **asdict(bounds),
        offset=None if query.at_ms is None else await stored.offset_at(bounds, query.at_ms),
        settled_lo=settled[0],
        settled_hi=settled[1],
        queues=[*filter(call.may_use, await stored.queue_names())] if has_names else None,
        allowed=_globs_in_force(call),
    )


def _globs_in_force(call: Call) -> list[str]:
    """Return the caller's queue globs in order, or an empty list if all queues are allowed."""
    globs = call.identity.queues
    return [] if "*" in globs else sorted(globs)


@endpoints.api("POST /pipeline/history/bounds", "api-pipeline-reader", Role.VIEWER, "reader.report")
async def report_reader(call: Call, report: ReaderPositionInput) -> ExportBoundsView:
    """Record a history reader's position, and return the history's bounds.

    The reader belongs to the user who reports first; only an admin can take it over. A user can
    have 20 readers. The audit log shows when a reader is created or taken over.
    """
    name, (owner, is_admin) = report.reader, _audit_reader(call, report.reader)
    call.is_audit_deferred = not await call.run(
        readers.report_reader, name, report.position, owner=owner, is_admin=is_admin
    )
    return await get_bounds(call, ExportBoundsInput())


@endpoints.api(
    "POST /pipeline/history/readers/remove",
    "api-pipeline-reader-remove",
    Role.VIEWER,
    "reader.remove",
)
async def remove_reader(call: Call, removal: ReaderInput) -> RemovedReaderView:
    """Remove a history reader's position, by its owner or an admin."""
    owner, is_admin = _audit_reader(call, removal.reader)
    await call.run(readers.remove_reader, removal.reader, owner=owner, is_admin=is_admin)
    return RemovedReaderView(reader=removal.reader)


def _audit_reader(call: Call, reader: str) -> tuple[str, bool]:
    """Audit a history reader; return the caller's owner, and whether the caller is an admin."""
    check_text(reader, "reader")
    call.audit(reader)
    return call.identity.owner, call.identity.role is Role.ADMIN


def _read_query(call: Call, kind: type[QueryModel]) -> Any:
    """Return the query, in which empty parameters count as missing, and some are repeated."""
    values = call.request.query
    query = dict(values) | {name: values.getall(name, []) for name in ("queue", "urn", "trace_id")}
    return kind.model_validate({key: value for key, value in query.items() if value})


@endpoints.api(
    "GET /pipeline/history/arrow",
    "api-pipeline-history",
    query=RangeInput,
    gives=bytes,
    gives_media=MEDIA,
)
async def stream_history(
    call: Call, query: Annotated[RangeInput, From(lambda call: _read_query(call, RangeInput))]
) -> web.StreamResponse:
    """Stream the settled messages in an offset range as Arrow; ``X-Row-Count`` is the row count.

    All conditions must hold. ``X-Row-Filters`` names those on times, URNs and traces, which earlier
    versions ignore.
    """
    filters = query.filters()
    selection = query.selection(call) | {
        "columns": [*filter(None, query.columns.split(","))],
        "body": query.body == "1",
        "filters": filters,
    }
    return await _export_range(call, "history", query, selection)


@endpoints.api(
    "GET /pipeline/history/events",
    "api-pipeline-events",
    query=SelectionInput,
    gives=bytes,
    gives_media=MEDIA,
)
async def stream_events(
    call: Call,
    query: Annotated[SelectionInput, From(lambda call: _read_query(call, SelectionInput))],
) -> web.StreamResponse:
    """Stream the exceptional steps of the settled messages in an offset range as Arrow.

    A step is a return, requeue, forward or restore, for example; a message that was dispatched once
    and acknowledged has none. The range is at most 1,000,000 offsets.
    """
    if query.hi - query.lo > EVENT_OFFSETS:
        detail = f"({query.lo}, {query.hi}] is too large; request it in parts."
        raise invalid(detail, "hi", f"at most {EVENT_OFFSETS} offsets above lo")
    return await _export_range(call, "events", query, query.selection(call))


async def _export_range(
    call: Call, kind: str, query: SelectionInput, selection: dict[str, Any]
) -> web.StreamResponse:
    # The export may read a replica, which may have rows that are not confirmed yet.
    upto = (await StoredPipeline(call.context.readers).history_bounds()).hi
    is_gap_ok = query.gap == "ok"
    order = {"of": kind, "selection": selection, "is_gap_ok": is_gap_ok, "upto": upto}
    return await _export(call, order, {"X-Row-Filters": ",".join(selection["filters"])})


@endpoints.api(
    "GET /pipeline/claims/arrow",
    "api-pipeline-claims",
    Role.OPERATOR,
    gives=bytes,
    gives_media=MEDIA,
)
async def stream_claims(call: Call, query: ClaimsInput) -> web.StreamResponse:
    """Stream a subscription's claimed messages as Arrow, in the order they were claimed."""
    check_text(query.subscription, "subscription")
    order = {"of": "claims", **query.model_dump(), "allowed": call.identity.queues}
    return await _export(call, order)


# -- streaming


async def _export(
    call: Call, order: dict[str, Any], headers: Mapping[str, str] | None = None
) -> web.StreamResponse:
    request, exports = call.request, call.context.app[EXPORTS]
    need_arrow()
    is_head = request.method == "HEAD"
    try:
        async with exports.open(order | {"is_head": is_head}) as export:
            header, globs = export.header, json.dumps(_globs_in_force(call))  # may be very long
            response = web.StreamResponse(
                headers={
                    "Content-Type": MEDIA,
                    "X-Row-Count": str(header.rows),
                    "X-History-Id": header.history_id,
                    "X-Offset-Lo": str(header.lo),
                    "X-Offset-Hi": str(header.hi),
                    "X-Queue-Globs": sha256(globs.encode()).hexdigest()[:16],
                    **(headers or {}),
                }
            )
            if is_head:
                await export.finish()
                return response
            await response.prepare(request)
            is_complete = await _relay(call, response, export)
    except RefusedError as error:
        if error.code != "busy":
            raise
        exports.ends["busy"] += 1
        wait = {"Retry-After": str(RETRY_S)}
        raise Problem(503, "busy", f"{error}.".capitalize(), headers=wait) from None
    if is_complete:  # end the response only after the export slot has been released
        await response.write_eof()
    return response


async def _relay(call: Call, response: web.StreamResponse, export: RunningExport) -> bool:
    """Forward all pieces to the reader. Return False if the export failed and was aborted."""
    end, reason = "broken", ""
    try:
        async with asyncio.timeout(WHOLE_S) as limit:
            until = limit.when() or 0.0
            async for piece in export.pieces():
                limit.reschedule(until + export.paused_s)
                async with asyncio.timeout(STALLED_S):
                    await response.write(piece)
        end = "whole"
    except TimeoutError:
        end, reason = "stalled", f"the reader accepted no data for {STALLED_S:g} s"
        if limit.expired():
            reason = f"the reader did not finish within {WHOLE_S:g} s"
    except ConnectionError as error:
        end, reason = "left", repr(error)
    except Exception as error:  # the export process reported an error
        reason = repr(error)
    finally:  # this also runs when the request is cancelled
        call.context.app[EXPORTS].ends[end] += 1
        if end != "whole":
            abort_response(call.request)
    if reason and not is_quiet("export_broken"):
        _log.warning("export_broken", end=end, reason=reason[:200], actor=call.actor)
    return end == "whole"
