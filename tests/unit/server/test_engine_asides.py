"""Work aside of the batches, when the broker stops because something failed."""

import asyncio
import threading
from typing import Any, cast

import pytest

from phpmq_lite.broker.broker import Broker
from phpmq_lite.model import Limits, Recovered
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.server.engine import Engine
from phpmq_lite.storage.write.writer import Writer
from tests.support.core_and_store import FakeClock


def fail(_core: Broker) -> None:
    raise ValueError("it failed")


@pytest.mark.parametrize("is_failing", [True, False])
async def test_what_is_queued_aside_is_not_begun_when_the_engine_ends(is_failing: bool) -> None:
    core = Broker(Recovered([], [], {}, None, 0), Limits(), QueueSettings())
    engine = Engine(core, cast(Writer, None), FakeClock())
    release, begun = threading.Event(), list[Any]()
    engine._background.run(release.wait, begun.append)
    engine._background.run(lambda: begun.append("second"), begun.append)
    await asyncio.sleep(0.05)
    if is_failing:
        engine.submit(fail)
        with pytest.raises(ValueError, match="it failed"):
            await engine.run()
    else:
        await engine.end()
    release.set()
    await asyncio.to_thread(engine._background._executor.shutdown, wait=True)
    assert begun == []
