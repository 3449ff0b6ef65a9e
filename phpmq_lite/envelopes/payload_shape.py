"""Column types of payloads: from a schema or, where there is none, from the payloads. Pure.

A column has one JSON type; a location where a schema allows several has a column for each type.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from phpmq_lite.envelopes.payload_schema import (
    ANYTHING,
    JSON_TYPES,
    PayloadSchema,
    SchemaRule,
)
from phpmq_lite.envelopes.strict_json import child_pointer

KINDS: Final = ("boolean", "integer", "number", "string", "object", "array")
MAX_COLUMNS: Final = 1_000  # maximum number of columns that payloads can add, at all levels
MAX_DEPTH: Final = 32  # maximum nesting depth of such columns
_MAX_NAMES: Final = 2 * MAX_COLUMNS  # members of one object that are counted
_IMPLIED: Final[Mapping[str, frozenset[str]]] = {  # types that keywords imply if there is no type
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items"}),
    "string": frozenset({"minLength"}),
    "number": frozenset({"minimum"}),
}


class Shape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a location contains; no ``kinds`` means that only nulls are known, so it has no column.

    Several ``kinds`` mean a column for each. ``members`` keeps the order of the columns: a member
    is only ever added at the end.
    """

    kinds: tuple[str, ...] = ()
    members: dict[str, "Shape"] = {}
    other: "Shape | None" = None  # members that are not named, as a map; None: they have no column
    items: "Shape | None" = None
    comment: str = ""
    is_fixed: bool = False  # the kinds are those of a schema, so payloads do not change them
    is_open: bool = False  # members that are not named get a column


class PayloadCounts(msgspec.Struct):
    """How often each JSON type, except null, occurs at each location of some payloads."""

    kinds: dict[str, int] = {}
    members: dict[str, "PayloadCounts"] = {}
    items: "PayloadCounts | None" = None

    def add(self, value: Any) -> None:
        """Count a payload, or a part of one."""
        if value is None:
            return
        kind = JSON_TYPES[type(value)]
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if kind == "object":
            for name, member in value.items():
                if name in self.members or len(self.members) < _MAX_NAMES:
                    self.members.setdefault(name, PayloadCounts()).add(member)
        elif kind == "array":
            self.items = self.items or PayloadCounts()
            for item in value:
                self.items.add(item)

    def merge(self, other: "PayloadCounts") -> None:
        """Add the counts of other payloads."""
        for kind, count in other.kinds.items():
            self.kinds[kind] = self.kinds.get(kind, 0) + count
        for name, counts in other.members.items():
            self.members.setdefault(name, PayloadCounts()).merge(counts)
        if other.items is not None:
            self.items = self.items or PayloadCounts()
            self.items.merge(other.items)


# -- from a schema


def shape_of(schema: PayloadSchema) -> Shape:
    """Return the columns of a schema's payloads, which are objects."""
    shape = _shape(schema.rule, schema.document)
    is_open = shape.is_open or not shape.kinds
    return msgspec.structs.replace(shape, kinds=("object",), is_open=is_open)


def _shape(rule: SchemaRule, document: Any) -> Shape:
    words: Mapping[str, Any] = document if isinstance(document, dict) else {}
    texts = (words.get(word) for word in ("description", "title"))
    comment = next((text for text in texts if isinstance(text, str)), "")
    if rule.values is not None:
        return _shape_of_values(rule, comment)
    types = rule.types
    if types is None:
        types = frozenset(kind for kind, implied in _IMPLIED.items() if implied & words.keys())
    if rule.sensitivity is not None and types:  # the SDK encrypts the value to a string
        types |= {"string"}
    kinds = tuple(kind for kind in KINDS if kind in types)
    schemas = words.get("properties", {})
    members = {name: _shape(inner, schemas[name]) for name, inner in rule.properties.items()}
    members |= {name: Shape() for name in rule.required if name not in members}
    other = rule.additional
    has_other = other is not None and not other.rejects_all
    return Shape(
        kinds=kinds,
        members=members if "object" in kinds else {},
        other=_shape(other, words["additionalProperties"]) if other and has_other else None,
        items=_shape(rule.items or ANYTHING, words.get("items")) if "array" in kinds else None,
        comment=comment,
        is_fixed=bool(kinds),
        is_open="object" in kinds and not rule.properties and other is None,
    )


def _shape_of_values(rule: SchemaRule, comment: str) -> Shape:
    """Return the columns of a location that allows only some values."""
    counts = PayloadCounts()
    for value in rule.values or ():
        if PayloadSchema(rule, None).check(value) is None:
            counts.add(value)
    kinds = tuple(kind for kind in KINDS if kind in counts.kinds)
    if "number" in kinds:
        kinds = tuple(kind for kind in kinds if kind != "integer")
    shape = Shape(kinds=kinds, comment=comment, is_fixed=True, is_open=True)
    return msgspec.structs.replace(widen(shape, counts), is_open=False)


# -- from payloads


def widen(shape: Shape, counts: PayloadCounts) -> Shape:
    """Return a shape that also holds the counted payloads, within what columns may become.

    Integers become numbers, and locations and members without a column get one: that of the type
    that occurs most often. New members are ordered by name. Other types do not change.
    """
    room = MAX_COLUMNS - count_columns(shape)
    return _widen(shape, counts, [max(room, 0)], 0)


def _widen(shape: Shape, counts: PayloadCounts, room: list[int], depth: int) -> Shape:
    kinds = shape.kinds
    if not kinds and counts.kinds and depth <= MAX_DEPTH and room[0] > 0 and not shape.is_fixed:
        kinds = (_usual_kind(counts.kinds),)
        room[0] -= kinds[0] not in ("object", "array")
    if kinds == ("integer",) and "number" in counts.kinds and not shape.is_fixed:
        kinds = ("number",)
    is_open = shape.is_open or ("object" in kinds and not shape.kinds)
    members = {
        name: _widen(member, counts.members.get(name, PayloadCounts()), room, depth + 1)
        for name, member in shape.members.items()
    }
    unnamed = {name: c for name, c in sorted(counts.members.items()) if name not in members}
    if "object" in kinds and is_open:
        members |= {
            name: _widen(Shape(), c, room, depth + 1) for name, c in unnamed.items() if room[0] > 0
        }
    other = shape.other
    if other is not None:
        for c in unnamed.values():
            other = _widen(other, c, room, depth + 1)
    items = shape.items
    if "array" in kinds:
        items = _widen(items or Shape(), counts.items or PayloadCounts(), room, depth + 1)
    return msgspec.structs.replace(
        shape, kinds=kinds, members=members, other=other, items=items, is_open=is_open
    )


def _usual_kind(kinds: Mapping[str, int]) -> str:
    """Return the most frequent kind, counting integers as numbers if there are both."""
    counts = dict(kinds)
    if "number" in counts:
        counts["number"] += counts.pop("integer", 0)
    return max(KINDS, key=lambda kind: counts.get(kind, 0))


def count_columns(shape: Shape) -> int:
    """Return the number of columns without those that consist of others."""
    parts: Iterable[Shape | None] = (*shape.members.values(), shape.other, shape.items)
    simple = sum(kind not in ("object", "array") for kind in shape.kinds)
    return simple + sum(count_columns(part) for part in parts if part is not None)


# -- from a newer schema


def adopt(old: Shape, new: Shape, pointer: str = "/data") -> tuple[Shape, list[str]]:
    """Return the columns of ``old`` and ``new``, and pointers to columns whose type would change.

    Columns that ``new`` lacks remain.
    """
    if not old.kinds:
        return new, []
    is_wider = old.kinds == ("integer",) and new.kinds == ("number",)
    if new.kinds and new.kinds != old.kinds and not is_wider:
        return old, [pointer]
    conflicts: list[str] = []

    def below(name: str, inner: Shape | None, newer: Shape | None) -> Shape | None:
        if inner is None or newer is None:
            return inner or newer
        if is_map(inner) and newer.members:
            conflicts.append(child_pointer(pointer, name))
            return inner
        adopted, changed = adopt(inner, newer, child_pointer(pointer, name))
        conflicts.extend(changed)
        return adopted

    members = {
        name: below(name, old.members.get(name), new.members.get(name)) or Shape()
        for name in (*old.members, *(name for name in new.members if name not in old.members))
    }
    shape = msgspec.structs.replace(
        new if new.kinds else old,
        members=members,
        other=below("*", old.other, new.other),
        items=below("*", old.items, new.items),
        comment=new.comment or old.comment,
    )
    return shape, conflicts


# -- columns


def column_kinds(shape: Shape) -> tuple[str, ...]:
    """Return the kinds that have a column: not objects and arrays whose content has none."""
    parts = {"object": (*shape.members.values(), shape.other), "array": (shape.items,)}
    return tuple(
        kind
        for kind in shape.kinds
        if kind not in parts or any(part and column_kinds(part) for part in parts[kind])
    )


def is_map(shape: Shape) -> bool:
    """Return whether a location's objects are a map: a schema names no members, but their type."""
    return shape.other is not None and not shape.members


OTHER_MEMBERS: Final = "other_members"


def columns_of(shape: Shape, taken: Iterable[str] = ()) -> list[tuple[str, str | None, Shape]]:
    """Return the columns of an object's members in order, as name, member and shape.

    Those without a column yet are included. The map of members without a name has no member.
    Most engines ignore case in names of columns, so a name that is taken in any case, or empty,
    gets the prefix ``data_``.
    """
    used = {name.casefold() for name in taken} | {"", OTHER_MEMBERS}
    columns: list[tuple[str, str | None, Shape]] = []
    for member, inner in shape.members.items():
        name = member
        while name.casefold() in used:
            name = f"data_{name}"
        used.add(name.casefold())
        columns.append((name, member, inner))
    if shape.other is not None:
        columns.append((OTHER_MEMBERS, None, Shape(kinds=("object",), other=shape.other)))
    return columns
