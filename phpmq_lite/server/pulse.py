"""Whether engine and writer move: both are asked to do nothing, again and again."""

import asyncio

from phpmq_lite.broker.core import Broker
from phpmq_lite.server.engine import Engine
from phpmq_lite.storage.writer import Writer


class Pulse:
    """Of one broker.  What hangs for good, such as a disk that never answers, is felt here.

    Health asks nothing of the writer: it answers while a slow disk is waited for.
    """

    def __init__(self, engine: Engine, writer: Writer) -> None:
        self._engine = engine
        self._writer = writer
        self._is_asked = False  # and has not answered yet

    def beat(self) -> bool:
        """Tell whether the last question was answered, and ask again if so; the first time True.

        A writer that waits for room or for another program moves: no restart would help it.
        """
        if self._is_asked:
            return self._writer.space.trouble is not None
        self._is_asked = True
        self._engine.submit(self._ask_writer)
        return True

    def _ask_writer(self, _core: Broker) -> None:
        self._writer.start(lambda _store: None).add_done_callback(self._hear)

    def _hear(self, done: asyncio.Future[None]) -> None:
        self._is_asked = done.cancelled() or done.exception() is not None  # it has failed for good
