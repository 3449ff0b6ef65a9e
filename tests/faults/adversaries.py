"""Attacks of one tenant on the others, each at its documented limit.

Each is a function that begins an attack, which continues until the process is killed.  It uses
queues that begin with ``b-``, a token for these queues only, and its own address: without a login,
all PHPMQ connections from one address are one tenant.
"""

import gzip
import json
import os
import secrets
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any, Final
from urllib.parse import quote, urlsplit

from tests.support.socket_client import WAIT_S, SocketClient, new_key

MIB: Final = 1 << 20
CONNECTIONS: Final = 95  # of HTTP; limits.http_connections are 100
HELD: Final = 50_000  # limits.held
HELD_BYTES: Final = 256 * MIB  # limits.held_bytes
QUEUES: Final = 10_000  # limits.max_queues
CONTENT: Final = 8 * MIB  # limits.max_content
KEYS: Final = 100_000  # receipts.limit
JSON: Final = "application/json"
ARROW: Final = "application/vnd.apache.arrow.stream"
APP_ID: Final = "tenant-app"  # of the other one
_FAILED: Final = (OSError, HTTPException)


@dataclass(slots=True, frozen=True)
class Target:
    """A broker, and the credentials of a tenant."""

    port: int
    url: str
    token: str
    source: str = "127.0.0.1"  # address of this end

    def peer(self) -> SocketClient:
        """Connect to the PHPMQ listener."""
        address = "127.0.0.1", self.port
        made = SocketClient(socket.create_connection(address, WAIT_S, (self.source, 0)))
        made.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, 60, (self.source, 0))

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the admin."""
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or 80

    def head(self, method: str, path: str, **headers: str) -> bytes:
        given = {"Host": "{}:{}".format(*self.address)} | self._headers(headers)
        lines = [f"{method} {path} HTTP/1.1", *map(": ".join, given.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def _headers(self, headers: dict[str, str]) -> dict[str, str]:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return {"Authorization": f"Bearer {self.token}"} | given

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        """Send one request on a new connection; return (0, b"") if it fails."""
        given = {"Content-Type": "application/json"} | self._headers(headers)
        connection = HTTPConnection(*self.address, timeout=60, source_address=(self.source, 0))
        try:
            connection.request(method, path, body, given)
            response = connection.getresponse()
            return response.status, response.read()
        except _FAILED:
            return 0, b""
        finally:
            connection.close()

    def stage(self, rows: bytes) -> tuple[str, int, bytes]:
        """Stage rows under a new token; return the token and the response."""
        token = secrets.token_hex(8)
        path = f"/api/v1/pipeline/stage?token={token}"
        return token, *self.ask("POST", path, rows, Content_Type=ARROW)


def repeat_in_threads(count: int, work: Callable[[], object]) -> None:
    def repeat() -> None:
        while True:
            with suppress(*_FAILED, AssertionError):
                work()

    for _ in range(count):
        threading.Thread(target=repeat, daemon=True).start()


# -- PHPMQ


def dead_consumers(target: Target) -> None:
    """Reset the connections of 25 consumers, and publish a message immediately."""

    def once() -> None:
        peers = [target.peer() for _ in range(25)]
        for peer in peers:
            peer.consume("b-dead", 1)
        for peer in peers:
            peer.reset()
        with target.peer() as publisher:
            publisher.confirm("b-dead", b"x")
        time.sleep(0.05)

    once()
    repeat_in_threads(1, once)


def full_queues(target: Target) -> None:
    """Create as many queues as allowed, and repeatedly try one more."""
    with target.peer() as peer:
        for start in range(0, QUEUES - 500, 500):
            names = [f"b-{number}" for number in range(start, start + 500)]
            peer.send(b"".join(peer.side.publish(name, b"") for name in names))
            peer.barrier()
        number = QUEUES  # the queue of the barriers counts, too
        while peer.confirm(f"b-{number}", b"") is None:
            number += 1

    def once() -> None:
        target.ask("PUT", f"/api/v1/queues/b-{secrets.token_hex(8)}", b"{}")
        with target.peer() as another:
            another.confirm(f"b-{secrets.token_hex(8)}", b"")
        time.sleep(0.05)

    repeat_in_threads(1, once)


def hung_consumers(target: Target) -> None:
    """Hold as many messages as allowed, and never acknowledge."""
    _hang(target, "b-hung", [b"x"] * (HELD // 1_000 * 1_050), HELD // 1_000 + 2, HELD)


def hung_consumers_of_large_messages(target: Target) -> None:
    """Hold as many bytes as allowed, and never acknowledge."""
    size = 4 * MIB
    bodies = [b"x" * size] * (HELD_BYTES // size + 8)
    _hang(target, "b-hung-large", bodies, 30, HELD_BYTES // size)


def _hang(target: Target, queue: str, bodies: list[bytes], consumers: int, held: int) -> None:
    with target.peer() as publisher:
        step = max(1, min(2_000, 8 * MIB // len(bodies[0])))
        for at in range(0, len(bodies), step):
            publisher.store(queue, *bodies[at : at + step])
    peers = [target.peer() for _ in range(consumers)]
    for peer in peers:
        peer.consume(queue, 1_000)
    got, by_socket = 0, {peer.socket: peer for peer in peers}
    while got < held and (readable := select.select(by_socket, [], [], 2)[0]):
        for one in readable:
            peer = by_socket[one]
            if not peer.take():
                del by_socket[one]
            got += len(peer.got)
            peer.got.clear()
    _keep.extend(peers)


_keep: list[object] = []  # connections that stay open


def slow_readers(target: Target) -> None:
    """Consume large messages, but read nothing."""

    def once() -> None:
        with target.peer() as publisher:
            publisher.confirm("b-slow", b"x" * MIB, 2)
        time.sleep(0.1)

    for _ in range(16):
        once()
    for _ in range(8):
        peer = target.peer()
        peer.read_nothing()
        peer.consume("b-slow", 1_000)
        _keep.append(peer)
    repeat_in_threads(1, once)


def huge_bodies(target: Target) -> None:
    """Publish and consume messages of the maximum size, one after another."""
    body = b"x" * CONTENT

    def once() -> None:
        with target.peer() as peer:
            peer.consume("b-huge", 1)
            for _ in range(100):
                peer.confirm("b-huge", body, 60)
                peer.ack(*peer.dispatches(1))

    repeat_in_threads(1, once)


def repeated_credits(target: Target) -> None:
    """Repeat a 002 that returns what is held, again and again."""
    _fill(target, "b-again", 5_000)
    peer = target.peer()
    again = b"".join(peer.side.consume("b-again", 1_000 - number % 2) for number in range(20))
    peer.consume("b-again", 1_000)
    _keep.append(peer)

    def once() -> None:
        if select.select([peer.socket], [], [], 0)[0]:
            peer.take()
            peer.got.clear()
        peer.send(again)
        time.sleep(0.01)

    repeat_in_threads(1, once)


def many_keys(target: Target) -> None:
    """Publish with more keys than the broker remembers, and go on."""
    peer = target.peer()
    _keep.append(peer)

    def publish(count: int) -> None:
        for _ in range(count // 500):
            keys = [new_key() for _ in range(500)]
            peer.send(b"".join(peer.side.publish("b-keys", b"", 1, key) for key in keys))
            peer.receipt_for(keys[-1])
            peer.receipts.clear()

    publish(KEYS + 500)
    repeat_in_threads(1, lambda: publish(500))


def silent_peers(target: Target) -> None:
    """Open more connections than there are places, of PHPMQ and of HTTP, and send nothing."""
    kept: deque[socket.socket] = deque()

    def once() -> None:
        for address in (target.address, ("127.0.0.1", target.port)):
            kept.append(socket.create_connection(address, 60, (target.source, 0)))
        while len(kept) > 1_200:
            kept.popleft().close()
        time.sleep(0.001)

    for _ in range(600):
        with suppress(OSError):
            once()
    repeat_in_threads(1, once)


# -- HTTP


def refused_requests(target: Target) -> None:
    """Send requests without a login, with long names, each of which is refused."""
    name = "x" * 3_500

    def once() -> None:
        connection = HTTPConnection(*target.address, timeout=60, source_address=(target.source, 0))
        with closing(connection):
            for path in (f"/api/v1/messages/{name}/delete", f"/api/v1/queues/{name}/purge"):
                for _ in range(50):
                    wrong = {"Authorization": "Bearer phpmq_wrong", "Content-Type": JSON}
                    connection.request("POST", path, b"{}", wrong)
                    connection.getresponse().read()

    repeat_in_threads(4, once)


def charsets(target: Target) -> None:
    """Name charsets, and send headers and parts, for which naive decoders need quadratic time."""
    form = "application/x-www-form-urlencoded"
    word = b"a=" + b"a" * 65_000
    head = b'Content-Disposition: form-data; name="a"' + b";" * 3_000
    parts = b"".join(b"--b\r\n" + head + b"\r\n\r\nx\r\n" for _ in range(300)) + b"--b--\r\n"
    requests: list[tuple[bytes, dict[str, str]]] = [
        (word, {"Content_Type": f"{form}; charset=punycode"}),
        (word, {"Content_Type": f"{form}; charset=idna"}),
        (parts, {"Content_Type": "multipart/form-data; boundary=b"}),
        (b"{}", {"Content_Type": "application/json" + ";" * 8_000}),
        (b"{}", {"Cookie": "a=" + "a " * 4_000}),
        (b"[" + b"9" * 4_300 + b"]", {"Content_Type": f"{JSON}; charset=utf-16"}),
    ]

    def once() -> None:
        for body, headers in requests:
            for path in ("/publish", "/api/v1/queues/b-charset/messages"):
                target.ask("POST", path, body, **headers)

    repeat_in_threads(4, once)


def app_id_poisoning(target: Target) -> None:
    """Publish the highest version under another tenant's app_id, and floods of new app_ids."""
    rows = arrow_of([("b-staged", b"x")])

    def publish(app_id: str, version: int) -> None:
        token, _, _ = target.stage(rows)
        asked = {"app_id": app_id, "version": version, "tokens": [token]}
        target.ask("POST", "/api/v1/pipeline/publish", json.dumps(asked).encode())

    publish(APP_ID, 2**63 - 1)
    repeat_in_threads(1, lambda: publish(APP_ID, 2**63 - 1))
    repeat_in_threads(2, lambda: publish(secrets.token_hex(8), 1))


def json_arrays(target: Target) -> None:
    """Send bodies of 3 MiB whose parsed values take a hundred times that."""
    body = b"[" + b"{}," * MIB + b"{}]"
    repeat_in_threads(4, lambda: target.ask("POST", "/api/v1/queues/b-json/messages", body))


def compressed_bodies(target: Target) -> None:
    """Send bodies that are small until they are decompressed."""
    body = gzip.compress(b"[" + b" " * (64 * MIB) + b"]")
    repeat_in_threads(4, lambda: target.ask("POST", "/api/v1/queues/b-gzip/messages", body,
                                     Content_Encoding="gzip"))  # fmt: skip


def login_forms(target: Target) -> None:
    """Send forms of 11 MiB that never end, on nearly all connections."""
    size = 11 * MIB
    head = target.head(
        "POST", "/login", Content_Length=str(size), Origin=target.url,
        Content_Type="application/x-www-form-urlencoded",
    )  # fmt: skip
    part = b"x" * (size - 1)

    def once() -> None:
        with target.connect() as connection:
            connection.sendall(head)
            connection.sendall(part)
            while connection.recv(4_096):
                pass

    repeat_in_threads(CONNECTIONS, once)


def slow_downloads(target: Target) -> None:
    """Read bodies of 8 MiB at 4 KiB a second, on nearly all connections."""
    with target.peer() as peer:
        peer.confirm("b-large", b"x" * (CONTENT - 100))
    found = json.loads(target.ask("GET", "/api/v1/queues/b-large/messages")[1])
    head = target.head("GET", f"/api/v1/messages/{found['items'][0]['id']}/body")

    def once() -> None:
        with target.connect() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.sendall(head)
            while connection.recv(4_096):
                time.sleep(1)

    repeat_in_threads(CONNECTIONS, once)


def searches(target: Target) -> None:
    """Search with patterns that match nothing, but share a long prefix with the bodies."""
    with target.peer() as peer:
        body = b'{"data":{"a":"' + b"a" * (CONTENT - 100) + b'"}}'
        for _ in range(6):
            peer.confirm("b-search", body)
    pattern = quote("data.a:*" + "a" * 1_900 + "b")
    repeat_in_threads(6, lambda: target.ask("GET", f"/api/v1/messages?q={pattern}"))


def slow_uploads(target: Target) -> None:
    """Stage rows as slowly as allowed, on more connections than there are slots."""
    size = 64 * MIB

    def once() -> None:
        head = target.head("POST", f"/api/v1/pipeline/stage?token={secrets.token_hex(8)}",
                           Content_Length=str(size), Content_Type=ARROW)  # fmt: skip
        with target.connect() as connection:
            connection.sendall(head)
            for _ in range(size // 10_240):
                connection.sendall(b"x" * 10_240)
                time.sleep(1)

    repeat_in_threads(8, once)


def uploads(target: Target) -> None:
    """Stage as many rows as allowed per token, one upload after another."""
    rows = arrow_of([("b-staged", b"x" * 600)] * 100_000)

    def once() -> None:
        token, _, _ = target.stage(rows)
        asked = json.dumps({"tokens": [token]}).encode()
        target.ask("POST", "/api/v1/pipeline/unstage", asked)

    repeat_in_threads(4, once)


def exports(target: Target) -> None:
    """Export 50,000 messages, several times at once."""
    _fill(target, "b-export", 50_000)
    repeat_in_threads(4, lambda: target.ask("GET", "/api/v1/export?q=queue%3Ab-export"))


def bulk_work(target: Target) -> None:
    """Move 20,000 messages, as often at once as allowed."""
    _fill(target, "b-bulk", 20_000)

    def once() -> None:
        for source, goal in (("b-bulk", "b-moved"), ("b-moved", "b-bulk")):
            selected = target.ask("POST", "/api/v1/selections",
                                  json.dumps({"q": f"queue:{source}"}).encode())  # fmt: skip
            token = json.loads(selected[1] or b"{}").get("token", "")
            asked: dict[str, Any] = {"token": token, "action": "move", "target": goal}
            asked |= {"create": True, "confirm": source}
            target.ask("POST", "/api/v1/bulk", json.dumps(asked).encode())

    repeat_in_threads(5, once)


def _fill(target: Target, queue: str, count: int) -> None:
    with target.peer() as peer:
        for start in range(0, count, 5_000):
            peer.store(queue, *(b'{"data":{"n":%d}}' % n for n in range(start, start + 5_000)))


def arrow_of(rows: list[tuple[str, bytes]]) -> bytes:
    """Return rows as an Arrow stream, as Spark's tasks stage them."""
    import pyarrow as pa

    queues, bodies = zip(*rows, strict=True)
    made = pa.table({
        "body": pa.array(bodies, pa.binary()),
        "queue": pa.array(queues, pa.string()),
        "ttl_s": pa.array([None] * len(rows), pa.int64()),
    })  # fmt: skip
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, made.schema) as writer:
        writer.write_table(made)
    return bytes(sink.getvalue())


ADVERSARIES: Final[dict[str, Callable[[Target], None]]] = {
    made.__name__: made
    for made in (
        dead_consumers, app_id_poisoning, full_queues, json_arrays, login_forms, slow_downloads,
        compressed_bodies, searches, hung_consumers, hung_consumers_of_large_messages,
        slow_uploads, uploads, slow_readers, huge_bodies, exports, bulk_work, repeated_credits,
        refused_requests, charsets, silent_peers, many_keys,
    )
}  # fmt: skip


def main() -> None:
    """Attack: ``python -m tests.faults.adversaries NAME PORT URL TOKEN [idle]``."""
    name, port, url, token, *policy = sys.argv[1:]
    if policy == ["idle"]:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    ADVERSARIES[name](Target(int(port), url, token, "127.0.0.2"))
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
