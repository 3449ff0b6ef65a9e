"""Connections: labels, statistics, held messages, recorded frames and protocol errors."""

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from itertools import islice
from typing import Annotated, Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin import formats
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.context import Context
from phpmq_lite.admin.http.endpoint import Endpoints, From
from phpmq_lite.admin.http.fields import QueryModel
from phpmq_lite.admin.http.input import parse_number
from phpmq_lite.admin.http.problems import not_found
from phpmq_lite.broker.broker import Broker
from phpmq_lite.server import frame_explanation, processes
from phpmq_lite.server.frame_recorder import (
    FrameRecorder,
    ProtocolErrorRecord,
    RecordedFrame,
    watch_client,
)
from phpmq_lite.server.status import ClientStatus
from phpmq_lite.storage.read.accounts import SavedItems
from phpmq_lite.storage.read.consumers import ClientRow, StoredClients

endpoints: Final = Endpoints()
HELD_SHOWN: Final = 50
CLOSED_MS: Final = 24 * 3_600_000  # how long a closed connection stays in the list
LABEL: Final = "label"  # kind of the saved items that store labels
LABEL_MAX: Final = 60  # maximum number of characters in a label
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid and gid of a Unix socket's peer
HIDDEN_QUEUE_TEXT: Final = "hidden: you do not have access to this queue"


@dataclass(slots=True, frozen=True)
class HeldMessage:
    """A message that has been dispatched to a connection but not yet settled."""

    queue: str
    seq: int
    message_id: str
    held_ms: int
    deliveries: int
    size: int


@dataclass(slots=True)
class ConnectionSnapshot:
    """The state of a connection between two batches."""

    is_open: bool = False
    held: list[HeldMessage] = field(default_factory=list)  # longest held first
    held_total: int = 0
    recorder: FrameRecorder | None = None
    pid: int | None = None  # process id of the peer on a Unix socket


# -- labels


async def read_labels(context: Context) -> dict[str, str]:
    """Return all labels, keyed by the address or network that each applies to."""
    rows = await SavedItems(context.readers).all(LABEL)
    return {row.name: row.content for row in rows if isinstance(row.content, str)}


def host_of(address: str) -> str:
    """Return an address without its port, or unchanged if it has no port."""
    place = processes.split_address(address)
    return address if place is None else str(place[0])


def label_of(address: str, labels: Mapping[str, str]) -> str:
    """Return an address's label, or that of the smallest labelled network containing it."""
    place = processes.split_address(address) if labels else None
    if (host := host_of(address)) in labels or place is None:
        return labels.get(host, "")
    best, width = "", -1
    for name, label in labels.items():
        try:
            network = ip_network(name, strict=False)
        except ValueError:
            continue
        if place[0] in network and network.prefixlen > width:
            best, width = label, network.prefixlen
    return best


def read_label_name(text: str) -> str | None:
    """Parse the address, network or ``unix`` that a label applies to, or return None if invalid."""
    text = text.strip()
    if text == "unix":
        return text
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return None
    is_one = network.prefixlen == network.max_prefixlen
    return str(network.network_address) if is_one else str(network)


# -- statistics


def format_cells(client: ClientStatus) -> dict[str, str]:
    """Return the table cells for a connection, keyed by the names of the live fields."""
    held = sum(held for _, held in client.queues.values())
    credit = sum(credit for credit, _ in client.queues.values())
    return {
        "held": formats.format_number(held),
        "credit": formats.format_number(credit),
        "acks": formats.format_rate(client.acked_per_s),
        "published": formats.format_number(client.published),
        "acked": formats.format_number(client.acked),
        "in": formats.format_size(client.bytes_in),
        "out": formats.format_size(client.bytes_out),
        "speaks": describe_protocol(client.framing, client.packet_header, client.revision),
        "paused": formats.escape_hidden(client.paused_reason or ""),
    }


def describe_protocol(framing: str | None, packet_header: int | None, revision: str | None) -> str:
    if framing is None:
        return "nothing yet"
    words = [framing, str(packet_header or ""), revision or ""]
    return " ".join(word for word in words if word)


# -- one connection


async def take_snapshot(call: Call, client: int, *, is_watching: bool) -> ConnectionSnapshot:
    """Return the state of a connection; if ``is_watching``, start recording its frames."""
    broker, allowed = call.context.broker, call.allowed
    now_s = asyncio.get_running_loop().time()

    def take(core: Broker, reply: Callable[[ConnectionSnapshot], None]) -> None:
        snapshot = ConnectionSnapshot()
        connection = core.connections.get(client)
        if connection is not None:
            snapshot.is_open = True
            _add_held(snapshot, core, connection, allowed)
            snapshot.pid = _unix_pid(connection)
        if is_watching:
            snapshot.recorder = watch_client(core, broker.counters.inspector, client, now_s)
        reply(snapshot)

    return await broker.run(take)


def _add_held(
    snapshot: ConnectionSnapshot, core: Broker, connection: Any, allowed: frozenset[int] | None
) -> None:
    now_ms = core.now.steady_ms
    for consumer in connection.consumers.values():
        if allowed is not None and consumer.queue.queue_id not in allowed:
            continue
        snapshot.held_total += len(consumer.held)
        for message in islice(consumer.held.values(), HELD_SHOWN):
            snapshot.held.append(
                HeldMessage(
                    consumer.queue.name,
                    message.seq,
                    message.message_id.decode(),
                    max(0, now_ms - message.held_since_ms),
                    message.deliveries,
                    message.size,
                )
            )
    snapshot.held.sort(key=lambda held: -held.held_ms)
    del snapshot.held[HELD_SHOWN:]


def _unix_pid(connection: Any) -> int | None:
    if connection.kind != "unix" or not hasattr(socket, "SO_PEERCRED"):
        return None
    transport = connection.peer.transport
    peer = None if transport is None else transport.get_extra_info("socket")
    if peer is None:
        return None
    try:
        raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:  # the socket is closed; the core is notified in this or the next batch
        return None
    pid: int = _CREDENTIALS.unpack(raw)[0]
    return pid or None


def is_local(address: str, kind: str) -> bool:
    place = processes.split_address(address)
    return kind == "unix" or (place is not None and place[0].is_loopback)


def parse_client_number(text: str) -> int:
    """Parse a connection number; raise a 404 ``Problem`` if it is not a number."""
    if (number := parse_number(text)) is None:
        raise not_found("client", text)
    return number


async def find_client(call: Call) -> ClientRow:
    """Return the row of the connection in the path, open or closed; raise a 404 ``Problem``."""
    number = parse_client_number(call.path("client"))
    if (open_ := find_client_status(call, number)) is not None:
        kind, framing, revision = open_.kind, open_.framing, open_.revision
        return ClientRow(
            number, kind, open_.address, open_.opened_at, None, framing, revision, None
        )
    row = await StoredClients(call.context.readers).one(number) if number else None
    if row is None:
        raise not_found("client", str(number))
    return row


Client = Annotated[ClientRow, From(find_client)]
ClientNumber = Annotated[int, From(lambda call: parse_client_number(call.path("client")))]


def find_client_status(call: Call, number: int) -> ClientStatus | None:
    """Return a connection's statistics, or None if the connection is not open."""
    return next((client for client in call.status.clients if client.client == number), None)


# -- frames and protocol errors


# -- frame inspector


def frame_row(
    recorded: RecordedFrame, began_at: int, may_see: Callable[[str], bool]
) -> dict[str, Any]:
    """Return a table row for a frame; line n of ``meaning`` explains line n of ``bytes``."""
    frame = recorded.frame
    row: dict[str, Any] = {
        "id": f"{began_at}.{recorded.number}",
        "kind": "in" if recorded.is_inbound else "out",
        "at": recorded.at_ms,
        "direction": "from the client" if recorded.is_inbound else "to the client",
        "what": frame.kind,
        "size": formats.format_size(frame.size),
    }
    if frame.queue is not None and not may_see(frame.queue):
        return row | {"bytes": "", "meaning": HIDDEN_QUEUE_TEXT}
    return row | {
        "bytes": "\n".join(
            format_bytes(piece.raw)
            + (f" … {formats.format_number(piece.cut)} more bytes" if piece.cut else "")
            for piece in frame.pieces
        ),
        "meaning": "\n".join(formats.escape_hidden(piece.meaning) for piece in frame.pieces),
    }


def format_bytes(raw: bytes) -> str:
    """Format bytes on one line, escaping everything except visible characters."""
    return formats.escape_hidden(raw.decode(errors="backslashreplace"))


def bad_byte_row(bad: ProtocolErrorRecord, *, is_whole: bool) -> dict[str, Any]:
    """Return a table row for a protocol error; include its bytes only if ``is_whole`` is true."""
    return {
        "at": bad.at_ms,
        "client": bad.client,
        "address": bad.address,
        "code": bad.code,
        "detail": formats.escape_hidden(bad.detail) if is_whole else bad.code,
        "expected": bad.expected,
        "offset": bad.offset,
        "before": format_bytes(bad.before) if is_whole else "",
        "bad": format_bytes(bad.received[:1]) if is_whole else "",
        "after": format_bytes(bad.received[1:]) if is_whole else "",
        "got": format_bytes(bad.received) if is_whole else "",
    }


def list_protocol_errors(call: Call, client: int | None = None) -> list[dict[str, Any]]:
    """Return the most recent protocol errors on one or all connections, newest first."""
    is_whole = not call.identity.queues
    return [
        bad_byte_row(bad, is_whole=is_whole)
        for bad in reversed(call.context.broker.counters.inspector.errors)
        if client is None or bad.client == client
    ]


FRAME_CHARACTERS: Final = 4_000  # a URL is limited to 8 KiB, and most bytes must be percent-encoded


class FramePageQuery(QueryModel):
    """The bytes to explain on the frame page; longer frames require the command line."""

    frame: str = Field("", max_length=FRAME_CHARACTERS)
    encoding: frame_explanation.Encoding = "auto"


@endpoints.page("/frame", "frame")
async def show_frame(call: Call, query: FramePageQuery) -> web.Response:
    """Explain the packets, revision, framing and effect of pasted bytes."""
    explanation, problem = None, ""
    pasted = query.frame.replace("\r\n", "\n").removesuffix("\n")  # browsers send CRLF line breaks
    if pasted:
        try:
            data = frame_explanation.pasted_bytes(pasted.encode("utf-8", "replace"), query.encoding)
            explanation = frame_explanation.as_data(frame_explanation.explain_bytes(data))
        except frame_explanation.UnreadableError as error:
            problem = str(error)
    return await call.render("frame.html", query=query, found=explanation, error=problem)


class FramePieceView(BaseModel):
    """A part of a frame and its meaning."""

    bytes: str = Field(description="bytes in hex; for a body, only the first 256")
    cut: int = Field(description="number of bytes omitted from this part")
    meaning: str = Field(description="explanation of the bytes")


class FrameView(BaseModel):
    """A recorded frame."""

    number: int = Field(description="frame number within the recording, starting at 1")
    at: int = Field(description="when the frame was recorded, Unix ms")
    direction: Literal["in", "out"] = Field(description="in (from client) or out (to client)")
    kind: str = Field(description="frame type: publish, consume, dispatch, acknowledge, receipt, …")
    queue: str | None = Field(description="queue named in the frame; null if none or hidden")
    size: int = Field(description="size on the wire in bytes, including line breaks")
    pieces: list[FramePieceView] = Field(description="bytes by packet and field; empty if hidden")


class ProtocolErrorView(BaseModel):
    """A protocol error and where it occurred."""

    at: int = Field(description="when the error occurred, Unix ms")
    code: str = Field(description="violated protocol rule, such as bad-header")
    detail: str = Field(description="explanation of the error")
    offset: int = Field(description="number of bytes received before the error")
    expected: str = Field(description="what was expected instead")
    got: str = Field(description="bytes starting at the error; empty if not recorded or hidden")


class FramesView(BaseModel):
    """A connection's most recent frames and protocol errors."""

    began_at: int | None = Field(
        description="when recording began, Unix ms; null if nothing is being recorded"
    )
    missed: int = Field(description="frames that were not recorded because too many arrived")
    frames: list[FrameView] = Field(description="most recent frames, up to 50, oldest first")
    errors: list[ProtocolErrorView] = Field(description="protocol errors, newest first")


@endpoints.api("GET /clients/{client}/frames", "api-client-frames")
async def list_frames(call: Call, client: Client) -> FramesView:
    """Return a connection's most recent frames. The first call starts recording."""
    number = client.client
    recorder = (await take_snapshot(call, number, is_watching=True)).recorder
    return FramesView(
        began_at=None if recorder is None else recorder.began_at,
        missed=0 if recorder is None else recorder.skipped,
        frames=[] if recorder is None else [_frame(call, frame) for frame in recorder.frames],
        errors=[ProtocolErrorView(**row) for row in list_protocol_errors(call, number)],
    )


def _frame(call: Call, recorded: RecordedFrame) -> FrameView:
    frame = recorded.frame
    is_hidden = frame.queue is not None and not call.may_use(frame.queue)
    return FrameView(
        number=recorded.number,
        at=recorded.at_ms,
        direction="in" if recorded.is_inbound else "out",
        kind=frame.kind,
        queue=None if is_hidden else frame.queue,
        size=frame.size,
        pieces=[
            FramePieceView(bytes=piece.raw.hex(), cut=piece.cut, meaning=piece.meaning)
            for piece in (() if is_hidden else frame.pieces)
        ],
    )
