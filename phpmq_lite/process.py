"""The process around the service: its event loop, signals, and when it looks for garbage."""

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Mapping
from typing import Final

from phpmq_lite import logs
from phpmq_lite.errors import SettingsError
from phpmq_lite.service import Service
from phpmq_lite.settings import Effective, Settings

STOP_S: Final = 10.0  # then the process ends behind the last commit
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

    def on_signal() -> None:
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
    tending = loop.create_task(_tend_garbage(service))
    await service.run()
    tending.cancel()
    _log.info("stopped")
    return 0


async def _tend_garbage(service: Service) -> None:
    """Collect no garbage during the start, and seldom later.

    A start makes 150,000 objects that stay: looking through them again and again took 60 ms.  They
    are never looked at again.  A message makes a handful of objects and no cycle:
    looking for cycles every 700 objects cost about 6 % of the throughput.
    """
    gc.disable()
    await service.wait_ready()
    gc.freeze()
    gc.set_threshold(10_000, 50, 100)
    gc.enable()
