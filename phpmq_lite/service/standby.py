"""A broker that shares its database with others: it relays to the active one, or is ready to be."""

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Self

from phpmq_lite import __version__
from phpmq_lite.server.admission import Admission
from phpmq_lite.server.listeners import Factory, Kind, Listeners
from phpmq_lite.service.state import ServiceState
from phpmq_lite.settings import Settings

if TYPE_CHECKING:
    from phpmq_lite.relay.active import RelayListener
    from phpmq_lite.relay.standby import Relay


class Standby:
    """Relays connections until ``take_over``; afterwards, accepts those that others relay."""

    def __init__(self, relay: "Relay", relay_listener: "RelayListener") -> None:
        self.relay = relay
        self.relay_listener = relay_listener

    @classmethod
    async def open(
        cls,
        state: ServiceState,
        session: Factory,
        pages: Callable[[], Awaitable[asyncio.Protocol]],
        secret: tuple[Any, ...],
    ) -> Self:
        """Return a standby that has bound its address for the relays of others.

        ``session`` and ``pages`` make the protocols of connections that others relay; ``secret`` is
        what all brokers of the database share.

        Raises:
            SettingsError, StartRefusedError: ``store.relay_listen`` is invalid or in use.
        """
        from phpmq_lite.relay.active import RelayListener
        from phpmq_lite.relay.handshake import RelaySecret
        from phpmq_lite.relay.standby import Relay

        settings, key, counters = state.settings, RelaySecret(*secret), state.handle.counters.relay
        relay = Relay(socket.gethostname(), key, counters, settings.admin.base_path)
        address = settings.store.relay_listen
        standby = cls(relay, RelayListener(address, key, session, pages, counters))
        await standby.relay_listener.bind()
        return standby

    async def show_listeners(self, state: ServiceState, listeners: Listeners) -> str:
        """Open the listeners; return the JSON that describes this broker to the others."""
        await listeners.open()
        note = " (standby: relays to the active broker)"
        state.show_listeners(listeners, step="standby", note=note)
        about = {"version": __version__, "host": self.relay.name, "pid": os.getpid()}
        return json.dumps(about | {"relay": self.relay_listener.address})

    def relay_to(self, epoch: int, broker: str, *, is_released: bool) -> None:
        """Relay to the broker that the row of the epoch, polled often, describes, or to none."""
        self.relay.end_dead(asyncio.get_running_loop().time())
        self.relay.set_active(epoch, None if is_released else json.loads(broker).get("relay"))

    async def take_over(self, epoch: int) -> None:
        """End the relay, whose clients connect again, and accept what other brokers relay."""
        self.relay_listener.epoch = epoch
        await self.relay.end()
        await self.relay_listener.open()

    async def close(self) -> None:
        """Stop accepting connections of other brokers, and end relayed ones."""
        if not self.relay.is_ended:
            await self.relay.close()
        self.relay_listener.epoch = None
        await self.relay_listener.close()

    # -- the phase

    def accept(
        self,
        own: Callable[[], asyncio.Protocol],
        admission: Admission,
        kind: Kind,
        protocol: Any,
        name_of: Callable[[str | None], str | None] = lambda host: host,
    ) -> asyncio.Protocol:
        """Relay a connection."""
        return self.relay.accept(admission, kind, protocol, own, name_of)

    def has_progressed(self) -> bool:
        """Return True: a standby has nothing to wait for."""
        return True

    def apply_settings(self, settings: Settings) -> None:
        """Do nothing: the core is created later, with the settings of that moment."""
