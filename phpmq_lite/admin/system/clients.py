"""The pages and API of connections: listing, details and disconnecting."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Self

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin import formats
from phpmq_lite.admin.formats import plural
from phpmq_lite.admin.http import cursors
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.confirmation import Confirmation
from phpmq_lite.admin.http.endpoint import Done, Endpoints
from phpmq_lite.admin.http.fields import (
    BodySize,
    Deliveries,
    LimitParameter,
    ListQuery,
    MessageId,
    QueryModel,
)
from phpmq_lite.admin.http.input import read_query
from phpmq_lite.admin.http.live_feeds import FeedState, LiveValues
from phpmq_lite.admin.http.output import ListPage, PerSecond, ResponseModel, respond
from phpmq_lite.admin.system import connections
from phpmq_lite.admin.system.connections import (
    Client,
    ClientNumber,
    find_client_status,
    parse_client_number,
)
from phpmq_lite.admin.system.frames import frame_row, list_protocol_errors
from phpmq_lite.admin.system.labels import host_of, label_of, read_labels
from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.roles import Role
from phpmq_lite.server import processes
from phpmq_lite.server.frame_recorder import FrameRecorder
from phpmq_lite.server.status import ClientStatus
from phpmq_lite.storage.read.consumers import ClientRow, StoredClients

endpoints: Final = Endpoints()
SHOWN: Final = 200  # maximum number of open connections on the page
_SCOPE: Final = "closed clients"


class ClientsPageQuery(ListQuery):
    """Query for the connections page: a filter, and which page of closed connections to show."""

    queue: str = Field("", max_length=LONGEST_NAME)
    state: Literal["open", "closed", "errors"] = "open"


@endpoints.page("/clients", "clients")
async def show_clients(call: Call, query: ClientsPageQuery) -> web.StreamResponse:
    """Show open connections, connections closed within the last day, or protocol errors."""
    open_, closed, next_ = list_consuming(call, query.queue), list[ClientRow](), None
    if query.state == "closed":
        closed, next_ = await read_closed_page(call, query.cursor, query.limit)
    if query.format != "html" and query.state != "errors":
        clients = open_ if query.state == "open" else closed
        return respond(await _connections_view(call, clients, next_), query.format)
    labels = await read_labels(call.context)
    return await call.render(
        "clients.html",
        query=query,
        clients=open_[:SHOWN],
        total=len(open_),
        cells={client.client: connections.format_cells(client) for client in open_[:SHOWN]},
        label=lambda address: label_of(address, labels),
        closed=closed,
        next=next_,
        errors=list_protocol_errors(call),
        speaks=connections.describe_protocol,
    )


def list_consuming(call: Call, queue: str = "") -> list[ClientStatus]:
    """Return all open connections, or only the connections that consume from the given queue."""
    return [client for client in call.status.clients if not queue or queue in client.queues]


async def read_closed_page(
    call: Call, cursor: str | None, limit: int
) -> tuple[list[ClientRow], str | None]:
    """Return connections closed within the last day, newest first, with the next page's cursor."""
    before = cursors.pair_in(cursors.decode_cursor(_SCOPE, cursor))
    since_ms = call.now_ms - connections.CLOSED_MS
    rows = await StoredClients(call.context.readers).closed(since_ms, before=before, limit=limit)
    if len(rows) < limit:
        return rows, None
    last = rows[-1]
    return rows, cursors.encode_cursor(_SCOPE, "after", [last.closed_at or 0, last.client])


async def live_clients(call: Call, _argument: str, ids: tuple[int, ...]) -> LiveValues:
    query = read_query(call.request, ClientsPageQuery)
    clients, listed = list_consuming(call, query.queue), frozenset(ids)
    texts = {
        f"{client.client}.{key}": value
        for client in clients
        if client.client in listed
        for key, value in connections.format_cells(client).items()
    }
    new = sum(client.client not in listed for client in clients)
    summary = f"{formats.format_number(len(clients))} clients"
    return LiveValues(texts, new=new if query.state == "open" else 0, says=summary)


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


@endpoints.page("/clients/{client}", "client")
async def show_client(call: Call, row: Client, query: ClientPageQuery) -> web.Response:
    """Show a connection with its held messages, protocol and most recent frames."""
    number, is_asking = row.client, query.confirm is not None
    snapshot = await connections.take_snapshot(call, number, is_watching=not is_asking)
    if is_asking:
        return await call.render("confirm.html", ask=_disconnection(call, row, snapshot))
    status, process = find_client_status(call, number), None
    is_here = connections.is_local(row.address, row.kind) and not (status and status.relay)
    may_ask = is_here and call.identity.role.may(Role.OPERATOR) and snapshot.is_open
    if query.process and may_ask:
        process = (
            await asyncio.to_thread(processes.find_peer, row.address)
            if snapshot.pid is None
            else await asyncio.to_thread(processes.describe, snapshot.pid)
        )
    labels = await read_labels(call.context)
    return await call.render(
        "client.html",
        row=row,
        look=snapshot,
        client=status,
        cells=connections.format_cells(status) if status else {},
        label=label_of(row.address, labels),
        own_label=labels.get(host_of(row.address), ""),
        host=host_of(row.address),
        may_ask=may_ask,
        asked=query.process is not None,
        process=process,
        frames=_frames(call, snapshot.recorder)[::-1],
        errors=list_protocol_errors(call, number),
        speaks=connections.describe_protocol,
    )


def _disconnection(
    call: Call, row: ClientRow, snapshot: connections.ConnectionSnapshot
) -> Confirmation:
    held, client_url = snapshot.held_total, call.url("client", client=row.client)
    text = "This connection is closed."
    if snapshot.is_open:
        text = "The client holds no messages."
        if held:
            returns = plural(held, "message returns to the queue", "messages return to the queue")
            keeps = plural(held, "keeps its id", "keep their ids")
            text = f"{formats.format_number(held)} {returns} ahead of newer messages and {keeps}."
        text += " A client with automatic reconnection comes back immediately."
    return Confirmation(
        title=f"Disconnect {formats.escape_hidden(row.address)}",
        is_danger=True,
        text=text,
        button=f"Disconnect client {row.client}",
        is_disabled=not snapshot.is_open,
        url=call.url("client-disconnect", client=row.client),
        back=client_url,
        crumbs=[("Clients", call.url("clients")), (row.address, client_url)],
    )


def _frames(call: Call, recorder: FrameRecorder | None, after: int = 0) -> list[dict[str, Any]]:
    """Return the recorded frames whose number is greater than ``after``."""
    if recorder is None:
        return []
    row = partial(frame_row, began_at=recorder.began_at, may_see=call.may_use)
    return [row(frame) for frame in recorder.frames if frame.number > after]


async def live_client(call: Call, argument: str, _ids: tuple[int, ...]) -> LiveValues:
    number = parse_client_number(argument)
    snapshot = await connections.take_snapshot(call, number, is_watching=True)
    status, is_open = find_client_status(call, number), snapshot.is_open
    cells = {} if status is None else connections.format_cells(status)
    rows, missed = _new_frames(call, snapshot.recorder)
    return LiveValues(
        {"state": "open" if is_open else "closed"} | cells,
        new=0,
        says=f"Messages held: {snapshot.held_total}" if is_open else "Connection closed",
        rows=rows,
        missed=missed,
    )


def _new_frames(call: Call, recorder: FrameRecorder | None) -> tuple[list[dict[str, Any]], int]:
    """Return a pair: the frames recorded since the last evaluation, and how many were dropped."""
    if recorder is None:
        return [], 0
    states, key = call.context.live.states, call.feed
    before = states.get(key)
    count, missed = 0, recorder.skipped
    if isinstance(before, _RecordingPosition) and before.began_at == recorder.began_at:
        count, missed = before.count, before.missed
    states[key] = _RecordingPosition(recorder.began_at, recorder.count, recorder.skipped)
    rows = _frames(call, recorder, count)
    return rows, recorder.count - count - len(rows) + recorder.skipped - missed


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
    name: str = Field("", description="name of the program, as it says; may be empty")
    version: str = Field("", description="version of the program, as it says; may be empty")
    pid: int | None = Field(None, description="number of its process, as it says; null if unknown")
    host: str = Field("", description="host of the program, as it says; may be empty")

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


@endpoints.api("GET /clients", "api-clients")
async def list_clients(call: Call, query: ClientsQuery) -> ListPage[ConnectionView]:
    """List open connections, or connections closed within the last 24 hours."""
    if query.state == "open":
        return await _connections_view(call, list_consuming(call, query.queue))
    rows, next_ = await read_closed_page(call, query.cursor, query.limit)
    return await _connections_view(call, rows, next_)


async def _connections_view(
    call: Call, clients: Sequence[ClientStatus | ClientRow], next_: str | None = None
) -> ListPage[ConnectionView]:
    labels = await read_labels(call.context)
    items = [ConnectionView.of_client(c, label_of(c.address, labels)) for c in clients]
    return ListPage[ConnectionView](items=items, next=next_)


@endpoints.api("GET /clients/{client}", "api-client")
async def get_client(call: Call, row: Client) -> ConnectionDetailView:
    """Return a connection and the messages that it holds."""
    label = label_of(row.address, await read_labels(call.context))
    status = find_client_status(call, row.client)
    if status is None:
        return ConnectionDetailView.of_client(row, label)
    snapshot = await connections.take_snapshot(call, row.client, is_watching=False)
    view = ConnectionDetailView.of_client(status, label)
    view.held_total = snapshot.held_total
    view.held = [HeldMessageView.of(held, held_s=held.held_ms / 1_000) for held in snapshot.held]
    return view


@endpoints.action(
    "/clients/{client}/disconnect",
    "client-disconnect",
    Role.OPERATOR,
    "client.disconnect",
    api="DELETE /clients/{client}",
)
async def disconnect_client(call: Call, number: ClientNumber) -> Done[DisconnectedView]:
    """Close a connection. Messages that it holds return to their positions in the queue."""
    call.audit(str(number))
    count = await call.run(queue_operations.disconnect, number, queues=call.allowed)
    returned = plural(count, "message returned to the queue", "messages returned to the queue")
    text = f"Client {number} was disconnected; {formats.format_number(count)} {returned}."
    view = DisconnectedView(client=number, returned=count)
    return Done(view, text, call.back(call.url("clients")))
