"""What an envelope says and whether it is right.  Pure and total: any bytes have a verdict.

Three layers: A, may it be read at all; B, may a consumer handle it; C, all that a producer owes.
"""

from dataclasses import dataclass
from typing import Final, Literal

EmptyListData = Literal["php", "never", "always"]  # where ``data: []`` counts as ``{}``

REASONS: Final = (  # of layers A and B, the first that applies
    "poison",
    "too_deep",
    "missing_meta",
    "unsupported_schema_version",
    "invalid_data",
    "missing_trace_id",
    "invalid_attempts",
    "schema_mismatch",
)
DEPTH_LIMIT: Final = 256  # levels
INDEX_BYTES: Final = 1 << 20  # longer content is not indexed
INDEX_CHARACTERS: Final = 512  # of an indexed text; the rest is cut


@dataclass(slots=True, frozen=True)
class Index:
    """What is found by, each None where it is missing or of another type."""

    urn: str | None
    trace_id: str | None
    meta_id: str | None
    attempts: int | None  # clamped to 64 bits


@dataclass(slots=True, frozen=True)
class Problem:
    """One thing that is wrong."""

    reason: str  # of REASONS, or of the producer schema
    detail: str  # what exactly, for people: "attempts is true, not an integer"
    pointer: str = ""  # RFC 6901; empty: the whole


@dataclass(slots=True, frozen=True)
class Verdict:
    """What became of layers A and B."""

    problem: Problem | None  # None: a consumer may handle it
    index: Index | None
    is_tolerated: bool = False  # ``data: []`` was read as ``{}``
    warnings: tuple[str, ...] = ()  # outdated members, a job of another type


def index_of(content: bytes) -> Index | None:
    """Read what is indexed, without a full verdict; None where it is no JSON object."""
    raise NotImplementedError


def judge(content: bytes, empty_list_data: EmptyListData = "php") -> Verdict:
    """Give the verdict of layers A and B."""
    raise NotImplementedError


def lint(content: bytes, empty_list_data: EmptyListData = "php") -> tuple[Problem, ...]:
    """Give all problems, those of a producer (layer C) too; empty: nothing to say."""
    raise NotImplementedError
