"""A peer on a real socket that speaks PHPMQ as a test scripts it."""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Self, TypeVar, cast

from phpmq_lite.frame_options import write_options
from phpmq_lite.protocol.connection import ServerSide
from phpmq_lite.protocol.frames import (
    DEFAULT_MAX_CONTENT,
    ClientFrame,
    Hello,
    Publish,
    PublishWithOptions,
    WireLimits,
)

FrameType = TypeVar("FrameType", bound=ClientFrame)


class ScriptedPeer(asyncio.Protocol):
    """One connection of a client, as the broker sees it."""

    def __init__(self, broker: "ScriptedBroker") -> None:
        self.side = ServerSide(WireLimits(), http_guard=False)
        self.half_closed = asyncio.Event()
        self.ended = asyncio.Event()
        self.error: Exception | None = None  # of the end of the connection
        self._broker = broker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._broker.peers.append(self)
        self._broker.arrived.set()
        self._broker.on_connect(self)

    def data_received(self, data: bytes) -> None:
        for frame in self.side.receive(data):
            if self.transport.is_closing():
                return
            if isinstance(frame, Hello):
                self._welcome(frame)
                continue
            self._broker.frames.put_nowait((self, frame))
            self._broker.script(self, frame)
        assert self.side.error is None

    def eof_received(self) -> bool:
        self.half_closed.set()
        return self._broker.keeps_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self.ended.set()

    def _welcome(self, hello: Hello) -> None:
        self._broker.hellos.append(hello)
        known = self._broker.known_frames
        if known is None:
            self.transport.close()
            return
        most = self._broker.max_content
        facts = {"version": "1", "max_content": most, "max_hold_s": 86_400}
        parts: list[bytes] = []
        self.side.append_welcome(parts, hello.key, write_options(facts | {"frames": list(known)}))
        self.transport.write(b"".join(parts))

    def dispatch(
        self, queue: str, body: bytes, message_id: bytes, ttl_s: int = 0, **info: object
    ) -> None:
        """Send a 003, or a 013 if there is any ``info``."""
        parts: list[bytes] = []
        if info:
            self.side.append_dispatch_with_info(
                parts, queue, body, message_id, ttl_s, write_options(info)
            )
        else:
            self.side.append_dispatch(parts, queue, body, message_id, ttl_s)
        self.transport.write(b"".join(parts))

    def answer(self, frame: Publish | PublishWithOptions, reason: str | None = None) -> None:
        assert frame.key is not None
        parts: list[bytes] = []
        self.side.append_receipts(parts, frame.queue, (frame.key,), reason)
        self.transport.write(b"".join(parts))

    async def write_after_close(self, ids: list[bytes], *, until: asyncio.Task[None]) -> None:
        """Dispatch to a client that has closed its side, then close; it must read all of it."""
        await self.half_closed.wait()
        for message_id in ids:
            self.dispatch("orders", bytes(1_000), message_id)
        assert not until.done()
        self.transport.close()
        await until
        await self.ended.wait()
        assert self.error is None

    def cut(self) -> None:
        """End the connection at once, as a crash does."""
        self.transport.abort()


class ScriptedBroker:
    """Stores publishes by key and sends receipts; a test may replace ``script``.

    ``frames`` queues every received frame with its connection, except hellos.
    """

    def __init__(self, path: Path | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.peers: list[ScriptedPeer] = []
        self.arrived = asyncio.Event()
        self.frames: asyncio.Queue[tuple[ScriptedPeer, ClientFrame]] = asyncio.Queue()
        self.stored: dict[bytes, bytes] = {}  # key -> body
        self.script: Callable[[ScriptedPeer, ClientFrame], None] = self.store
        self.on_connect: Callable[[ScriptedPeer], None] = lambda _peer: None
        self.hellos: list[Hello] = []
        # That a welcome names; None for a broker of the release before, which closes on a hello.
        self.known_frames: Sequence[int] | None = ()
        self.max_content = DEFAULT_MAX_CONTENT
        self.keeps_open = False  # when a client has closed its side
        self._path = path
        self._tls = tls
        self.port = 0

    def store(self, peer: ScriptedPeer, frame: ClientFrame) -> None:
        """Store a confirmed publish once and receipt it; ignore everything else."""
        if isinstance(frame, Publish | PublishWithOptions) and frame.key is not None:
            self.stored.setdefault(frame.key, frame.content)
            peer.answer(frame)

    def vanishing(self, *, each: int) -> Callable[[ScriptedPeer, ClientFrame], None]:
        """Return a script that stores, and cuts the connection at every ``each``-th frame."""
        numbers = count(1)

        def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
            if next(numbers) % each == 0:
                peer.cut()
            else:
                self.store(peer, frame)

        return script

    @property
    def peer(self) -> ScriptedPeer:
        return self.peers[-1]

    async def next(self, kind: type[FrameType]) -> FrameType:
        """Return the next frame of a kind; skip others."""
        while True:
            _, frame = await self.frames.get()
            if isinstance(frame, kind):
                return frame

    async def start(self) -> None:
        """Listen, after a restart on the same port."""
        loop = asyncio.get_running_loop()
        if self._path is not None:
            self._server = await loop.create_unix_server(
                lambda: ScriptedPeer(self), str(self._path), ssl=self._tls
            )
        else:
            self._server = await loop.create_server(
                lambda: ScriptedPeer(self), "127.0.0.1", self.port, ssl=self._tls
            )
            self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse new connections and cut the existing ones."""
        self._server.close()
        for peer in self.peers:
            peer.cut()
            await peer.ended.wait()
        await self._server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
