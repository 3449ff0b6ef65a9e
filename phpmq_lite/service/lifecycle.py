"""The life of a broker: it starts, perhaps waits as a standby, and is active until it stops."""

import asyncio
import os
import ssl
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

from phpmq_lite import logs
from phpmq_lite.admin import listeners as admin_listeners
from phpmq_lite.envelopes.schema_registry import RegistryError
from phpmq_lite.errors import OutcomeUnknownError, SettingsError
from phpmq_lite.protocol.frames import Revision
from phpmq_lite.server.addresses import check_exposed_listeners
from phpmq_lite.server.backpressure import memory_bound
from phpmq_lite.server.listeners import Kind, Listeners
from phpmq_lite.server.maintenance import DiskSpaceMonitor
from phpmq_lite.server.status import LATE_S
from phpmq_lite.server.tls import TlsListener, reload_contexts
from phpmq_lite.service.active import Active, fail_stop
from phpmq_lite.service.pages import AdminPages
from phpmq_lite.service.starting import Standby, Starting
from phpmq_lite.service.startup_checks import (
    admin_tls,
    check_ports,
    disk_space_bounds,
    has_admin,
    warn_about_open_files,
)
from phpmq_lite.service.state import Phase, ServiceState, cancel, wait_for
from phpmq_lite.settings import EffectiveSettings, Settings
from phpmq_lite.settings.loading import initial_password
from phpmq_lite.settings.model import AdminSettings, TcpSettings
from phpmq_lite.settings.reference import reload_settings
from phpmq_lite.storage.backend import Backend, StoreStatus
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.disk_space import DiskSpace
from phpmq_lite.storage.sqlite.backend import SqliteBackend

if TYPE_CHECKING:
    from phpmq_lite.admin.slow_clients import ConnectionLimits

_log = logs.get_logger(__name__)


class Service:
    """A broker, from its lock to its last checkpoint; ``announce`` receives a line per listener."""

    def __init__(
        self,
        settings: Settings,
        announce: Callable[[str], None],
        sources: Mapping[str, str] | None = None,
    ) -> None:
        self.state = ServiceState(settings, announce, sources)
        self.handle = self.state.handle
        self.drain: Callable[[], None] = self.stop  # called if a user clicks "Drain"
        self.pages = AdminPages(self.state, self._accept_http, lambda: self.drain())
        self.phase: Phase | None = None  # None until the database is being recovered
        self._standby: Standby | None = None  # with a database that several brokers share
        self._tls_listeners: list[TlsListener] = []  # listeners that use TLS
        self._folder: DataFolder | None = None  # while it is locked

    @property
    def active(self) -> Active:
        """This broker while it serves clients."""
        return cast(Active, self.phase)

    def stop(self) -> None:
        """Start draining; ``run`` returns once everything has been stored and closed."""
        self.state.stopping.set()

    def exit(self, *, is_late: bool) -> NoReturn:
        """Exit without closing anything, with 74 if the stop ``is_late`` or a batch has no answer.

        Everything that was confirmed is stored.
        """
        age_s, folder = self.handle.oldest_batch_s, self._folder
        if folder is not None and (is_late or age_s >= LATE_S):
            waiting = f"; a batch has waited {age_s:,.1f} s for its answer" if age_s else ""
            fail_stop(folder, OutcomeUnknownError(f"the stop was cut off{waiting}"))
        if folder is not None:
            folder.kill_writer()
        sys.stderr.flush()
        os._exit(0)

    def reload(self, effective: EffectiveSettings) -> None:
        """Apply the settings that can be changed at runtime; all others keep their values.

        Certificates and keys are reloaded from the files that were configured at startup.  Raises
        SettingsError: a certificate or a key cannot be used; nothing has changed.
        """
        reload_contexts(self._tls_listeners)
        state, result = self.state, reload_settings(self.state.settings, effective.settings)
        state.settings = result.settings
        changed_sources = {name: effective.sources[name] for name in result.changed}
        state.sources = {**state.sources, **changed_sources}
        self.pages.apply_settings()
        if self.handle.space is not None:
            self.handle.space.bounds = disk_space_bounds(result.settings)
        self.handle.memory_limiter.bound_bytes = memory_bound(result.settings.limits.memory)
        if self.phase is not None:
            self.phase.apply_settings(result.settings)
        logs.set_level(result.settings.log.level)
        secured = [listener.section for listener in self._tls_listeners]
        changes = {"changed": result.changed, "needs_restart": result.pending}
        _log.info("reloaded", **changes, certificates=secured)

    def session(self, kind: Kind, revision: Revision) -> asyncio.Protocol:
        return self.active.session(kind, revision)

    def has_progressed(self) -> bool:
        return self.phase is not None and self.phase.has_progressed()

    async def run(self) -> None:
        """Start the broker, serve until ``stop`` is called, then drain.

        If the outcome of a commit becomes unknown, the process exits with code 74.  Raises
        PhpmqError: the broker refuses to start; the error's class determines the exit code.
        """
        settings = self.state.settings
        if settings.store.url:
            unknown = StoreStatus("PostgreSQL", is_reached=False, is_active=False)
            self.handle.store = lambda: unknown
        reporting = asyncio.create_task(self._report_unreached())
        try:
            await asyncio.to_thread(check_exposed_listeners, settings, lambda: has_admin(settings))
            tls = admin_tls(settings)  # must come first, because a certificate may be invalid
            self._add_tls_listener("admin", tls)
            try:
                await asyncio.to_thread(self.state.schemas.load)
            except RegistryError as error:
                raise SettingsError(f"envelopes.schemas: {error}") from None
            file, password = settings.admin.initial_password_file, None
            if file is not None and not await asyncio.to_thread(has_admin, settings):
                password = initial_password(file)
            await self._run(settings, tls, password)
        finally:
            reporting.cancel()

    async def _report_unreached(self) -> None:
        """Log soon, and then every 5 s, that the database server cannot be reached."""
        await asyncio.sleep(0.5)
        while True:
            if not (status := self.handle.store()).is_reached:
                reason = status.problem or "no answer yet"
                _log.warning("database_not_reached", database=status.place, reason=reason)
            await asyncio.sleep(5)

    async def _run(
        self, settings: Settings, tls: ssl.SSLContext | None, initial_password: str | None
    ) -> None:
        state = self.state
        async with AsyncExitStack() as stack:
            await check_ports(settings)
            folder = self._folder = DataFolder.open(
                settings.data,
                allow_network_fs=settings.storage.allow_network_fs,
                has_database=not settings.store.url,
            )
            stack.callback(folder.close)
            admin_stack = await stack.enter_async_context(AsyncExitStack())
            sockets = await admin_listeners.bind_sockets(
                admin_stack, settings.admin.listen, folder.control_socket
            )
            is_secure = tls is not None
            state.admin = [
                admin_listeners.url_of(bound, is_secure=is_secure) for bound in sockets[1:]
            ]
            for address in state.admin:
                state.announce(f"listening admin {address}")
            warn_about_open_files(settings)
            listeners = Listeners(settings.tcp, self._accept_phpmq, self.handle.admission)
            await listeners.bind()
            stack.push_async_callback(listeners.close)
            self._add_tls_listener("tcp", listeners.tls)
            space = self.handle.space = DiskSpace(folder.path, disk_space_bounds(settings))
            space.prepare()
            room = DiskSpaceMonitor(space)
            backend = self._backend(folder, space, listeners)
            stack.push_async_callback(self._close_standby)
            self.handle.store = backend.status
            starting = self.phase = Starting(state, folder, backend, self.pages)
            recovering = asyncio.create_task(starting.recover())
            stack.push_async_callback(backend.writer.close)  # does nothing if it is closed
            stack.push_async_callback(wait_for, recovering)
            pages = asyncio.create_task(self.pages.run(admin_stack, backend, sockets, tls))
            stack.push_async_callback(cancel, pages)
            if await starting.is_stopped(recovering):
                return
            active = await Active.open(stack, state, await recovering, self.pages)
            room.attach(active.engine)
            await active.serve(
                folder,
                listeners,
                self._standby,
                pages,
                initial_password,
                partial(self._take_over, active),
            )

    def _backend(self, folder: DataFolder, space: DiskSpace, listeners: Listeners) -> Backend:
        settings, on_fatal = self.state.settings, partial(fail_stop, folder)
        if settings.store.url:
            from phpmq_lite.relay.handshake import create_relay_secret
            from phpmq_lite.storage.postgres.backend import PostgresBackend

            return PostgresBackend(
                settings.store.url,
                space,
                on_fatal,
                start_standby=partial(self._become_standby, listeners),
                make_secret=create_relay_secret,
                relay_to=self._relay_to,
                allow_asynchronous=settings.store.allow_asynchronous,
            )
        return SqliteBackend(
            folder,
            space,
            on_fatal,
            accept_loss=settings.storage.accept_loss,
            cache_bytes=settings.storage.cache_bytes,
            wal_bytes=settings.storage.wal_bytes,
        )

    # -- from one phase to the next

    async def _become_standby(self, listeners: Listeners, *secret: Any) -> str:
        """Begin as a standby; return the JSON that describes this broker to the others."""
        standby = await Standby.open(self.state, self.session, self.pages.connect, secret)
        self.phase = self._standby = standby
        return await standby.show_listeners(self.state, listeners)

    def _relay_to(self, epoch: int, broker: str, *, is_released: bool) -> None:
        if self._standby is not None:
            self._standby.relay_to(epoch, broker, is_released=is_released)

    def _take_over(self, active: Active) -> None:
        """Serve connections here from now on, with settings that may have been reloaded."""
        self.phase = active
        active.apply_settings(self.state.settings)

    async def _close_standby(self) -> None:
        if self._standby is not None:
            await self._standby.close()

    # -- connections

    def _accept_phpmq(self, kind: Kind, revision: Revision) -> asyncio.Protocol:
        own = partial(self.session, kind, revision)
        return cast(Phase, self.phase).accept(own, self.handle.admission, kind, revision)

    def _accept_http(
        self, connect: Callable[[], asyncio.Protocol], limits: "ConnectionLimits", kind: Kind
    ) -> asyncio.Protocol:
        phase = cast(Phase, self.phase)
        return phase.accept(connect, limits.admission, kind, "http", limits.name_of)

    def _add_tls_listener(self, section: str, context: ssl.SSLContext | None) -> None:
        files: TcpSettings | AdminSettings = getattr(self.state.settings, section)
        if context is not None and files.tls_cert is not None and files.tls_key is not None:
            client_ca = files.tls_client_ca if isinstance(files, TcpSettings) else None
            self._tls_listeners.append(
                TlsListener(section, context, files.tls_cert, files.tls_key, client_ca)
            )
