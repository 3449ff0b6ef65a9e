"""Columns of payloads: those of a schema, those that payloads have, and how they change."""

from typing import Any

import msgspec
import pytest

from phpmq_lite.envelopes.payload_schema import read_schema
from phpmq_lite.envelopes.payload_shape import (
    MAX_COLUMNS,
    MAX_DEPTH,
    PayloadCounts,
    Shape,
    adopt,
    column_kinds,
    columns_of,
    count_columns,
    is_map,
    shape_of,
    widen,
)

OPEN = Shape(kinds=("object",), is_open=True)


def columns(shape: Shape) -> Any:
    """Return a location's columns: a kind, a list of one, a dict by name, or kinds with others."""
    kinds = column_kinds(shape)
    alternatives = {kind: kind for kind in kinds} | {
        kind: inner
        for kind, inner in {"array": inner_of(shape), "object": members_of(shape)}.items()
        if kind in kinds
    }
    if len(shape.kinds) > 1:
        return {"union": alternatives}
    return next(iter(alternatives.values()), None)


def inner_of(shape: Shape) -> Any:
    return [columns(shape.items)] if shape.items else []


def members_of(shape: Shape) -> Any:
    if is_map(shape):
        assert shape.other is not None
        return {"*": columns(shape.other)}
    return {name: columns(inner) for name, _, inner in columns_of(shape) if column_kinds(inner)}


def of_schema(document: Any) -> Any:
    return columns(shape_of(read_schema(document)))


def of_payloads(*payloads: Any, shape: Shape = OPEN) -> Any:
    return columns(widen(shape, counted(*payloads)))


def counted(*payloads: Any) -> PayloadCounts:
    counts = PayloadCounts()
    for payload in payloads:
        counts.add(payload)
    return counts


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"type": "integer", "minimum": 1}, "integer"),
        ({"type": ["number", "integer"]}, "number"),
        ({"type": ["string", "null"], "format": "date-time"}, "string"),
        ({"type": "boolean"}, "boolean"),
        ({"type": ["integer", "string"]}, {"union": {"integer": "integer", "string": "string"}}),
        ({"type": "array", "items": {"type": "number"}}, ["number"]),
        (
            {"type": "array", "items": {"type": ["null", "array"], "items": {"type": "string"}}},
            [["string"]],
        ),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"*": "integer"}),
        (
            {"properties": {"a": {"minimum": 2}}, "additionalProperties": {"type": "string"}},
            {"a": "number", "other_members": {"*": "string"}},
        ),
        (
            {"properties": {"a": {"minLength": 2}, "b": False}, "additionalProperties": False},
            {"a": "string"},
        ),
        ({"enum": ["a", "b"]}, "string"),
        ({"enum": [1, 2.5, None]}, "number"),
        ({"enum": [1, "a"], "type": "string"}, "string"),
        ({"enum": [1, "a"]}, {"union": {"integer": "integer", "string": "string"}}),
        ({"const": {"a": [True]}}, {"a": ["boolean"]}),
        (
            {"type": "integer", "x-gdpr-sensitive": True},
            {"union": {"integer": "integer", "string": "string"}},
        ),
        ({"type": "string", "x-gdpr-sensitive": "contact"}, "string"),
        ({"type": ["object", "integer"], "properties": {}}, {"union": {"integer": "integer"}}),
        ({"type": "object"}, None),  # until there are payloads
        ({"type": "array"}, None),
        ({"type": "null"}, None),
        ({}, None),
        (True, None),
    ],
)
def test_columns_are_those_of_the_schema(rule: Any, expected: Any) -> None:
    document = {"type": "object", "properties": {"it": rule}}
    assert of_schema(document) == ({"it": expected} if expected else None)


def test_comment_is_the_description_else_the_title() -> None:
    texts = {"description": "in cents", "title": "Total"}
    document = {"properties": {"a": texts, "b": {"title": "Total"}, "c": {"description": 1}}}
    shape = shape_of(read_schema(document))
    assert [member.comment for member in shape.members.values()] == ["in cents", "Total", ""]


@pytest.mark.parametrize("document", [True, {}, {"type": ["object", "null"]}, {"required": ["a"]}])
def test_payload_is_an_object_whose_members_the_schema_may_leave_to_payloads(document: Any) -> None:
    shape = shape_of(read_schema(document))
    assert of_payloads({"a": 1, "b": [None]}, shape=shape) == {"a": "integer"}


def test_schema_leaves_open_what_it_does_not_say_and_nothing_else() -> None:
    document = {
        "properties": {
            "any": {},
            "free": {"type": "object"},
            "list": {"type": "array"},
            "n": {"type": "integer"},
        },
    }
    payload = {"any": [1.5], "free": {"x": True}, "list": ["a"], "n": 1e30, "more": 1}
    assert of_payloads(payload, shape=shape_of(read_schema(document))) == {
        "any": ["number"],
        "free": {"x": "boolean"},
        "list": ["string"],
        "n": "integer",
    }


def test_columns_of_payloads_have_the_most_frequent_type() -> None:
    assert of_payloads(
        {"a": "x", "b": 1, "c": None, "d": [], "e": {}, "f": 1},
        {"a": 1, "b": 2.5, "c": None, "d": [None], "e": {"x": None}, "f": "x"},
        {"a": "y", "d": [{"p": 1}, {"q": "s"}], "f": "y", "A": False},
        {"f": 1.5},
    ) == {
        "A": "boolean",
        "data_a": "string",
        "b": "number",
        "d": [{"p": "integer", "q": "string"}],
        "f": "number",
    }


def test_only_integers_and_nulls_widen() -> None:
    before = widen(OPEN, counted({"i": 1, "s": "x", "n": None, "o": {"i": 1}, "l": [1]}))
    after = widen(
        before, counted({"i": 1.5, "s": 1, "n": True, "o": {"i": "x"}, "l": [2.5], "z": 1})
    )
    assert columns(after) == {
        "i": "number",
        "s": "string",
        "n": "boolean",
        "o": {"i": "integer"},
        "l": ["number"],
        "z": "integer",
    }
    assert [*after.members] == ["i", "l", "n", "o", "s", "z"]
    assert widen(after, counted({"i": 1, "s": 1, "n": 1, "o": 1, "l": 1})) == after


def test_count_of_columns_is_bounded() -> None:
    wide = widen(OPEN, counted({f"m{n}": n for n in range(MAX_COLUMNS + 20)}))
    assert count_columns(wide) == MAX_COLUMNS
    assert widen(wide, counted({"more": 1})) == wide
    deep: Any = 1
    for _ in range(MAX_DEPTH + 2):
        deep = {"a": deep}
    assert of_payloads(deep | {"b": 1}) == {"b": "integer"}


def test_many_names_of_members_take_bounded_memory() -> None:
    counts = counted(*({f"m{n}": 1} for n in range(10_000)))
    assert len(counts.members) == 2 * MAX_COLUMNS


def test_names_that_engines_confuse_get_a_prefix() -> None:
    shape = shape_of(
        read_schema(
            {
                "properties": {
                    n: {"type": "string"}
                    for n in ("Queue", "id", "ID", "", "data_id", "other_members")
                },
                "additionalProperties": {"type": "integer"},
            }
        )
    )
    names = [(name, member) for name, member, _ in columns_of(shape, ("queue",))]
    assert names == [
        ("data_Queue", "Queue"),
        ("id", "id"),
        ("data_ID", "ID"),
        ("data_", ""),
        ("data_data_id", "data_id"),
        ("data_other_members", "other_members"),
        ("other_members", None),
    ]


def shape(document: Any) -> Shape:
    return shape_of(read_schema({"type": "object", "properties": document}))


def test_newer_schema_adds_columns_and_removes_none() -> None:
    old = shape({"a": {"type": "integer"}, "b": {"properties": {"x": {"type": "string"}}}, "c": {}})
    newer = shape(
        {
            "a": {"type": "number", "description": "wider"},
            "b": {"properties": {"y": {"type": "boolean"}}},
            "c": {"type": "string"},
            "d": {"type": "array", "items": {"type": "integer"}},
        }
    )
    adopted, conflicts = adopt(old, newer)
    assert conflicts == []
    assert columns(adopted) == {
        "a": "number",
        "b": {"x": "string", "y": "boolean"},
        "c": "string",
        "d": ["integer"],
    }
    assert adopted.members["a"].comment == "wider"
    assert adopt(adopted, newer) == (adopted, [])


def test_newer_schema_keeps_types_and_reports_the_columns_that_it_would_change() -> None:
    inferred = widen(OPEN, counted({"a": "x", "b": [{"c/d": 1.5}], "e": {"f": 1}, "g": 1}))
    newer = shape(
        {
            "a": {"type": "integer"},
            "b": {"type": "array", "items": {"properties": {"c/d": {"type": "integer"}}}},
            "e": {"type": "object", "additionalProperties": {"type": "integer"}},
        }
    )
    adopted, conflicts = adopt(inferred, newer)
    assert conflicts == ["/data/a", "/data/b/*/c~1d"]
    assert columns(adopted) == {
        "a": "string",
        "b": [{"c/d": "number"}],
        "e": {"f": "integer", "other_members": {"*": "integer"}},
        "g": "integer",
    }


def test_map_does_not_become_a_struct() -> None:
    old = shape({"a": {"type": "object", "additionalProperties": {"type": "integer"}}})
    newer = shape({"a": {"type": "object", "properties": {"x": {"type": "integer"}}}})
    assert adopt(old, newer) == (old, ["/data/a"])


def test_shape_is_stored_as_json() -> None:
    it = shape({"a": {"type": "integer", "description": "x"}, "b": {"type": "array"}})
    assert msgspec.json.decode(msgspec.json.encode(it), type=Shape) == it
