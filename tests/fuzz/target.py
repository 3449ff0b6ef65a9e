"""What can be fuzzed: where inputs come from, how they are put together, and what must hold."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

CORPUS: Final = Path(__file__).parent / "corpus"
CRASH: Final = "crash-"  # prefix of the names of inputs that still fail
LONGEST: Final = 1_000  # bytes of an input that is made here; the kept ones may be longer


@dataclass(slots=True, frozen=True)
class Target:
    """One piece of the broker that strangers give bytes to.

    ``check`` raises whatever the piece raises, AssertionError where something does not hold, and
    otherwise says in a word or two what became of the input: a file of the corpus has that name.
    It depends on nothing but the input.
    """

    name: str
    check: Callable[[bytes], str]
    fresh: Callable[[Random], bytes]  # makes an input that is right, or nearly
    seeds: Callable[[], list[bytes]]  # the cases that other tests have
    parts: re.Pattern[bytes]  # finds what inputs are put together from
    tokens: tuple[bytes, ...]  # what has a meaning

    @property
    def folder(self) -> Path:
        return CORPUS / self.name

    def kept(self) -> dict[str, bytes]:
        """Return the corpus: inputs by name."""
        return {file.name: file.read_bytes() for file in sorted(self.folder.glob("*"))}

    def keep(self, name: str, data: bytes) -> Path:
        """Write an input into the corpus."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / name
        path.write_bytes(data)
        return path
