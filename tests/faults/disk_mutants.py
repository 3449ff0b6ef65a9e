"""Brokers with a defect each that only a disk brings out.  Run as a program.

``python -m tests.faults.disk_mutants NAME serve …`` is ``phpmq-lite serve …`` with that defect.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from phpmq_lite import service
from phpmq_lite.cli.main import main
from phpmq_lite.errors import OutcomeUnknownError
from phpmq_lite.model import Batch, ClockReading, LoadedRows, RecoveredState
from phpmq_lite.storage.integrity import seal
from phpmq_lite.storage.write import store, writer
from phpmq_lite.storage.write.store import Store
from tests.faults.mutants import ConfirmsBeforeCommit, Defective


class DispatchesBeforeCommit(Defective):
    """Sends messages to consumers while they are being stored."""

    def commit(self, batch: Batch) -> asyncio.Future[LoadedRows | None]:
        """Send first."""
        now_ms = self.clock.now().steady_ms
        for connection, (dispatches, _) in batch.sends.items():
            if dispatches:
                self._send(connection, dispatches[:], [], now_ms)
                dispatches.clear()
        return super().commit(batch)


class SettlesLate(Defective):
    """Stores acknowledgements some batches behind the receipts that vouch for them."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._late: deque[dict[tuple[int, str | None], list[int]]] = deque([{}, {}, {}])

    def commit(self, batch: Batch) -> asyncio.Future[LoadedRows | None]:
        """Store what is settled later, and now what was before."""
        self._late.append(batch.settled)
        batch.settled = self._late.popleft()
        return super().commit(batch)


class ForgetsKeys(Defective):
    """Keeps the keys of confirmed publishes in memory only."""

    def commit(self, batch: Batch) -> asyncio.Future[LoadedRows | None]:
        """Store the rest."""
        batch.keys.clear()
        return super().commit(batch)


class NumbersAnewStore(Store):
    """Takes the next number from what is alive, so that numbers come back."""

    def recover(
        self, now: ClockReading, receipt_window_ms: int, receipt_limit: int
    ) -> RecoveredState:
        """Forget where the numbers had got to."""
        stored = super().recover(now, receipt_window_ms, receipt_limit)
        (highest,) = self.execute("SELECT coalesce(max(seq), 0) FROM message").fetchone()
        stored.counters["next_number"] = highest + 1
        return stored


class CarriesOnStore(Store):
    """Takes a failed COMMIT for one that may be repeated."""

    def end(self, batch: Batch) -> LoadedRows | None:
        """Try once more."""
        try:
            return super().end(batch)
        except OutcomeUnknownError:
            return super().end(batch)


def _keep_seals() -> None:
    """Write to the database under the seal that it had; it gets no other."""
    setattr(seal, "_MIN_INTERVAL_S", float("inf"))  # noqa: B010
    setattr(seal.LiveSeal, "erase", lambda _self: None)  # noqa: B010


def _carry_on() -> None:
    setattr(writer, "Store", CarriesOnStore)  # noqa: B010 - a type is not assigned to


def _sync_less() -> None:
    store._PRAGMAS["synchronous"] = 1


def _work_as(engine: type[Defective]) -> Callable[[], None]:
    return lambda: setattr(service, "Engine", engine)


MUTANTS: Final[dict[str, Callable[[], None]]] = {
    "CarriesOn": _carry_on,
    "SyncsLess": _sync_less,  # synchronous=NORMAL
    "KeepsItsSeals": _keep_seals,
} | {
    engine.__name__: _work_as(engine)
    for engine in (ConfirmsBeforeCommit, DispatchesBeforeCommit, SettlesLate, ForgetsKeys)
}

if __name__ == "__main__":
    MUTANTS[sys.argv.pop(1)]()
    main()
