"""Two brokers in this process: an active one, and one that relays all its connections to it."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from phpmq_lite.relay.active import RelayListener
from phpmq_lite.relay.handshake import RelaySecret, create_relay_secret
from phpmq_lite.relay.standby import Relay
from phpmq_lite.service.active import Active
from phpmq_lite.testing import RunningBroker
from tests.support.http_users import prepared_service
from tests.support.socket_client import SocketClient

T = TypeVar("T")

EPOCH: Final = 7
PLAIN: Final = "127.0.0.1:0"
SECURED: Final = "127.1:0"  # this machine too, but only the resolver knows: TLS is used
SECRET: Final = create_relay_secret()


@dataclasses.dataclass
class RelayedBrokers:
    active: RunningBroker
    standby: RunningBroker
    listener: RelayListener
    relay: Relay

    @property
    def port(self) -> int:
        """The PHPMQ port of the standby."""
        return self.standby.port

    def clients(self) -> list[Any]:
        """Return the connections of the active broker."""
        return list(self.active.service.handle.summary().clients)


class Relaying:
    """An active broker that relays its connections, as a standby does."""

    def __init__(self, active: Active, relay: Relay) -> None:
        self._active = active
        self._relay = relay

    def accept(self, own: Any, admission: Any, kind: Any, protocol: Any, *name_of: Any) -> Any:
        return self._relay.accept(admission, kind, protocol, own, *name_of)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._active, name)


@asynccontextmanager
async def relayed_brokers(
    folder: Path,
    listen: str = PLAIN,
    *,
    secret: RelaySecret = SECRET,
    active: dict[str, Any] | None = None,
    standby: dict[str, Any] | None = None,
) -> AsyncIterator[RelayedBrokers]:
    async with (
        prepared_service(folder / "active", **(active or {})) as first,
        prepared_service(folder / "standby", **(standby or {})) as second,
    ):
        service = first.service
        counters = service.handle.counters.relay
        listener = RelayListener(listen, SECRET, service.session, service.pages.connect, counters)
        listener.epoch = EPOCH
        await listener.bind()
        await listener.open()
        relay = Relay("broker-2", secret, second.service.handle.counters.relay)
        relay.set_active(EPOCH, listener.address)
        second.service.phase = cast(Any, Relaying(second.service.active, relay))
        try:
            yield RelayedBrokers(first, second, listener, relay)
        finally:
            await listener.close()
            await relay.close()


async def as_client(address: Any, use: Callable[[SocketClient], T], context: Any = None) -> T:
    """Call ``use`` in a thread with a connection to an address."""

    def run() -> T:
        with SocketClient(address, context) as client:
            return use(client)

    return await asyncio.to_thread(run)
