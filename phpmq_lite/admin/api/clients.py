"""Connections over HTTP: open and ended ones, what they hold, their frames, disconnect."""

from collections.abc import Callable
from typing import Final, Literal, Self

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin import peers
from phpmq_lite.admin.access.identity import allowed_queues, entry_of
from phpmq_lite.admin.acting import commands
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_json
from phpmq_lite.admin.pages.client import number_of, row_of, status_of_client
from phpmq_lite.admin.pages.clients import closed_page, consuming
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import Limit
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.server.inspector import FramePiece, RecordedFrame
from phpmq_lite.server.status import ClientStatus
from phpmq_lite.storage.read.consumers import ClientRow


class ClientsQuery(BaseModel):
    """Which connections to list."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state: Literal["open", "closed"] = "open"  # closed: within the last 24 hours
    queue: str = Field("", max_length=LONGEST_NAME)  # open: only its consumers
    limit: Limit = 50  # closed
    cursor: str | None = Field(None, max_length=200)  # closed


class ConsumedOut(BaseModel):
    """What a connection consumes of one queue."""

    credit: int
    held: int


class ConnectionOut(BaseModel):
    """A connection; of an ended one what was stored."""

    client: int
    kind: str
    address: str
    label: str
    state: Literal["open", "closed"]
    opened_at: int  # Unix ms
    closed_at: int | None
    reason: str | None  # why it ended
    framing: str | None
    revision: str | None
    queues: dict[str, ConsumedOut] = {}
    published: int | None = None
    acked: int | None = None
    acked_per_s: float | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    paused_reason: str | None = None

    @classmethod
    def of_open(cls, client: ClientStatus, label: str) -> Self:
        """Take over what the status says."""
        return cls(
            client=client.client,
            kind=client.kind,
            address=client.address,
            label=label,
            state="open",
            opened_at=client.opened_at,
            closed_at=None,
            reason=None,
            framing=client.framing,
            revision=client.revision,
            queues={
                name: ConsumedOut(credit=credit, held=held)
                for name, (credit, held) in client.queues.items()
            },
            published=client.published,
            acked=client.acked,
            acked_per_s=round(client.acked_per_s, 3),
            bytes_in=client.bytes_in,
            bytes_out=client.bytes_out,
            paused_reason=client.paused_reason,
        )

    @classmethod
    def of_row(cls, row: ClientRow, label: str) -> Self:
        """Take over a stored row."""
        return cls(
            client=row.client,
            kind=row.kind,
            address=row.address,
            label=label,
            state="closed",
            opened_at=row.opened_at,
            closed_at=row.closed_at,
            reason=row.reason,
            framing=row.framing,
            revision=row.revision,
        )


class ConnectionsOut(BaseModel):
    """A list of connections."""

    items: list[ConnectionOut]
    next: str | None


class HeldOut(BaseModel):
    """A message that a connection holds."""

    queue: str
    id: str
    held_s: float
    deliveries: int
    size: int


class ConnectionDetailOut(ConnectionOut):
    """A connection with what it holds, the longest held first, at most 50."""

    held: list[HeldOut] = []
    held_total: int = 0


class PieceOut(BaseModel):
    """Bytes of a frame that belong together, and what they say."""

    bytes: str  # hex; of a content at most 256
    cut: int  # bytes that are not here
    meaning: str


class FrameOut(BaseModel):
    """One frame."""

    number: int  # rises within a recording
    at: int  # Unix ms
    direction: Literal["in", "out"]  # in: from the client
    kind: str
    queue: str | None
    size: int
    pieces: list[PieceOut]  # empty: of a queue that you may not see


class BadByteOut(BaseModel):
    """A protocol error: the first wrong byte."""

    at: int  # Unix ms
    code: str
    detail: str
    offset: int  # bytes of the connection before it
    expected: str
    got: str


class FramesOut(BaseModel):
    """The last frames of a connection, and its protocol errors."""

    began_at: int | None  # Unix ms, of the recording
    missed: int  # frames that a flood kept out
    frames: list[FrameOut]
    errors: list[BadByteOut]


class DisconnectedOut(BaseModel):
    """What became of a connection's messages."""

    client: int
    returned: int  # messages that go back to their place


async def clients(request: web.Request) -> web.StreamResponse:
    """List connections that are open, or ended within the last 24 hours."""
    query = query_of(request, ClientsQuery)
    labels = await peers.labels_of(context_of(request))
    if query.state == "open":
        found = consuming(request, query.queue)
        items = [ConnectionOut.of_open(c, peers.label_of(c.address, labels)) for c in found]
        return as_json(ConnectionsOut(items=items, next=None))
    rows, next_ = await closed_page(request, query.cursor, query.limit)
    items = [ConnectionOut.of_row(row, peers.label_of(row.address, labels)) for row in rows]
    return as_json(ConnectionsOut(items=items, next=next_))


async def client(request: web.Request) -> web.StreamResponse:
    """Give one connection, and what it holds."""
    number = number_of(request.match_info["client"])
    row = await row_of(request, number)
    label = peers.label_of(row.address, await peers.labels_of(context_of(request)))
    status = status_of_client(request, number)
    if status is None:
        return as_json(ConnectionDetailOut.of_row(row, label))
    look = await peers.look_at(request, number, is_watching=False)
    made = ConnectionDetailOut.of_open(status, label)
    made.held_total = look.held_total
    made.held = [
        HeldOut(
            queue=held.queue,
            id=held.message_id,
            held_s=held.held_ms / 1_000,
            deliveries=held.deliveries,
            size=held.size,
        )
        for held in look.held
    ]
    return as_json(made)


async def frames(request: web.Request) -> web.StreamResponse:
    """Give the last frames of a connection; recording begins with the first such call."""
    number = number_of(request.match_info["client"])
    await row_of(request, number)
    look = await peers.look_at(request, number, is_watching=True)
    may_see = peers.sees(request)
    recorder = look.recorder
    return as_json(
        FramesOut(
            began_at=None if recorder is None else recorder.began_at,
            missed=0 if recorder is None else recorder.missed,
            frames=[] if recorder is None else [_frame(one, may_see) for one in recorder.frames],
            errors=[
                BadByteOut(**{name: row[name] for name in BadByteOut.model_fields})
                for row in peers.errors_of(request, number)
            ],
        )
    )


def _frame(recorded: RecordedFrame, may_see: Callable[[str], bool]) -> FrameOut:
    frame = recorded.frame
    is_hidden = frame.queue is not None and not may_see(frame.queue)
    return FrameOut(
        number=recorded.number,
        at=recorded.at_ms,
        direction="in" if recorded.is_inbound else "out",
        kind=frame.kind,
        queue=None if is_hidden else frame.queue,
        size=frame.size,
        pieces=[] if is_hidden else [_piece(piece) for piece in frame.pieces],
    )


def _piece(piece: FramePiece) -> PieceOut:
    return PieceOut(bytes=piece.raw.hex(), cut=piece.cut, meaning=piece.meaning)


async def disconnect(request: web.Request) -> web.StreamResponse:
    """Close a connection; what it holds goes back to its place."""
    context = context_of(request)
    number = number_of(request.match_info["client"])
    entry = entry_of(request, target=str(number))
    count = await commands.disconnect(context, entry, number, allowed_queues(request))
    return as_json(DisconnectedOut(client=number, returned=count))


ROUTES: Final = (
    Route(
        "GET", "/api/v1/clients", Role.VIEWER, "api-clients", clients, query=ClientsQuery,
        gives=ConnectionsOut,
    ),
    Route(
        "GET", "/api/v1/clients/{client}", Role.VIEWER, "api-client", client,
        gives=ConnectionDetailOut,
    ),
    Route(
        "GET", "/api/v1/clients/{client}/frames", Role.VIEWER, "api-client-frames", frames,
        gives=FramesOut,
    ),
    Route(
        "DELETE", "/api/v1/clients/{client}", Role.OPERATOR, "api-client-disconnect", disconnect,
        "client.disconnect", gives=DisconnectedOut,
    ),
)  # fmt: skip
