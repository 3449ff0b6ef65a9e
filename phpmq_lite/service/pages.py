"""The admin's pages, which are imported when their first client connects."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib import import_module
from typing import TYPE_CHECKING, cast

from phpmq_lite import __version__, logs
from phpmq_lite.admin import listeners as admin_listeners
from phpmq_lite.server.maintenance import Maintenance
from phpmq_lite.service.state import ServiceState
from phpmq_lite.storage.backend import Backend

if TYPE_CHECKING:
    from phpmq_lite.admin.http.context import Context
    from phpmq_lite.admin.serving import Front

_log = logs.get_logger(__name__)


class AdminPages:
    """The pages and the API of a broker.

    ``accept`` makes the protocols of connections to their addresses, and ``drain`` is called if a
    user clicks "Drain".
    """

    def __init__(self, state: ServiceState, accept: "Front", drain: Callable[[], None]) -> None:
        self.context: Context | None = None  # what handlers share, once the admin is imported
        self.opened = asyncio.Event()  # set once the admin is imported
        self.requested = asyncio.Event()  # set by the first client, or what else needs the admin
        self.shows_replica = False  # whether pages show a replica while no broker is active
        self._state = state
        self._accept = accept
        self._drain = drain
        self._maintenance: Maintenance | None = None
        self._connect: Callable[[], asyncio.Protocol]  # set once the admin is imported

    async def open(self) -> "Context":
        """Import the admin without waiting for a client, and return what its handlers share."""
        self.requested.set()
        await self.opened.wait()
        return cast("Context", self.context)

    async def connect(self) -> asyncio.Protocol:
        """Return the protocol of an HTTP connection that another broker relays."""
        await self.open()
        return self._connect()

    async def run(
        self,
        stack: AsyncExitStack,
        backend: Backend,
        sockets: list[socket.socket],
        tls: ssl.SSLContext | None,
    ) -> None:
        """Import the admin when its first client connects, then answer its clients.

        The admin is half of all modules.  With it, the start takes twice as long and an idle broker
        needs a third more memory.  If it cannot be imported, the broker does not start; a running
        broker keeps serving PHPMQ clients and refuses connections to the admin.
        """
        await admin_listeners.wait_for_client(sockets, self.requested)
        try:
            for name in ("app", "serving"):
                await asyncio.to_thread(import_module, f"phpmq_lite.admin.{name}")  # takes 200 ms
            await self._open(stack, backend, sockets, tls)
        except Exception:
            if not self._state.ready.is_set():
                raise
            _log.exception("admin_not_opened")
            for listening in sockets:
                listening.close()

    async def _open(
        self,
        stack: AsyncExitStack,
        backend: Backend,
        sockets: list[socket.socket],
        tls: ssl.SSLContext | None,
    ) -> None:
        from phpmq_lite.admin.accounts.services import SERVICES
        from phpmq_lite.admin.app import create_app
        from phpmq_lite.admin.http.context import CONTEXT
        from phpmq_lite.admin.messages.schemas import SCHEMAS
        from phpmq_lite.admin.serving import open_admin
        from phpmq_lite.admin.system.system import DRAIN

        state, readers = self._state, backend.readers()
        stack.push_async_callback(readers.close)
        shared = (state.handle, readers, state.settings)
        app = create_app(
            *shared, version=__version__, is_ready=self._has_content, sources=state.sources
        )
        app[DRAIN] = self._drain
        context = self.context = app[CONTEXT]
        context.rollups = state.rollups
        app[SCHEMAS] = state.schemas
        context.maintenance = self._maintenance
        app[SERVICES].setup = state.setup_token
        self._connect = await open_admin(stack, app, sockets, tls, self._accept)
        self.opened.set()

    def _has_content(self) -> bool:
        state = self._state
        return (state.ready.is_set() or self.shows_replica) and not state.stopping.is_set()

    def apply_settings(self) -> None:
        if self.context is not None:
            self.context.settings, self.context.sources = self._state.settings, self._state.sources

    def show_maintenance(self, maintenance: Maintenance) -> None:
        self._maintenance = maintenance
        if self.context is not None:
            self.context.maintenance = maintenance

    async def show_replica(self, *, is_shown: bool) -> None:
        """Show a replica, or the active broker's server again."""
        if self.context is not None and self.shows_replica != is_shown:
            await self.context.readers.close()  # the next reads may use another server
        self.shows_replica = is_shown

    async def close_readers(self) -> None:
        """Close the readers before the writer: the last connection to close removes the WAL."""
        if self.context is not None:
            from phpmq_lite.admin.messages.arrow_export import EXPORTS

            await self.context.app[EXPORTS].close()
            await self.context.readers.close()
