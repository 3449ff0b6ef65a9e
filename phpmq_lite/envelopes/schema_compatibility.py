"""Whether a new version of a schema breaks those who know the old one.  Pure.

Consumers are upgraded before producers, so what was right under the old schema must stay right
under the new one, and what the old one promised must still be promised: a field does not go away,
change its type, become required, or lose one of its values.  What breaks needs a new URN.

One thing is by agreement and not by proof: where other members are allowed, a member that the old
schema does not name may have held anything, and a new optional field of that name is called
compatible all the same.
"""

import json
from dataclasses import dataclass
from typing import Any, Final, Literal

from phpmq_lite.envelopes.payload_schema import (
    ANYTHING,
    NOTHING,
    PayloadSchema,
    SchemaRule,
    escape_pointer,
    type_names,
)

ChangeLevel = Literal["breaking", "note"]


@dataclass(slots=True, frozen=True)
class SchemaChange:
    """One difference; ``pointer`` is that of ``data``, with ``*`` for every item or member."""

    level: ChangeLevel  # how bad it is
    pointer: str
    detail: str  # what changed, in words

    @property
    def is_breaking(self) -> bool:
        """Tell whether it asks for a new URN."""
        return self.level == "breaking"


def schema_changes(old: PayloadSchema, new: PayloadSchema) -> tuple[SchemaChange, ...]:
    """Give the differences that matter, what breaks first; no breaking one: it is compatible."""
    found = _Differences()
    found.look(old.rule, new.rule, "/data")
    return tuple(sorted(found.changes, key=lambda change: not change.is_breaking))


class _Differences:
    """Walks two schemas side by side and gathers what differs."""

    def __init__(self) -> None:
        self.changes: list[SchemaChange] = []

    def _breaks(self, at: str, detail: str) -> None:
        self.changes.append(SchemaChange("breaking", at, detail))

    def _notes(self, at: str, detail: str) -> None:
        self.changes.append(SchemaChange("note", at, detail))

    def look(self, old: SchemaRule, new: SchemaRule, at: str) -> None:
        """Compare one place and all below it."""
        if old is ANYTHING and new is ANYTHING:
            return  # without an end otherwise: below anything is anything
        if old.is_never:
            if not new.is_never:
                self._notes(at, "it may be here now")
            return
        if new.is_never:
            self._breaks(at, "nothing is allowed here any more")
            return
        if old.mark != new.mark:
            self._notes(at, f"{_marked(old)} before, {_marked(new)} now: who encrypts must know")
        if old.values is not None:
            self._look_at_values(old, old.values, new, at)
            return
        if old.types != new.types:
            self._breaks(at, f"it was {_kinds(old)} and is {_kinds(new)} now")
            return  # what is below means something else
        if new.values is not None:
            self._breaks(at, f"only {_shown(new.values)} is allowed now")
        self._look_at_bounds(old, new, at)
        if old.takes("object"):
            self._look_at_members(old, new, at)
        if old.takes("array"):
            self.look(old.items or ANYTHING, new.items or ANYTHING, f"{at}/*")

    def _look_at_values(
        self, old: SchemaRule, values: tuple[Any, ...], new: SchemaRule, at: str
    ) -> None:
        """What was one of a few values: each of them is tried."""
        were = [value for value in values if _fits(old, value)]
        lost = [value for value in were if not _fits(new, value)]
        if lost:
            self._breaks(at, f"{_shown(lost)} is not allowed any more")
        if new.values is None:
            self._notes(at, f"it was one of {_shown(values)} and may be others now")
        elif not lost and sum(_fits(new, value) for value in new.values) > len(were):
            self._notes(at, f"it may be one of {_shown(new.values)} now")

    def _look_at_bounds(self, old: SchemaRule, new: SchemaRule, at: str) -> None:
        if old.takes("string") and new.min_length != old.min_length:
            tell = self._breaks if new.min_length > old.min_length else self._notes
            tell(at, f"its minLength was {old.min_length} and is {new.min_length} now")
        if old.takes("integer") and new.minimum != old.minimum:
            is_raised = new.minimum is not None and (
                old.minimum is None or new.minimum > old.minimum
            )
            tell = self._breaks if is_raised else self._notes
            tell(at, f"its minimum was {_or_none(old.minimum)} and is {_or_none(new.minimum)} now")

    def _look_at_members(self, old: SchemaRule, new: SchemaRule, at: str) -> None:
        needed, was_needed = frozenset(new.required), frozenset(old.required)
        for name in new.required:
            if name not in was_needed:
                was = "optional" if name in old.properties else "not known"
                self._breaks(f"{at}/{escape_pointer(name)}", f"it was {was} and is required now")
        for name in old.required:
            if name not in needed and name in new.properties:
                self._notes(f"{at}/{escape_pointer(name)}", "it was required and is optional now")
        old_rest, new_rest = old.rest or ANYTHING, new.rest or ANYTHING
        for name, rule in old.properties.items():
            place = f"{at}/{escape_pointer(name)}"
            if name in new.properties:
                self.look(rule, new.properties[name], place)
            elif not rule.is_never:
                self._breaks(place, "it is gone")
            elif new_rest is not NOTHING:
                self._notes(place, "it may be here now")
        for name, rule in new.properties.items():
            if name in old.properties:
                continue
            place = f"{at}/{escape_pointer(name)}"
            if old_rest is not ANYTHING and old_rest is not NOTHING:
                self.look(old_rest, rule, place)  # it was described, as one of the rest
            elif rule.is_never and old_rest is ANYTHING:
                self._breaks(place, "it may not be here any more")
            elif name not in needed:
                self._notes(place, "it is new and optional")
        if old_rest is ANYTHING and new_rest is NOTHING:
            self._breaks(at, "other members are refused now")
        else:
            self.look(old_rest, new_rest, f"{at}/*")


# -- words


def _fits(rule: SchemaRule, value: Any) -> bool:
    return PayloadSchema(rule, None).check(value) is None


def _kinds(rule: SchemaRule) -> str:
    return type_names(rule.types) if rule.types else "anything"


def _marked(rule: SchemaRule) -> str:
    return "not sensitive" if rule.mark is None else "sensitive"


def _or_none(value: float | None) -> str:
    return "none" if value is None else str(value)


_SHOWN: Final = 8  # values in one sentence


def _shown(values: list[Any] | tuple[Any, ...]) -> str:
    shown = [json.dumps(value, ensure_ascii=False)[:100] for value in values[:_SHOWN]]
    return ", ".join(shown) + (" …" if len(values) > _SHOWN else "")
