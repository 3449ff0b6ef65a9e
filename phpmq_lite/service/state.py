"""What a broker has in each phase of its life: settings, statistics and who waits for what."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from phpmq_lite.admin.accounts.setup_token import SetupToken
from phpmq_lite.broker.broker import Broker
from phpmq_lite.envelopes.inspector import BabelQueueInspector
from phpmq_lite.envelopes.schema_registry import ActiveSchemas
from phpmq_lite.model import Limits, RecoveredState
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.server.admission import Admission
from phpmq_lite.server.listeners import Kind, Listeners
from phpmq_lite.server.rollups import Rollups
from phpmq_lite.server.status import BrokerHandle
from phpmq_lite.settings import Settings


class ServiceState:
    """Everything that does not depend on the phase; ``announce`` receives a line per listener."""

    def __init__(
        self,
        settings: Settings,
        announce: Callable[[str], None],
        sources: Mapping[str, str] | None = None,
    ) -> None:
        self.settings = settings
        self.sources = sources or {}  # setting name -> source of its value
        self.announce = announce
        self.handle = BrokerHandle(settings)
        self.rollups = Rollups()
        self.schemas = ActiveSchemas(settings.envelopes.schemas)
        self.setup_token = SetupToken(settings.data)
        self.phpmq: list[str] = []  # addresses of the open PHPMQ listeners
        self.admin: list[str] = []
        self.stopping = asyncio.Event()
        self.ready = asyncio.Event()  # set once this broker itself serves clients
        self.listening = asyncio.Event()  # set once clients can connect, perhaps to a standby

    def create_core(self, stored: RecoveredState) -> Broker:
        limits = broker_limits(self.settings)
        defaults = QueueSettings(**self.settings.queues.model_dump())
        max_content = self.settings.limits.max_content
        return Broker(stored, limits, defaults, BabelQueueInspector(self.schemas, max_content))

    def show_listeners(self, listeners: Listeners, step: str, note: str = "") -> None:
        """Announce the open listeners; clients can connect from now on."""
        self.phpmq = listeners.addresses
        for address in listeners.addresses:
            self.announce(f"listening phpmq {address}{note}")
        self.handle.set(step=step, listeners=tuple(listeners.opened))
        self.listening.set()


class Phase:
    """How a broker answers while it starts, relays as a standby, or is active."""

    def accept(
        self,
        own: Callable[[], asyncio.Protocol],
        admission: Admission,
        kind: Kind,
        protocol: Any,
        name_of: Callable[[str | None], str | None] = lambda host: host,
    ) -> asyncio.Protocol:
        """Return the protocol of a new connection; ``own`` makes one that this broker serves."""
        return own()

    def has_progressed(self) -> bool:
        """Return whether the broker has made progress since the last call, or has nothing to do."""
        return True

    def apply_settings(self, settings: Settings) -> None:
        """Use the settings that can be changed at runtime; a core created later has them anyway."""


def broker_limits(settings: Settings) -> Limits:
    limits, receipts = settings.limits, settings.receipts
    return Limits(
        queues=limits.max_queues,
        window=limits.window,
        bodies_bytes=limits.body_cache,
        credit=limits.credit,
        credit_bytes=limits.credit_bytes,
        max_hold_ms=limits.max_hold_s * 1_000,
        held=limits.held,
        held_bytes=limits.held_bytes,
        batch_commands=limits.batch_commands,
        batch_bytes=limits.batch_bytes,
        receipts=receipts.limit,
        receipt_window_ms=receipts.window_s * 1_000,
    )


def now_ms() -> int:
    """Return the time in Unix ms."""
    return time.time_ns() // 1_000_000


async def wait_for(task: "asyncio.Task[Any]") -> None:
    """Wait until a task ends, without raising its error, which other code that awaits it raises."""
    await asyncio.gather(task, return_exceptions=True)


async def cancel(task: "asyncio.Task[Any]") -> None:
    """Cancel a task, and wait until it has ended."""
    task.cancel()
    await wait_for(task)
