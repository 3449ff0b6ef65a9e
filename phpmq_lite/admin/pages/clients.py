"""The connections that are open, those that ended lately, and the last protocol errors."""

from dataclasses import asdict
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin import cursors, formats, peers
from phpmq_lite.admin.context import context_of, status_of
from phpmq_lite.admin.lists import as_data
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import ClientOut, ClientsQuery
from phpmq_lite.server import frame_explanation
from phpmq_lite.server.status import ClientStatus
from phpmq_lite.storage.read.consumers import ClientRow, StoredClients

SHOWN: Final = 200  # open connections on the page
FRAME_CHARACTERS: Final = 4_000  # an address may have 8 KiB, and most bytes are escaped in it
_SCOPE: Final = "closed clients"


class ClientListQuery(ClientsQuery):
    """Which connections to show, and where the list of ended ones goes on."""

    state: Literal["open", "closed", "errors"] = "open"


class ClosedOut(BaseModel):
    """A connection that ended within the last day."""

    client: int
    kind: str
    address: str
    opened_at: int  # Unix ms
    closed_at: int | None
    framing: str | None
    revision: str | None
    reason: str | None


class ClientLiveQuery(ClientsQuery):
    """The filter of the page, as far as what is live needs it."""

    state: str = Field("open", max_length=10)


class FrameQuery(BaseModel):
    """The bytes to explain; what is longer than an address may be is for the command line."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    frame: str = Field("", max_length=FRAME_CHARACTERS)
    encoding: frame_explanation.Encoding = "auto"


async def clients(request: web.Request) -> web.StreamResponse:
    """The connections that are open, or ended within the last day."""
    context, query = context_of(request), query_of(request, ClientListQuery)
    if query.format != "html" and query.state == "open":
        found = consuming(request, query.queue)
        return as_data(query.format, ClientOut, [ClientOut.of(client) for client in found])
    closed: list[ClientRow] = []
    next_: str | None = None
    if query.state == "closed":
        closed, next_ = await closed_page(request, query.cursor, query.limit)
        if query.format != "html":
            items = [ClosedOut(**asdict(row)) for row in closed]
            return as_data(query.format, ClosedOut, items, next_)
    open_ = consuming(request, query.queue)
    labels = await peers.labels_of(context)
    return await page(
        request,
        "clients.html",
        query=query,
        clients=open_[:SHOWN],
        total=len(open_),
        figures={client.client: peers.figures(client) for client in open_[:SHOWN]},
        label=lambda address: peers.label_of(address, labels),
        closed=closed,
        next=next_,
        errors=peers.errors_of(request),
        speaks=peers.speaks,
    )


def consuming(request: web.Request, queue: str = "") -> list[ClientStatus]:
    """Give the open connections, or those that consume a queue."""
    return [c for c in status_of(request).clients if not queue or queue in c.queues]


async def closed_page(
    request: web.Request, cursor: str | None, limit: int
) -> tuple[list[ClientRow], str | None]:
    """Give connections that ended within a day, the last first, and the cursor to older ones."""
    context = context_of(request)
    found = cursors.decode(_SCOPE, cursor)
    before = None
    if found is not None:
        place = found.place
        if not isinstance(place, list) or not all(
            isinstance(part, int) and abs(part) < 1 << 62 for part in place
        ):
            raise Problem(422, "bad_cursor", "The cursor is malformed.", field="cursor")
        before = (int(place[0]), int(place[1]))
    since_ms = context.now_ms() - peers.CLOSED_MS
    rows = await StoredClients(context.readers).closed(since_ms, before=before, limit=limit)
    if len(rows) < limit:
        return rows, None
    last = rows[-1]
    return rows, cursors.encode(_SCOPE, "after", [last.closed_at or 0, last.client])


async def live_clients(
    request: web.Request, _argument: str, ids: tuple[int, ...]
) -> dict[str, Any]:
    """Give what changes on the list of open connections."""
    query = query_of(request, ClientLiveQuery)
    asked = frozenset(ids)
    shown: dict[str, str] = {}
    new = 0
    found = consuming(request, query.queue)
    for client in found:
        if client.client in asked:
            for key, value in peers.figures(client).items():
                shown[f"{client.client}.{key}"] = value
        else:
            new += 1
    is_open = query.state == "open"
    return {
        "shown": shown,
        "points": {},
        "new": new if is_open else 0,
        "says": f"{formats.number(len(found))} clients",
    }


async def frame(request: web.Request) -> web.StreamResponse:
    """Bytes that somebody pastes, explained: packets, revision, framing, what would be done."""
    query = query_of(request, FrameQuery)
    found, error = None, ""
    pasted = query.frame.replace("\r\n", "\n").removesuffix("\n")  # as a browser sends a text
    if pasted:
        try:
            data = frame_explanation.pasted_bytes(pasted.encode("utf-8", "replace"), query.encoding)
            found = frame_explanation.as_data(frame_explanation.explain_bytes(data))
        except frame_explanation.UnreadableError as wrong:
            error = str(wrong)
    return await page(request, "frame.html", query=query, found=found, error=error)


ROUTES: Final = (
    Route("GET", "/clients", Role.VIEWER, "clients", clients),
    Route("GET", "/frame", Role.VIEWER, "frame", frame),
)
