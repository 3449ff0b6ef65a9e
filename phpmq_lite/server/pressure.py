"""How much was read and is not yet stored, over all connections: past the limit they wait."""

from typing import Final, Protocol

FREE_BYTES: Final = 64 << 10  # who holds less is always read: to stop it would gain nothing


class Reader(Protocol):
    """What can be told to stop and go on reading."""

    is_parked: bool  # it waits for something else, and keeps its bytes meanwhile

    def hold(self, reason: str) -> None:
        """Read nothing more."""

    def go_on(self, reason: str) -> None:
        """This reason to wait has gone."""


class Pressure:
    """Bounds the bytes that wait in memory (``docs/security.md`` 9).

    Past the limit, of those that hold ``FREE_BYTES`` or more only the one that has waited longest
    is read, so one message can always be finished; acknowledgements and small messages pass.
    So the bound is the limit, and per connection ``FREE_BYTES`` and one read.
    O(1) a report, O(readers that wait) past the limit.
    """

    REASON = "memory"

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.total_bytes = 0
        self.times = 0  # somebody was held though nobody was before
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
            self._judge(reader, held_bytes)
        elif self._held:
            self._release()

    def _judge(self, reader: Reader, held_bytes: int) -> None:
        oldest = self._oldest()
        if oldest is not None:
            self._let_go_on(oldest)
        if held_bytes < FREE_BYTES:
            self._let_go_on(reader)
        elif reader is not oldest and reader not in self._held:
            self.times += not self._held
            self._held.add(reader)
            reader.hold(self.REASON)

    def _oldest(self) -> Reader | None:
        """Return who may finish its message; who is parked cannot."""
        for reader, size in self._waiting.items():
            if size >= FREE_BYTES and not reader.is_parked:
                return reader
        return None

    def _let_go_on(self, reader: Reader) -> None:
        if reader in self._held:
            self._held.discard(reader)
            reader.go_on(self.REASON)

    def _release(self) -> None:
        held, self._held = self._held, set()
        for reader in held:
            reader.go_on(self.REASON)
