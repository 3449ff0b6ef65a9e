"""What pages and API show of connections: labels, figures, what is held, frames and bad bytes."""

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from itertools import islice
from typing import Any, Final

from aiohttp import web

from phpmq_lite.admin import formats, processes
from phpmq_lite.admin.access.identity import allowed_queues, identity_of, may_use
from phpmq_lite.admin.acting import commands
from phpmq_lite.admin.context import Answer, Context, context_of
from phpmq_lite.broker.broker import Broker
from phpmq_lite.server.inspector import FrameRecorder, ProtocolErrorRecord, RecordedFrame, watch_in
from phpmq_lite.server.status import ClientStatus
from phpmq_lite.storage.read.accounts import SavedItems

HELD_SHOWN: Final = 50
CLOSED_MS: Final = 24 * 3_600_000  # how long ended connections are listed
LABEL: Final = "label"  # kind of what is saved
LABEL_MAX: Final = 60  # characters
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid of a Unix peer
_ELSEWHERE: Final = "not shown: a queue that you may not see"


@dataclass(slots=True, frozen=True)
class Held:
    """A message that a connection holds."""

    queue: str
    seq: int
    message_id: str
    held_ms: int
    deliveries: int
    size: int


@dataclass(slots=True)
class Look:
    """One look at an open connection, taken between two batches."""

    is_open: bool = False
    held: list[Held] = field(default_factory=list)  # the longest held first
    held_total: int = 0
    recorder: FrameRecorder | None = None
    pid: int | None = None  # of a Unix peer


# -- labels


async def labels_of(context: Context) -> dict[str, str]:
    """Give the labels that people gave to addresses and networks."""
    rows = await SavedItems(context.readers).all(LABEL)
    return {row.name: row.content for row in rows if isinstance(row.content, str)}


def host_of(address: str) -> str:
    """Give the address without its port; the whole text where there is none."""
    place = processes.split_address(address)
    return address if place is None else str(place[0])


def label_of(address: str, labels: Mapping[str, str]) -> str:
    """Give the label of an address: its own, else that of the narrowest network round it."""
    if not labels:
        return ""
    host = host_of(address)
    if host in labels:
        return labels[host]
    place = processes.split_address(address)
    if place is None:
        return ""
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
    """Read what a label may be given to: an address, a network, or ``unix``; None: neither."""
    text = text.strip()
    if text == "unix":
        return text
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return None
    is_one = network.prefixlen == network.max_prefixlen
    return str(network.network_address) if is_one else str(network)


# -- figures


def figures(client: ClientStatus) -> dict[str, str]:
    """Give what the cells of a connection show, by the name of their live field."""
    held = sum(held for _, held in client.queues.values())
    credit = sum(credit for credit, _ in client.queues.values())
    return {
        "held": formats.number(held),
        "credit": formats.number(credit),
        "acks": formats.rate(client.acked_per_s),
        "published": formats.number(client.published),
        "acked": formats.number(client.acked),
        "in": formats.size(client.bytes_in),
        "out": formats.size(client.bytes_out),
        "speaks": speaks(client.framing, client.packet_header, client.revision),
        "paused": formats.visible(client.paused_reason or ""),
    }


def speaks(framing: str | None, packet_header: int | None, revision: str | None) -> str:
    """Say what a connection has shown of how it speaks."""
    if framing is None:
        return "nothing yet"
    words = [framing, str(packet_header or ""), revision or ""]
    return " ".join(word for word in words if word)


# -- one connection


async def look_at(request: web.Request, client: int, *, is_watching: bool) -> Look:
    """Look at a connection; ``is_watching`` begins or goes on recording its frames."""
    context = context_of(request)
    allowed = allowed_queues(request)
    now_s = asyncio.get_running_loop().time()
    inspector = context.engine.figures.inspector

    def look(core: Broker, answer: Answer) -> None:
        made = Look()
        connection = core.connections.get(client)
        if connection is not None:
            made.is_open = True
            _add_held(made, core, connection, allowed)
            made.pid = _unix_pid(connection)
        if is_watching:
            made.recorder = watch_in(core, inspector, client, now_s)
        answer(made)

    found: Look = await commands.call(context, look)
    return found


def _add_held(look: Look, core: Broker, connection: Any, allowed: frozenset[int] | None) -> None:
    now_ms = core.state.now.steady_ms
    for consumer in connection.consumers.values():
        if allowed is not None and consumer.queue.queue_id not in allowed:
            continue
        look.held_total += len(consumer.held)
        for message in islice(consumer.held.values(), HELD_SHOWN):
            look.held.append(
                Held(
                    consumer.queue.name,
                    message.seq,
                    message.message_id.decode(),
                    max(0, now_ms - message.held_since_ms),
                    message.deliveries,
                    message.size,
                )
            )
    look.held.sort(key=lambda held: -held.held_ms)
    del look.held[HELD_SHOWN:]


def _unix_pid(connection: Any) -> int | None:
    if connection.kind != "unix" or not hasattr(socket, "SO_PEERCRED"):
        return None
    transport = connection.peer.transport
    peer = None if transport is None else transport.get_extra_info("socket")
    if peer is None:
        return None
    try:
        raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:  # closed already; the core hears of it in this batch or the next
        return None
    pid: int = _CREDENTIALS.unpack(raw)[0]
    return pid or None


async def process_of(address: str, pid: int | None) -> processes.Process | None:
    """Find the process at the other end, in a thread; None where it cannot be seen."""
    if pid is not None:
        return await asyncio.to_thread(processes.describe, pid)
    return await asyncio.to_thread(processes.find, address)


def is_local(address: str, kind: str) -> bool:
    """Tell whether a connection comes from this machine."""
    place = processes.split_address(address)
    return kind == "unix" or (place is not None and processes.is_loopback(place[0]))


# -- the inspector


def frame_row(
    recorded: RecordedFrame, began_at: int, may_see: Callable[[str], bool]
) -> dict[str, Any]:
    """Make the row of a frame; the lines of ``bytes`` and ``meaning`` belong together."""
    frame = recorded.frame
    row: dict[str, Any] = {
        "id": f"{began_at}.{recorded.number}",
        "kind": "in" if recorded.is_inbound else "out",
        "at": recorded.at_ms,
        "direction": "from the client" if recorded.is_inbound else "to the client",
        "what": frame.kind,
        "size": formats.size(frame.size),
    }
    if frame.queue is not None and not may_see(frame.queue):
        return row | {"bytes": "", "meaning": _ELSEWHERE}
    return row | {
        "bytes": "\n".join(_line(piece.raw, piece.cut) for piece in frame.pieces),
        "meaning": "\n".join(formats.visible(piece.meaning) for piece in frame.pieces),
    }


def _line(raw: bytes, cut: int) -> str:
    rest = f" … {formats.number(cut)} more bytes" if cut else ""
    return shown_bytes(raw) + rest


def shown_bytes(raw: bytes) -> str:
    """Write bytes in one line: text as it is, all else and what is hidden as escapes."""
    return formats.visible(raw.decode(errors="backslashreplace"))


def sees(request: web.Request) -> Callable[[str], bool]:
    """Give what tells whether the viewer may see frames of a queue."""
    if not identity_of(request).queues:
        return lambda _name: True
    return lambda name: may_use(request, name)


def bad_byte_row(bad: ProtocolErrorRecord, *, is_whole: bool) -> dict[str, Any]:
    """Make the row of a protocol error; who is limited to some queues sees no bytes."""
    got = shown_bytes(bad.found) if is_whole else ""
    return {
        "at": bad.at_ms,
        "client": bad.client,
        "address": bad.address,
        "code": bad.code,
        "detail": formats.visible(bad.detail) if is_whole else bad.code,
        "expected": bad.expected,
        "offset": bad.offset,
        "before": shown_bytes(bad.before) if is_whole else "",
        "bad": shown_bytes(bad.found[:1]) if is_whole else "",
        "after": shown_bytes(bad.found[1:]) if is_whole else "",
        "got": got,
    }


def errors_of(request: web.Request, client: int | None = None) -> list[dict[str, Any]]:
    """Give the last protocol errors, the newest first; of one connection, or of all."""
    is_whole = not identity_of(request).queues
    errors = context_of(request).engine.figures.inspector.errors
    return [
        bad_byte_row(bad, is_whole=is_whole)
        for bad in reversed(errors)
        if client is None or bad.client == client
    ]
