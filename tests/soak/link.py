"""The network between the clients and the broker, which can be slow, partitioned or reset."""

import asyncio
from contextlib import suppress

from tests.faults.links import reset


class Link:
    """Relays bytes in both directions between ``port`` and a broker."""

    def __init__(self) -> None:
        self.port = 0
        self.target = 0  # the broker's port
        self.delay_s = 0.0  # how long each read waits
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen for connections."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the listener and all connections."""
        assert self._server is not None
        self._server.close()
        self.reset()
        await self._server.wait_closed()

    def hold(self) -> None:
        """Hold all bytes, as a partitioned network does."""
        self._is_open.clear()

    def release(self) -> None:
        """Pass on the bytes that were held."""
        self._is_open.set()

    def reset(self) -> None:
        for writer in self._writers:
            reset(writer)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, back}
        self._writers |= both
        try:
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
        finally:
            self._writers -= both
            for one in both:
                one.close()

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                await self._is_open.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                sink.write(data)
                await sink.drain()
        sink.close()
