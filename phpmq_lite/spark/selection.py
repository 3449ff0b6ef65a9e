"""Which queues and outcomes an archive contains; stored in ``archive.json`` beside it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Self

from phpmq_lite.model import OUTCOMES
from phpmq_lite.spark.results_folder import ARCHIVE_SELECTION, ResultsFolder

if TYPE_CHECKING:
    from phpmq_lite.spark.jobs.options import ArchiveOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSelection:
    """A message must match every part; an empty part matches everything."""

    queues: tuple[str, ...] = ()
    queue_pattern: str | None = None
    outcomes: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()  # the token's queue globs
    masks: tuple[str, ...] = ()  # members of bodies that are replaced by null

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return a stored selection."""
        stored: dict[str, Any] = json.loads(text)
        lists = {name: tuple(part) for name, part in stored.items() if isinstance(part, list)}
        return cls(**{**stored, **lists})

    def document(self) -> dict[str, Any]:
        """Return the parts that are set, as they are stored."""
        return {name: part for name, part in asdict(self).items() if part not in ((), None)}

    @property
    def is_everything(self) -> bool:
        """Whether nothing is excluded."""
        return not (self.queues or self.queue_pattern is not None or self.outcomes or self.allowed)

    @property
    def all_outcomes(self) -> set[str]:
        """The outcomes by name, all of them if the selection names none."""
        return set(self.outcomes or OUTCOMES)

    def has_queue(self, name: str) -> bool:
        """Return whether messages of a queue are selected."""
        return (
            (not self.queues or name in self.queues)
            and (self.queue_pattern is None or fnmatchcase(name, self.queue_pattern))
            and (not self.allowed or any(fnmatchcase(name, glob) for glob in self.allowed))
        )

    def contains(self, other: "ArchiveSelection") -> bool:
        """Return whether everything that ``other`` selects is certainly selected."""
        own, others = (
            () if part.queue_pattern is None else (part.queue_pattern,) for part in (self, other)
        )
        return (
            (not self.queues or (bool(other.queues) and set(other.queues) <= set(self.queues)))
            and _covers(own, others)
            and _covers(self.allowed, other.allowed)
            and other.all_outcomes <= self.all_outcomes
            and self.masks == other.masks
        )


def selection_of(options: "ArchiveOptions", allowed: tuple[str, ...] = ()) -> ArchiveSelection:
    """Return the selection of the options and of the token's queue globs."""
    return ArchiveSelection(
        queues=tuple(sorted(options.queues)),
        queue_pattern=options.queue_pattern,
        outcomes=tuple(sorted(options.outcomes)),
        allowed=tuple(sorted(allowed)),
        masks=tuple(sorted(options.masks)),
    )


def read_selection(files: ResultsFolder) -> ArchiveSelection | None:
    """Return the stored selection, or None if nothing has been archived."""
    text = files.read(ARCHIVE_SELECTION)
    return None if text is None else ArchiveSelection.parse(text)


def _covers(globs: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether the globs certainly match all names that the others match; none match all."""
    return not globs or (
        bool(others) and all(any(_contains(glob, other) for glob in globs) for other in others)
    )


def _contains(glob: str, other: str) -> bool:
    is_simple = not set("?[") & set(glob) and "[" not in other
    return glob in (other, "*") or (is_simple and fnmatchcase(other, glob))
