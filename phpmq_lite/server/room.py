"""Tells the core, and the log, when there is no room to publish, and when nobody can write."""

import asyncio

from phpmq_lite.broker.core import Broker
from phpmq_lite.broker.queues import Shut
from phpmq_lite.logs import get_logger
from phpmq_lite.server.engine import Engine
from phpmq_lite.storage.space import DISK_FULL, Shortage, Space

_log = get_logger(__name__)


class Room:
    """Follows what the writer's thread finds out about a ``Space``, on both edges.

    Make it in the loop; once there is an engine, ``tell`` it.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self._engine: Engine | None = None
        self._shortage: Shortage | None = None  # as told last
        self._trouble: str | None = None
        loop = asyncio.get_running_loop()

        def tell() -> None:
            loop.call_soon_threadsafe(self._look)

        space.on_change = tell

    def tell(self, engine: Engine) -> None:
        """Tell this engine what was found before there was one, and from now on."""
        self._engine = engine
        self._shut(self._shortage)

    def _look(self) -> None:
        trouble, self._trouble = self._trouble, self.space.trouble
        if self._trouble is not None and self._trouble != trouble:
            _log.error("nothing_is_stored", reason=self._trouble)
        elif self._trouble is None and trouble is not None:
            _log.warning("stored_again", reason=trouble)
        before, self._shortage = self._shortage, self.space.shortage
        if before == self._shortage:
            return
        if self._shortage is not None:
            _log.warning("publishing_stopped", reason=self._shortage.detail)
        else:
            _log.warning("publishing_goes_on", free_bytes=self.space.free_bytes)
        self._shut(self._shortage)

    def _shut(self, shortage: Shortage | None) -> None:
        if self._engine is not None:
            self._engine.submit(lambda core: _shut(core, shortage))


def _shut(core: Broker, shortage: Shortage | None) -> None:
    if shortage is None:
        core.lives.shut_for(None)
        return
    is_bare = (shortage.code, shortage.reason) == DISK_FULL
    core.lives.shut_for(Shut(shortage.code, shortage.reason, shortage.detail, is_bare))
