"""Brokers with a defect each, to see that the ledger finds it.  Run as a program.

``python -m tests.acceptance.mutants NAME serve …`` is ``phpmq-lite serve …`` with that engine.
"""

import asyncio
import sys
from typing import Final

from phpmq_lite import service
from phpmq_lite.cli.main import main
from phpmq_lite.model import Batch, Loaded
from phpmq_lite.server.engine import Engine

SLOW_DISK_S: Final = 0.02


class ConfirmsBeforeCommit(Engine):
    """Tells everybody, then stores: a crash in between loses what was confirmed."""

    async def _record(self, batch: Batch) -> Loaded | None:
        super()._act(batch)
        if batch.stores:
            await asyncio.sleep(SLOW_DISK_S)
        return await super()._record(batch)

    def _act(self, batch: Batch) -> None:
        """Everything has been said."""


class ForgetsAcknowledgements(Engine):
    """Settles in memory only: after a crash what was done comes again."""

    async def _record(self, batch: Batch) -> Loaded | None:
        batch.settled.clear()
        return await super()._record(batch)


class ForgetsKeys(Engine):
    """Keeps keys in memory only: a publish that is repeated after a crash is stored twice."""

    async def _record(self, batch: Batch) -> Loaded | None:
        batch.keys.clear()
        loaded = await super()._record(batch)
        await asyncio.sleep(SLOW_DISK_S)  # stored, and nobody knows yet
        return loaded


MUTANTS: Final[dict[str, type[Engine]]] = {
    mutant.__name__: mutant
    for mutant in (ConfirmsBeforeCommit, ForgetsAcknowledgements, ForgetsKeys)
}

if __name__ == "__main__":
    setattr(service, "Engine", MUTANTS[sys.argv.pop(1)])  # noqa: B010 - a type is not assigned to
    main()
