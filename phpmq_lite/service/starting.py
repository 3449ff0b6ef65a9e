"""A broker that is not active yet: it recovers its database, or relays to the active broker."""

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from phpmq_lite import __version__, logs
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.publish_keys import STORED_FACTOR
from phpmq_lite.clock import Clock
from phpmq_lite.model import RecoveredState
from phpmq_lite.server.admission import Admission
from phpmq_lite.server.engine import Engine
from phpmq_lite.server.listeners import Factory, Kind, Listeners
from phpmq_lite.service.pages import AdminPages
from phpmq_lite.service.state import Phase, ServiceState, cancel, now_ms
from phpmq_lite.settings import Settings
from phpmq_lite.storage.backend import Backend
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.start_report import StartRecorder
from phpmq_lite.storage.store import Store

if TYPE_CHECKING:
    from phpmq_lite.relay.active import RelayListener
    from phpmq_lite.relay.standby import Relay

_REPLICA_S: Final = 2.0  # how often a replica is read while no broker is active
_log = logs.get_logger(__name__)


@dataclass(slots=True)
class RecoveredDatabase:
    """An open database, what it contains, and the clock that continues its times."""

    backend: Backend
    stored: RecoveredState
    clock: Clock
    recorder: StartRecorder  # of this startup

    async def load_core(self, state: ServiceState) -> Broker:
        """Create the core from what is stored, after the database has refused a batch."""
        read = partial(read_state, clock=self.clock, settings=state.settings)
        return await self.backend.writer.run(lambda store: state.create_core(read(store)))


def read_state(store: Store, clock: Clock, settings: Settings) -> RecoveredState:
    """Read the state of the broker, in the writer's thread."""
    receipts = settings.receipts
    stored = STORED_FACTOR * receipts.limit
    return store.recover(clock.now(), receipts.window_s * 1_000, stored)


class Starting(Phase):
    """Recovers the database; with a shared one, this ends once no other broker is active."""

    def __init__(
        self, state: ServiceState, folder: DataFolder, backend: Backend, pages: AdminPages
    ) -> None:
        self.folder = folder
        self.backend = backend
        self.pages = pages
        self._state = state
        self._recorder = StartRecorder(__version__, now_ms(), was_clean=not folder.meta.is_running)

    async def recover(self) -> RecoveredDatabase:
        handle, backend, recorder = self._state.handle, self.backend, self._recorder
        recorder.note_error(self.folder.read_last_error())
        await backend.open(recorder, lambda step: handle.set(step=step))
        if recorder.report.migrations:
            _log.info("migrated", applied=recorder.report.migrations)
        handle.set(step="recovering")
        counters = await backend.writer.run(lambda store: store.counters())
        if "without_default_ttl" in counters:
            ttl_s = self._state.settings.queues.default_ttl_s
            await backend.writer.run(lambda store: store.set_default_ttl(ttl_s))
        clock = Clock(counters, read=backend.read_clocks)
        read = partial(read_state, clock=clock, settings=self._state.settings)
        return RecoveredDatabase(backend, await backend.writer.run(read), clock, recorder)

    async def is_stopped(self, recovering: "asyncio.Task[Any]") -> bool:
        """Wait until the database is recovered; return True if a standby was stopped before."""
        stopping = asyncio.create_task(self._state.stopping.wait())
        showing = asyncio.create_task(self._show_replica())
        await asyncio.wait({recovering, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await cancel(showing)
        self._state.handle.engine = None
        self.pages.shows_replica = False
        if recovering.done() or self.backend.status().is_active:
            return False
        await cancel(recovering)
        return True

    async def _show_replica(self) -> None:
        """Show a replica on pages, read-only, as long as no broker is active."""
        while True:
            await asyncio.sleep(_REPLICA_S)
            stored = await asyncio.to_thread(self.backend.read_replica)
            await self.pages.show_replica(is_shown=stored is not None)
            self._state.handle.engine = None
            if stored is not None:
                core, clock = self._state.create_core(stored), Clock(stored.counters)
                engine = Engine(core, self.backend.writer, clock)
                engine.is_stopping = True  # so that it refuses changes
                self._state.handle.engine = engine

    # -- the phase

    def has_progressed(self) -> bool:
        """Return False, because no client can connect."""
        return False


class Standby(Phase):
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
        what all brokers of the database share.  Raises SettingsError, StartRefusedError:
        ``store.relay_listen`` is invalid or in use.
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
        return self.relay.accept(admission, kind, protocol, own, name_of)
