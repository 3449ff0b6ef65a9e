"""The composition root: builds, starts and stops everything, top to bottom.

Where the outcome of a commit is unknown, the process ends here at once, with exit code 74.
"""

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

from aiohttp import web

from phpmq_lite import __version__, logs
from phpmq_lite.admin.app import create_app
from phpmq_lite.broker.core import Broker
from phpmq_lite.clock import Clock
from phpmq_lite.errors import OutcomeUnknownError
from phpmq_lite.model import Limits, QueueSettings, Stored
from phpmq_lite.protocol.connection import ServerSide
from phpmq_lite.protocol.wire import WireLimits
from phpmq_lite.resources import migrations_folder
from phpmq_lite.server.admission import Admission
from phpmq_lite.server.endpoints import Endpoint, parse_endpoint
from phpmq_lite.server.engine import Engine
from phpmq_lite.server.figures import Figures
from phpmq_lite.server.listeners import Listeners, check_wide_binds
from phpmq_lite.server.pressure import Pressure
from phpmq_lite.server.status import Front
from phpmq_lite.server.tcp import Session, SessionLimits, Shared
from phpmq_lite.server.watch import TimeLimits, Watch
from phpmq_lite.settings import Settings
from phpmq_lite.storage import migrate
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.readers import Readers
from phpmq_lite.storage.retention import RetentionBounds
from phpmq_lite.storage.upkeep import Upkeep
from phpmq_lite.storage.wal_guard import check_wal
from phpmq_lite.storage.writer import Writer

DRAIN_S: Final = 5.0  # for acknowledgements of what consumers hold
CLOSE_S: Final = 2.0  # for sockets to take what was written
STOP_S: Final = 10.0  # then the process ends behind the last commit
_log = logs.get_logger(__name__)


class Service:
    """One broker process from lock to last checkpoint.  ``announce`` gets a line per listener."""

    def __init__(
        self,
        settings: Settings,
        announce: Callable[[str], None],
        sources: Mapping[str, str] | None = None,
    ) -> None:
        self.settings = settings
        self._sources = sources or {}  # where each setting comes from
        self.front = Front(Figures())
        self.phpmq: list[str] = []  # addresses of the PHPMQ listeners, once open
        self.admin: list[str] = []
        self._announce = announce
        self._stop = asyncio.Event()
        self._ready = asyncio.Event()

    def stop(self) -> None:
        """Begin to drain; ``run`` returns when all is stored and closed."""
        self._stop.set()

    async def wait_ready(self) -> None:
        """Return once clients may connect."""
        await self._ready.wait()

    async def run(self) -> None:
        """Start, serve until ``stop``, drain.

        Raises:
            PhpmqError: the start is refused; the exit code follows from its class.

        Where a commit fails with an unknown outcome the process ends here, with exit code 74.
        """
        check_wide_binds(self.settings)
        async with AsyncExitStack() as stack:
            folder = DataFolder.open(
                self.settings.data, allow_network_fs=self.settings.storage.allow_network_fs
            )
            stack.callback(folder.close)
            await self._open_admin(stack, folder)
            engine = await self._open_engine(stack, folder)
            await self._serve(stack, engine, folder)

    # -- start, in order

    async def _open_admin(self, stack: AsyncExitStack, folder: DataFolder) -> None:
        """First of all: the health pages tell how the start goes on."""
        readers = Readers(folder.database)
        stack.push_async_callback(readers.close)
        admin = self.settings.admin
        app = create_app(
            self.front,
            readers,
            self.settings,
            version=__version__,
            is_ready=lambda: self._ready.is_set() and not self._stop.is_set(),
            sources=self._sources,
        )
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        control = folder.control_socket
        control.unlink(missing_ok=True)  # we hold the lock: nobody answers there
        await web.UnixSite(runner, str(control)).start()
        control.chmod(0o600)
        stack.callback(control.unlink, missing_ok=True)
        for endpoint in _endpoints(admin.listen):
            await _admin_site(runner, endpoint).start()
        for address in runner.addresses[1:]:
            self.admin.append(_http_address(address))
            self._announce(f"listening admin {self.admin[-1]}")

    async def _open_engine(self, stack: AsyncExitStack, folder: DataFolder) -> Engine:
        """Check the files, migrate, recover; then the core has all that it needs."""
        settings, front = self.settings, self.front
        front.set(step="checking the write-ahead log")
        await asyncio.to_thread(check_wal, folder, accept_loss=settings.storage.accept_loss)
        writer = Writer(folder.database)
        stack.push_async_callback(writer.close)
        await writer.open(settings.storage.cache_bytes)
        front.set(step="migrating")
        applied = await writer.run(lambda store: migrate.migrate(
            store.connection, migrations_folder()))  # fmt: skip
        if applied:
            _log.info("migrated", applied=applied)
        front.set(step="recovering")
        receipts = settings.receipts
        stored: Stored = await writer.run(lambda store: store.recover(
            time.time_ns() // 1_000_000, receipts.window_s * 1_000, receipts.limit))  # fmt: skip
        folder.record(is_running=True, has_messages=True)
        stack.callback(folder.record, is_running=False)  # ahead of writer.close
        core = Broker(stored, _limits(settings), _queue_defaults(settings))
        engine = Engine(
            core,
            writer,
            Clock(stored.counters.get("clock_step_ms", 0)),
            Upkeep(folder.database, _bounds(settings), settings.storage.wal_bytes),
        )
        front.engine = engine
        _log.info("recovered", queues=len(stored.queues), returned=stored.returned,
                  keys=len(stored.receipts))  # fmt: skip
        return engine

    async def _serve(self, stack: AsyncExitStack, engine: Engine, folder: DataFolder) -> None:
        """Open the PHPMQ listeners and work until ``stop``, then drain."""
        settings, limits = self.settings, self.settings.limits
        gate = Admission.of(settings)
        shared = Shared(
            engine,
            gate,
            Pressure(limits.unstored_total),
            self.front.figures,
            SessionLimits(limits.unstored_frames, limits.unstored_bytes, limits.write_buffer),
        )
        listeners = Listeners(
            settings.tcp,
            lambda kind, dispatch: _session(shared, settings, kind, dispatch),
            gate,
        )
        watch = Watch(
            shared.sessions,
            self.front,
            TimeLimits(
                limits.frame_timeout_s,
                limits.frame_rate_bytes,
                limits.write_timeout_s,
                places=gate.places,
            ),
        )
        try:
            await self._work(stack, engine, listeners, shared, watch)
        except* OutcomeUnknownError as group:  # before anything is closed
            fail_stop(folder, group.exceptions[0])

    async def _work(
        self,
        stack: AsyncExitStack,
        engine: Engine,
        listeners: Listeners,
        shared: Shared,
        watch: Watch,
    ) -> None:
        async with asyncio.TaskGroup() as tasks:
            work = tasks.create_task(engine.run())
            looking = tasks.create_task(watch.run())
            await listeners.open()
            stack.push_async_callback(listeners.close)
            self.phpmq = listeners.addresses
            for address in listeners.addresses:
                self._announce(f"listening phpmq {address}")
            self.front.set(step="ready", is_ready=True, listeners=tuple(listeners.addresses))
            self._ready.set()
            await self._stop.wait()
            await self._drain(engine, listeners, shared)
            await work
            looking.cancel()
        await engine.end()

    async def _drain(self, engine: Engine, listeners: Listeners, shared: Shared) -> None:
        """Dispatch nothing new, wait for acknowledgements, then close every connection."""
        self.front.set(step="draining", is_draining=True, is_ready=False)
        await listeners.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(engine.call(lambda core, answer: core.drain(answer)), DRAIN_S)
        for session in list(shared.sessions):
            session.end("the broker stops")
        with suppress(TimeoutError):
            await asyncio.wait_for(shared.wait_empty(), CLOSE_S)
        for session in list(shared.sessions):
            session.abort("the broker stops")
        engine.stop()


def _session(shared: Shared, settings: Settings, kind: str, dispatch: str) -> Session:
    tcp = settings.tcp
    side = ServerSide(
        WireLimits(max_content=settings.limits.max_content),
        packet_header=tcp.packet_header,
        dispatch=dispatch,
        http_guard=tcp.http_guard,
    )
    return Session(shared, side, kind)


def _endpoints(texts: list[str]) -> list[Endpoint]:
    return [endpoint for text in texts if (endpoint := parse_endpoint(text)) is not None]


def _admin_site(runner: web.AppRunner, endpoint: Endpoint) -> web.BaseSite:
    if endpoint.kind == "unix":
        return web.UnixSite(runner, str(endpoint.path))
    return web.TCPSite(runner, endpoint.host, endpoint.port, reuse_address=True)


def _http_address(address: Any) -> str:
    if isinstance(address, str):
        return f"unix:{address}"
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"http://{host}:{address[1]}/"


def _limits(settings: Settings) -> Limits:
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


def _queue_defaults(settings: Settings) -> QueueSettings:
    return QueueSettings(**settings.queues.model_dump())


def _bounds(settings: Settings) -> RetentionBounds:
    history, receipts = settings.history, settings.receipts
    return RetentionBounds(
        age_ms=int(history.days * 86_400_000),
        rows=history.rows,
        bytes=history.bytes,
        deleted_share=history.deleted_share,
        receipt_window_ms=receipts.window_s * 1_000,
        receipts=receipts.limit,
    )


# -- the process


def run(settings: Settings, sources: Mapping[str, str] | None = None) -> int:
    """Serve until a signal comes; return 0.  Prints one line per listener on stdout.

    Raises:
        PhpmqError: the start is refused; ``cli/main.py`` has the exit codes.
    """
    # A message makes a handful of objects and no cycle: looking for cycles every 700 objects cost
    # about 6 % of the throughput.  What was imported stays, and is never looked at again.
    gc.freeze()
    gc.set_threshold(10_000, 50, 100)
    with _runner() as runner:
        return runner.run(_until_signal(settings, sources))


def _runner() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def _until_signal(settings: Settings, sources: Mapping[str, str] | None) -> int:
    service = Service(settings, lambda line: print(line, flush=True), sources)  # noqa: T201 - its data
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if service.front.status().is_draining:
            os._exit(0)  # the second one: nothing depends on a clean stop
        loop.call_later(STOP_S, os._exit, 0)
        service.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await service.run()
    _log.info("stopped")
    return 0


def fail_stop(folder: DataFolder, error: BaseException) -> None:
    """End the process without another word to anybody: what is on disk is not known.

    Closing the database would checkpoint; the next start reads the truth instead.
    """
    _log.error("stopped at once, the outcome of a commit is unknown", reason=str(error))
    folder.write_last_error(error, time.time_ns() // 1_000_000)
    sys.stderr.flush()
    os._exit(74)
