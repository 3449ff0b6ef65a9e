"""A broker that decides: its engine runs, and it serves clients until it is drained.

If the outcome of a commit is unknown or the engine fails, the process exits with code 74 and
closes nothing.
"""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Final, Self

from phpmq_lite import __version__, logs
from phpmq_lite.broker.broker import Broker
from phpmq_lite.clock import Clock
from phpmq_lite.envelopes.schema_registry import RegistryError
from phpmq_lite.errors import BatchRefusedError, EpochEndedError, PhpmqError
from phpmq_lite.frame_options import write_options
from phpmq_lite.protocol.connection import ServerSide
from phpmq_lite.protocol.frames import OUR_FRAMES, Revision, WireLimits
from phpmq_lite.server.backpressure import SlowPeerLimits
from phpmq_lite.server.engine import Engine
from phpmq_lite.server.frame_processing import SessionLimits
from phpmq_lite.server.listeners import Kind, Listeners
from phpmq_lite.server.maintenance import Maintenance
from phpmq_lite.server.rollups import RollupSampler
from phpmq_lite.server.session import Session, SessionContext
from phpmq_lite.server.watchdog import EngineWatchdog, SessionMonitor
from phpmq_lite.service.pages import AdminPages
from phpmq_lite.service.starting import RecoveredDatabase, Standby
from phpmq_lite.service.state import Phase, ServiceState, broker_limits, cancel, now_ms
from phpmq_lite.settings import Settings
from phpmq_lite.settings.model import LimitSettings
from phpmq_lite.storage.backend import Backend, StoreMaintenance
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.retention import RetentionBounds
from phpmq_lite.storage.store import Store, note_clock

DRAIN_S: Final = 5.0  # seconds to wait for acknowledgements while draining
CLOSE_S: Final = 2.0  # maximum number of seconds for sending pending data to sockets
LOG_REASON_S: Final = 0.5  # maximum number of seconds that a fail-stop spends on logging its reason
_LAST_WORDS: Final = b"stopped immediately: not enough memory to write the reason\n"
_log = logs.get_logger(__name__)


class Active(Phase):
    """The engine of a broker, and everything that works beside it."""

    def __init__(
        self,
        state: ServiceState,
        backend: Backend,
        pages: AdminPages,
        engine: Engine,
        sampler: RollupSampler,
        store_maintenance: StoreMaintenance,
    ) -> None:
        self.engine = engine
        self.sampler = sampler
        self._state = state
        self._backend = backend
        self._pages = pages
        self._store_maintenance = store_maintenance
        self.maintenance: Maintenance | None = None  # of a database file
        self._watchdog = EngineWatchdog(engine, backend.writer)
        limits, handle = state.settings.limits, state.handle
        bounds = SessionLimits(
            limits.unstored_frames, limits.unstored_bytes, limits.write_buffer, _welcome(limits)
        )
        self.sessions = SessionContext(
            engine, handle.admission, handle.backpressure, handle.counters, bounds
        )

    @classmethod
    async def open(
        cls,
        stack: AsyncExitStack,
        state: ServiceState,
        database: RecoveredDatabase,
        pages: AdminPages,
    ) -> Self:
        """Create the core from the stored state, and record that the database is in use."""
        backend, clock, recorder = database.backend, database.clock, database.recorder
        writer, stored = backend.writer, database.stored
        backend.close_with(stack)
        stack.push_async_callback(pages.close_readers)
        recorder.report.clock_jump_ms = clock.start_jump_ms
        recorder.report.clock_doubt_ms = clock.doubt_ms if clock.is_doubt_new else 0
        await writer.run(lambda store: recorder.read_database(store, clock.now().steady_ms))
        backend.record_use(stack)
        core = state.create_core(stored)
        core.is_clock_doubtful = clock.doubt_ms != 0
        bounds = _retention_bounds(state.settings)
        store_maintenance = await backend.start_maintenance(bounds, clock.counters)
        engine = Engine(core, writer, clock, partial(database.load_core, state))
        state.handle.engine = engine
        recorder.note_recovered(stored, now_ms())
        await writer.run(recorder.store)
        clock.take_disturbance()  # ignore the startup gap, which is stored below
        doubt = clock.pending_decision_counters(core.next_number)
        await writer.run(lambda store: _note_clock(store, clock, doubt))
        if doubt:
            _log.warning("clock_in_doubt", away_or_ahead_ms=clock.doubt_ms)
        stack.push_async_callback(writer.run, lambda store: _note_clock(store, clock))
        queues, keys = len(stored.queues), len(core.publish_keys)
        _log.info("recovered", queues=queues, returned=stored.returned, keys=keys)
        readers = backend.readers(count=1)  # separate from the pages' readers
        stack.push_async_callback(readers.close)
        sampler = RollupSampler(engine, readers, state.rollups)
        return cls(state, backend, pages, engine, sampler, store_maintenance)

    async def serve(
        self,
        folder: DataFolder,
        listeners: Listeners,
        standby: Standby | None,
        pages: "asyncio.Task[None]",
        initial_password: str | None,
        take_over: Callable[[], None],
    ) -> None:
        """Open the PHPMQ listeners, serve until the broker is stopped, then drain.

        ``take_over`` is called when this broker begins to serve connections itself.
        """
        state, engine = self._state, self.engine
        async with asyncio.TaskGroup() as tasks:
            work = tasks.create_task(run_engine(engine, folder))
            monitoring = tasks.create_task(self._session_monitor().run())
            sampling = tasks.create_task(self.sampler.run())
            watching = tasks.create_task(state.schemas.watch(_log_schema_error))
            tasks.create_task(_raise_error_of(pages))
            maintaining = tasks.create_task(self._maintain())
            await self._prepare_login(initial_password)
            take_over()
            if standby is None:
                await listeners.open()
                state.show_listeners(listeners, step="ready")
            else:
                epoch = self._backend.status().epoch
                await standby.take_over(epoch)
                state.announce(f"active with epoch {epoch}")
                self._pages.requested.set()  # the first client may come through a standby
            state.handle.set(step="ready", is_ready=True)
            state.ready.set()
            await state.stopping.wait()
            await self._drain(listeners, standby)
            await cancel(pages)
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

    def session(self, kind: Kind, revision: Revision) -> asyncio.Protocol:
        """Return the protocol of a PHPMQ connection to this broker, direct or relayed."""
        limits, tcp = self._state.settings.limits, self._state.settings.tcp
        wire, style = WireLimits(max_content=limits.max_content), tcp.packet_header
        side = ServerSide(wire, packet_header=style, revision=revision, http_guard=tcp.http_guard)
        return Session(self.sessions, side, kind)

    def _session_monitor(self) -> SessionMonitor:
        limits, handle = self._state.settings.limits, self._state.handle
        times = (limits.frame_timeout_s, limits.frame_rate_bytes, limits.write_timeout_s)
        slow_peers = SlowPeerLimits(*times, places=handle.admission.capacity)
        return SessionMonitor(self.sessions.sessions, handle, slow_peers, handle.memory_limiter)

    async def _maintain(self) -> None:
        """Back up and scrub a database of this machine, or else watch its server."""
        backend, state = self._backend, self._state
        if backend.database is None:
            await backend.watch_server()
            return
        counters, database = state.handle.counters, backend.database
        self.maintenance = Maintenance(
            self.engine, counters, database, lambda: state.settings, __version__
        )
        self._pages.show_maintenance(self.maintenance)
        await self.maintenance.run(is_structure_due=backend.is_structure_due)

    async def _prepare_login(self, initial_password: str | None) -> None:
        """If there are no users, create the first one, or a token with which a browser does."""
        state, pages = self._state, self._pages
        if pages.context is not None:  # a standby may have read older accounts
            from phpmq_lite.admin.accounts.services import SERVICES

            pages.context.app[SERVICES].accounts.is_loaded = False
        if await self._backend.writer.run(lambda store: store.has_users()):
            state.setup_token.spend()
        elif initial_password is not None:
            context = await pages.open()
            from phpmq_lite.admin.accounts.services import SERVICES

            await context.app[SERVICES].create_first_user(now_ms(), initial_password)
        else:
            token = state.setup_token.make()
            details = {"token": token} if sys.stderr.isatty() else {}
            _log.info(
                "no_users",
                setup=f"{state.admin[0] if state.admin else '/'}setup",
                token_file=str(state.setup_token.path),
                **details,
                hint="until there is a user, programs of this machine can do everything, and so "
                "can users of a proxy on it whose requests show no sign of a proxy",
            )

    async def _drain(self, listeners: Listeners, standby: Standby | None) -> None:
        """Stop dispatching, wait for outstanding acknowledgements, then close all connections."""
        sessions = self.sessions
        self._state.handle.set(step="draining", is_draining=True, is_ready=False)
        await listeners.close()
        if standby is not None:
            await standby.close()
        with suppress(TimeoutError, BatchRefusedError):
            await asyncio.wait_for(
                self.engine.call(lambda core, answer: core.drain(answer)), DRAIN_S
            )
        for session in list(sessions.sessions):
            session.end("the broker is stopping")
        with suppress(TimeoutError):
            await asyncio.wait_for(sessions.wait_empty(), CLOSE_S)
        for session in list(sessions.sessions):
            session.abort("the broker is stopping")

    # -- the phase

    def has_progressed(self) -> bool:
        """Return whether the engine and the writer have made progress since the last call."""
        return not self._state.ready.is_set() or self._watchdog.probe()

    def apply_settings(self, settings: Settings) -> None:
        """Use the new limits; those on windows and receipts are fixed at startup."""
        self._store_maintenance.bounds = _retention_bounds(settings)
        self.sessions.limits = replace(self.sessions.limits, welcome=_welcome(settings.limits))

        def set_limits(core: Broker) -> None:
            core.limits = broker_limits(settings)

        self.engine.submit(set_limits)


def _welcome(limits: LimitSettings) -> bytes:
    """Return packet 06 of the 015 that new connections receive."""
    return write_options(
        {
            "version": __version__,
            "frames": OUR_FRAMES,
            "max_content": int(limits.max_content),
            "max_hold_s": int(limits.max_hold_s),
        }
    )


def _retention_bounds(settings: Settings) -> RetentionBounds:
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


def _note_clock(store: Store, clock: Clock, doubt: Mapping[str, int] | None = None) -> None:
    note_clock(store, clock.counters(clock.now()) | dict(doubt or {}))


async def _raise_error_of(task: "asyncio.Task[None]") -> None:
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()


def _log_schema_error(error: RegistryError | None) -> None:
    if error is None:
        _log.info("schemas_read")
    else:
        _log.warning("schemas_not_read", reason=str(error))


async def run_engine(engine: Engine, folder: DataFolder) -> None:
    """Run the engine; if it fails, stop the process, whose in-memory state cannot be trusted.

    A failure is a defect or a lack of memory.  No client has been notified of the open batch, and
    the next start reads the database.
    """
    try:
        await engine.run()
    except Exception as error:
        fail_stop(folder, error)


def fail_stop(folder: DataFolder, error: BaseException) -> None:
    """Exit immediately, without notifying clients, because nothing can be stored safely.

    Callable from any thread.  The database stays open, because closing runs a checkpoint; the next
    start reads what is stored.  The exit does not wait for a disk that cannot even store the
    reason.
    """
    try:
        limit = threading.Timer(LOG_REASON_S, _exit, (folder,), {"waits": False})
        limit.daemon = True
        limit.start()
        if isinstance(error, EpochEndedError):  # not a problem: the next start reports nothing
            _log.warning(
                "another broker is active now; this one has stopped and will be started "
                "again as a standby",
                reason=str(error),
            )
        else:
            trace = {} if isinstance(error, PhpmqError) else {"exc_info": error}  # to find the bug
            reason = str(error) or type(error).__name__
            _log.error("stopped immediately: nothing can be stored safely", reason=reason, **trace)
            folder.write_last_error(error, time.time_ns() // 1_000_000)
        sys.stderr.flush()
    except MemoryError:
        os.write(sys.stderr.fileno(), _LAST_WORDS)
    finally:
        _exit(folder)


def _exit(folder: DataFolder, *, waits: bool = True) -> None:
    """Exit after killing the writer process, which would keep the lock while it is stopped.

    Its end would be another reason to fail, so the first one is written before.
    """
    try:
        folder.kill_writer(waits=waits)
    finally:
        os._exit(os.EX_IOERR)
