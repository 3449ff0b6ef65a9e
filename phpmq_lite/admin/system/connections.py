"""The state of connections: statistics, held messages, and the rows of those that closed."""

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any, Final

from phpmq_lite.admin import formats
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import From
from phpmq_lite.admin.http.input import parse_number
from phpmq_lite.admin.http.problems import not_found
from phpmq_lite.broker.broker import Broker
from phpmq_lite.server import processes
from phpmq_lite.server.frame_recorder import FrameRecorder, watch_client
from phpmq_lite.server.status import ClientStatus
from phpmq_lite.storage.read.consumers import ClientRow, StoredClients

HELD_SHOWN: Final = 50
CLOSED_MS: Final = 24 * 3_600_000  # how long a closed connection stays in the list
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid and gid of a Unix socket's peer


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
