"""Runs the broker process: its event loop, signal handlers, service manager and memory."""

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
from functools import partial
from typing import Final, Self

from phpmq_lite import logs
from phpmq_lite.errors import SettingsError
from phpmq_lite.service.lifecycle import Service
from phpmq_lite.settings import EffectiveSettings, Settings
from phpmq_lite.standard_streams import GuardedOutput
from phpmq_lite.time_slices import SHORT_US, set_time_slice

_NOTIFY_S: Final = 5.0  # maximum number of seconds between notifications
_NOTIFICATIONS_PER_TIMEOUT: Final = 4  # minimum number of notifications per watchdog timeout


class SystemdNotifier:
    """Notifies systemd, the service manager that started this process, over a datagram socket."""

    def __init__(self, address: str, watchdog_s: float = 0.0) -> None:
        """Send to a socket path or abstract ``@`` name; ``watchdog_s`` is 0 without a watchdog."""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.each_s = (
            min(_NOTIFY_S, watchdog_s / _NOTIFICATIONS_PER_TIMEOUT) if watchdog_s else _NOTIFY_S
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], pid: int) -> Self | None:
        """Return a notifier if the environment names a socket; a watchdog must be for ``pid``."""
        address = environment.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return None
        is_ours = environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        period_us = environment.get("WATCHDOG_USEC", "") if is_ours else ""
        return cls(address, int(period_us) / 1_000_000 if period_us.isdecimal() else 0.0)

    def notify(self, **assignments: object) -> None:
        """Send assignments such as ``READY=1`` to the service manager; failures are ignored."""
        lines = (f"{name}={' '.join(str(value).split())}" for name, value in assignments.items())
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)  # do not wait if the manager is not reading
            sender.sendto("\n".join(lines).encode(), self._address)


# Constants from glibc's malloc.h.  If one threshold is set, neither is adjusted automatically.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8

TRIM_S: Final = 60.0  # seconds between calls of trim_malloc

_CHOICES: Final = {
    _ARENA_MAX: 2,  # one heap for the main thread and one for all others
    _MMAP_THRESHOLD: 1 << 20,  # larger blocks are returned to the system when freed
    _TRIM_THRESHOLD: 4 << 20,  # free memory kept at the end of a heap for the next batch
}


def limit_malloc() -> None:
    """Limit how much freed memory the C library keeps; must be called before any thread starts.

    By default, glibc has a heap for each of 16 threads and places blocks of up to 32 MiB there once
    a block of that size was freed.  The table of keys left a hole of 5 MiB each time it was moved.
    """
    with suppress(AttributeError, OSError):  # if the C library is not glibc
        choose = ctypes.CDLL(None).mallopt
        for name, value in _CHOICES.items():
            choose(name, value)


def trim_malloc() -> None:
    """Return free pages in the middle of heaps to the system; must be called in a separate thread.

    Under load, this blocks allocations for 0.3 to 1.2 ms and returns 1 to 14 MiB.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def reduce_garbage_collection() -> None:
    """Run garbage collection less often, and exclude all objects that already exist.

    Startup creates 150,000 permanent objects, and each scan of these took 60 ms.  A message creates
    a few objects but no cycles; a scan every 700 objects cost about 6 % of the throughput.  A page
    leaves 200 objects in cycles.  While a page is in progress, its objects may be promoted to the
    oldest generation, so that generation is also collected.
    """
    gc.freeze()
    gc.set_threshold(10_000, 5, 5)
    gc.enable()


STOP_S: Final = 10.0  # a clean stop that takes longer is cut short without losing a commit
START_STEP_S: Final = 60.0  # each startup notification extends the start timeout by this
# How long the event loop waits, after a system call, for a thread that holds the GIL.  The default
# of 5 ms raised the p99 of confirmed publishing from 10 to 29 ms during attacks with 3 MiB bodies.
# With 0.1 ms, it was 14 instead of 24 ms beside refused requests, but the flow fell by a tenth.
SWITCH_S: Final = 0.0005
_log = logs.get_logger(__name__)


def run(
    settings: Settings,
    sources: Mapping[str, str] | None = None,
    load: Callable[[], EffectiveSettings] | None = None,
) -> int:
    """Serve until a signal arrives, then return 0.  Print a line for each listener to stdout.

    On SIGHUP, ``load`` reads the settings again; if it raises, nothing changes.  If SIGHUP came
    because the terminal was closed, the broker stops, unless it was started with nohup.

    Raises:
        PhpmqError: the broker refuses to start; ``cli/main.py`` defines the exit codes.
    """
    limit_malloc()
    set_time_slice(SHORT_US)  # before any thread starts
    sys.setswitchinterval(SWITCH_S)
    faulthandler.enable(sys.__stderr__ or sys.stderr)  # prints the stacks of all threads on SIGABRT
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_until_signal(settings, sources, load))


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


async def _until_signal(
    settings: Settings,
    sources: Mapping[str, str] | None,
    load: Callable[[], EffectiveSettings] | None,
) -> int:
    output = GuardedOutput(1)  # what nobody reads must not stop the broker

    def announce(line: str) -> None:
        output.write(f"{line}\n".encode())

    service = Service(settings, announce, sources)
    loop = asyncio.get_running_loop()

    manager = SystemdNotifier.from_environment(os.environ, os.getpid())
    reporting = None if manager is None else loop.create_task(_notify_manager(manager, service))

    def on_signal() -> None:
        if manager is not None and reporting is not None:
            reporting.cancel()
            manager.notify(STOPPING=1, STATUS="draining")
        if service.handle.status().is_draining:
            service.exit(is_late=False)  # second signal: data is safe without a clean stop
        loop.call_later(STOP_S, partial(service.exit, is_late=True))
        service.stop()

    ends_with_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()

    def on_hangup() -> None:
        if ends_with_terminal and not _has_terminal():  # it was closed
            on_signal()
            return
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
    if not service.state.ready.is_set():
        service.exit(is_late=False)  # do not wait for a thread that connects to a database server
    return 0


async def _notify_manager(manager: SystemdNotifier, service: Service) -> None:
    """Report startup to the service manager, then regularly report that the broker is alive.

    During startup, only the event loop must respond, because threads may need long to check and
    migrate a large database.
    """
    starting = asyncio.ensure_future(service.state.listening.wait())
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
            word = "standby" if status.is_relaying else "ready"
            text = (
                reason or f"{word}: {', '.join(listener.address for listener in status.listeners)}"
            )
            manager.notify(READY=1, WATCHDOG=1, STATUS=text)  # repeat READY in case it got lost
        await asyncio.sleep(manager.each_s)


async def _manage_garbage_collection(service: Service) -> None:
    """Disable garbage collection during startup; afterwards, run it only rarely."""
    gc.disable()
    await service.state.listening.wait()
    reduce_garbage_collection()
    await service.pages.opened.wait()
    gc.freeze()  # the admin creates as many permanent objects


async def _trim_regularly() -> None:
    while True:
        await asyncio.sleep(TRIM_S)
        await asyncio.to_thread(trim_malloc)
