"""Brokers with a defect each, to see that the ledger finds it.  Run as a program.

``python -m tests.acceptance.mutants NAME serve …`` is ``phpmq-lite serve …`` with that engine.
"""

import asyncio
import sys
import time
from typing import Any, Final

from phpmq_lite import service
from phpmq_lite.cli.main import main
from phpmq_lite.model import Batch, Loaded
from phpmq_lite.server.engine import Engine

SLOW_DISK_S: Final = 0.02


class Defective(Engine):
    """An engine whose writer gets the batches by way of ``commit``."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._store = self._writer.commit
        setattr(self._writer, "commit", self.commit)  # noqa: B010 - a method is not assigned to

    def commit(self, batch: Batch) -> asyncio.Future[Loaded | None]:
        """Have a batch stored."""
        return self._store(batch)


class ConfirmsBeforeCommit(Defective):
    """Tells everybody, then stores: a crash in between loses what was confirmed."""

    def commit(self, batch: Batch) -> asyncio.Future[Loaded | None]:
        """Tell first."""
        super()._act(batch)
        if batch.stores:
            time.sleep(SLOW_DISK_S)
        return super().commit(batch)

    def _act(self, batch: Batch | None) -> None:
        """Everything has been said."""


class ForgetsAcknowledgements(Defective):
    """Settles in memory only: after a crash what was done comes again."""

    def commit(self, batch: Batch) -> asyncio.Future[Loaded | None]:
        """Store the rest."""
        batch.settled.clear()
        return super().commit(batch)


class ForgetsKeys(Defective):
    """Keeps keys in memory only: a publish that is repeated after a crash is stored twice."""

    def commit(self, batch: Batch) -> asyncio.Future[Loaded | None]:
        """Store the rest, and let nobody know for a while."""
        batch.keys.clear()
        return asyncio.ensure_future(_slowly(super().commit(batch)))


async def _slowly(stored: asyncio.Future[Loaded | None]) -> Loaded | None:
    loaded = await stored
    await asyncio.sleep(SLOW_DISK_S)
    return loaded


MUTANTS: Final[dict[str, type[Engine]]] = {
    mutant.__name__: mutant
    for mutant in (ConfirmsBeforeCommit, ForgetsAcknowledgements, ForgetsKeys)
}

if __name__ == "__main__":
    setattr(service, "Engine", MUTANTS[sys.argv.pop(1)])  # noqa: B010 - a type is not assigned to
    main()
