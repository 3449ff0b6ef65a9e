"""The process around the service: event loop, signals, service manager, and garbage."""

import asyncio
import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Final

from phpmq_lite import heap, logs
from phpmq_lite.errors import SettingsError
from phpmq_lite.notify import Manager
from phpmq_lite.service import Service
from phpmq_lite.settings import Effective, Settings

STOP_S: Final = 10.0  # then the process ends behind the last commit
START_STEP_S: Final = 60.0  # a start may take so much longer, told again and again
# After every system call, the event loop waits this long for a thread that has the GIL.  With
# Python's 5 ms, p99 of a confirmed publish beside refused bodies of 3 MiB was 29 ms, not 10 ms.
SWITCH_S: Final = 0.0005
_log = logs.get_logger(__name__)


def run(
    settings: Settings,
    sources: Mapping[str, str] | None = None,
    load: Callable[[], Effective] | None = None,
) -> int:
    """Serve until a signal comes; return 0.  Prints one line per listener on stdout.

    ``load`` reads the settings anew when SIGHUP comes; what it refuses changes nothing.

    Raises:
        PhpmqError: the start is refused; ``cli/main.py`` has the exit codes.
    """
    heap.give_back()
    sys.setswitchinterval(SWITCH_S)
    faulthandler.enable(sys.__stderr__ or sys.stderr)  # at a SIGABRT: where each thread stands
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
    load: Callable[[], Effective] | None,
) -> int:
    service = Service(settings, lambda line: print(line, flush=True), sources)  # noqa: T201 - its data
    loop = asyncio.get_running_loop()

    manager = Manager.of(os.environ, os.getpid())
    reporting = None if manager is None else loop.create_task(_report(manager, service))

    def on_signal() -> None:
        if manager is not None and reporting is not None:
            reporting.cancel()
            manager.tell(STOPPING=1, STATUS="draining")
        if service.front.status().is_draining:
            os._exit(0)  # the second one: nothing depends on a clean stop
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
    tending = loop.create_task(_tend_garbage(service)), loop.create_task(_trim())
    await service.run()
    for task in tending:
        task.cancel()
    _log.info("stopped")
    return 0


async def _report(manager: Manager, service: Service) -> None:
    """Tell the service manager of the start, then again and again that the broker moves.

    During a start only the loop has to move: checking and migrating a large database takes its
    time, in threads.
    """
    starting = asyncio.ensure_future(service.wait_ready())
    while not starting.done():
        step = service.front.summary().step
        manager.tell(STATUS=f"starting: {step}", EXTEND_TIMEOUT_USEC=int(START_STEP_S * 1_000_000))
        await asyncio.wait({starting}, timeout=manager.each_s)
    while True:
        if service.is_moving():
            status = service.front.summary()
            reason = status.trouble or (status.shortage and status.shortage.detail)
            told = reason or f"ready: {', '.join(one.address for one in status.listeners)}"
            manager.tell(READY=1, WATCHDOG=1, STATUS=told)  # READY each time: one may get lost
        await asyncio.sleep(manager.each_s)


async def _tend_garbage(service: Service) -> None:
    """Collect no garbage during the start, and seldom later."""
    gc.disable()
    await service.wait_ready()
    heap.look_seldom()


async def _trim() -> None:
    """Give back what a burst has left free, for ever."""
    while True:
        await asyncio.sleep(heap.TRIM_S)
        await asyncio.to_thread(heap.trim)
