"""The composition root, which builds, starts and stops all parts of the broker."""

import asyncio
import errno
import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn, Union, cast

from phpmq_lite import __version__, logs
from phpmq_lite.admin import listeners as admin_listeners
from phpmq_lite.admin.accounts.setup_token import SetupToken
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.publish_keys import STORED_FACTOR
from phpmq_lite.clock import Clock
from phpmq_lite.envelopes.inspector import BabelQueueInspector
from phpmq_lite.envelopes.schema_registry import ActiveSchemas, RegistryError
from phpmq_lite.errors import (
    BatchRefusedError,
    OutcomeUnknownError,
    SettingsError,
    StartRefusedError,
    os_reason,
)
from phpmq_lite.model import Limits, RecoveredState
from phpmq_lite.protocol.connection import ServerSide
from phpmq_lite.protocol.frames import WireLimits
from phpmq_lite.protocol.revisions import Revision
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.server import processes
from phpmq_lite.server.addresses import (
    ListenAddress,
    bind_tcp,
    check_exposed_listeners,
    listen_addresses,
)
from phpmq_lite.server.admission import max_open_files, open_files, open_files_problem
from phpmq_lite.server.backpressure import SlowPeerLimits, memory_bound
from phpmq_lite.server.engine import Engine
from phpmq_lite.server.frame_processing import SessionLimits
from phpmq_lite.server.listeners import Kind, Listeners
from phpmq_lite.server.maintenance import DiskSpaceMonitor, Maintenance
from phpmq_lite.server.rollups import Rollups, RollupSampler
from phpmq_lite.server.session import Session, SessionContext
from phpmq_lite.server.status import LATE_S, BrokerHandle
from phpmq_lite.server.tls import TlsListener, reload_contexts, server_context
from phpmq_lite.server.watchdog import EngineWatchdog, SessionMonitor
from phpmq_lite.settings import EffectiveSettings, Settings
from phpmq_lite.settings.model import AdminSettings, TcpSettings
from phpmq_lite.settings.reload import reload_settings
from phpmq_lite.shutdown import fail_stop, run_engine
from phpmq_lite.storage.data_folder import DATABASE, DataFolder, in_use_message, locking_pid
from phpmq_lite.storage.disk_space import DiskSpace, DiskSpaceBounds
from phpmq_lite.storage.retention import RetentionBounds
from phpmq_lite.storage.sqlite.backend import SqliteBackend
from phpmq_lite.storage.sqlite.integrity import stopped_database
from phpmq_lite.storage.start_report import StartRecorder
from phpmq_lite.storage.store import Store, note_clock
from phpmq_lite.storage.store_status import StoreStatus
from phpmq_lite.storage.store_writer import StoreMaintenance, StoreWriter

if TYPE_CHECKING:
    from phpmq_lite.admin.context import Context
    from phpmq_lite.admin.slow_clients import ConnectionLimits
    from phpmq_lite.relay.active import RelayListener
    from phpmq_lite.relay.standby import Relay
    from phpmq_lite.storage.postgres.backend import PostgresBackend

Backend = Union[SqliteBackend, "PostgresBackend"]


def broker_limits(settings: Settings) -> Limits:
    """Return the core's limits according to the broker's settings."""
    limits, receipts = settings.limits, settings.receipts
    return Limits(
        queues=limits.max_queues,
        window=limits.window,
        bodies_bytes=limits.body_cache,
        credit=limits.credit,
        credit_bytes=limits.credit_bytes,
        held=limits.held,
        held_bytes=limits.held_bytes,
        batch_commands=limits.batch_commands,
        batch_bytes=limits.batch_bytes,
        receipts=receipts.limit,
        receipt_window_ms=receipts.window_s * 1_000,
    )


def retention_bounds(settings: Settings) -> RetentionBounds:
    """Return the limits on how much is kept of the history, the receipts and the audit log."""
    history, receipts = settings.history, settings.receipts
    return RetentionBounds(
        age_ms=int(history.days * 86_400_000),
        rows=history.rows,
        bytes=history.bytes,
        deleted_share=history.deleted_share,
        receipt_window_ms=receipts.window_s * 1_000,
        audit_age_ms=int(settings.audit.days * 86_400_000),
        audit_rows=settings.audit.rows,
        audit_refusals=settings.audit.refusals,
        clients=history.clients,
    )


def disk_space_bounds(settings: Settings) -> DiskSpaceBounds:
    """Return the disk-space limits at which publishing stops, and the size of the reserve."""
    limits, storage = settings.limits, settings.storage
    # A batch uses twice its size: once in the write-ahead log and once in the database.
    least = 2 * (limits.batch_bytes + limits.max_content)
    return DiskSpaceBounds(
        free_bytes=storage.free_bytes,
        max_bytes=storage.max_bytes,
        ballast_bytes=max(storage.ballast_bytes, least) if storage.ballast_bytes else 0,
    )


DRAIN_S: Final = 5.0  # seconds to wait for acknowledgements while draining
_FLAGS: Final = {  # flags of the listeners' settings
    "tcp.listen": "--listen",
    "tcp.legacy_listen": "--legacy-listen",
    "admin.listen": "--admin",
}
_COMMAND_CHARS: Final = 80  # maximum length of the command shown for a process that uses our port
_REPLICA_S: Final = 2.0  # how often a replica is read while no broker is active
CLOSE_S: Final = 2.0  # maximum number of seconds for sending pending data to sockets
_log = logs.get_logger(__name__)


class Service:
    """A broker, from its lock to its last checkpoint; ``announce`` receives a line per listener."""

    def __init__(
        self,
        settings: Settings,
        announce: Callable[[str], None],
        sources: Mapping[str, str] | None = None,
    ) -> None:
        self.settings = settings
        self._sources = sources or {}  # setting name -> source of its value
        self.handle = BrokerHandle(settings)
        self.rollups = Rollups()
        self.schemas = ActiveSchemas(settings.envelopes.schemas)
        self.sampler: RollupSampler  # set when serving starts
        self.phpmq: list[str] = []  # addresses of the open PHPMQ listeners
        self.admin: list[str] = []
        self.drain: Callable[[], None] = self.stop  # called if a user clicks "Drain"
        self._announce = announce
        self._context: Context | None = None  # the admin's context, once it is imported
        self._maintenance: Maintenance | None = None
        self._setup_token = SetupToken(settings.data)
        self._first_password: str | None = None  # the first user's password if no users exist
        self._upkeep: StoreMaintenance | None = None
        self._watchdog: EngineWatchdog | None = None  # set once the engine is created
        self._tls_listeners: list[TlsListener] = []  # listeners that use TLS
        self._session_context: SessionContext  # shared by all sessions; set when serving starts
        self._folder: DataFolder | None = None  # while it is locked
        self._relay: Relay | None = None  # while this broker is a standby
        self._relay_listener: RelayListener | None = None  # for standbys, with a shared database
        self._connect_http: Callable[[], asyncio.Protocol]  # set when the pages are open
        self._shows_replica = False  # whether pages show a replica while no broker is active
        self._stop = asyncio.Event()
        self.ready = asyncio.Event()  # set once this broker itself serves clients
        self.listening = asyncio.Event()  # set once clients can connect, perhaps to a standby
        self.pages_open = asyncio.Event()  # set once the admin is imported, for its first client
        self._pages_wanted = asyncio.Event()

    def stop(self) -> None:
        """Start draining; ``run`` returns once everything has been stored and closed."""
        self._stop.set()

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

        Certificates and keys are reloaded from the files that were configured at startup.

        Raises:
            SettingsError: a certificate or a key cannot be used; nothing has changed.
        """
        reload_contexts(self._tls_listeners)
        result = reload_settings(self.settings, effective.settings)
        self.settings = result.settings
        fresh = {name: effective.sources[name] for name in result.changed}
        self._sources = {**self._sources, **fresh}
        if self._context is not None:
            self._context.settings, self._context.sources = result.settings, self._sources
        if self._upkeep is not None:
            self._upkeep.bounds = retention_bounds(result.settings)
        if self.handle.space is not None:
            self.handle.space.bounds = disk_space_bounds(result.settings)
        self.handle.memory_limiter.bound_bytes = memory_bound(result.settings.limits.memory)
        if self.handle.engine is not None:
            self.handle.engine.submit(partial(_set_limits, limits=broker_limits(result.settings)))
        logs.set_level(result.settings.log.level)
        _log.info("reloaded", changed=result.changed, needs_restart=result.pending,
                  certificates=[one.section for one in self._tls_listeners])  # fmt: skip

    async def open_pages(self) -> "Context":
        """Import the admin without waiting for a client, and return what its handlers share."""
        self._pages_wanted.set()
        await self.pages_open.wait()
        return cast("Context", self._context)

    def has_progressed(self) -> bool:
        """Return whether the engine and the writer have made progress since the last call."""
        if not self.ready.is_set():  # a standby
            return self.listening.is_set()
        return self._watchdog is not None and self._watchdog.probe()

    async def run(self) -> None:
        """Start the broker, serve until ``stop`` is called, then drain.

        If the outcome of a commit becomes unknown, the process exits with code 74.

        Raises:
            PhpmqError: the broker refuses to start; the error's class determines the exit code.
        """
        settings = self.settings
        if settings.store.url:
            unknown = StoreStatus("PostgreSQL", is_reached=False, is_active=False)
            self.handle.store = lambda: unknown
        reporting = asyncio.create_task(self._report_unreached())
        try:
            await self._run(settings)
        finally:
            reporting.cancel()

    async def _report_unreached(self) -> None:
        """Log soon, and then every 5 s, that the database server cannot be reached."""
        await asyncio.sleep(0.5)
        while True:
            if not (status := self.handle.store()).is_reached:
                _log.warning("database_not_reached", database=status.place,
                             reason=status.problem or "no answer yet")  # fmt: skip
            await asyncio.sleep(5)

    async def _run(self, settings: Settings) -> None:
        await asyncio.to_thread(check_exposed_listeners, settings, lambda: has_admin(settings))
        tls = _admin_tls(settings)  # must come first, because a certificate may be invalid
        self._add_tls_listener("admin", tls)
        try:
            await asyncio.to_thread(self.schemas.load)
        except RegistryError as error:
            raise SettingsError(f"envelopes.schemas: {error}") from None
        file = settings.admin.initial_password_file
        if file is not None and not await asyncio.to_thread(has_admin, settings):
            from phpmq_lite.settings.initial_password import initial_password

            self._first_password = initial_password(file)
        async with AsyncExitStack() as stack:
            await _check_ports(settings)
            folder = self._folder = DataFolder.open(
                settings.data,
                allow_network_fs=settings.storage.allow_network_fs,
                has_database=not settings.store.url,
            )
            stack.callback(folder.close)
            admin_stack = await stack.enter_async_context(AsyncExitStack())
            bound = await admin_listeners.bind_sockets(
                admin_stack, settings.admin.listen, folder.control_socket
            )
            is_secure = tls is not None
            self.admin = [admin_listeners.url_of(one, is_secure=is_secure) for one in bound[1:]]
            for address in self.admin:
                self._announce(f"listening admin {address}")
            _warn_about_open_files(settings)
            listeners = Listeners(settings.tcp, self._accept_phpmq, self.handle.admission)
            await listeners.bind()
            stack.push_async_callback(listeners.close)
            self._add_tls_listener("tcp", listeners.tls)
            space = self.handle.space = DiskSpace(folder.path, disk_space_bounds(settings))
            space.prepare()
            room = DiskSpaceMonitor(space)
            backend = self._backend(folder, space, listeners)
            stack.push_async_callback(self._close_relay)
            self.handle.store = backend.status
            starting = StartRecorder(__version__, _now_ms(), was_clean=not folder.meta.is_running)
            recovering = asyncio.create_task(self._recover(folder, backend, starting))
            stack.push_async_callback(backend.writer.close)  # does nothing if it is closed
            stack.push_async_callback(_wait_for, recovering)
            pages = asyncio.create_task(self._open_pages(admin_stack, backend, bound, tls))
            stack.push_async_callback(_cancel, pages)
            if await self._is_stopped_as_standby(recovering, backend):
                return
            stored, clock = await recovering
            engine = await self._open_engine(stack, backend, starting, stored, clock)
            room.attach(engine)
            await self._serve(stack, engine, folder, backend, listeners, pages)

    def _backend(self, folder: DataFolder, space: DiskSpace, listeners: Listeners) -> Backend:
        """Return the engine that the settings select."""
        settings, on_fatal = self.settings, partial(fail_stop, folder)
        if settings.store.url:
            from phpmq_lite.relay.handshake import create_relay_secret
            from phpmq_lite.storage.postgres.backend import PostgresBackend

            return PostgresBackend(
                settings.store.url,
                space,
                on_fatal,
                start_standby=partial(self._start_standby, listeners),
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

    async def _start_standby(self, listeners: Listeners, *secret: Any) -> str:
        """Begin as a standby; return the JSON that describes this broker to the others."""
        from phpmq_lite.relay.active import RelayListener
        from phpmq_lite.relay.handshake import RelaySecret
        from phpmq_lite.relay.standby import Relay

        settings, host, key = self.settings, socket.gethostname(), RelaySecret(*secret)
        counters = self.handle.counters.relay
        self._relay = Relay(host, key, counters, settings.admin.base_path)
        self._relay_listener = RelayListener(
            settings.store.relay_listen, key, self.session, self.http_connection, counters
        )
        await self._relay_listener.bind()
        await listeners.open()
        self._show_listeners(listeners, step="standby")
        about = {"version": __version__, "host": host, "pid": os.getpid()}
        return json.dumps(about | {"relay": self._relay_listener.address})

    def _relay_to(self, epoch: int, broker: str, *, is_released: bool) -> None:
        """Relay to the broker that the row of the epoch, polled often, describes, or to none."""
        if self._relay is not None:
            self._relay.end_dead(asyncio.get_running_loop().time())
            self._relay.set_active(epoch, None if is_released else json.loads(broker).get("relay"))

    async def _close_relay(self) -> None:
        """Stop accepting connections of other brokers, and end relayed ones."""
        if self._relay is not None:
            await self._relay.close()
        if self._relay_listener is not None:
            self._relay_listener.epoch = None
            await self._relay_listener.close()

    async def _is_stopped_as_standby(self, recovering: asyncio.Task[Any], backend: Backend) -> bool:
        """Wait until the database is recovered; return True if a standby was stopped before."""
        stopping = asyncio.create_task(self._stop.wait())
        showing = asyncio.create_task(self._show_replica(backend))
        await asyncio.wait({recovering, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await _cancel(showing)
        self.handle.engine = None
        self._shows_replica = False
        if recovering.done() or backend.status().is_active:
            return False
        await _cancel(recovering)
        return True

    async def _show_replica(self, backend: Backend) -> None:
        """Show a replica on pages, read-only, as long as no broker is active."""
        while not isinstance(backend, SqliteBackend):
            await asyncio.sleep(_REPLICA_S)
            stored = await asyncio.to_thread(backend.read_replica)
            if self._context is not None and self._shows_replica != (stored is not None):
                await self._context.readers.close()  # the next reads may use another server
            self._shows_replica = stored is not None
            self.handle.engine = None
            if stored is not None:
                engine = Engine(self._core(stored), backend.writer, Clock(stored.counters))
                engine.is_stopping = True  # so that it refuses changes
                self.handle.engine = engine

    def _core(self, stored: RecoveredState) -> Broker:
        limits = broker_limits(self.settings)
        defaults = QueueSettings(**self.settings.queues.model_dump())
        max_content = self.settings.limits.max_content
        return Broker(stored, limits, defaults, BabelQueueInspector(self.schemas, max_content))

    def _show_listeners(self, listeners: Listeners, step: str) -> None:
        """Announce the open listeners; clients can connect from now on."""
        self.phpmq = listeners.addresses
        note = " (standby: relays to the active broker)" if self._relay is not None else ""
        for address in listeners.addresses:
            self._announce(f"listening phpmq {address}{note}")
        self.handle.set(step=step, listeners=tuple(listeners.opened))
        self.listening.set()

    def _add_tls_listener(self, section: str, context: ssl.SSLContext | None) -> None:
        files: TcpSettings | AdminSettings = getattr(self.settings, section)
        if context is not None and files.tls_cert is not None and files.tls_key is not None:
            client_ca = files.tls_client_ca if isinstance(files, TcpSettings) else None
            self._tls_listeners.append(
                TlsListener(section, context, files.tls_cert, files.tls_key, client_ca)
            )

    # -- startup steps, in order

    async def _open_pages(
        self,
        stack: AsyncExitStack,
        backend: Backend,
        bound: list[socket.socket],
        tls: ssl.SSLContext | None,
    ) -> None:
        """Import the admin when its first client connects, then answer its clients.

        The admin is half of all modules.  With it, the start takes twice as long and an idle broker
        needs a third more memory.  If it cannot be imported, the broker does not start; a running
        broker keeps serving PHPMQ clients and refuses connections to the admin.
        """
        await admin_listeners.wait_for_client(bound, self._pages_wanted)
        try:
            for name in ("app", "serving"):
                await asyncio.to_thread(import_module, f"phpmq_lite.admin.{name}")  # takes 200 ms
            from phpmq_lite.admin.app import create_app
            from phpmq_lite.admin.context import CONTEXT
            from phpmq_lite.admin.serving import open_admin
            from phpmq_lite.admin.system.system import DRAIN

            readers = backend.readers()
            stack.push_async_callback(readers.close)
            app = create_app(
                self.handle,
                readers,
                self.settings,
                version=__version__,
                is_ready=self._has_content,
                sources=self._sources,
            )
            app[DRAIN] = lambda: self.drain()
            context = self._context = app[CONTEXT]
            context.rollups = self.rollups
            context.schemas = self.schemas
            context.maintenance = self._maintenance
            context.auth.setup = self._setup_token
            self._connect_http = await open_admin(stack, app, bound, tls, self._accept_http)
            self.pages_open.set()
        except Exception:
            if not self.ready.is_set():
                raise
            _log.exception("admin_not_opened")
            for one in bound:
                one.close()

    def _has_content(self) -> bool:
        return (self.ready.is_set() or self._shows_replica) and not self._stop.is_set()

    def session(self, kind: Kind, revision: Revision) -> asyncio.Protocol:
        """Return the protocol of a PHPMQ connection to this broker, direct or relayed."""
        limits, tcp = self.settings.limits, self.settings.tcp
        side = ServerSide(
            WireLimits(max_content=limits.max_content),
            packet_header=tcp.packet_header,
            revision=revision,
            http_guard=tcp.http_guard,
        )
        return Session(self._session_context, side, kind)

    async def http_connection(self) -> asyncio.Protocol:
        """Return the protocol of an HTTP connection that another broker relays."""
        await self.open_pages()
        return self._connect_http()

    def _accept_phpmq(self, kind: Kind, revision: Revision) -> asyncio.Protocol:
        if self._relay is None:
            return self.session(kind, revision)
        own = partial(self.session, kind, revision)
        return self._relay.accept(self.handle.admission, kind, revision, own)

    def _accept_http(
        self, connect: Callable[[], asyncio.Protocol], limits: "ConnectionLimits", kind: Kind
    ) -> asyncio.Protocol:
        if self._relay is None:
            return connect()
        return self._relay.accept(limits.admission, kind, "http", connect, limits.name_of)

    async def _recover(
        self, folder: DataFolder, backend: Backend, starting: StartRecorder
    ) -> tuple[RecoveredState, Clock]:
        """Open and migrate the database and recover it; return the state and the clock."""
        handle, writer = self.handle, backend.writer
        starting.note_error(folder.read_last_error())
        await backend.open(starting, lambda step: handle.set(step=step))
        if starting.report.migrations:
            _log.info("migrated", applied=starting.report.migrations)
        handle.set(step="recovering")
        clock = Clock(await writer.run(lambda store: store.counters()), read=backend.read_clocks)
        return await writer.run(partial(self._read_state, clock=clock)), clock

    def _read_state(self, store: Store, *, clock: Clock) -> RecoveredState:
        receipts = self.settings.receipts
        stored = STORED_FACTOR * receipts.limit
        return store.recover(clock.now(), receipts.window_s * 1_000, stored)

    async def _load_core(self, writer: StoreWriter, clock: Clock) -> Broker:
        """Create the core from what is stored, after the database has refused a batch."""
        return await writer.run(lambda store: self._core(self._read_state(store, clock=clock)))

    async def _open_engine(
        self,
        stack: AsyncExitStack,
        backend: Backend,
        starting: StartRecorder,
        stored: RecoveredState,
        clock: Clock,
    ) -> Engine:
        """Create the core from the stored state, and record that the database is in use."""
        settings, writer = self.settings, backend.writer
        backend.close_with(stack)
        stack.push_async_callback(self._close_readers)
        starting.report.clock_jump_ms = clock.start_jump_ms
        starting.report.clock_doubt_ms = clock.doubt_ms if clock.is_doubt_new else 0
        await writer.run(lambda store: starting.read_database(store, clock.now().steady_ms))
        if isinstance(backend, SqliteBackend):
            backend.record_use(stack)
        core = self._core(stored)
        self._upkeep = await backend.start_maintenance(retention_bounds(settings), clock.counters)
        engine = Engine(core, writer, clock, partial(self._load_core, writer, clock))
        self.handle.engine = engine
        self._watchdog = EngineWatchdog(engine, writer)
        starting.note_recovered(stored, _now_ms())
        await writer.run(lambda store: starting.store(store))
        clock.take_disturbance()  # ignore the startup gap, which is stored below
        doubt = clock.pending_decision_counters(core.next_number)
        await writer.run(lambda store: _note_clock(store, clock, doubt))
        if doubt:
            _log.warning("clock_in_doubt", away_or_ahead_ms=clock.doubt_ms)
        stack.push_async_callback(writer.run, lambda store: _note_clock(store, clock))
        _log.info("recovered", queues=len(stored.queues), returned=stored.returned,
                  keys=len(core.publish_keys))  # fmt: skip
        return engine

    async def _close_readers(self) -> None:
        """Close the readers before the writer: the last connection to close removes the WAL."""
        if self._context is not None:
            await self._context.exports.close()
            await self._context.readers.close()

    async def _serve(
        self,
        stack: AsyncExitStack,
        engine: Engine,
        folder: DataFolder,
        backend: Backend,
        listeners: Listeners,
        pages: asyncio.Task[None],
    ) -> None:
        """Open the PHPMQ listeners, serve until ``stop`` is called, then drain."""
        monitor = self._open_sessions(engine)
        readers = backend.readers(count=1)  # separate from the pages' readers
        stack.push_async_callback(readers.close)
        self.sampler = RollupSampler(engine, readers, self.rollups)
        async with asyncio.TaskGroup() as tasks:
            work = tasks.create_task(run_engine(engine, folder))
            monitoring = tasks.create_task(monitor.run())
            sampling = tasks.create_task(self.sampler.run())
            watching = tasks.create_task(self.schemas.watch(_log_schema_error))
            tasks.create_task(_raise_error_of(pages))
            maintaining = tasks.create_task(self._maintain(engine, backend))
            await self._prepare_login(backend.writer)
            if self._relay is None or self._relay_listener is None:
                await listeners.open()
                self._show_listeners(listeners, step="ready")
            else:
                relay, self._relay = self._relay, None
                epoch = self._relay_listener.epoch = backend.status().epoch
                await relay.end()
                await self._relay_listener.open()
                self._announce(f"active with epoch {epoch}")
                self._pages_wanted.set()  # the first client may come through a standby
            self.handle.set(step="ready", is_ready=True)
            self.ready.set()
            await self._stop.wait()
            await self._drain(engine, listeners)
            await _cancel(pages)
            sampling.cancel()
            maintaining.cancel()
            await asyncio.wait({sampling, maintaining})
            with suppress(TimeoutError, BatchRefusedError):
                await asyncio.wait_for(self.sampler.finish(), CLOSE_S)
            engine.stop()
            await work
            monitoring.cancel()
            watching.cancel()
        await engine.end()

    def _open_sessions(self, engine: Engine) -> SessionMonitor:
        """Create the context that all sessions share; return the session monitor."""
        limits, handle = self.settings.limits, self.handle
        context = self._session_context = SessionContext(
            engine,
            handle.admission,
            handle.backpressure,
            handle.counters,
            SessionLimits(limits.unstored_frames, limits.unstored_bytes, limits.write_buffer),
        )
        slow_peers = SlowPeerLimits(
            limits.frame_timeout_s,
            limits.frame_rate_bytes,
            limits.write_timeout_s,
            places=handle.admission.capacity,
        )
        return SessionMonitor(context.sessions, handle, slow_peers, handle.memory_limiter)

    async def _maintain(self, engine: Engine, backend: Backend) -> None:
        """Back up and scrub a database of this machine, or else watch its server."""
        if isinstance(backend, SqliteBackend):
            figures, database = self.handle.counters, self.settings.data / DATABASE
            maintenance = self._maintenance = Maintenance(
                engine, figures, database, lambda: self.settings, __version__
            )
            if self._context is not None:
                self._context.maintenance = maintenance
            await maintenance.run(is_structure_due=backend.is_structure_due)
        else:
            await backend.monitor.run()

    async def _prepare_login(self, writer: StoreWriter) -> None:
        """If there are no users, create the first one, or a token with which a browser does."""
        password, self._first_password = self._first_password, None
        if self._context is not None:  # a standby may have read older accounts
            self._context.auth.accounts.is_loaded = False
        if await writer.run(lambda store: store.has_users()):
            self._setup_token.spend()
        elif password is not None:
            context = await self.open_pages()
            await context.auth.create_first_user(_now_ms(), password)
        else:
            token = self._setup_token.make()
            shown = {"token": token} if sys.stderr.isatty() else {}
            _log.info(
                "no_users",
                setup=f"{self.admin[0] if self.admin else '/'}setup",
                token_file=str(self._setup_token.path),
                **shown,
                hint="until there is a user, programs of this machine can do everything, and so "
                "can users of a proxy on it whose requests show no sign of a proxy",
            )

    async def _drain(self, engine: Engine, listeners: Listeners) -> None:
        """Stop dispatching, wait for outstanding acknowledgements, then close all connections."""
        context = self._session_context
        self.handle.set(step="draining", is_draining=True, is_ready=False)
        await listeners.close()
        await self._close_relay()
        with suppress(TimeoutError, BatchRefusedError):
            await asyncio.wait_for(engine.call(lambda core, answer: core.drain(answer)), DRAIN_S)
        for session in list(context.sessions):
            session.end("the broker is stopping")
        with suppress(TimeoutError):
            await asyncio.wait_for(context.wait_empty(), CLOSE_S)
        for session in list(context.sessions):
            session.abort("the broker is stopping")


def _set_limits(core: Broker, limits: Limits) -> None:
    """Change all limits but those on windows and receipts, which are fixed at startup."""
    core.limits = core.limits = limits


def has_admin(settings: Settings) -> bool:
    """Return whether a user has the admin role; True if a database server cannot be reached."""
    if settings.store.url:
        from phpmq_lite.storage.postgres.backend import has_admin as has_admin_there

        return has_admin_there(settings.store.url)
    return stopped_database.has_admin(settings.data / DATABASE)


def _note_clock(store: Store, clock: Clock, doubt: Mapping[str, int] | None = None) -> None:
    note_clock(store, clock.counters(clock.now()) | dict(doubt or {}))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _admin_tls(settings: Settings) -> ssl.SSLContext | None:
    """Return the admin's TLS context, or None for plain HTTP; see ``server_context``."""
    admin = settings.admin
    if admin.tls_cert is None or admin.tls_key is None:
        return None
    return server_context(admin.tls_cert, admin.tls_key, section="admin")


async def _wait_for(task: asyncio.Task[Any]) -> None:
    """Wait until a task ends, without raising its error, which other code that awaits it raises."""
    await asyncio.gather(task, return_exceptions=True)


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await _wait_for(task)


async def _raise_error_of(task: asyncio.Task[Any]) -> None:
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()


def _log_schema_error(error: RegistryError | None) -> None:
    if error is None:
        _log.info("schemas_read")
    else:
        _log.warning("schemas_not_read", reason=str(error))


async def _check_ports(settings: Settings) -> None:
    """Check that all ports are free, before a folder is created or a database is migrated.

    Raises:
        StartRefusedError: ports are in use or unavailable; the message names all of them.
    """
    problems: list[str] = []
    for name, endpoint in listen_addresses(settings):
        if endpoint.kind == "unix":
            continue
        try:
            for bound in await bind_tcp(endpoint):
                bound.close()
        except OSError as error:
            with suppress(OSError):  # the other program may be a broker with the same data folder
                if (pid := locking_pid(settings.data)) is not None:
                    raise StartRefusedError(in_use_message(settings.data.absolute(), pid)) from None
            flag = _FLAGS.get(name, f"--set {name}")
            problem = await asyncio.to_thread(_port_problem, endpoint, error, flag)
            problems.append(f"{name}: {problem}")
    if problems:
        raise StartRefusedError(" ".join(problems))


def _warn_about_open_files(settings: Settings) -> None:
    """Warn if the limit on open files allows fewer connections than the settings do."""
    files = open_files()
    problem = None if files is None else open_files_problem(settings, files, max_open_files())
    if problem is not None:
        _log.warning("few_open_files", found=problem[0], remedy=problem[1])


def _port_problem(endpoint: ListenAddress, error: OSError, flag: str) -> str:
    if error.errno != errno.EADDRINUSE:
        return (
            f"cannot listen on {endpoint}: {os_reason(error)}. Choose another address with {flag}."
        )
    process = processes.find_listener(endpoint.port)
    by = "another program (run `ss -ltnp` as root to see which)"
    if process is not None:
        by = f"{process.command[:_COMMAND_CHARS]} (pid {process.pid})"
    return (
        f"port {endpoint.port} is already in use by {by}. "
        f"Choose another port with {flag}, or stop that process."
    )
