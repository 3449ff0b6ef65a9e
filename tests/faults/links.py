"""A proxy between clients and a broker with a different defect on each connection."""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

Ending = Literal["close", "reset", "silence"]
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s


@dataclass(frozen=True)
class Link:
    """The defect of a connection; by default none.

    After ``up`` bytes from the client, or ``down`` bytes from the broker, both sides are closed or
    reset; or, with silence, nothing more is forwarded in that direction.  At most ``piece`` bytes
    are forwarded at once, each time after ``delay_s``.
    """

    up: int | None = None
    down: int | None = None
    ending: Ending = "close"
    piece: int = 1 << 16
    delay_s: float = 0.0


class BadLinks:
    """Listens on ``port``; connection number n, from 0, gets the link ``links(n)``.

    It runs an event loop in a thread; use it in a ``with`` block.
    """

    def __init__(self, target: int, links: Callable[[int], Link]) -> None:
        self.port = 0
        self.connections = 0
        self._target = target
        self._links = links
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._writers: set[asyncio.StreamWriter] = set()

    def __enter__(self) -> "BadLinks":
        self._thread.start()
        self._run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = self._links(self.connections)
        self.connections += 1
        self._writers.add(writer)
        broker_reader, broker_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers.add(broker_writer)
        ways = [
            asyncio.create_task(_pass(reader, broker_writer, link, link.up)),
            asyncio.create_task(_pass(broker_reader, writer, link, link.down)),
        ]
        if link.ending == "silence":  # close neither side
            await asyncio.wait(ways)
            return
        _, others = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in others:
            way.cancel()
        for each in (writer, broker_writer):
            if link.ending == "reset":
                reset(each)
            else:
                each.close()
            self._writers.discard(each)


async def _pass(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: Link, left: int | None
) -> None:
    """Forward one direction until its end, or until ``left`` bytes have passed."""
    with suppress(OSError):
        while left is None or left > 0:
            data = await reader.read(link.piece if left is None else min(link.piece, left))
            if not data:
                return
            if link.delay_s:
                await asyncio.sleep(link.delay_s)
            writer.write(data)
            await writer.drain()
            left = None if left is None else left - len(data)


def reset(writer: asyncio.StreamWriter) -> None:
    own = writer.get_extra_info("socket")
    with suppress(OSError):
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
