"""Filters that Spark pushes to the history, as conditions that the broker tests exactly."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote_plus

from pyspark.sql import datasource as ds

from phpmq_lite.model import OUTCOMES
from phpmq_lite.storage.arrow import NO_FILTERS, RowFilters

TEXTS_BYTES: Final = 2_000  # of URNs and traces in a request, which has room for queue names, too
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX: Final = 1 << 62
_OFFSETS: Final = ("offset", "history_offset")
_TIMES: Final = ("settled_at", "published_at")
_NEVER_NULL: Final = frozenset({*_OFFSETS, *_TIMES, "queue", "outcome"})
# Comparisons with a value: (lowest, highest) number that matches, where None has no bound.
_COMPARISONS: Final = (
    ds.EqualTo, ds.EqualNullSafe, ds.GreaterThan, ds.GreaterThanOrEqual, ds.LessThan,
    ds.LessThanOrEqual,
)  # fmt: skip


@dataclass(slots=True)
class PushedFilters:
    """Conditions on rows of the history; ``push`` adds filters, all of which must hold.

    ``lo`` and ``hi`` bound the offsets, exclusively and inclusively. ``queues`` and ``outcomes``
    are the names to read; None means all queues.
    """

    lo: int = 0
    hi: int = _MAX
    queues: frozenset[str] | None = None
    outcomes: frozenset[str] = frozenset(OUTCOMES)
    rows: RowFilters = NO_FILTERS
    is_empty: bool = False  # whether no row can match

    def push(self, condition: ds.Filter) -> bool:
        """Add a filter and return True, or return False if only Spark can evaluate it exactly."""
        match condition:
            case ds.IsNotNull((name,)) if name in _NEVER_NULL:
                return True
            case ds.IsNull((name,)) | ds.EqualNullSafe((name,), None) if name in _NEVER_NULL:
                self.is_empty = True
                return True
            case ds.Not(ds.EqualTo(("outcome",), str(name))):
                self.outcomes -= {name}
                return True
            case ds.In((name,), values):
                return self._push_values(name, [value for value in values if value is not None])
            case ds.EqualTo((name,), value) | ds.EqualNullSafe((name,), value) if isinstance(
                value, str
            ):
                return self._push_values(name, [value])
        return isinstance(condition, _COMPARISONS) and self._push_range(condition)

    def _push_values(self, name: str, values: Collection[Any]) -> bool:
        if not all(isinstance(value, str) for value in values):
            return False
        texts = frozenset(values)
        match name:
            case "queue":
                self.queues = texts if self.queues is None else self.queues & texts
            case "outcome":
                self.outcomes &= texts
            case "urn" | "trace_id":
                return self._push_texts(name, texts)
            case _:
                return False
        return True

    def _push_texts(self, name: str, texts: frozenset[str]) -> bool:
        member = {"urn": "urns", "trace_id": "traces"}[name]
        before = getattr(self.rows, member)
        chosen = tuple(sorted(texts & set(before) if before else texts))
        if not chosen:
            self.is_empty = True
            return True
        changes: dict[str, Any] = {member: chosen}
        rows = replace(self.rows, **changes)
        size = sum(len(quote_plus(text)) + 10 for text in (*rows.urns, *rows.traces))
        # An empty text has no place in a request, and neither engine stores NUL.
        if size > TEXTS_BYTES or any(not text or "\0" in text for text in chosen):
            return False
        self.rows = rows
        return True

    def _push_range(self, condition: Any) -> bool:
        if len(condition.attribute) != 1:
            return False
        [name] = condition.attribute
        value, scale = condition.value, 1
        if name in _TIMES and isinstance(value, datetime) and value.tzinfo is not None:
            value, scale = (value - _EPOCH) // timedelta(microseconds=1), 1_000
        elif name not in _OFFSETS or type(value) is not int:
            return False
        lowest, highest = _bounds(condition, value, scale)
        if name in _OFFSETS:
            self.lo = self.lo if lowest is None else max(self.lo, lowest - 1)
            self.hi = self.hi if highest is None else min(self.hi, highest)
            self.is_empty |= self.lo >= self.hi
        else:
            self._push_time(
                name.removesuffix("_at"), lowest, None if highest is None else highest + 1
            )
        return True

    def _push_time(self, time: str, begin: int | None, until: int | None) -> None:
        """Restrict a time to [begin, until) in Unix ms; stored times are not negative."""
        sides = f"{time}_from", f"{time}_until"
        before_begin, before_until = (getattr(self.rows, side) for side in sides)
        begins = [ms for ms in (before_begin, begin) if ms is not None]
        untils = [ms for ms in (before_until, until) if ms is not None]
        new_begin = max(0, *begins) if begins else None
        new_until = min(untils) if untils else None
        if new_until is not None and new_until <= (new_begin or 0):
            self.is_empty = True
            return
        changes: dict[str, Any] = dict(zip(sides, (new_begin, new_until), strict=True))
        self.rows = replace(self.rows, **changes)


def _bounds(condition: ds.Filter, value: int, scale: int) -> tuple[int | None, int | None]:
    """Return the least and greatest n such that ``n * scale`` matches a comparison with a value."""
    floor, ceiling = value // scale, -(-value // scale)
    match condition:
        case ds.GreaterThan():
            return floor + 1, None
        case ds.GreaterThanOrEqual():
            return ceiling, None
        case ds.LessThan():
            return None, ceiling - 1
        case ds.LessThanOrEqual():
            return None, floor
    return ceiling, floor
