"""Check whether a new schema version breaks consumers of the old version. Pure functions.

Consumers are upgraded before producers, so payloads that are valid under the old schema must stay
valid under the new schema, and the old guarantees must still hold: fields must not disappear,
change their type, become required or lose a value. Breaking changes require a new URN.

One rule is a convention: if additional members are allowed, an unnamed member may already contain
anything, but a new optional field of that name is considered compatible anyway.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from phpmq_lite.envelopes.payload_schema import (
    ANYTHING,
    NOTHING,
    PayloadSchema,
    SchemaRule,
    type_names,
)
from phpmq_lite.envelopes.strict_json import child_pointer

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
    changes = _compare(old.rule, new.rule, "/data")
    return tuple(sorted(changes, key=lambda change: not change.is_breaking))


_breaking: Final = partial(SchemaChange, "breaking")
_note: Final = partial(SchemaChange, "note")


def _compare(old: SchemaRule, new: SchemaRule, pointer: str) -> Iterator[SchemaChange]:
    if old is ANYTHING and new is ANYTHING:
        return  # otherwise the recursion would never end
    if old.rejects_all:
        if not new.rejects_all:
            yield _note(pointer, "now allowed")
        return
    if new.rejects_all:
        yield _breaking(pointer, "every value is now rejected")
        return
    if old.sensitivity != new.sensitivity:
        yield _note(
            pointer, f"was {_sensitivity(old)} and is now {_sensitivity(new)}; check encryption"
        )
    if old.values is not None:
        yield from _compare_values(old, old.values, new, pointer)
        return
    if old.types != new.types:
        yield _breaking(pointer, f"was {type_names(old.types)} and is now {type_names(new.types)}")
        return  # after a type change, the locations below cannot be compared
    if new.values is not None:
        yield _breaking(pointer, f"now allows only {_format_values(new.values)}")
    yield from _compare_bounds(old, new, pointer)
    if old.allows("object"):
        yield from _compare_members(old, new, pointer)
    if old.allows("array"):
        yield from _compare(old.items or ANYTHING, new.items or ANYTHING, f"{pointer}/*")


def _compare_values(
    old: SchemaRule, values: tuple[Any, ...], new: SchemaRule, pointer: str
) -> Iterator[SchemaChange]:
    """Compare a location that allowed only certain values by testing each of these values."""
    old_values = [value for value in values if _fits(old, value)]
    rejected = [value for value in old_values if not _fits(new, value)]
    if rejected:
        yield _breaking(pointer, f"no longer allowed: {_format_values(rejected)}")
    if new.values is None:
        yield _note(pointer, f"was one of {_format_values(values)}; other values are now allowed")
    elif not rejected and sum(_fits(new, value) for value in new.values) > len(old_values):
        yield _note(pointer, f"the allowed values are now {_format_values(new.values)}")


def _compare_bounds(old: SchemaRule, new: SchemaRule, pointer: str) -> Iterator[SchemaChange]:
    if old.allows("string") and new.min_length != old.min_length:
        change = _breaking if new.min_length > old.min_length else _note
        yield change(pointer, f"minLength was {old.min_length} and is now {new.min_length}")
    if old.allows("integer") and new.minimum != old.minimum:
        is_raised = new.minimum is not None and (old.minimum is None or new.minimum > old.minimum)
        change = _breaking if is_raised else _note
        yield change(
            pointer, f"minimum was {_or_none(old.minimum)} and is now {_or_none(new.minimum)}"
        )


def _compare_members(old: SchemaRule, new: SchemaRule, pointer: str) -> Iterator[SchemaChange]:
    required, was_required = frozenset(new.required), frozenset(old.required)
    for name in new.required:
        if name not in was_required:
            was = "optional" if name in old.properties else "not in the schema"
            yield _breaking(child_pointer(pointer, name), f"was {was} and is now required")
    for name in old.required:
        if name not in required and name in new.properties:
            yield _note(child_pointer(pointer, name), "was required and is now optional")
    old_additional, new_additional = old.additional or ANYTHING, new.additional or ANYTHING
    for name, rule in old.properties.items():
        member = child_pointer(pointer, name)
        if name in new.properties:
            yield from _compare(rule, new.properties[name], member)
        elif not rule.rejects_all:
            yield _breaking(member, "removed")
        elif new_additional is not NOTHING:
            yield _note(member, "now allowed")
    for name, rule in new.properties.items():
        if name in old.properties:
            continue
        member = child_pointer(pointer, name)
        if old_additional is not ANYTHING and old_additional is not NOTHING:
            # Under the old schema, the rule for additional members applied.
            yield from _compare(old_additional, rule, member)
        elif rule.rejects_all and old_additional is ANYTHING:
            yield _breaking(member, "no longer allowed")
        elif name not in required:
            yield _note(member, "new and optional")
    if old_additional is ANYTHING and new_additional is NOTHING:
        yield _breaking(pointer, "additional members are now rejected")
    else:
        yield from _compare(old_additional, new_additional, f"{pointer}/*")


# -- texts


def _fits(rule: SchemaRule, value: Any) -> bool:
    return PayloadSchema(rule, None).check(value) is None


def _sensitivity(rule: SchemaRule) -> str:
    return "not sensitive" if rule.sensitivity is None else "sensitive"


def _or_none(value: float | None) -> str:
    return "none" if value is None else str(value)


_MAX_VALUES: Final = 8  # maximum number of values listed in a message


def _format_values(values: list[Any] | tuple[Any, ...]) -> str:
    texts = [json.dumps(value, ensure_ascii=False)[:100] for value in values[:_MAX_VALUES]]
    return ", ".join(texts) + (" …" if len(values) > _MAX_VALUES else "")
