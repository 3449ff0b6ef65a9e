"""The process of a broker: event loop, signals, service manager, and memory."""

import asyncio
import ctypes
import faulthandler
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Self

from phpmq_lite import logs
from phpmq_lite.errors import SettingsError
from phpmq_lite.service import Service
from phpmq_lite.settings import EffectiveSettings, Settings

_NOTIFY_S: Final = 5.0  # between notifications, without a watchdog
_NOTIFICATIONS_PER_TIMEOUT: Final = 4  # notifications in the timeout of the watchdog


class SystemdNotifier:
    """Notifies the service manager that started this process, over a datagram socket."""

    def __init__(self, address: str, watchdog_s: float = 0.0) -> None:
        """Use a path, or an abstract name after ``@``; ``watchdog_s`` 0: there is no watchdog."""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.each_s = (
            min(_NOTIFY_S, watchdog_s / _NOTIFICATIONS_PER_TIMEOUT) if watchdog_s else _NOTIFY_S
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], pid: int) -> Self | None:
        """Return a notifier if the environment names one; a watchdog may be for another process."""
        address = environment.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return None
        is_ours = environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        period_us = environment.get("WATCHDOG_USEC", "") if is_ours else ""
        return cls(address, int(period_us) / 1_000_000 if period_us.isdecimal() else 0.0)

    def notify(self, **assignments: object) -> None:
        """Send ``READY=1`` and the like; failures are ignored."""
        lines = (f"{name}={' '.join(str(value).split())}" for name, value in assignments.items())
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)  # the manager may not read
            sender.sendto("\n".join(lines).encode(), self._address)


# From glibc's malloc.h.  Setting one threshold ends the automatic growth of both.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8

TRIM_S: Final = 60.0  # between trims

_CHOICES: Final = {
    _ARENA_MAX: 2,  # other threads share one heap, and reuse what another one freed
    _MMAP_THRESHOLD: 1 << 20,  # larger blocks are mapped, and returned when they are freed
    _TRIM_THRESHOLD: 4 << 20,  # kept at the end of a heap, for the next batch
}


def limit_malloc() -> None:
    """Limit the freed memory that the C library keeps; call it before any thread starts.

    By default it has a heap for each of 16 threads, and allocates blocks of up to 32 MiB there once
    one of that size was freed: each time that the table of keys moved, 5 MiB stayed as a hole.
    """
    with suppress(AttributeError, OSError):  # another C library
        choose = ctypes.CDLL(None).mallopt
        for name, value in _CHOICES.items():
            choose(name, value)


def trim_malloc() -> None:
    """Return free pages in the middle of heaps to the system; call it in a thread.

    Under load it blocks allocations for 0.3 to 1.2 ms, and returns 1 to 14 MiB.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def reduce_garbage_collection() -> None:
    """Collect garbage rarely, and exclude the objects that exist now.

    A start creates 150,000 objects that stay: scanning them again took 60 ms each time.  A message
    creates a few objects and no cycle: scanning every 700 objects cost about 6 % of the throughput.
    A page leaves 200 objects in cycles.  Those of a page in progress are promoted to the oldest
    generation, so that one is collected, too.
    """
    gc.freeze()
    gc.set_threshold(10_000, 5, 5)
    gc.enable()


STOP_S: Final = 10.0  # then the process exits after the last commit
START_STEP_S: Final = 60.0  # a start may take this much longer, each time it is announced
# How long the event loop waits after a system call for a thread that has the GIL.  With Python's 5
# ms, p99 of a confirmed publish beside refused bodies of 3 MiB was 29 ms, not 10 ms.
SWITCH_S: Final = 0.0005
_log = logs.get_logger(__name__)


def run(
    settings: Settings,
    sources: Mapping[str, str] | None = None,
    load: Callable[[], EffectiveSettings] | None = None,
) -> int:
    """Serve until a signal arrives; return 0.  Prints one line per listener on stdout.

    ``load`` reads the settings again at SIGHUP; if it raises, nothing changes.

    Raises:
        PhpmqError: the start is refused; ``cli/main.py`` has the exit codes.
    """
    limit_malloc()
    sys.setswitchinterval(SWITCH_S)
    faulthandler.enable(sys.__stderr__ or sys.stderr)  # shows all stacks at a SIGABRT
    with _runner() as runner:
        return runner.run(_until_signal(settings, sources, load))


def _runner() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def _until_signal(
    settings: Settings,
    sources: Mapping[str, str] | None,
    load: Callable[[], EffectiveSettings] | None,
) -> int:
    service = Service(settings, lambda line: print(line, flush=True), sources)  # noqa: T201 - its data
    loop = asyncio.get_running_loop()

    manager = SystemdNotifier.from_environment(os.environ, os.getpid())
    reporting = None if manager is None else loop.create_task(_notify_manager(manager, service))

    def on_signal() -> None:
        if manager is not None and reporting is not None:
            reporting.cancel()
            manager.notify(STOPPING=1, STATUS="draining")
        if service.handle.status().is_draining:
            os._exit(0)  # the second signal: data does not depend on a clean stop
        loop.call_later(STOP_S, os._exit, 0)
        service.stop()

    def on_hangup() -> None:
        try:
            if load is not None:
                service.reload(load())
        except SettingsError as error:
            _log.error("not_reloaded", reason=str(error))

    service.drain = on_signal
    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    tending = (
        loop.create_task(_manage_garbage_collection(service)),
        loop.create_task(_trim_regularly()),
    )
    await service.run()
    for task in tending:
        task.cancel()
    _log.info("stopped")
    return 0


async def _notify_manager(manager: SystemdNotifier, service: Service) -> None:
    """Notify the service manager of the start, then regularly that the broker is alive.

    During a start only the event loop must respond: checking and migrating a large database takes
    long, in threads.
    """
    starting = asyncio.ensure_future(service.wait_ready())
    while not starting.done():
        step = service.handle.summary().step
        manager.notify(
            STATUS=f"starting: {step}", EXTEND_TIMEOUT_USEC=int(START_STEP_S * 1_000_000)
        )
        await asyncio.wait({starting}, timeout=manager.each_s)
    while True:
        if service.has_progressed():
            status = service.handle.summary()
            reason = status.write_problem or (status.shortage and status.shortage.detail)
            text = reason or f"ready: {', '.join(one.address for one in status.listeners)}"
            manager.notify(READY=1, WATCHDOG=1, STATUS=text)  # READY each time: one may get lost
        await asyncio.sleep(manager.each_s)


async def _manage_garbage_collection(service: Service) -> None:
    """Disable garbage collection during the start, and collect rarely afterwards."""
    gc.disable()
    await service.wait_ready()
    reduce_garbage_collection()


async def _trim_regularly() -> None:
    """Trim memory regularly."""
    while True:
        await asyncio.sleep(TRIM_S)
        await asyncio.to_thread(trim_malloc)
