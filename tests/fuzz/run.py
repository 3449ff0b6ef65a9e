"""Runs a target: the cases that other tests have, the corpus, and as many new inputs as asked for.

An input whose outcome was not seen before is kept for the rest of the run, and new ones are made
from it: so the run finds its way to what is rare.
"""

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from tests.fuzz.mutate import mutant
from tests.fuzz.target import Target

_POOL: Final = 2_000  # inputs from which new ones are derived


@dataclass
class Found:
    inputs: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    first: dict[str, bytes] = field(default_factory=dict)  # outcome -> its shortest input
    uncaught: list[tuple[bytes, str]] = field(default_factory=list)  # input and exception

    def __str__(self) -> str:
        rate = self.inputs / self.seconds if self.seconds else 0.0
        return (
            f"{self.inputs:,} inputs, {rate:,.0f} a second, {len(self.outcomes)} outcomes, "
            f"{len(self.uncaught)} uncaught"
        )

    def __iadd__(self, other: "Found") -> "Found":
        """Add what another run of the same target found at the same time."""
        self.inputs += other.inputs
        self.seconds = max(self.seconds, other.seconds)
        self.outcomes += other.outcomes
        for outcome, data in other.first.items():
            self._note_first(outcome, data)
        self.uncaught += other.uncaught
        return self

    def note(self, outcome: str, data: bytes) -> bool:
        self.outcomes[outcome] += 1
        self._note_first(outcome, data)
        return self.outcomes[outcome] == 1

    def _note_first(self, outcome: str, data: bytes) -> None:
        if outcome not in self.first or len(data) < len(self.first[outcome]):
            self.first[outcome] = data


def fuzz(target: Target, inputs: int, seed: int, most_uncaught: int = 3) -> Found:
    """Try new inputs; stop early after ``most_uncaught`` uncaught exceptions."""
    dice, found = random.Random(seed), Found()
    pool = [*target.seeds(), *target.kept().values()]
    began = time.perf_counter()
    for data in pool:
        _try(target, data, found)
    while found.inputs < inputs and len(found.uncaught) < most_uncaught:
        data = target.fresh(dice) if dice.random() < 0.5 else dice.choice(pool)
        if dice.random() < 0.9:
            data = mutant(target, dice, data, dice.choice(pool))
        found.inputs += 1
        if _try(target, data, found) and len(pool) < _POOL:
            pool.append(data)
    found.seconds = time.perf_counter() - began
    return found


def _try(target: Target, data: bytes, found: Found) -> bool:
    try:
        return found.note(target.check(data), data)
    except Exception as error:  # any exception here is uncaught
        found.uncaught.append((data, f"{type(error).__name__}: {error}"))
        return False


def shortened(target: Target, data: bytes, outcome: str | None) -> bytes:
    """Return a shorter input with the same outcome; None: with any uncaught exception."""
    size = len(data) // 2
    while size:
        at = 0
        while at < len(data):
            shorter = data[:at] + data[at + size :]
            if _outcome(target, shorter) == outcome:
                data = shorter
            else:
                at += size
        size //= 2
    return data


def _outcome(target: Target, data: bytes) -> str | None:
    try:
        return target.check(data)
    except Exception:
        return None
