"""One of the brokers of a database: its listeners, as a standby and as the active broker."""

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable

from phpmq_lite.relay.active import RelayListener
from phpmq_lite.relay.handshake import RelaySecret
from phpmq_lite.relay.standby import Relay
from phpmq_lite.server.counters import RelayCounters
from phpmq_lite.server.listeners import Factory, Listeners
from phpmq_lite.settings import Settings


class Member:
    """Relays the connections of ``listeners`` until this broker is active.

    ``session`` and ``pages`` return the protocols of PHPMQ and HTTP connections to this broker.
    """

    def __init__(
        self,
        settings: Settings,
        version: str,
        listeners: Listeners,
        session: Factory,
        pages: Callable[[], Awaitable[asyncio.Protocol]],
        counters: RelayCounters,
    ) -> None:
        self.relay: Relay | None = None  # while this broker is a standby
        self.epoch: int | None = None  # while this broker serves clients
        self._settings = settings
        self._version = version
        self._listeners = listeners
        self._session = session
        self._pages = pages
        self._counters = counters
        self._active: RelayListener | None = None

    async def start_standby(self, secret: RelaySecret) -> str:
        """Begin as a standby; return the JSON that describes this broker to the others."""
        host = socket.gethostname()
        self.relay = Relay(host, secret, self._counters, self._settings.admin.base_path)
        self._active = RelayListener(
            self._settings.store.relay_listen,
            secret,
            lambda: self.epoch,
            self._session,
            self._pages,
            self._counters,
        )
        await self._active.bind()
        await self._listeners.open()
        about = {"version": self._version, "host": host, "pid": os.getpid()}
        return json.dumps(about | {"relay": self._active.address})

    def relay_to(self, epoch: int, broker: str, *, is_released: bool) -> None:
        """Relay to the broker that the row of the epoch describes, or to none."""
        if self.relay is not None:
            address = None if is_released else json.loads(broker).get("relay")
            self.relay.set_active(epoch, address)

    async def serve(self, epoch: int) -> None:
        """Serve clients directly, and those of other brokers, from now on."""
        relay, self.relay = self.relay, None
        self.epoch = epoch
        if relay is not None and self._active is not None:
            await relay.end()
            await self._active.open()

    async def close(self) -> None:
        """Stop accepting connections of other brokers, and end relayed ones."""
        self.epoch = None
        if self.relay is not None:
            await self.relay.close()
        if self._active is not None:
            await self._active.close()
