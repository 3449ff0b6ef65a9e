"""One JSON Schema for the ``data`` of a URN: read strictly, then asked about values.  Pure.

The words that count are those that the BabelQueue SDKs share: ``type required properties
additionalProperties items enum const minLength minimum``.  The SDK's own validator passes over
several uses of them in silence (a list of types, rules without a ``type``, a boolean schema, a
schema for other members, ``[1]`` beside ``[true]``); here they mean what the standard says.  What
is malformed is refused when the schema is read; a word that would narrow it further and is not one
of these is listed in ``unchecked``, for it is not looked at.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from phpmq_lite.envelopes.verdict import EnvelopeProblem
from phpmq_lite.errors import PhpmqError

TYPES: Final = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
REASON: Final = "schema_mismatch"
DEPTH_LIMIT: Final = 64  # levels of a schema's document
VALUES_LIMIT: Final = 10_000  # of one enum
PLACE_CHARACTERS: Final = 200  # of a pointer into a payload; the rest is cut
_CHECKED: Final = frozenset(
    {"type", "required", "properties", "additionalProperties", "items", "enum", "const"}
    | {"minLength", "minimum"}
)
_SAYING: Final = frozenset(  # words that narrow nothing by themselves
    {"$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "title", "description"}
    | {"default", "examples", "example", "deprecated", "readOnly", "writeOnly"}
)
_MARK: Final = "x-gdpr-sensitive"
_ARTICLES: Final = {
    "object": "an object",
    "array": "an array",
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}


class SchemaError(PhpmqError):
    """A schema is not one; ``pointer`` (RFC 6901) says where in its document, empty: the whole."""

    def __init__(self, detail: str, pointer: str = "") -> None:
        super().__init__(f"{pointer or 'the document'}: {detail}")
        self.detail = detail
        self.pointer = pointer


@dataclass(slots=True, frozen=True)
class SchemaRule:
    """What one place of ``data`` may hold; the default is anything."""

    types: frozenset[str] | None = None  # None: any; has no "integer" where "number" is in it
    required: tuple[str, ...] = ()
    properties: Mapping[str, "SchemaRule"] = field(default_factory=lambda: MappingProxyType({}))
    rest: "SchemaRule | None" = None  # of members that have no rule of their own; None: anything
    items: "SchemaRule | None" = None  # None: anything
    values: tuple[Any, ...] | None = None  # of enum and const; None: any
    keys: frozenset[Any] = frozenset()  # of those values
    min_length: int = 0  # code points
    minimum: int | float | None = None
    is_never: bool = False  # the schema ``false``: nothing fits
    mark: str | None = None  # x-gdpr-sensitive: its category, empty for ``true``
    title: str = ""

    def takes(self, kind: str) -> bool:
        """Tell whether a value of a JSON type may stand here."""
        types = self.types
        return types is None or kind in types or (kind == "integer" and "number" in types)


ANYTHING: Final = SchemaRule()
NOTHING: Final = SchemaRule(is_never=True)


@dataclass(slots=True, frozen=True)
class PayloadSchema:
    """A schema that was read to a ``rule``; ``document`` is its JSON as it stands in the file."""

    rule: SchemaRule
    document: Any
    unchecked: tuple[str, ...] = ()  # pointers of words that nobody looks at

    def check(self, data: Any, *, is_sent: bool = False) -> EnvelopeProblem | None:
        """Give the first thing that is wrong with ``data``, None where it fits.  Never raises.

        The pointer begins with ``/data`` and stands in the detail too, which has no value of the
        payload.

        Args:
            data: as JSON gives it: dict, list, str, int, float, bool, None.
            is_sent: as it is on the wire, where what is marked sensitive may be ciphertext: a
                string stands for any value there (``babelqueue.gdpr``).
        """
        rule = self.rule
        if rule.mark is not None and is_sent:
            rule = replace(rule, mark=None)  # the SDK encrypts members, never the whole
        found = _check(rule, data, is_sent)
        return None if found is None else _problem(*found)


# -- reading


def read_json(content: bytes) -> Any:
    """Read strict JSON in UTF-8: no repeated names, no NaN, no half of a surrogate pair.

    Raises:
        SchemaError: it is not.
    """
    try:
        read = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_members,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
        if b"\\u" in content:
            json.dumps(read, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise SchemaError("it has half of a surrogate pair") from None
    except UnicodeDecodeError as error:
        raise SchemaError(f"it is not UTF-8: byte {error.start}") from None
    except RecursionError:
        raise SchemaError("it is nested too deeply") from None
    except ValueError as error:
        raise SchemaError(f"it is not JSON: {error}") from None
    return read


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise SchemaError(f"the member {name!r} stands twice in one object")
        found[name] = value
    return found


def _no_constant(text: str) -> Any:
    raise SchemaError(f"{text} is no JSON")


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise SchemaError(f"{text[:40]} is larger than a number can be")
    return value


def read_schema(document: Any) -> PayloadSchema:
    """Read a schema from its JSON.

    Raises:
        SchemaError: a word of it is malformed; the pointer says where.
    """
    unchecked: list[str] = []
    return PayloadSchema(_rule(document, "", unchecked, 0), document, tuple(unchecked))


def _rule(document: Any, at: str, unchecked: list[str], depth: int) -> SchemaRule:
    if isinstance(document, bool):
        return ANYTHING if document else NOTHING
    if not isinstance(document, dict):
        raise SchemaError(f"a schema is an object, true or false, not {type_name(document)}", at)
    if depth > DEPTH_LIMIT:
        raise SchemaError(f"schemas are nested {depth} deep, the limit is {DEPTH_LIMIT}", at)
    unchecked += (
        f"{at}/{escape_pointer(word)}"
        for word in document
        if word not in _CHECKED and word not in _SAYING and not word.startswith("x-")
    )
    properties = document.get("properties", {})
    if not isinstance(properties, dict):
        raise SchemaError("properties is an object of schemas", f"{at}/properties")

    def below(word: str) -> SchemaRule | None:
        if word not in document:
            return None
        if word == "items" and isinstance(document[word], list):
            unchecked.append(f"{at}/{word}")  # one schema for each place: no SDK looks at it
            return None
        rule = _rule(document[word], f"{at}/{word}", unchecked, depth + 1)
        return None if rule == ANYTHING else rule

    values = _values(document, at)
    return SchemaRule(
        types=_types(document, at),
        required=_required(document, at),
        properties=MappingProxyType(
            {
                name: _rule(inner, f"{at}/properties/{escape_pointer(name)}", unchecked, depth + 1)
                for name, inner in properties.items()
            }
        ),
        rest=below("additionalProperties"),
        items=below("items"),
        values=values,
        keys=frozenset(map(equality_key, values or ())),
        min_length=_min_length(document, at),
        minimum=_minimum(document, at),
        mark=_mark(document.get(_MARK)),
        title=next(
            (t for w in ("title", "description") if isinstance(t := document.get(w), str)), ""
        ),
    )


def _types(document: dict[str, Any], at: str) -> frozenset[str] | None:
    if "type" not in document:
        return None
    given = document["type"]
    names = given if isinstance(given, list) else [given]
    if not names:
        raise SchemaError("type is an empty list", f"{at}/type")
    for name in names:
        if not isinstance(name, str) or name not in TYPES:
            shown = json.dumps(name, ensure_ascii=False)[:100]
            raise SchemaError(f"{shown} is no type; types are {_listed(TYPES)}", f"{at}/type")
    found = frozenset(names)
    if "number" in found:
        found -= {"integer"}
    return None if found == TYPES - {"integer"} else found


def _required(document: dict[str, Any], at: str) -> tuple[str, ...]:
    names = document.get("required", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SchemaError("required is a list of names of members", f"{at}/required")
    return tuple(dict.fromkeys(names))


def _values(document: dict[str, Any], at: str) -> tuple[Any, ...] | None:
    values: list[Any] | None = None
    if "enum" in document:
        values = document["enum"]
        if not isinstance(values, list) or not values:
            raise SchemaError("enum is a list of at least one value", f"{at}/enum")
        if len(values) > VALUES_LIMIT:
            detail = f"enum has {len(values)} values, the limit is {VALUES_LIMIT}"
            raise SchemaError(detail, f"{at}/enum")
    for word in ("enum", "const"):
        if word in document and _depth(document[word]) > DEPTH_LIMIT:
            detail = f"a value is nested deeper than {DEPTH_LIMIT}"
            raise SchemaError(detail, f"{at}/{word}")
    if "const" in document:
        const = document["const"]
        key = equality_key(const)
        values = [const] if values is None else [v for v in values if equality_key(v) == key]
    return None if values is None else tuple(values)


def _depth(value: Any) -> int:
    """Count the levels, without recursion: a document may be deeper than Python's stack."""
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [inner for outer in level for inner in _inner(outer)]
    return depth


def _inner(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _min_length(document: dict[str, Any], at: str) -> int:
    given = document.get("minLength", 0)
    if not is_integer(given) or given < 0:
        raise SchemaError("minLength is a whole number, 0 or more", f"{at}/minLength")
    return int(given)


def _minimum(document: dict[str, Any], at: str) -> int | float | None:
    given = document.get("minimum")
    if "minimum" in document and not is_number(given):
        raise SchemaError("minimum is a number", f"{at}/minimum")
    return given


def _mark(given: object) -> str | None:
    if given is True:
        return ""
    return given if isinstance(given, str) and given else None


# -- asking

_Found = tuple[str, list[str | int]]  # what is wrong, and the names that lead there, last first


def _check(rule: SchemaRule, value: Any, is_sent: bool) -> _Found | None:
    """Give the first fault.  Names are gathered on the way back: where all fits they cost nothing.

    It costs 2 to 4 µs a member (measured on a 2-core virtual machine).
    """
    if rule.mark is not None and is_sent and isinstance(value, str):
        return None
    if rule.is_never:
        return "may not be here", []
    if rule.values is not None and equality_key(value) not in rule.keys:
        count = len(rule.values)
        return "is not the one value" if count == 1 else f"is none of {count} values", []
    if rule.types is not None and not any(_is_of(value, name) for name in rule.types):
        return f"is {type_name(value)}, not {type_names(rule.types)}", []
    if isinstance(value, dict):
        return _check_object(rule, value, is_sent)
    if isinstance(value, list):
        return _check_items(rule, value, is_sent)
    if isinstance(value, str):
        if len(value) < rule.min_length:
            return f"has {len(value)} characters, the least is {rule.min_length}", []
    elif rule.minimum is not None and is_number(value) and value < rule.minimum:
        return f"is below {rule.minimum}", []
    return None


def _check_object(rule: SchemaRule, value: dict[str, Any], is_sent: bool) -> _Found | None:
    for name in rule.required:
        if name not in value:
            return "is missing", [name]
    for name, member in value.items():
        inner = rule.properties.get(name, rule.rest)
        if inner is None:
            continue
        if inner.is_never:
            return "is not in the schema", [name]
        found = _check(inner, member, is_sent)
        if found is not None:
            found[1].append(name)
            return found
    return None


def _check_items(rule: SchemaRule, value: list[Any], is_sent: bool) -> _Found | None:
    if rule.items is None:
        return None
    for number, item in enumerate(value):
        found = _check(rule.items, item, is_sent)
        if found is not None:
            found[1].append(number)
            return found
    return None


def _problem(words: str, path: list[str | int]) -> EnvelopeProblem:
    """Say where and what; names of members come from whoever sent it, so they are cut."""
    at = "/".join(["/data", *(escape_pointer(str(name)) for name in reversed(path))])
    place = at if len(at) <= PLACE_CHARACTERS else f"{at[: PLACE_CHARACTERS - 1]}…"
    return EnvelopeProblem(REASON, f"{place} {words}", place)


def _is_of(value: Any, name: str) -> bool:
    match name:
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "integer":
            return is_integer(value)
        case "number":
            return is_number(value)
        case "boolean":
            return isinstance(value, bool)
        case _:
            return value is None


def is_integer(value: Any) -> bool:
    """Tell whether JSON Schema calls it an integer: 1.0 is one, true is none."""
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Tell whether it is a number that JSON can write."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def equality_key(value: Any) -> Any:
    """Give what equals for equal values only: 1, 1.0 and true are three, as with PHP's ===."""
    if isinstance(value, dict):
        return dict, frozenset((name, equality_key(member)) for name, member in value.items())
    if isinstance(value, list):
        return list, tuple(map(equality_key, value))
    return type(value), value


# -- words


def type_name(value: Any) -> str:
    """Name the JSON type of a value, for people: ``a string``."""
    if isinstance(value, bool):
        return str(value).lower()
    kinds_by_type = {dict: "object", list: "array", str: "string", int: "integer", float: "number"}
    return _ARTICLES[kinds_by_type.get(type(value), "null")]


def type_names(types: frozenset[str]) -> str:
    """Name types for people: ``a string or null``."""
    return _listed(types, " or ", _ARTICLES)


def _listed(
    names: frozenset[str], last: str = " and ", words: Mapping[str, str] | None = None
) -> str:
    order = [name for name in _ARTICLES if name in names]
    shown = [words[name] if words else name for name in order]
    return last.join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def escape_pointer(name: str) -> str:
    """Write a name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


@dataclass(slots=True, frozen=True)
class SchemaField:
    """One place of ``data`` that a schema describes."""

    path: str  # lines[].sku; empty: data itself
    types: str  # for people
    is_required: bool  # by what is around it
    limits: str  # "one of 3 values, at least 1"; mostly empty
    mark: str | None  # its category where it is marked sensitive
    title: str  # the schema's own word; mostly empty


def schema_fields(rule: SchemaRule) -> Iterator[SchemaField]:
    """Yield the places below ``data``, each object's members in the order of the schema."""
    for name, inner in rule.properties.items():
        path = f"{name}[]" if inner.items is not None else name
        yield SchemaField(
            name, type_names(inner.types) if inner.types else "anything", name in rule.required,
            _limits(inner), inner.mark, inner.title,
        )  # fmt: skip
        for below in (inner, inner.items):
            prefix = name if below is inner else path
            for place in schema_fields(below) if below is not None else ():
                yield SchemaField(
                    f"{prefix}.{place.path}", place.types, place.is_required, place.limits,
                    place.mark, place.title,
                )  # fmt: skip


def _limits(rule: SchemaRule) -> str:
    found = []
    if rule.is_never:
        found.append("never")
    if rule.values is not None:
        found.append(_shown_values(rule.values))
    if rule.min_length:
        found.append(f"at least {rule.min_length} characters")
    if rule.minimum is not None:
        found.append(f"at least {rule.minimum}")
    if rule.rest is not None and rule.rest.is_never:
        found.append("no other members")
    if rule.items is not None and rule.items.types:
        found.append(f"each {type_names(rule.items.types)}")
    return ", ".join(found)


def _shown_values(values: tuple[Any, ...]) -> str:
    shown = " | ".join(json.dumps(value, ensure_ascii=False) for value in values[:12])
    return f"{shown[:200]}{' …' if len(values) > 12 or len(shown) > 200 else ''}"
