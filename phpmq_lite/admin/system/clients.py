"""Connections: listing, details, labels and disconnecting."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Self

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin import formats
from phpmq_lite.admin.context import Context, context_of, status_of
from phpmq_lite.admin.formats import plural
from phpmq_lite.admin.http import responses
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.confirmation import Confirmation
from phpmq_lite.admin.http.fields import (
    ActionInput,
    BodySize,
    Deliveries,
    LimitParameter,
    ListQuery,
    MessageId,
    QueryModel,
    read_form,
    read_next_path,
    read_query,
)
from phpmq_lite.admin.http.identity import identity_of
from phpmq_lite.admin.http.permissions import allowed_queues, may_use
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.rendering import render_page
from phpmq_lite.admin.http.request_audit import audit_entry
from phpmq_lite.admin.http.responses import (
    ListPage,
    PerSecond,
    ResponseModel,
)
from phpmq_lite.admin.http.route import Role, Route
from phpmq_lite.admin.messages.saved_items import store_item
from phpmq_lite.admin.resource import Api, Page, Resource, api_route, view_response
from phpmq_lite.admin.system import connections, frames
from phpmq_lite.admin.system.connections import (
    find_client,
    find_client_status,
    parse_client_number,
)
from phpmq_lite.admin.system.feed_viewers import FEED
from phpmq_lite.admin.system.frames import list_frames, show_frame
from phpmq_lite.admin.system.live import FeedState
from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.server.frame_recorder import FrameRecorder
from phpmq_lite.server.status import ClientStatus
from phpmq_lite.storage.read.consumers import ClientRow, StoredClients

SHOWN: Final = 200  # maximum number of open connections on the page
_SCOPE: Final = "closed clients"


class ClientsPageQuery(ListQuery):
    """Query for the connections page: a filter, and which page of closed connections to show."""

    queue: str = Field("", max_length=LONGEST_NAME)
    state: Literal["open", "closed", "errors"] = "open"


async def show_clients(request: web.Request) -> web.StreamResponse:
    """Show open connections, connections closed within the last day, or protocol errors."""
    context, query = context_of(request), read_query(request, ClientsPageQuery)
    closed: list[ClientRow] = []
    next_: str | None = None
    if query.state == "closed":
        closed, next_ = await read_closed_page(request, query.cursor, query.limit)
    open_ = list_consuming(request, query.queue)
    if query.format != "html" and query.state != "errors":
        clients = open_ if query.state == "open" else closed
        return view_response(await _connections_view(request, clients, next_), query.format)
    labels = await connections.read_labels(context)
    return await render_page(
        request,
        "clients.html",
        query=query,
        clients=open_[:SHOWN],
        total=len(open_),
        figures={client.client: connections.format_figures(client) for client in open_[:SHOWN]},
        label=lambda address: connections.label_of(address, labels),
        closed=closed,
        next=next_,
        errors=frames.list_protocol_errors(request),
        speaks=connections.describe_protocol,
    )


def list_consuming(request: web.Request, queue: str = "") -> list[ClientStatus]:
    """Return all open connections, or only the connections that consume from the given queue."""
    return [c for c in status_of(request).clients if not queue or queue in c.queues]


async def read_closed_page(
    request: web.Request, cursor: str | None, limit: int
) -> tuple[list[ClientRow], str | None]:
    """Return connections closed within the last day, newest first, with the next page's cursor."""
    context = context_of(request)
    before = responses.pair_in(responses.decode_cursor(_SCOPE, cursor))
    since_ms = context.now_ms() - connections.CLOSED_MS
    rows = await StoredClients(context.readers).closed(since_ms, before=before, limit=limit)
    if len(rows) < limit:
        return rows, None
    last = rows[-1]
    return rows, responses.encode_cursor(_SCOPE, "after", [last.closed_at or 0, last.client])


async def live_clients(
    request: web.Request, _argument: str, ids: tuple[int, ...]
) -> dict[str, Any]:
    """Return the live values for the list of open connections."""
    query = read_query(request, ClientsPageQuery)
    asked = frozenset(ids)
    shown: dict[str, str] = {}
    new = 0
    found = list_consuming(request, query.queue)
    for client in found:
        if client.client in asked:
            for key, value in connections.format_figures(client).items():
                shown[f"{client.client}.{key}"] = value
        else:
            new += 1
    is_open = query.state == "open"
    return {
        "shown": shown,
        "points": {},
        "new": new if is_open else 0,
        "says": f"{formats.format_number(len(found))} clients",
    }


class ClientPageQuery(QueryModel):
    """The optional parts of a connection's page to show."""

    confirm: Literal["disconnect"] | None = None
    process: Literal["1"] | None = None


@dataclass(slots=True, frozen=True)
class _RecordingPosition(FeedState):
    """The position in a recording up to which viewers have seen the frames."""

    began_at: int  # when the recording began, Unix ms; also identifies the recording
    count: int
    missed: int


async def show_client(request: web.Request) -> web.StreamResponse:
    """Show a connection with its held messages, protocol and most recent frames."""
    context, query = context_of(request), read_query(request, ClientPageQuery)
    number = parse_client_number(request.match_info["client"])
    row = await find_client(request, number)
    look = await connections.take_snapshot(request, number, is_watching=query.confirm is None)
    status = find_client_status(request, number)
    if query.confirm:
        return await _ask_to_disconnect(request, row, look)
    process = None
    is_here = connections.is_local(row.address, row.kind) and not (status and status.relay)
    may_ask = is_here and identity_of(request).role.may(Role.OPERATOR)
    if query.process and may_ask and look.is_open:
        process = await connections.find_process(row.address, look.pid)
    labels = await connections.read_labels(context)
    return await render_page(
        request,
        "client.html",
        row=row,
        look=look,
        client=status,
        figures=connections.format_figures(status) if status else {},
        label=connections.label_of(row.address, labels),
        own_label=labels.get(connections.host_of(row.address), ""),
        host=connections.host_of(row.address),
        may_ask=may_ask and look.is_open,
        asked=query.process is not None,
        process=process,
        frames=_frames(request, look.recorder)[::-1],
        errors=frames.list_protocol_errors(request, number),
        speaks=connections.describe_protocol,
    )


async def _ask_to_disconnect(
    request: web.Request, row: ClientRow, look: connections.ConnectionSnapshot
) -> web.Response:
    urls, held = context_of(request).urls, look.held_total
    here = urls.to("client", client=row.client)
    goes = plural(held, "message returns to the queue", "messages return to the queue")
    text = f"{formats.format_number(held)} {goes} ahead of newer messages and keeps its id."
    if held != 1:
        text = text.replace("keeps its id", "keep their ids")
    ask = Confirmation(
        title=f"Disconnect {formats.escape_hidden(row.address)}", is_danger=True,
        text=f"{text if held else 'The client holds no messages.'} A client with automatic "
        "reconnection comes back immediately." if look.is_open else "This connection is closed.",
        button=f"Disconnect client {row.client}", is_disabled=not look.is_open,
        url=urls.to("client-disconnect", client=row.client), back=here,
        crumbs=[("Clients", urls.to("clients")), (row.address, here)],
    )  # fmt: skip
    return await render_page(request, "confirm.html", ask=ask)


def _frames(
    request: web.Request, recorder: FrameRecorder | None, after: int = 0
) -> list[dict[str, Any]]:
    """Return the recorded frames whose number is greater than ``after``."""
    if recorder is None:
        return []
    row = partial(frames.frame_row, began_at=recorder.began_at)
    may_see = partial(may_use, request)
    return [row(one, may_see=may_see) for one in recorder.frames if one.number > after]


async def live_client(request: web.Request, argument: str, _ids: tuple[int, ...]) -> dict[str, Any]:
    """Return live values and new frames for a connection's page."""
    context, number = context_of(request), parse_client_number(argument)
    look = await connections.take_snapshot(request, number, is_watching=True)
    status = find_client_status(request, number)
    shown = {"state": "open" if look.is_open else "closed"}
    if status is not None:
        shown |= connections.format_figures(status)
    rows, missed = _new_frames(request, context, look.recorder)
    return {
        "shown": shown,
        "points": {},
        "new": 0,
        "says": f"Messages held: {look.held_total}" if look.is_open else "Connection closed",
        "rows": rows,
        "missed": missed,
    }


def _new_frames(
    request: web.Request, context: Context, recorder: FrameRecorder | None
) -> tuple[list[dict[str, Any]], int]:
    """Return a pair: the frames recorded since the last evaluation, and how many were dropped."""
    if recorder is None:
        return [], 0
    key = request[FEED]
    before = context.live.states.get(key)
    count, missed = 0, recorder.skipped
    if isinstance(before, _RecordingPosition) and before.began_at == recorder.began_at:
        count, missed = before.count, before.missed
    context.live.states[key] = _RecordingPosition(
        recorder.began_at, recorder.count, recorder.skipped
    )
    rows = _frames(request, recorder, count)
    return rows, recorder.count - count - len(rows) + recorder.skipped - missed


# -- actions


async def submit_label(request: web.Request) -> web.StreamResponse:
    """Save a label for an address or network, or remove the label if the text is empty."""
    context, form = context_of(request), await read_form(request)
    name = connections.read_label_name(form.text("name", 64))
    if name is None:
        raise Problem(422, "invalid", "Enter an address or network.", field="name",
                      bound="10.0.0.7, 10.0.0.0/24 or unix")  # fmt: skip
    text = form.text("label", connections.LABEL_MAX)
    audit_entry(request, target=name)
    before = (await connections.read_labels(context)).get(name, "")
    if text != before.strip():
        await store_item(Call.of(request), connections.LABEL, name, text or None)
    said = f"Labelled {name} as {text}." if text else f"Removed the label from {name}."
    context.sessions.store_message(request, said)
    raise web.HTTPSeeOther(await read_next_path(request, context.urls.to("clients")))


class ClientsQuery(BaseModel):
    """Filter for the list of connections."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state: Literal["open", "closed"] = Field("open", description="open, or closed in the last 24 h")
    queue: str = Field(
        "", max_length=LONGEST_NAME, description="for state open: queue whose consumers to list"
    )
    limit: LimitParameter = 50  # maximum number of closed connections; ignored for open ones
    cursor: str | None = Field(
        None, max_length=200, description="for state closed: next value of the previous page"
    )


class ConsumedView(BaseModel):
    """A queue that a connection consumes from."""

    credit: int = Field(description="maximum number of unacknowledged messages")
    held: int = Field(description="number of held messages from this queue")


class ConnectionView(ResponseModel):
    """A connection. For a closed connection, only the stored fields are set."""

    client: int = Field(description="connection number")
    kind: str = Field(description="tcp, tls or unix; ui, http or cli for the admin interface")
    address: str = Field(description="host or host:port; unix or control on the broker's machine")
    label: str = Field(description="label of the address or network; may be empty")
    state: Literal["open", "closed"] = Field(description="open or closed")
    opened_at: int = Field(description="when the connection opened, Unix ms")
    closed_at: int | None = Field(
        None, description="when the connection closed, Unix ms; null if open or unknown"
    )
    reason: str | None = Field(None, description="why it closed; null if open or unknown")
    framing: str | None = Field(description="compact or line framing; null if not yet known")
    revision: str | None = Field(description="ttl or legacy revision; null if not yet known")
    queues: dict[str, ConsumedView] = Field(
        {}, description="consumed queues; empty for a closed connection"
    )
    published: int | None = Field(None, description="messages published; null if closed")
    acked: int | None = Field(None, description="messages acknowledged; null if closed")
    acked_per_s: PerSecond | None = Field(None, description="acks per second; null if closed")
    bytes_in: int | None = Field(None, description="bytes received; null if closed")
    bytes_out: int | None = Field(None, description="bytes sent; null if closed")
    paused_reason: str | None = Field(
        None, description="why reading is paused (memory, disk, queue, …); null if not paused"
    )
    relay: str = Field("", description="standby that relays the connection; empty if none does")
    certificate: str = Field("", description="subject of the client's certificate; may be empty")

    @classmethod
    def of_client(cls, client: ClientStatus | ClientRow, label: str) -> Self:
        """Return the view of a connection: the live connection if open, else its stored row."""
        if isinstance(client, ClientRow):
            return cls.of(client, label=label, state="closed")
        return cls.of(
            client,
            label=label,
            state="open",
            queues={
                name: ConsumedView(credit=credit, held=held)
                for name, (credit, held) in client.queues.items()
            },
        )


class HeldMessageView(ResponseModel):
    """A message that a connection holds."""

    queue: str = Field(description="queue name")
    id: MessageId = Field(validation_alias="message_id")
    held_s: float = Field(description="seconds since the message was dispatched")
    deliveries: Deliveries
    size: BodySize


class ConnectionDetailView(ConnectionView):
    """A connection with the messages it holds."""

    held: list[HeldMessageView] = Field([], description="at most 50 messages, longest-held first")
    held_total: int = Field(0, description="total number of held messages")


class DisconnectedView(BaseModel):
    """The result of closing a connection."""

    client: int = Field(description="connection number")
    returned: int = Field(description="messages returned to their positions in the queue")


async def list_clients(request: web.Request, query: ClientsQuery) -> ListPage[ConnectionView]:
    """List open connections, or connections closed within the last 24 hours."""
    if query.state == "open":
        return await _connections_view(request, list_consuming(request, query.queue))
    rows, next_ = await read_closed_page(request, query.cursor, query.limit)
    return await _connections_view(request, rows, next_)


async def _connections_view(
    request: web.Request, clients: Iterable[ClientStatus | ClientRow], next_: str | None = None
) -> ListPage[ConnectionView]:
    labels = await connections.read_labels(context_of(request))
    items = [ConnectionView.of_client(c, connections.label_of(c.address, labels)) for c in clients]
    return ListPage[ConnectionView](items=items, next=next_)


async def get_client(request: web.Request) -> ConnectionDetailView:
    """Return a connection and the messages that it holds."""
    number = parse_client_number(request.match_info["client"])
    row = await find_client(request, number)
    label = connections.label_of(row.address, await connections.read_labels(context_of(request)))
    status = find_client_status(request, number)
    if status is None:
        return ConnectionDetailView.of_client(row, label)
    look = await connections.take_snapshot(request, number, is_watching=False)
    made = ConnectionDetailView.of_client(status, label)
    made.held_total = look.held_total
    made.held = [HeldMessageView.of(held, held_s=held.held_ms / 1_000) for held in look.held]
    return made


async def disconnect_client(request: web.Request, asked: ActionInput) -> DisconnectedView:
    """Close a connection. Messages that it holds return to their positions in the queue."""
    context = context_of(request)
    number = parse_client_number(request.match_info["client"])
    entry = audit_entry(request, target=str(number), reason=asked.reason)
    count = await context.engine.run(
        queue_operations.disconnect, entry, number, queues=allowed_queues(request)
    )
    return DisconnectedView(client=number, returned=count)


def _disconnected(
    request: web.Request, _asked: ActionInput, view: DisconnectedView
) -> tuple[str, str]:
    goes = plural(view.returned, "message returned to the queue", "messages returned to the queue")
    text = f"Client {view.client} was disconnected; {formats.format_number(view.returned)} {goes}."
    return text, context_of(request).urls.to("clients")


ROUTES: Final = (
    Route("GET", "/clients", Role.VIEWER, "clients", show_clients),
    Route("GET", "/frame", Role.VIEWER, "frame", show_frame),
    Route("POST", "/clients/label", Role.OPERATOR, "client-label", submit_label, "client.label"),
    Route("GET", "/clients/{client}", Role.VIEWER, "client", show_client),
    api_route("GET", "/api/v1/clients", Role.VIEWER, "api-clients", list_clients),
    api_route("GET", "/api/v1/clients/{client}", Role.VIEWER, "api-client", get_client),
    api_route(
        "GET", "/api/v1/clients/{client}/frames", Role.VIEWER, "api-client-frames", list_frames
    ),
    *Resource(
        run=disconnect_client, role=Role.OPERATOR, audit="client.disconnect",
        page=Page("/clients/{client}/disconnect", "client-disconnect", done=_disconnected),
        api=Api("DELETE", "/api/v1/clients/{client}", "api-client-disconnect"),
    ).routes(),
)  # fmt: skip
