"""The ledger of a soak: flags and a seq for each message, by number.

``tests/faults/ledger.py`` keeps every key and id; this one is small enough for a day of messages.
The number of a message is its key and the beginning of its body.
"""

import asyncio
from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from time import monotonic
from typing import Final

from tests.faults.ledger import KEY_BYTES, contradictions, read_only, stored_keys

LONG_TTL_S: Final = 4_000  # outlasts a clock jump of an hour
_EXPIRED: Final = 3  # outcome in the history

CONFIRMED: Final = 1
REFUSED: Final = 2
SEEN: Final = 4  # dispatched; cleared by a requeue
ENDED: Final = 8  # acknowledged or dead-lettered, and proved to be stored
LONG: Final = 16  # with LONG_TTL_S


def key_of(number: int) -> bytes:
    """Return the key of a message, which is also the beginning of its body."""
    return b"%0*d" % (KEY_BYTES, number)


class SoakLedger:
    """Publishes confirmed to producers; messages that consumers received and settled."""

    def __init__(self) -> None:
        self._flags = bytearray(1)  # by number; there is no number 0
        self._seqs = array("Q", [0])  # by number; 0: not yet known
        self._published_at = array("d", [0.0])  # by number; monotonic
        self._unproved: list[int] = []  # confirmed since the last comparison with the database
        self._checked_to = 0  # seq
        self.counts: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()  # by reason
        self.problems: list[str] = []

    def new(self, *, has_long_ttl: bool = False) -> int:
        self._flags.append(LONG if has_long_ttl else 0)
        self._seqs.append(0)
        self._published_at.append(monotonic())
        return len(self._flags) - 1

    def add_problem(self, text: str) -> None:
        """Record a violation."""
        self.problems.append(text)

    # -- reports of clients

    def confirm(self, number: int) -> None:
        """Record a receipt."""
        if not self._flags[number] & CONFIRMED:
            self.counts["confirmed"] += 1
            self._unproved.append(number)
        self._flags[number] |= CONFIRMED

    def refuse(self, number: int, reason: str) -> None:
        self._flags[number] |= REFUSED
        self.refusals[reason] += 1

    def dispatch(self, key: bytes, seq: int) -> int | None:
        """Record a dispatch; return the number of the message, or None if it is unknown."""
        self.counts["dispatched"] += 1
        number = self._numbered(key, seq)
        if number is None:
            return None
        if self._flags[number] & ENDED:
            self.counts["again"] += 1
            self.add_problem(f"message {number} was dispatched after its end was stored")
        if self._flags[number] & SEEN:
            self.counts["duplicates"] += 1
        self._flags[number] |= SEEN
        return number

    def requeue(self, number: int) -> None:
        """Record a requeue: the next dispatch is not a duplicate."""
        self._flags[number] &= ~SEEN

    def end(self, numbers: Iterable[int]) -> None:
        """Record settlements as stored, because a later publish was confirmed."""
        for number in numbers:
            self._flags[number] |= ENDED
            self.counts["ended"] += 1

    # -- comparison with the database

    async def compare(self, data: Path) -> None:
        """Check that messages confirmed since the last call are on disk exactly once."""
        unproved, self._unproved = self._unproved, []
        for seq, key in await asyncio.to_thread(_stored, data, self._checked_to):
            self._numbered(key, seq)
            self._checked_to = max(self._checked_to, seq)
        for number in unproved:
            if not self._seqs[number]:
                self.counts["lost"] += 1
                self.add_problem(f"message {number} was confirmed and is lost")

    async def audit(self, data: Path) -> None:
        """Compare all messages with the database of a stopped broker."""
        self._checked_to = 0
        await self.compare(data)
        with read_only(data) as database:
            for text, found in contradictions(database):
                if text != "expired early":  # the clock of the soak jumps; see _audit_one
                    self.add_problem(f"{text}: {found}")
            alive = {row[0] for row in database.execute("SELECT seq FROM message")}
            settled = dict(database.execute("SELECT seq, outcome FROM history"))
        oldest = min(settled, default=0)  # retention has removed earlier rows
        for number, (flags, seq) in enumerate(zip(self._flags, self._seqs, strict=True)):
            if seq >= oldest and seq:
                self._audit_one(number, flags, seq in alive, settled.get(seq))

    def _audit_one(self, number: int, flags: int, is_alive: bool, outcome: int | None) -> None:
        if flags & CONFIRMED and not is_alive and outcome is None:
            self.counts["lost"] += 1
            self.add_problem(f"message {number} was confirmed and is neither alive nor settled")
        if flags & ENDED and is_alive:
            self.counts["again"] += 1
            self.add_problem(f"the end of message {number} was stored and is lost")
        is_young = monotonic() - self._published_at[number] < LONG_TTL_S
        if flags & LONG and outcome == _EXPIRED and is_young:
            self.add_problem(f"message {number} expired early")

    def _numbered(self, key: bytes, seq: int) -> int | None:
        """Record the seq of a message and return its number."""
        if not (key.isdigit() and 0 < int(key) < len(self._flags)):
            self.add_problem(f"a message begins with {key!r}, which was never published")
            return None
        number = int(key)
        if self._flags[number] & REFUSED:
            self.add_problem(f"message {number} was refused and is stored")
        if self._seqs[number] not in (0, seq):
            self.add_problem(f"message {number} is stored twice, as {self._seqs[number]} and {seq}")
        self._seqs[number] = seq
        return number


def _stored(data: Path, after: int) -> list[tuple[int, bytes]]:
    with read_only(data) as database:
        return stored_keys(database, after)
