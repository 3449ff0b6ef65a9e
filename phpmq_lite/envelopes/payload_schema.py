"""JSON Schema for a URN's ``data``: strict parsing and validation. Pure functions.

The keywords that all BabelQueue SDKs share are supported: ``type required properties
additionalProperties items enum const minLength minimum``. The SDK's own validator silently ignores
some uses of them (a list of types, rules without a ``type``, boolean schemas, a schema for
additional properties, ``[1]`` versus ``[true]``); here they have their standard meaning. Malformed
schemas are errors. Other keywords that would restrict values are not applied but listed in
``unchecked``.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from phpmq_lite.envelopes.strict_json import (
    POINTER_CHARACTERS,
    child_pointer,
    has_lone_surrogate,
    refuse_constant,
)
from phpmq_lite.envelopes.validation import EnvelopeProblem
from phpmq_lite.errors import PhpmqError

REASON: Final = "schema_mismatch"
DEPTH_LIMIT: Final = 64  # maximum nesting depth of a schema document
VALUES_LIMIT: Final = 10_000  # maximum number of values in one enum
_APPLIED: Final = frozenset(
    {"type", "required", "properties", "additionalProperties", "items", "enum", "const"}
    | {"minLength", "minimum"}
)
_DESCRIPTIVE: Final = frozenset(  # keywords that do not restrict values
    {"$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "title", "description"}
    | {"default", "examples", "example", "deprecated", "readOnly", "writeOnly"}
)
_SENSITIVE_KEYWORD: Final = "x-gdpr-sensitive"
_ARTICLES: Final = {
    "object": "an object",
    "array": "an array",
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}
TYPES: Final = tuple(_ARTICLES)
JSON_TYPES: Final[Mapping[type, str]] = {  # of parsed values; 1.0 is also an integer, 1 a number
    dict: "object",
    list: "array",
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
# Decides most values in a third of the time that _IS_OF_TYPE takes; floats may be infinite.
_USUAL_TYPES: Final = {kind: name for kind, name in JSON_TYPES.items() if kind is not float}


class SchemaError(PhpmqError):
    """Invalid schema; ``pointer`` (RFC 6901) locates the error and is empty for the file itself."""

    def __init__(self, detail: str, pointer: str = "") -> None:
        super().__init__(f"{pointer or 'the document'}: {detail}")
        self.detail = detail
        self.pointer = pointer


@dataclass(slots=True, frozen=True)
class SchemaRule:
    """The values allowed at one location in ``data``; the default allows everything."""

    types: frozenset[str] | None = None  # None allows any type; "number" includes "integer"
    required: tuple[str, ...] = ()
    properties: Mapping[str, "SchemaRule"] = field(default_factory=lambda: MappingProxyType({}))
    additional: "SchemaRule | None" = None  # rule for other members; None allows anything
    items: "SchemaRule | None" = None  # rule for array items; None allows anything
    values: tuple[Any, ...] | None = None  # from enum and const; None allows any value
    keys: frozenset[Any] = frozenset()  # keys for comparing a value with the allowed values
    min_length: int = 0  # minimum string length in code points
    minimum: int | float | None = None
    rejects_all: bool = False  # True for the schema ``false``, which rejects everything
    sensitivity: str | None = None  # value of x-gdpr-sensitive; empty if it is ``true``
    title: str = ""

    def allows(self, kind: str) -> bool:
        """Return whether the rule allows values of the JSON type ``kind``."""
        types = self.types
        return types is None or kind in types or (kind == "integer" and "number" in types)


ANYTHING: Final = SchemaRule()
NOTHING: Final = SchemaRule(rejects_all=True)


@dataclass(slots=True, frozen=True)
class PayloadSchema:
    """A schema parsed into ``rule``, with its original JSON in ``document``."""

    rule: SchemaRule
    document: Any
    unchecked: tuple[str, ...] = ()  # pointers to keywords that are not enforced

    def check(self, data: Any, *, is_on_wire: bool = False) -> EnvelopeProblem | None:
        """Return the first schema violation in ``data``, or None if there is none. Never raises.

        The pointer begins with ``/data`` and is repeated in the detail. Neither contains payload
        values.

        Args:
            data: parsed JSON: dict, list, str, int, float, bool, None.
            is_on_wire: the payload may be encrypted, so strings are accepted at locations that are
                marked as sensitive (``babelqueue.gdpr``).
        """
        rule = self.rule
        if rule.sensitivity is not None and is_on_wire:
            rule = replace(rule, sensitivity=None)  # the SDK encrypts only members of data
        violation = _check(rule, data, is_on_wire)
        if violation is None:
            return None
        detail, path = violation
        pointer = "".join(["/data", *(child_pointer("", str(name)) for name in reversed(path))])
        if len(pointer) > POINTER_CHARACTERS:  # senders choose the names in it
            pointer = f"{pointer[: POINTER_CHARACTERS - 1]}…"
        return EnvelopeProblem(REASON, f"{pointer} {detail}", pointer)


# -- parsing


def read_json(content: bytes) -> Any:
    """Parse strict JSON, or raise SchemaError; no repeated names, NaN or lone surrogates."""
    try:
        document = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_unique_members,
            parse_constant=refuse_constant,
            parse_float=_parse_finite,
        )
    except UnicodeDecodeError as error:
        raise SchemaError(f"invalid UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise SchemaError("the JSON is nested too deeply") from None
    except ValueError as error:
        raise SchemaError(f"invalid JSON: {error}") from None
    if has_lone_surrogate(content):
        raise SchemaError("a string contains a lone surrogate")
    return document


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise SchemaError(f"member {name!r} is repeated in the same object")
        members[name] = value
    return members


def _parse_finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise SchemaError(f"the number {text[:40]} is too large")
    return value


def read_schema(document: Any) -> PayloadSchema:
    """Parse a schema from its JSON; a SchemaError locates a malformed keyword."""
    unchecked: list[str] = []
    return PayloadSchema(_rule(document, "", unchecked, 0), document, tuple(unchecked))


def _rule(document: Any, pointer: str, unchecked: list[str], depth: int) -> SchemaRule:
    if isinstance(document, bool):
        return ANYTHING if document else NOTHING
    if not isinstance(document, dict):
        detail = f"a schema must be an object, true or false, not {type_name(document)}"
        raise SchemaError(detail, pointer)
    if depth > DEPTH_LIMIT:
        detail = f"schemas are nested {depth} levels deep; the limit is {DEPTH_LIMIT}"
        raise SchemaError(detail, pointer)
    unchecked += (
        child_pointer(pointer, word)
        for word in document
        if word not in _APPLIED and word not in _DESCRIPTIVE and not word.startswith("x-")
    )
    for word, (is_valid, detail) in _VALUES_OF_KEYWORDS.items():
        if word in document and not is_valid(document[word]):
            raise SchemaError(f"{word} must be {detail}", f"{pointer}/{word}")
    parent = f"{pointer}/properties"

    def subschema(word: str) -> SchemaRule | None:
        if word not in document:
            return None
        if word == "items" and isinstance(document[word], list):
            unchecked.append(f"{pointer}/{word}")  # no SDK supports positional schemas
            return None
        rule = _rule(document[word], f"{pointer}/{word}", unchecked, depth + 1)
        return None if rule == ANYTHING else rule

    values = _values(document, pointer)
    mark = document.get(_SENSITIVE_KEYWORD)
    return SchemaRule(
        types=_types(document, pointer),
        required=tuple(dict.fromkeys(document.get("required", []))),
        properties=MappingProxyType(
            {
                name: _rule(inner, child_pointer(parent, name), unchecked, depth + 1)
                for name, inner in document.get("properties", {}).items()
            }
        ),
        additional=subschema("additionalProperties"),
        items=subschema("items"),
        values=values,
        keys=frozenset(map(equality_key, values or ())),
        min_length=int(document.get("minLength", 0)),
        minimum=document.get("minimum"),
        sensitivity="" if mark is True else mark if isinstance(mark, str) and mark else None,
        title=next(
            (t for w in ("title", "description") if isinstance(t := document.get(w), str)), ""
        ),
    )


def _types(document: dict[str, Any], pointer: str) -> frozenset[str] | None:
    if "type" not in document:
        return None
    value = document["type"]
    names = value if isinstance(value, list) else [value]
    if not names:
        raise SchemaError("type must not be an empty list", f"{pointer}/type")
    for name in names:
        if not isinstance(name, str) or name not in TYPES:
            text = json.dumps(name, ensure_ascii=False)[:100]
            detail = f"{text} is not a valid type; use {_alternatives(TYPES)}"
            raise SchemaError(detail, f"{pointer}/type")
    types = frozenset(names)
    if "number" in types:
        types -= {"integer"}
    return None if types == set(TYPES) - {"integer"} else types


def _values(document: dict[str, Any], pointer: str) -> tuple[Any, ...] | None:
    values: list[Any] | None = None
    if "enum" in document:
        values = document["enum"]
        if not isinstance(values, list) or not values:
            raise SchemaError("enum must be a list with at least one value", f"{pointer}/enum")
        if len(values) > VALUES_LIMIT:
            detail = f"enum has {len(values)} values; the limit is {VALUES_LIMIT}"
            raise SchemaError(detail, f"{pointer}/enum")
    for word in ("enum", "const"):
        if word in document and _depth(document[word]) > DEPTH_LIMIT:
            detail = f"a value is nested more than {DEPTH_LIMIT} levels deep"
            raise SchemaError(detail, f"{pointer}/{word}")
    if "const" in document:
        const = document["const"]
        key = equality_key(const)
        values = [const] if values is None else [v for v in values if equality_key(v) == key]
    return None if values is None else tuple(values)


def _depth(value: Any) -> int:
    """Return the nesting depth of a value, without recursion, because Python's stack is limited."""
    depth, level = 0, [value]
    while level:
        depth += 1
        outer, level = level, []
        for container in outer:
            if isinstance(container, dict | list):
                level += container.values() if isinstance(container, dict) else container
    return depth


# -- checking

_Violation = tuple[str, list[str | int]]  # in words, and its path, innermost name first


def _check(rule: SchemaRule, value: Any, is_on_wire: bool) -> _Violation | None:
    """Return the first violation; to save time on valid values, its path is built only on return.

    A check takes 2 to 4 µs per member (measured on a 2-core virtual machine).
    """
    if rule.sensitivity is not None and is_on_wire and isinstance(value, str):
        return None
    if rule.rejects_all:
        return "is not allowed", []
    if rule.values is not None and equality_key(value) not in rule.keys:
        count = len(rule.values)
        if count == 1:
            return "is not the only allowed value", []
        return f"is not one of the {count} allowed values", []
    types = rule.types
    if (
        types is not None
        and _USUAL_TYPES.get(type(value)) not in types
        and not any(_IS_OF_TYPE[name](value) for name in types)
    ):
        return f"is {type_name(value)}, not {type_names(types)}", []
    if isinstance(value, dict):
        return _check_object(rule, value, is_on_wire)
    if isinstance(value, list) and rule.items is not None:
        for number, item in enumerate(value):
            violation = _check(rule.items, item, is_on_wire)
            if violation is not None:
                violation[1].append(number)
                return violation
    elif isinstance(value, str):
        if len(value) < rule.min_length:
            return f"has {len(value)} characters; the minimum is {rule.min_length}", []
    elif rule.minimum is not None and is_number(value) and value < rule.minimum:
        return f"is below {rule.minimum}", []
    return None


def _check_object(rule: SchemaRule, value: dict[str, Any], is_on_wire: bool) -> _Violation | None:
    for name in rule.required:
        if name not in value:
            return "is missing", [name]
    for name, member in value.items():
        inner = rule.properties.get(name, rule.additional)
        if inner is None:
            continue
        if inner.rejects_all:
            return "is not in the schema", [name]
        violation = _check(inner, member, is_on_wire)
        if violation is not None:
            violation[1].append(name)
            return violation
    return None


def is_integer(value: Any) -> bool:
    """Return whether JSON Schema considers the value an integer: 1.0 is an integer, true is not."""
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return whether the value is a number that JSON can represent."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


_IS_OF_TYPE: Final[Mapping[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "integer": is_integer,
    "number": is_number,
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}


_VALUES_OF_KEYWORDS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "properties": (_IS_OF_TYPE["object"], "an object whose values are schemas"),
    "required": (
        lambda value: isinstance(value, list) and all(map(_IS_OF_TYPE["string"], value)),
        "a list of member names",
    ),
    "minLength": (lambda value: is_integer(value) and value >= 0, "a non-negative integer"),
    "minimum": (is_number, "a number"),
}


def equality_key(value: Any) -> Any:
    """Return a hashable key for comparing values; as with PHP's ``===``, 1, 1.0 and true differ."""
    if isinstance(value, dict):
        return dict, frozenset((name, equality_key(member)) for name, member in value.items())
    if isinstance(value, list):
        return list, tuple(map(equality_key, value))
    return type(value), value


# -- texts


def type_name(value: Any) -> str:
    """Return a readable name for the JSON type of a value, such as ``a string``."""
    if isinstance(value, bool):
        return str(value).lower()
    return _ARTICLES[JSON_TYPES.get(type(value), "null")]


def type_names(types: frozenset[str] | None) -> str:
    """Return readable type names, such as ``a string or null``, or ``anything`` for None."""
    if types is None:
        return "anything"
    return _alternatives([_ARTICLES[name] for name in _ARTICLES if name in types])


def _alternatives(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]


@dataclass(slots=True, frozen=True)
class SchemaField:
    """A location in ``data`` for which a schema has a rule."""

    path: str  # such as lines[].sku; empty for ``data`` itself
    types: str  # the allowed types in words, such as "a string or null"
    is_required: bool  # whether the enclosing object must have this member
    limits: str  # such as "one of 3 values, at least 1"; usually empty
    sensitivity: str | None  # category of sensitive data, or None
    title: str  # the schema's title or description; usually empty


def schema_fields(rule: SchemaRule) -> Iterator[SchemaField]:
    """Yield the locations below ``data``, in schema order."""
    for name, inner in rule.properties.items():
        yield SchemaField(
            name,
            type_names(inner.types),
            name in rule.required,
            _limits(inner),
            inner.sensitivity,
            inner.title,
        )
        for prefix, subschema in ((name, inner), (f"{name}[]", inner.items)):
            for field_below in schema_fields(subschema) if subschema is not None else ():
                yield replace(field_below, path=f"{prefix}.{field_below.path}")


def _limits(rule: SchemaRule) -> str:
    limits = []
    if rule.rejects_all:
        limits.append("never")
    if rule.values is not None:
        text = " | ".join(json.dumps(value, ensure_ascii=False) for value in rule.values[:12])
        limits.append(f"{text[:200]}{' …' if len(rule.values) > 12 or len(text) > 200 else ''}")
    if rule.min_length:
        limits.append(f"at least {rule.min_length} characters")
    if rule.minimum is not None:
        limits.append(f"at least {rule.minimum}")
    if rule.additional is not None and rule.additional.rejects_all:
        limits.append("no other members")
    if rule.items is not None and rule.items.types:
        limits.append(f"each {type_names(rule.items.types)}")
    return ", ".join(limits)
