"""Backups, scrubbing, standby and disk space monitoring of a running broker."""

import asyncio
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

from phpmq_lite import logs
from phpmq_lite.broker.operator import message_actions
from phpmq_lite.errors import BatchRefusedError, DataDamagedError, RefusedError, StorageError
from phpmq_lite.model import Shortage
from phpmq_lite.server.counters import ConnectionCounters
from phpmq_lite.server.engine import Engine
from phpmq_lite.settings import Settings
from phpmq_lite.storage.data_folder import DATABASE
from phpmq_lite.storage.disk_space import DiskSpace
from phpmq_lite.storage.sqlite.backups import RETRY_S, Backup, BackupSchedule
from phpmq_lite.storage.sqlite.integrity.scrub import (
    PARTS,
    Scrub,
    ScrubRound,
    ScrubState,
    note,
    read_state,
    write_state,
)
from phpmq_lite.storage.sqlite.litestream import drop_backlog, is_configured
from phpmq_lite.storage.sqlite.standby_lag import StandbyState, read_standby

START_S: Final = 60.0  # delay after startup, when other work is more urgent
_TICK_S: Final = 0.2
_SAVE_EVERY_S: Final = 10.0  # interval between saves of the scrub progress
_BUSY_BYTES: Final = 64 << 10  # clients count as busy if at least this many bytes arrive per tick
_DAY_MS: Final = 86_400_000
# Limit on bytes written while a structure check keeps the WAL from being truncated.
LOG_BYTES: Final = 1 << 30
_LOG_CHECK_S: Final = 1.0  # interval between checks of the WAL's size
STANDBY_EVERY_S: Final = 5.0
_STOP_S: Final = 1.0
_TARGET_EVERY: Final = 12  # one in this many reads of the standby's state lists its target
BACKLOG_BYTES: Final = 1 << 30  # this much may wait for a standby's target; less if space is short
T = TypeVar("T")
_log = logs.get_logger(__name__)


class ScrubRunner:
    """Scrubs a broker's data to find damage; ``run`` continues until it is cancelled."""

    def __init__(
        self,
        engine: Engine,
        counters: ConnectionCounters,
        database: Path,
        settings: Callable[[], Settings],
    ) -> None:
        self.state = ScrubState()
        self._is_working = False
        self._engine = engine
        self._counters = counters
        self._folder = database.parent
        self._database = database
        self._scrub = Scrub(database)
        self._settings = settings
        self._requested = asyncio.Event()
        self._is_cancelled = False
        self._bytes_in = 0
        self._thread: asyncio.Future[Any] | None = None  # the most recent call made in a thread

    @property
    def is_working(self) -> bool:
        """Return whether a scrub is running or was requested."""
        return self._is_working or self._requested.is_set()

    @property
    def tick_bytes(self) -> int:
        """Return how many bytes to read in the next tick: only a tenth while clients are busy."""
        bytes_in_before, self._bytes_in = self._bytes_in, self._counters.bytes_in
        rate = self._settings().scrub.bytes_per_s * _TICK_S
        return max(1, int(rate if self._bytes_in - bytes_in_before < _BUSY_BYTES else rate / 10))

    async def start(self, ahead: Callable[[], Awaitable[None]]) -> None:
        """Wait for ``ahead``, then request a full scrub, including the structure check.

        Raises RefusedError: a scrub is already running; ``ahead`` is not called.
        """
        if self.is_working:
            raise RefusedError("scrub_running", "a scrub is already running")
        await ahead()
        self._requested.set()

    async def stop(self, ahead: Callable[[], Awaitable[None]]) -> None:
        """Wait for ``ahead``, then cancel the current round.

        Raises RefusedError: no scrub is running; ``ahead`` is not called.
        """
        if not self.is_working:
            raise RefusedError("scrub_idle", "no scrub is running")
        await ahead()
        self._is_cancelled = True

    async def run(self, *, is_structure_due: bool = False) -> None:
        """Scrub when due; check the structure first if ``is_structure_due``."""
        self._scrub = Scrub(self._database)
        try:
            self.state = await asyncio.to_thread(read_state, self._folder)
            if is_structure_due:
                await self._run_round(with_bodies=False, with_structure=True, is_requested=True)
            while True:
                is_requested = await self._wait_until_due()
                days = self._settings().scrub.structure_days
                is_due = days and self._now_ms() - self.state.structure_at >= days * _DAY_MS
                with_structure = is_requested or bool(is_due)
                await self._run_round(
                    with_bodies=True, with_structure=with_structure, is_requested=is_requested
                )
        finally:
            self._scrub.stop()
            if self._thread is not None:  # the thread's read connection would keep the WAL open
                await asyncio.wait({self._thread})

    async def _wait_until_due(self) -> bool:
        """Wait until a scrub is scheduled or requested; return whether it was requested."""
        every_s = self._settings().scrub.every_h * 3_600
        due_s = (self.state.last_ended_at - self._now_ms()) / 1_000 + every_s
        wait_s = min(max(START_S, due_s), max(START_S, every_s)) if every_s else None
        try:
            async with asyncio.timeout(wait_s):
                await self._requested.wait()
        except TimeoutError:
            return False
        return True

    async def _run_round(
        self, *, with_bodies: bool, with_structure: bool, is_requested: bool
    ) -> None:
        """Run one round.  If a scheduled round fails, wait until the next one is due.

        Otherwise, damage that cannot be skipped would be read over and over.
        """
        self._is_working, self._is_cancelled = True, False
        self._requested.clear()
        try:
            if with_structure:
                await self._check_structure()
            if with_bodies:
                await self._check_bodies()
        except DataDamagedError as error:
            self.state.structure = [str(error)]
            _log.error("scrub_failed", reason=str(error))
            self._abandon_round(is_requested=is_requested)
        except StorageError as error:  # such as too few file descriptors; retry soon
            _log.error("scrub_failed", reason=str(error))
            self.state.now = ScrubRound()
        except Exception:
            _log.exception("scrub_failed", reason="unexpected")
            self._abandon_round(is_requested=is_requested)
        else:
            if with_bodies and self._is_cancelled:
                self._abandon_round(is_requested=is_requested)
        finally:
            self._is_working = False
            await self._save()

    def _abandon_round(self, *, is_requested: bool) -> None:
        self.state.now = ScrubRound()
        if not is_requested:
            self.state.tried_at = self._now_ms()

    async def _check_structure(self) -> None:
        limit_bytes = self._scrub.log_bytes + LOG_BYTES
        thread = self._begin(self._scrub.structure)
        while not (await asyncio.wait({thread}, timeout=_LOG_CHECK_S))[0]:
            if self._scrub.log_bytes > limit_bytes:
                self._scrub.interrupt()
        try:
            problems = thread.result()
        except StorageError as error:
            if self._scrub.log_bytes <= limit_bytes:
                raise
            _log.warning(
                "structure_not_checked",
                reason=f"more than {LOG_BYTES >> 20:,} MiB were written during the check",
                detail=str(error),
            )
            return  # the check stays due, so the next round retries it
        self.state.structure, self.state.structure_at = problems, self._now_ms()
        if problems:
            _log.error("structure_damaged", problems=problems[:3])

    async def _check_bodies(self) -> None:
        state = self.state
        if not state.is_under_way:
            state.now = ScrubRound(began_at=self._now_ms())
        saved_at = asyncio.get_running_loop().time()
        while state.now.part < len(PARTS):
            await asyncio.sleep(_TICK_S)
            if self._is_cancelled:
                return
            await self._check_slice(PARTS[state.now.part])
            if asyncio.get_running_loop().time() - saved_at > _SAVE_EVERY_S:
                saved_at = asyncio.get_running_loop().time()
                await self._save()
        state.now.ended_at = self._now_ms()
        state.last, state.now = state.now, ScrubRound()
        _log.info(
            "scrub_finished", bodies=state.last.bodies, bytes=state.last.bytes, bad=state.last.bad
        )

    async def _check_slice(self, part: str) -> None:
        upto = self.state.now.upto
        work = partial(self._scrub.check, part, upto, self.tick_bytes)
        result = await asyncio.shield(self._begin(work))
        note(self.state, part, result)
        if not result.bad:
            return
        dead = 0
        if part == "alive":
            with suppress(BatchRefusedError):  # the next round finds them again
                dead = await self._engine.call(
                    lambda core, ok: message_actions.dead_letter_damaged(core, ok, result.bad)
                )
        seqs, count = result.bad[:10], len(result.bad)
        _log.error("bodies_damaged", messages=part, seqs=seqs, count=count, settled_as_dead=dead)

    def _begin(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        self._thread = thread = asyncio.ensure_future(asyncio.to_thread(work))
        return thread

    async def _save(self) -> None:
        try:
            await asyncio.to_thread(partial(write_state, self._folder, self.state))
        except OSError as error:
            _log.warning("scrub_state_not_saved", reason=str(error))

    def _now_ms(self) -> int:
        return self._engine.clock.now().wall_ms


class StandbyMonitor:
    """Follows how far a standby lags; ``run`` continues until it is cancelled.

    A target that is gone must not fill the disk with what waits for it.  If that exceeds twice the
    size of the database, after which copying the whole database is cheaper, or if the disk is
    nearly full, the oldest files are dropped.
    """

    def __init__(self, data: Path, reserve: Callable[[], int]) -> None:
        self.state: StandbyState | None = None  # None until the first reading
        self._data = data
        self._reserve = reserve
        self._is_stopped = False

    async def run(self) -> None:
        """Read the state at intervals, in a separate thread."""
        thread: asyncio.Future[StandbyState] | None = None
        self._is_stopped = False
        try:
            for number in count():
                read = partial(self._read, asks_target=number % _TARGET_EVERY == 0)
                thread = asyncio.ensure_future(asyncio.to_thread(read))
                self.state = await asyncio.shield(thread)
                await asyncio.sleep(STANDBY_EVERY_S)
        finally:
            self._is_stopped = True
            if thread is not None:  # its read connection would keep the WAL; it is closed soon
                await asyncio.wait({thread}, timeout=_STOP_S)

    def _read(self, *, asks_target: bool) -> StandbyState:
        before = self.state
        state = read_standby(
            self._data,
            before.replicated if before else None,
            asks_target=asks_target,
            may_continue=lambda: not self._is_stopped,
        )
        if before is None or state.problem != before.problem:
            log = _log.warning if state.problem else _log.info
            log("standby", problem=state.problem or None, lag_s=round(state.lag_s, 1))
        is_short = shutil.disk_usage(self._data).free < 2 * self._reserve()
        bound = max(BACKLOG_BYTES, 2 * (self._data / DATABASE).stat().st_size)
        if state.backlog_bytes > (BACKLOG_BYTES // 16 if is_short else bound):
            _log.warning("standby_backlog_dropped", bytes=state.backlog_bytes)
            drop_backlog(self._data)
        return state


class Maintenance:
    """Runs a broker's backups and scrubs; ``run`` continues until it is cancelled.

    ``settings`` returns the current settings.
    """

    def __init__(
        self,
        engine: Engine,
        counters: ConnectionCounters,
        database: Path,
        settings: Callable[[], Settings],
        version: str,
    ) -> None:
        self.backups = BackupSchedule(
            database,
            settings().backups_folder,
            keep=lambda: settings().backups.keep,
            reserve=lambda: settings().storage.free_bytes,
            every_h=settings().backups.every_h,
            version=version,
            tell=_log_backup,
            check_files=engine.check_files,
        )
        self.scrub = ScrubRunner(engine, counters, database, settings)
        self.standby: StandbyMonitor | None = None
        if is_configured(database.parent):
            self.standby = StandbyMonitor(database.parent, lambda: settings().storage.free_bytes)

    async def run(self, *, is_structure_due: bool = False) -> None:
        """Back up and scrub on a schedule and on demand, after a structure check if one is due."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_run_again("backups", self.backups.run))
            tasks.create_task(
                _run_again("scrub", partial(self.scrub.run, is_structure_due=is_structure_due))
            )
            if self.standby is not None:
                tasks.create_task(_run_again("standby", self.standby.run))


async def _run_again(name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Call ``run`` again after an unexpected error, which must not stop the broker."""
    while True:
        try:
            await run()
        except Exception:
            _log.exception("maintenance_failed", work=name, again_s=RETRY_S)
        await asyncio.sleep(RETRY_S)


def _log_backup(result: Backup | StorageError) -> None:
    if isinstance(result, Backup):
        manifest = result.manifest
        _log.info("backup_made", id=manifest.id, bytes=manifest.bytes, took_ms=manifest.took_ms)
        return
    cause = result.__cause__
    is_usual = isinstance(cause, OSError | sqlite3.Error)  # no traceback is worth logging
    _log.error("backup_failed", reason=str(result), exc_info=None if is_usual else cause)


class DiskSpaceMonitor:
    """Reacts in the event loop to changes that the writer thread makes to a ``DiskSpace``.

    Create it in the loop; call ``attach`` once the engine exists.
    """

    def __init__(self, space: DiskSpace) -> None:
        self.space = space
        self._engine: Engine | None = None
        self._shortage: Shortage | None = None  # the shortage that was applied last
        self._trouble: str | None = None
        loop = asyncio.get_running_loop()

        def on_change() -> None:
            loop.call_soon_threadsafe(self._apply_change)

        space.on_change = on_change

    def attach(self, engine: Engine) -> None:
        """Apply the current state and all later changes to this engine."""
        self._engine = engine
        self._apply_shortage()

    def _apply_change(self) -> None:
        trouble, self._trouble = self._trouble, self.space.write_problem
        if self._trouble is not None and self._trouble != trouble:
            _log.error("storage_unavailable", reason=self._trouble)
        elif self._trouble is None and trouble is not None:
            _log.warning("storage_available", reason=trouble)
        before, self._shortage = self._shortage, self.space.shortage
        if before == self._shortage:
            return
        if self._shortage is not None:
            _log.warning("publishing_stopped", reason=self._shortage.detail)
        else:
            _log.warning("publishing_resumed", free_bytes=self.space.free_bytes)
        self._apply_shortage()

    def _apply_shortage(self) -> None:
        shortage = self._shortage
        if self._engine is not None:
            self._engine.submit(lambda core: core.registry.stop_publishing(core.batch, shortage))
