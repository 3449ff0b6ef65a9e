"""Fixtures of the unit tests."""

from collections.abc import AsyncIterator, Callable

import pytest

from phpmq_lite.model import Limits
from tests.support.core_rig import CoreRig
from tests.support.engine_driver import EngineDriver, disable_timers


@pytest.fixture
def rig() -> CoreRig:
    """Return a broker core with the default limits and settings."""
    return CoreRig()


@pytest.fixture
async def make_driver(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[Limits], EngineDriver]]:
    """Return a function that starts an engine on a new database; stop all engines at the end."""
    disable_timers(monkeypatch)
    drivers: list[EngineDriver] = []

    def make(limits: Limits) -> EngineDriver:
        drivers.append(EngineDriver(tmp_path_factory.mktemp("data"), limits))
        drivers[-1].start()
        return drivers[-1]

    yield make
    for driver in drivers:
        if not driver.task.done():
            await driver.stop()
        driver.close()


@pytest.fixture
async def driver(make_driver: Callable[[Limits], EngineDriver]) -> EngineDriver:
    made = make_driver(Limits())
    await made.run_until_idle()
    return made
