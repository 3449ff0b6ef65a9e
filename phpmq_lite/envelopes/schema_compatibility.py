"""Check whether a new schema version breaks consumers of the old version. Pure functions.

Consumers are upgraded before producers, so payloads that are valid under the old schema must stay
valid under the new schema, and the old guarantees must still hold: fields must not disappear,
change their type, become required or lose a value. Breaking changes require a new URN.

One rule is a convention: if additional members are allowed, an unnamed member may already contain
anything, but a new optional field of that name is considered compatible anyway.
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
    """A difference between schemas; ``*`` in ``pointer`` means every array item or other member."""

    level: ChangeLevel
    pointer: str
    detail: str

    @property
    def is_breaking(self) -> bool:
        """Return whether the change breaks consumers and so requires a new URN."""
        return self.level == "breaking"


def schema_changes(old: PayloadSchema, new: PayloadSchema) -> tuple[SchemaChange, ...]:
    """Return the relevant differences between two schemas, with breaking changes first."""
    differences = _Differences()
    differences.compare(old.rule, new.rule, "/data")
    return tuple(sorted(differences.changes, key=lambda change: not change.is_breaking))


class _Differences:
    """Collects the differences between two schemas."""

    def __init__(self) -> None:
        self.changes: list[SchemaChange] = []

    def _add_breaking(self, at: str, detail: str) -> None:
        self.changes.append(SchemaChange("breaking", at, detail))

    def _add_note(self, at: str, detail: str) -> None:
        self.changes.append(SchemaChange("note", at, detail))

    def compare(self, old: SchemaRule, new: SchemaRule, at: str) -> None:
        """Compare the rules for one location and for all locations below it."""
        if old is ANYTHING and new is ANYTHING:
            return  # otherwise the recursion would never end
        if old.rejects_all:
            if not new.rejects_all:
                self._add_note(at, "now allowed")
            return
        if new.rejects_all:
            self._add_breaking(at, "every value is now rejected")
            return
        if old.sensitivity != new.sensitivity:
            self._add_note(
                at,
                f"was {_sensitivity(old)} and is now {_sensitivity(new)}; check encryption",
            )
        if old.values is not None:
            self._compare_values(old, old.values, new, at)
            return
        if old.types != new.types:
            self._add_breaking(
                at, f"was {type_names(old.types)} and is now {type_names(new.types)}"
            )
            return  # after a type change, the locations below cannot be compared
        if new.values is not None:
            self._add_breaking(at, f"now allows only {_format_values(new.values)}")
        self._compare_bounds(old, new, at)
        if old.allows("object"):
            self._compare_members(old, new, at)
        if old.allows("array"):
            self.compare(old.items or ANYTHING, new.items or ANYTHING, f"{at}/*")

    def _compare_values(
        self, old: SchemaRule, values: tuple[Any, ...], new: SchemaRule, at: str
    ) -> None:
        """Compare a location that allowed only certain values by testing each of these values."""
        old_values = [value for value in values if _fits(old, value)]
        lost = [value for value in old_values if not _fits(new, value)]
        if lost:
            self._add_breaking(at, f"no longer allowed: {_format_values(lost)}")
        if new.values is None:
            self._add_note(at, f"was one of {_format_values(values)}; other values are now allowed")
        elif not lost and sum(_fits(new, value) for value in new.values) > len(old_values):
            self._add_note(at, f"the allowed values are now {_format_values(new.values)}")

    def _compare_bounds(self, old: SchemaRule, new: SchemaRule, at: str) -> None:
        if old.allows("string") and new.min_length != old.min_length:
            add = self._add_breaking if new.min_length > old.min_length else self._add_note
            add(at, f"minLength was {old.min_length} and is now {new.min_length}")
        if old.allows("integer") and new.minimum != old.minimum:
            is_raised = new.minimum is not None and (
                old.minimum is None or new.minimum > old.minimum
            )
            add = self._add_breaking if is_raised else self._add_note
            add(at, f"minimum was {_or_none(old.minimum)} and is now {_or_none(new.minimum)}")

    def _compare_members(self, old: SchemaRule, new: SchemaRule, at: str) -> None:
        needed, was_needed = frozenset(new.required), frozenset(old.required)
        for name in new.required:
            if name not in was_needed:
                was = "optional" if name in old.properties else "not in the schema"
                self._add_breaking(f"{at}/{escape_pointer(name)}", f"was {was} and is now required")
        for name in old.required:
            if name not in needed and name in new.properties:
                self._add_note(f"{at}/{escape_pointer(name)}", "was required and is now optional")
        old_additional, new_additional = old.additional or ANYTHING, new.additional or ANYTHING
        for name, rule in old.properties.items():
            pointer = f"{at}/{escape_pointer(name)}"
            if name in new.properties:
                self.compare(rule, new.properties[name], pointer)
            elif not rule.rejects_all:
                self._add_breaking(pointer, "removed")
            elif new_additional is not NOTHING:
                self._add_note(pointer, "now allowed")
        for name, rule in new.properties.items():
            if name in old.properties:
                continue
            pointer = f"{at}/{escape_pointer(name)}"
            if old_additional is not ANYTHING and old_additional is not NOTHING:
                # Under the old schema, the rule for additional members applied.
                self.compare(old_additional, rule, pointer)
            elif rule.rejects_all and old_additional is ANYTHING:
                self._add_breaking(pointer, "no longer allowed")
            elif name not in needed:
                self._add_note(pointer, "new and optional")
        if old_additional is ANYTHING and new_additional is NOTHING:
            self._add_breaking(at, "additional members are now rejected")
        else:
            self.compare(old_additional, new_additional, f"{at}/*")


# -- texts


def _fits(rule: SchemaRule, value: Any) -> bool:
    return PayloadSchema(rule, None).check(value) is None


def _sensitivity(rule: SchemaRule) -> str:
    return "not sensitive" if rule.sensitivity is None else "sensitive"


def _or_none(value: float | None) -> str:
    return "none" if value is None else str(value)


_MAX_SHOWN: Final = 8  # maximum number of values listed in a message


def _format_values(values: list[Any] | tuple[Any, ...]) -> str:
    shown = [json.dumps(value, ensure_ascii=False)[:100] for value in values[:_MAX_SHOWN]]
    return ", ".join(shown) + (" …" if len(values) > _MAX_SHOWN else "")
