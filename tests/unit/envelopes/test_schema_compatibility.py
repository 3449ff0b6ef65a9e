"""Two versions of a schema: which changes are breaking, and which are only noted."""

from typing import Any

import pytest

from phpmq_lite.envelopes.payload_schema import read_schema
from phpmq_lite.envelopes.schema_compatibility import schema_changes

ID: dict[str, Any] = {"type": "integer", "minimum": 1}
NOTE: dict[str, Any] = {"type": "string", "minLength": 2}
LINES: dict[str, Any] = {"type": "array", "items": {"type": "object", "required": ["sku"]}}
OLD: dict[str, Any] = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": ID, "note": NOTE, "kind": {"enum": ["a", "b"]}, "lines": LINES},
}


def changed(old: Any, new: Any) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return breaking changes and notes, each as (pointer, detail)."""
    found = schema_changes(read_schema(old), read_schema(new))
    return (
        [(c.pointer, c.detail) for c in found if c.is_breaking],
        [(c.pointer, c.detail) for c in found if not c.is_breaking],
    )


def with_property(name: str, schema: Any) -> dict[str, Any]:
    return OLD | {"properties": OLD["properties"] | {name: schema}}


def without_property(name: str) -> dict[str, Any]:
    kept = {key: value for key, value in OLD["properties"].items() if key != name}
    return OLD | {"properties": kept}


@pytest.mark.parametrize(
    ("new", "pointer", "words"),
    [
        (OLD | {"required": ["id", "note"]}, "/data/note", "was optional and is now required"),
        (OLD | {"required": ["id", "new"]}, "/data/new", "not in the schema and is now required"),
        (without_property("note"), "/data/note", "removed"),
        (with_property("id", {"type": "string"}), "/data/id", "was an integer and is now a string"),
        (with_property("id", {"minimum": 1}), "/data/id", "is now anything"),
        (with_property("id", {"type": ["integer", "null"], "minimum": 1}), "/data/id", "or null"),
        (with_property("kind", {"enum": ["a"]}), "/data/kind", 'no longer allowed: "b"'),
        (with_property("kind", {"enum": ["a", "b"], "const": "a"}), "/data/kind", 'allowed: "b"'),
        (with_property("kind", {"type": "integer"}), "/data/kind", 'no longer allowed: "a", "b"'),
        (with_property("id", {"type": "integer", "minimum": 2}), "/data/id", "minimum was 1"),
        (with_property("note", {"type": "string", "minLength": 3}), "/data/note", "Length was 2"),
        (with_property("note", NOTE | {"enum": ["xx"]}), "/data/note", 'allows only "xx"'),
        (OLD | {"additionalProperties": False}, "/data", "additional members are now rejected"),
        (OLD | {"additionalProperties": {"type": "string"}}, "/data/*", "was anything"),
        (with_property("lines", {"type": "array", "items": {"type": "object"}}), "", ""),
        (
            with_property("lines", LINES | {"items": {"type": "string"}}),
            "/data/lines/*",
            "a string",
        ),
        (with_property("note", False), "/data/note", "every value is now rejected"),
        (with_property("new", False), "/data/new", "no longer allowed"),
        (False, "/data", "every value is now rejected"),
    ],
)
def test_breaking_change_is_named(new: Any, pointer: str, words: str) -> None:
    breaking, _ = changed(OLD, new)
    if not words:
        assert breaking == []
        return
    assert [(at, words in detail) for at, detail in breaking] == [(pointer, True)], breaking


@pytest.mark.parametrize(
    ("new", "pointer", "words"),
    [
        (with_property("new", {"type": "string"}), "/data/new", "new and optional"),
        (OLD | {"required": []}, "/data/id", "now optional"),
        (with_property("kind", {"enum": ["a", "b", "c"]}), "/data/kind", '"c"'),
        (with_property("kind", {"type": "string"}), "/data/kind", "other values are now allowed"),
        (with_property("id", {"type": "integer"}), "/data/id", "minimum was 1 and is now none"),
        (with_property("note", {"type": "string"}), "/data/note", "minLength was 2 and is now 0"),
        (with_property("id", ID | {"x-gdpr-sensitive": True}), "/data/id", "is now sensitive"),
    ],
)
def test_compatible_change_is_noted(new: Any, pointer: str, words: str) -> None:
    breaking, notes = changed(OLD, new)
    assert breaking == []
    assert [(at, words in detail) for at, detail in notes] == [(pointer, True)], notes


@pytest.mark.parametrize("schema", [OLD, True, False, {}, {"items": {}}, {"properties": {"a": {}}}])
def test_schema_does_not_differ_from_itself(schema: Any) -> None:
    assert changed(schema, schema) == ([], [])


def test_unchecked_keywords_do_not_count() -> None:
    assert changed(OLD, OLD | {"title": "Order", "maxProperties": 3}) == ([], [])


def test_values_that_only_python_considers_equal_differ() -> None:
    assert changed({"enum": [1]}, {"enum": [True]})[0]
    assert changed({"const": 1}, {"const": 1.0})[0]


def test_closed_schema_may_describe_more() -> None:
    closed = OLD | {"additionalProperties": False}
    opened = with_property("new", {"type": "string"}) | {"additionalProperties": False}
    breaking, notes = changed(closed, opened)
    assert breaking == []
    assert notes == [("/data/new", "new and optional")]
    assert changed(closed, OLD)[0] == []


def test_member_of_the_rest_may_not_become_another() -> None:
    old = {"type": "object", "additionalProperties": {"type": "string"}}
    new = old | {"properties": {"a": {"type": "integer"}}}
    assert [at for at, _ in changed(old, new)[0]] == ["/data/a"]


def test_breaking_changes_come_first() -> None:
    new = OLD | {"required": ["note"]}
    levels = [change.level for change in schema_changes(read_schema(OLD), read_schema(new))]
    assert levels == ["breaking", "note"]
