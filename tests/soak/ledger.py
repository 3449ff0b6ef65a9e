"""What the clients of a soak know, for hours: one number for each message, and a few bytes of it.

The books of ``tests/faults/ledger.py`` keep every key and id; these keep flags and a seq by number,
so that a day fits into memory.  The number of a message is its key and the beginning of its body.
"""

import asyncio
from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from time import monotonic
from typing import Final

from tests.faults.ledger import KEY_BYTES, contradictions, read_only, stored_keys

LONG_TTL_S: Final = 4_000  # nothing of it may expire where a clock jumps by an hour
_EXPIRED: Final = 3  # outcome in the history

CONFIRMED: Final = 1
REFUSED: Final = 2
SEEN: Final = 4  # dispatched; a requeue takes it away
ENDED: Final = 8  # acknowledged or dead-lettered, and that is stored
LONG: Final = 16  # with LONG_TTL_S


def key_of(number: int) -> bytes:
    """Give the key of a message, which is also the beginning of its body."""
    return b"%0*d" % (KEY_BYTES, number)


class SoakLedger:
    """Two ledgers: what was confirmed to producers; what consumers got, and what they ended."""

    def __init__(self) -> None:
        self._flags = bytearray(1)  # by number; there is no number 0
        self._seqs = array("Q", [0])  # by number; 0: not yet known
        self._published_at = array("d", [0.0])  # by number; monotonic
        self._unproved: list[int] = []  # confirmed since the database was looked at
        self._checked_to = 0  # seq
        self.counts: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()  # by reason
        self.offences: list[str] = []

    def new(self, *, has_long_ttl: bool = False) -> int:
        """Give the next number."""
        self._flags.append(LONG if has_long_ttl else 0)
        self._seqs.append(0)
        self._published_at.append(monotonic())
        return len(self._flags) - 1

    def offend(self, text: str) -> None:
        """Note what must not be."""
        self.offences.append(text)

    # -- what clients tell

    def confirm(self, number: int) -> None:
        """A receipt came."""
        if not self._flags[number] & CONFIRMED:
            self.counts["confirmed"] += 1
            self._unproved.append(number)
        self._flags[number] |= CONFIRMED

    def refuse(self, number: int, reason: str) -> None:
        """A receipt with a reason came."""
        self._flags[number] |= REFUSED
        self.refusals[reason] += 1

    def dispatch(self, key: bytes, seq: int) -> int | None:
        """A message came; gives its number, None where it is none of ours."""
        self.counts["dispatched"] += 1
        number = self._numbered(key, seq)
        if number is None:
            return None
        if self._flags[number] & ENDED:
            self.counts["again"] += 1
            self.offend(f"message {number} was dispatched after its end was stored")
        if self._flags[number] & SEEN:
            self.counts["duplicates"] += 1
        self._flags[number] |= SEEN
        return number

    def requeue(self, number: int) -> None:
        """It was sent back: that it comes again is no duplicate."""
        self._flags[number] &= ~SEEN

    def end(self, numbers: Iterable[int]) -> None:
        """Their ends are stored: something behind them on the same connection was confirmed."""
        for number in numbers:
            self._flags[number] |= ENDED
            self.counts["ended"] += 1

    # -- what the database tells

    async def compare(self, data: Path) -> None:
        """See that what was confirmed since the last look is on disk, and once."""
        unproved, self._unproved = self._unproved, []
        for seq, key in await asyncio.to_thread(_stored, data, self._checked_to):
            self._numbered(key, seq)
            self._checked_to = max(self._checked_to, seq)
        for number in unproved:
            if not self._seqs[number]:
                self.counts["lost"] += 1
                self.offend(f"message {number} was confirmed and is lost")

    async def audit(self, data: Path) -> None:
        """Compare everything with a database that nobody has open."""
        self._checked_to = 0
        await self.compare(data)
        with read_only(data) as database:
            for text, found in contradictions(database):
                if text != "expired early":  # its clock has not jumped; see below
                    self.offend(f"{text}: {found}")
            alive = {row[0] for row in database.execute("SELECT seq FROM message")}
            settled = dict(database.execute("SELECT seq, outcome FROM history"))
        oldest = min(settled, default=0)  # what was before it, retention has removed
        for number, (flags, seq) in enumerate(zip(self._flags, self._seqs, strict=True)):
            if seq >= oldest and seq:
                self._audit_one(number, flags, seq in alive, settled.get(seq))

    def _audit_one(self, number: int, flags: int, is_alive: bool, outcome: int | None) -> None:
        if flags & CONFIRMED and not is_alive and outcome is None:
            self.counts["lost"] += 1
            self.offend(f"message {number} was confirmed and is neither alive nor settled")
        if flags & ENDED and is_alive:
            self.counts["again"] += 1
            self.offend(f"the end of message {number} was stored and is lost")
        is_young = monotonic() - self._published_at[number] < LONG_TTL_S
        if flags & LONG and outcome == _EXPIRED and is_young:
            self.offend(f"message {number} expired early")

    def _numbered(self, key: bytes, seq: int) -> int | None:
        """Take in where a message is stored."""
        if not (key.isdigit() and 0 < int(key) < len(self._flags)):
            self.offend(f"a message begins with {key!r}, which nobody has published")
            return None
        number = int(key)
        if self._flags[number] & REFUSED:
            self.offend(f"message {number} was refused and is stored")
        if self._seqs[number] not in (0, seq):
            self.offend(f"message {number} is stored twice, as {self._seqs[number]} and {seq}")
        self._seqs[number] = seq
        return number


def _stored(data: Path, after: int) -> list[tuple[int, bytes]]:
    with read_only(data) as database:
        return stored_keys(database, after)
