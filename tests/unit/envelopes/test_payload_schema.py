"""Payload schemas: which are refused, and which problems they find in payloads."""

import json
from typing import Any

import pytest

from phpmq_lite.envelopes.payload_schema import (
    VALUES_LIMIT,
    PayloadSchema,
    SchemaError,
    equality_key,
    read_json,
    read_schema,
    schema_fields,
)

ORDER: dict[str, Any] = {
    "type": "object",
    "required": ["order_id"],
    "properties": {
        "order_id": {"type": "integer", "minimum": 1},
        "currency": {"enum": ["USD", "EUR"]},
        "note": {"type": ["string", "null"], "minLength": 2},
        "lines": {"type": "array", "items": {"type": "object", "required": ["a/b"]}},
    },
    "additionalProperties": False,
}


def problem(schema: Any, data: Any, *, is_on_wire: bool = False) -> tuple[str, str] | None:
    found = read_schema(schema).check(data, is_on_wire=is_on_wire)
    if found is None:
        return None
    assert found.reason == "schema_mismatch"
    assert found.detail.startswith(f"{found.pointer} ")
    return found.pointer, found.detail.removeprefix(f"{found.pointer} ")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"order_id": 1}, None),
        ({"order_id": 1.0, "currency": "EUR", "note": None}, None),
        ({}, ("/data/order_id", "is missing")),
        ({"order_id": "1"}, ("/data/order_id", "is a string, not an integer")),
        ({"order_id": True}, ("/data/order_id", "is true, not an integer")),
        ({"order_id": 1.5}, ("/data/order_id", "is a number, not an integer")),
        ({"order_id": 0}, ("/data/order_id", "is below 1")),
        (
            {"order_id": 1, "currency": "GBP"},
            ("/data/currency", "is not one of the 2 allowed values"),
        ),
        ({"order_id": 1, "extra": 1}, ("/data/extra", "is not in the schema")),
        ({"order_id": 1, "note": "ü"}, ("/data/note", "has 1 characters; the minimum is 2")),
        ({"order_id": 1, "note": 1}, ("/data/note", "is an integer, not a string or null")),
        ({"order_id": 1, "lines": [{"a/b": 1}, {}]}, ("/data/lines/1/a~1b", "is missing")),
        ([], ("/data", "is an array, not an object")),
        (None, ("/data", "is null, not an object")),
    ],
)
def test_schema_names_the_first_problem(data: Any, expected: tuple[str, str] | None) -> None:
    assert problem(ORDER, data) == expected


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ({"required": ["a"]}, {}),  # without a type, the SDK checks nothing
        ({"properties": {"a": {"type": "string"}}}, {"a": 1}),
        ({"minimum": 3}, 2),
        ({"minLength": 3}, "ab"),
        ({"items": {"type": "string"}}, [1]),
        ({"type": ["string", "null"]}, 1),
        ({"type": "object", "properties": {"a": False}}, {"a": 1}),
        ({"type": "object", "additionalProperties": {"type": "string"}}, {"a": 1}),
        ({"const": [1]}, [True]),
        ({"const": {"a": [0]}}, {"a": [False]}),
        ({"enum": [1, 2], "const": 3}, 3),
        ({"type": "integer", "minimum": 9007199254740993}, 9007199254740992),
        ({"type": "number", "minimum": 10**400}, 1),
        (False, {}),
    ],
)
def test_schema_follows_the_standard_where_the_sdk_checks_nothing(schema: Any, data: Any) -> None:
    assert problem(schema, data) is not None


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        (True, {"a": 1}),
        ({}, None),
        ({"required": ["a"]}, "no object"),
        ({"minimum": 3}, "x"),
        ({"type": "object", "properties": {"a": True}, "additionalProperties": False}, {"a": 1}),
        ({"type": "integer", "minimum": 1}, 10**400),
        ({"type": "number"}, 1),
        ({"type": ["integer", "number"]}, 1.5),
    ],
)
def test_schema_takes_what_the_standard_takes(schema: Any, data: Any) -> None:
    assert problem(schema, data) is None


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ([], ""),
        ("x", ""),
        ({"type": "strnig"}, "/type"),
        ({"type": []}, "/type"),
        ({"type": [1]}, "/type"),
        ({"required": "a"}, "/required"),
        ({"required": [1]}, "/required"),
        ({"properties": []}, "/properties"),
        ({"properties": {"a/b": 3}}, "/properties/a~1b"),
        ({"properties": {"a": {"items": {"type": 1}}}}, "/properties/a/items/type"),
        ({"additionalProperties": 1}, "/additionalProperties"),
        ({"items": "x"}, "/items"),
        ({"enum": []}, "/enum"),
        ({"enum": "a"}, "/enum"),
        ({"enum": list(range(VALUES_LIMIT + 1))}, "/enum"),
        ({"minLength": -1}, "/minLength"),
        ({"minLength": True}, "/minLength"),
        ({"minimum": "1"}, "/minimum"),
        ({"minimum": None}, "/minimum"),
    ],
)
def test_malformed_schema_is_refused_with_its_place(schema: Any, pointer: str) -> None:
    with pytest.raises(SchemaError) as caught:
        read_schema(schema)
    assert caught.value.pointer == pointer


def test_schema_that_is_too_deep_is_refused() -> None:
    schema: Any = {}
    for _ in range(70):
        schema = {"items": schema}
    with pytest.raises(SchemaError, match="64"):
        read_schema(schema)
    value: Any = 1
    for _ in range(5_000):
        value = [value]
    with pytest.raises(SchemaError, match="64"):
        read_schema({"const": value})


def test_unchecked_keywords_are_named() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "An order",
        "x-team": "shop",
        "properties": {"a": {"pattern": "^x", "maxLength": 3}, "b": {"items": [{}]}},
        "allOf": [],
    }
    found = read_schema(schema)
    assert set(found.unchecked) == {
        "/allOf",
        "/properties/a/pattern",
        "/properties/a/maxLength",
        "/properties/b/items",
    }


def test_ciphertext_stands_for_any_value_that_is_marked() -> None:
    schema = {
        "type": "object",
        "properties": {
            "age": {"type": "integer", "x-gdpr-sensitive": True},
            "home": {"type": "object", "x-gdpr-sensitive": "address"},
            "plain": {"type": "integer"},
        },
    }
    assert problem(schema, {"age": "v1:c2VjcmV0", "home": "v1:c2VjcmV0"}, is_on_wire=True) is None
    assert problem(schema, {"age": "v1:c2VjcmV0"}) is not None
    assert problem(schema, {"age": 1.5}, is_on_wire=True) is not None
    assert problem(schema, {"plain": "v1:c2VjcmV0"}, is_on_wire=True) is not None
    marked = {"type": "object", "x-gdpr-sensitive": True}
    assert problem(marked, "text", is_on_wire=True) is not None


def test_details_reveal_nothing_of_the_payload() -> None:
    secret = "4111 1111 1111 1111"
    for schema in ({"enum": ["a"]}, {"type": "integer"}, {"minLength": 99}, {"const": 1}, False):
        found = read_schema(schema).check(secret)
        assert found is not None
        assert secret not in found.detail


def test_long_names_of_a_payload_are_cut() -> None:
    found = read_schema({"additionalProperties": False}).check({"x" * 100_000: 1})
    assert found is not None
    assert (len(found.pointer), len(found.detail) < 300) == (200, True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "invalid JSON"),
        (b"{", "invalid JSON"),
        (b"\xff{}", "invalid UTF-8 at byte 0"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": 1, "a": 2}', "'a' is repeated"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b"[" * 100_000, "deep"),
    ],
)
def test_only_strict_json_is_read(content: bytes, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        read_json(content)


def test_pairs_of_surrogates_are_read() -> None:
    assert read_json(b'"\\ud83d\\ude00"') == "\U0001f600"


@pytest.mark.parametrize(
    ("one", "other"), [(1, 1.0), (1, True), (0, False), ([1], [True]), ({"a": 1}, {"a": 1.0})]
)
def test_values_of_different_types_differ(one: Any, other: Any) -> None:
    assert equality_key(one) != equality_key(other)
    assert equality_key(one) == equality_key(json.loads(json.dumps(one)))


def test_fields_are_those_that_the_schema_describes() -> None:
    line = {"type": "object", "properties": {"sku": {"minLength": 1}}}
    properties = {
        "id": {"type": "integer", "minimum": 1},
        "lines": {"type": "array", "items": line},
        "who": {"properties": {"mail": {"x-gdpr-sensitive": "email"}}},
        "kind": {"enum": ["a", 1]},
    }
    fields = schema_fields(read_schema(ORDER | {"properties": properties, "required": ["id"]}).rule)
    assert [(f.path, f.types, f.is_required, f.limits, f.sensitivity) for f in fields] == [
        ("id", "an integer", True, "at least 1", None),
        ("lines", "an array", False, "each an object", None),
        ("lines[].sku", "anything", False, "at least 1 characters", None),
        ("who", "anything", False, "", None),
        ("who.mail", "anything", False, "", "email"),
        ("kind", "anything", False, '"a" | 1', None),
    ]


def test_schema_is_a_plain_value() -> None:
    assert isinstance(read_schema(ORDER), PayloadSchema)
    assert read_schema(ORDER).document is ORDER
