"""How much was read and is not yet stored, over all connections: past the limit they wait."""

from typing import Protocol


class Reader(Protocol):
    """What can be told to stop and go on reading."""

    def hold(self, reason: str) -> None:
        """Read nothing more."""

    def go_on(self, reason: str) -> None:
        """This reason to wait has gone."""


class Pressure:
    """Bounds the bytes that wait in memory (``security.md`` 9).

    Past the limit only the connection that has waited longest is read, so one message can always
    be finished.  O(1) a report, O(connections) when the limit is crossed.
    """

    REASON = "memory"

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.total_bytes = 0
        self._waiting: dict[Reader, int] = {}  # bytes that each holds, the longest first
        self._held: set[Reader] = set()

    def report(self, reader: Reader, held_bytes: int) -> None:
        """Say how many bytes of ``reader`` wait now; 0 takes it out."""
        self.total_bytes += held_bytes - self._waiting.get(reader, 0)
        if held_bytes:
            self._waiting[reader] = held_bytes
        else:
            self._waiting.pop(reader, None)
        if self.total_bytes > self.limit_bytes:
            self._hold()
        elif self._held:
            self._release()

    def _hold(self) -> None:
        oldest = next(iter(self._waiting), None)
        for reader in self._waiting:
            if reader is oldest:
                if reader in self._held:
                    self._held.discard(reader)
                    reader.go_on(self.REASON)
            elif reader not in self._held:
                self._held.add(reader)
                reader.hold(self.REASON)

    def _release(self) -> None:
        held, self._held = self._held, set()
        for reader in held:
            reader.go_on(self.REASON)
