"""Clients of the tests: a blocking socket each, with the frames of the wire.

Nothing here reconnects, retries or hides an error.
"""

import json
import re
import socket
import ssl
import struct
import time
import urllib.request
from collections import deque
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

from phpmq_lite.broker_process import BrokerProcess
from phpmq_lite.protocol.connection import ClientSide
from phpmq_lite.protocol.frames import Dispatch, DispatchWithInfo, ReceiptFrame, Welcome

WAIT_S = 60.0  # for expected frames; only a defect makes a test wait this long
_keys = count(1)
AnyDispatch = Dispatch | DispatchWithInfo


def connect(address: int | str | Path, context: ssl.SSLContext | None = None) -> socket.socket:
    """Connect to a port of this machine, ``HOST:PORT``, ``[IPv6]:PORT`` or a Unix socket."""
    if isinstance(address, Path):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(WAIT_S)
        connection.connect(str(address))
        return connection
    text = f"127.0.0.1:{address}" if isinstance(address, int) else address
    host, _, port = text.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), WAIT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is not None:
        return context.wrap_socket(connection, server_hostname="localhost")
    return connection


class SocketClient:
    """A connection in compact framing and the newer revision; use it in a ``with``."""

    def __init__(
        self, address: int | str | Path | socket.socket, context: ssl.SSLContext | None = None
    ) -> None:
        if isinstance(address, socket.socket):
            self.socket = address  # connected already
        else:
            self.socket = connect(address, context)
        self.side = ClientSide()
        self.got: deque[Dispatch] = deque()  # not yet returned, in order
        self.receipts: deque[ReceiptFrame] = deque()
        self.informed: deque[DispatchWithInfo] = deque()
        self.welcomes: deque[Welcome] = deque()

    def __enter__(self) -> "SocketClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- sending

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def publish(self, queue: str, content: bytes, ttl_s: int = 0, key: bytes | None = None) -> None:
        """Send a 001."""
        self.send(self.side.publish(queue, content, ttl_s, key))

    def consume(self, queue: str, credit: int) -> None:
        """Send a 002."""
        self.send(self.side.consume(queue, credit))

    def ack(self, *dispatches: AnyDispatch) -> None:
        """Send a 004 for each."""
        self.send(b"".join(self.side.acknowledge(d.queue, d.message_id) for d in dispatches))

    def requeue(self, dispatch: AnyDispatch, ttl_s: int = 0) -> None:
        """Send a 005."""
        self.send(self.side.requeue(dispatch.queue, dispatch.message_id, ttl_s))

    def dead_letter(self, dispatch: AnyDispatch) -> None:
        """Send a 006."""
        self.send(self.side.dead_letter(dispatch.queue, dispatch.message_id))

    def publish_with(
        self, queue: str, content: bytes, key: bytes | None = None, **options: Any
    ) -> None:
        """Send a 010."""
        self.send(self.side.publish_with_options(queue, content, to_json(options), key))

    def settle(
        self, dispatch: AnyDispatch, action: str, content: bytes | None = None, **options: Any
    ) -> None:
        """Send a 011."""
        named = to_json({"action": action, **options})
        self.send(self.side.settle(dispatch.queue, dispatch.message_id, named, content))

    def consume_with(self, queue: str, credit: int, **options: Any) -> None:
        """Send a 012."""
        self.send(self.side.consume_with_options(queue, credit, to_json(options)))

    # -- receiving

    def take(self) -> bool:
        """Read once; return False at the end of the connection."""
        data = self.socket.recv(1 << 18)
        for frame in self.side.receive(data):
            match frame:
                case Dispatch():
                    self.got.append(frame)
                case DispatchWithInfo():
                    self.informed.append(frame)
                case ReceiptFrame():
                    self.receipts.append(frame)
                case Welcome():
                    self.welcomes.append(frame)
        assert self.side.error is None, self.side.error
        return bool(data)

    def _wait(self, what: Callable[[], bool]) -> None:
        while not what():
            assert self.take(), "the broker closed the connection"

    def dispatches(self, number: int) -> list[Dispatch]:
        self._wait(lambda: len(self.got) >= number)
        return [self.got.popleft() for _ in range(number)]

    def dispatch_with_info(self) -> tuple[DispatchWithInfo, dict[str, Any]]:
        """Wait for a 013; return it with its packet 06."""
        self._wait(lambda: bool(self.informed))
        frame = self.informed.popleft()
        return frame, json.loads(frame.info)

    def welcome(self) -> tuple[bytes, dict[str, Any]]:
        """Wait for a 015; return its key and its packet 06."""
        self._wait(lambda: bool(self.welcomes))
        frame = self.welcomes.popleft()
        return frame.key, json.loads(frame.options)

    def read_nothing(self) -> None:
        """Limit the receive buffer, which would otherwise grow."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)

    def acknowledge_until(self, message_id: bytes) -> None:
        seen: set[bytes] = set()
        while message_id not in seen:
            (dispatch,) = self.dispatches(1)
            self.ack(dispatch)
            seen.add(dispatch.message_id)

    def bodies(self, number: int) -> list[bytes]:
        return [dispatch.content for dispatch in self.dispatches(number)]

    def receipt(self) -> ReceiptFrame:
        self._wait(lambda: bool(self.receipts))
        return self.receipts.popleft()

    def confirm(
        self, queue: str, content: bytes, ttl_s: int = 0, key: bytes | None = None
    ) -> str | None:
        """Publish with a key and wait for its receipt; return the reason of a refusal."""
        key = key or new_key()
        self.publish(queue, content, ttl_s, key)
        return self.receipt_for(key).reason

    def receipt_for(self, key: bytes) -> ReceiptFrame:
        self._wait(lambda: any(receipt.key == key for receipt in self.receipts))
        (found,) = [receipt for receipt in self.receipts if receipt.key == key]
        self.receipts.remove(found)
        return found

    def store(self, queue: str, *contents: bytes, ttl_s: int = 0) -> None:
        """Publish without keys; return when all messages are stored."""
        self.send(b"".join(self.side.publish(queue, content, ttl_s) for content in contents))
        self.barrier()

    def barrier(self) -> None:
        """Wait until everything sent is stored and the resulting frames have arrived.

        Repeated: a dispatch whose body must be read from disk comes one batch later.
        """
        for _ in range(3):
            assert self.confirm("barrier", b"") is None

    # -- the end

    def rest(self) -> bytes:
        """Read up to the end or the reset of the connection."""
        parts = []
        try:
            while data := self.socket.recv(1 << 18):
                parts.append(data)
        except ConnectionResetError:
            pass
        return b"".join(parts)

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Reset the connection, as a machine does after losing power."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def close(self) -> None:
        """Close; does nothing the second time."""
        self.socket.close()


def to_json(options: dict[str, Any]) -> bytes:
    return json.dumps(options).encode()


def new_key() -> bytes:
    """Return a key that no other publish of this process has."""
    return b"key-%d" % next(_keys)


def assert_closed_without_reply(peer: SocketClient) -> None:
    """Assert that the broker ends the connection without sending a byte."""
    assert peer.rest() == b""


def exchange(peer: SocketClient) -> None:
    assert peer.confirm("orders", b"body") is None
    peer.consume("orders", 1)
    (dispatch,) = peer.dispatches(1)
    peer.ack(dispatch)
    peer.barrier()
    assert dispatch.content == b"body"


class AdminApi:
    """The HTTP API and metrics of the broker."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=WAIT_S) as answer:
            return json.load(answer)

    def html(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=WAIT_S) as answer:
            text: str = answer.read().decode()
            return text

    def post(self, path: str, body: dict[str, Any], method: str = "POST") -> Any:
        request = urllib.request.Request(
            self.url + path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Origin": self.url},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return json.load(answer)

    def queue(self, name: str) -> dict[str, Any]:
        """Return the figures of a queue, empty if it does not exist."""
        try:
            found: dict[str, Any] = self.get(f"/api/v1/queues/{quote(name, safe='')}")
        except HTTPError as answer:
            answer.close()
            if answer.code != 404:
                raise
            return {}
        return found

    def pause(self, name: str, side: str) -> None:
        self.post(f"/api/v1/queues/{quote(name, safe='')}/pause", {"side": side})

    def resume(self, name: str, side: str) -> None:
        self.post(f"/api/v1/queues/{quote(name, safe='')}/resume", {"side": side})

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(self.url + "/metrics", timeout=WAIT_S) as answer:
            text = answer.read().decode()
        return {name: float(value) for name, value in re.findall(r"^(\w.*) (\S+)$", text, re.M)}


def take_all(broker: BrokerProcess, queue: str) -> list[Dispatch]:
    """Consume and acknowledge the ready messages of a queue, without waiting for more."""
    taken: list[Dispatch] = []
    number = AdminApi(broker.admin[0]).queue(queue).get("ready", 0)
    with SocketClient(broker.port) as peer:
        peer.consume(queue, min(number, 1_000))
        for _ in range(number):
            taken += peer.dispatches(1)
            peer.ack(taken[-1])
        peer.barrier()
    return taken


def scheduled(broker: BrokerProcess, queue: str) -> list[tuple[bytes, float, int]]:
    """Return content, seconds until it is ready, and priority of a queue's scheduled messages."""
    api, now_s = AdminApi(broker.admin[0]), time.time()
    path = f"/api/v1/queues/{quote(queue, safe='')}/messages?state=scheduled"
    return [
        (
            api.get(f"/api/v1/messages/{row['id']}/body")["content"].encode(),
            row["deliver_at"] / 1_000 - now_s,
            row["priority"],
        )
        for row in api.get(path)["items"]
    ]


def take_contents(broker: BrokerProcess, queue: str) -> list[bytes]:
    """Consume the ready messages of a queue; return their contents."""
    return [dispatch.content for dispatch in take_all(broker, queue)]
