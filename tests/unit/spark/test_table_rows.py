"""Bodies as rows of typed tables: what fits, what does not, and what is rejected."""

import json
from typing import Any

import pyarrow as pa
import pytest

from phpmq_lite.envelopes.payload_schema import read_schema
from phpmq_lite.envelopes.payload_shape import PayloadCounts, Shape, shape_of, widen
from phpmq_lite.spark.table_columns import KEY_COLUMNS, MISFIT
from phpmq_lite.spark.table_rows import REJECT, TableColumns, convert

OPEN = Shape(kinds=("object",), is_open=True)
KEYS = KEY_COLUMNS[:2]


def envelope(data: Any, **members: Any) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data)
    meta = members.pop("meta", {"id": "m", "schema_version": 1})
    rest = {"job": "urn:a", "trace_id": "t", "meta": meta, "attempts": 0, **members}
    return f'{json.dumps(rest)[:-1]},"data":{text}}}'.encode()


def rows_of(
    table: TableColumns, *bodies: bytes, urn: str | None = "urn:a"
) -> tuple[list[dict[str, Any]], PayloadCounts]:
    """Return the rows without their keys, and the counts of payloads that do not fit."""
    counts = PayloadCounts()
    batch = pa.RecordBatch.from_pydict(
        {
            "history_offset": [*range(len(bodies))],
            "queue": ["orders"] * len(bodies),
            "body": pa.array(bodies, pa.binary()),
            "urn": pa.array([urn] * len(bodies), pa.string()),
        }
    )
    [found] = convert([batch], table, counts.merge)
    rows = found.to_pylist()
    assert [row.pop("history_offset") for row in rows] == [*range(len(bodies))]
    assert {row.pop("queue") for row in rows} == {"orders"}
    assert {row.pop("schema_version") for row in rows} == {3}
    return rows, counts


def registered(document: Any) -> TableColumns:
    return TableColumns(shape_of(read_schema(document)), 3, json.dumps(document), KEYS)


def inferred(*payloads: Any) -> TableColumns:
    counts = PayloadCounts()
    for payload in payloads:
        counts.add(payload)
    return TableColumns(widen(OPEN, counts), 3, None, KEYS)


def fitting(table: TableColumns, *data: Any) -> list[dict[str, Any]]:
    """Return the columns of payloads that all fit."""
    rows, counts = rows_of(table, *map(envelope, data))
    assert counts == PayloadCounts()
    assert {row.pop(MISFIT) for row in rows} == {None}
    assert {row.pop(REJECT) for row in rows} == {None}
    return rows


ALL = {
    "type": "object",
    "properties": {
        "integer": {"type": "integer"},
        "number": {"type": ["number", "null"]},
        "flag": {"type": "boolean"},
        "text": {"type": "string"},
        "either": {"type": ["integer", "string", "array"], "items": {"type": "boolean"}},
        "object": {"type": "object", "properties": {"Outcome": {"type": "string"}}},
        "map": {"type": "object", "additionalProperties": {"type": ["null", "integer"]}},
        "lists": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        "objects": {"type": "array", "items": {"properties": {"a": {"type": "integer"}}}},
        "queue": {"type": "string"},
    },
    "additionalProperties": {"type": "integer"},
}


def test_registered_values_are_columns_of_their_types() -> None:
    full, empty, holes = fitting(
        registered(ALL),
        '{"integer":1.0,"number":7,"flag":false,"text":"\\u00e9\\u0000","either":5,'
        '"object":{"Outcome":"x"},"map":{"a b":1,"":null},"lists":[[1],[],[2.5,3]],'
        '"objects":[{"a":1,"b":"ignored"},{}],"queue":"data\'s own","more":1,"again":2}',
        "{}",
        {"number": None, "either": "5", "map": {}, "lists": [], "objects": [{"a": 3}]},
    )
    assert full == {
        "integer": 1,
        "number": 7.0,
        "flag": False,
        "text": "é\0",
        "either": {"integer": 5, "string": None, "array": None},
        "object": {"Outcome": "x"},
        "map": [("a b", 1), ("", None)],
        "lists": [[1.0], [], [2.5, 3.0]],
        "objects": [{"a": 1}, {"a": None}],
        "data_queue": "data's own",
        "other_members": [("more", 1), ("again", 2)],
    }
    assert type(full["integer"]) is int
    assert type(full["number"]) is float
    assert empty.pop("other_members") == []
    assert set(empty.values()) == {None}
    assert holes["either"] == {"integer": None, "string": "5", "array": None}
    assert (holes["map"], holes["lists"], holes["objects"]) == ([], [], [{"a": 3}])


@pytest.mark.parametrize(
    ("body", "reason", "pointer"),
    [
        (envelope({"integer": "1"}), "schema_mismatch", "/data/integer"),
        (envelope({"integer": 1.5}), "schema_mismatch", "/data/integer"),
        (envelope({"lists": [[1], ["x"]]}), "schema_mismatch", "/data/lists/1/0"),
        (envelope({"more": "x"}), "schema_mismatch", "/data/more"),
        (b'{"job":"urn:a","data":{}', "poison", ""),
        (b'{"job":"urn:a","data":{"text":"\xff"}}', "poison", ""),
        (envelope('{"text":"\\ud800"}'), "poison", ""),
        (envelope('{"number":NaN}'), "poison", ""),
        (envelope('{"number":1e999}'), "poison", "/data"),
        (envelope('{"more":' + "[" * 300 + "]" * 300 + "}"), "too_deep", ""),
        (envelope([1]), "poison", "/data"),
        (envelope(None), "invalid_data", "/data"),
        (b'{"job":"urn:a"}', "invalid_data", "/data"),
    ],
)
def test_registered_schema_rejects_bodies_as_the_broker_does(
    body: bytes, reason: str, pointer: str
) -> None:
    rows, counts = rows_of(registered(ALL), envelope({}), body, envelope({"integer": 2}))
    assert [row[REJECT] is None for row in rows] == [True, False, True]
    reject = rows[1][REJECT]
    assert (reject["reason"], reject["pointer"]) == (reason, pointer)
    assert "integer" in rows[2]
    assert counts == PayloadCounts()


def test_what_a_table_does_not_concern_does_not_reject_an_envelope() -> None:
    bodies = (b'{"job":"urn:a","data":{"integer":1}}', b'{"urn":"urn:a","data":{"integer":1}}')
    php = envelope("[]", meta={"id": "m", "schema_version": 1, "lang": "php"})
    rows, _ = rows_of(registered(ALL), *bodies, php)
    assert [row[REJECT] for row in rows] == [None] * 3
    assert [row["integer"] for row in rows] == [1, 1, None]


def test_valid_values_that_no_column_holds_are_null_and_named() -> None:
    table = registered(
        {
            "properties": {
                "i": {"type": "integer"},
                "n": {"type": "number"},
                "o": {"properties": {"x": {"type": "string"}}},
            }
        }
    )
    rows, _ = rows_of(
        table,
        envelope('{"i":9223372036854775807,"n":9007199254740993}'),
        envelope('{"i":-9223372036854775809,"n":123456789012345678901234567890}'),
        envelope('{"i":1e300,"n":1e300,"o":"not an object"}'),
    )
    assert [row[REJECT] for row in rows] == [None] * 3
    assert [(row["i"], row["n"], row["o"], row[MISFIT]) for row in rows] == [
        (2**63 - 1, 9007199254740992.0, None, None),
        (None, 1.2345678901234568e29, None, ["/data/i"]),
        (None, 1e300, None, ["/data/i", "/data/o"]),
    ]


def test_encrypted_values_have_a_column_beside_the_plain_ones() -> None:
    rule = {"type": "integer", "x-gdpr-sensitive": "finance"}
    rows = fitting(registered({"properties": {"iban": rule}}), {"iban": 7}, {"iban": "bq1:…"})
    assert rows == [
        {"iban": {"integer": 7, "string": None}},
        {"iban": {"integer": None, "string": "bq1:…"}},
    ]


def test_payload_that_does_not_fit_inferred_columns_keeps_its_row() -> None:
    table = inferred({"a": 1, "b": {"c/d": "x"}, "l": [1], "n": None})
    rows, counts = rows_of(
        table,
        envelope({"a": "1", "b": {"c/d": 5}, "l": [1, "x", 2], "n": None}),
        envelope({"a": 2, "b": "x", "new": [], "other": {"x": None}}),
        envelope({"a": True, "b": None, "new": [1], "n": 2.5}),
        envelope({"a": 2.5}),
        b"\xff",
        envelope([1]),
    )
    assert [(row["a"], row["b"], row["l"]) for row in rows] == [
        (None, {"c/d": None}, [1, None, 2]),
        (2, None, None),
        (None, None, None),
        (None, None, None),
        (None, None, None),
        (None, None, None),
    ]
    assert [row[MISFIT] for row in rows] == [
        ["/data/a", "/data/b/c~1d", "/data/l/1"],
        ["/data/b"],
        ["/data/a", "/data/n", "/data/new"],
        ["/data/a"],
        [""],
        ["/data"],
    ]
    assert {row[REJECT] for row in rows} == {None}
    wider = widen(table.shape, counts)
    again, counts = rows_of(
        TableColumns(wider, 3, None, KEYS), envelope({"a": 2.5, "new": [1], "n": 1})
    )
    assert again[0] | {"a": 2.5, "new": [1], "n": 1.0, MISFIT: None} == again[0]
    assert counts == PayloadCounts()


def test_pointers_are_few_and_short() -> None:
    [row], _ = rows_of(inferred({"a": 1}), envelope({f"{n}{'x' * 900}": n for n in range(90)}))
    assert len(row[MISFIT]) == 20
    assert max(map(len, row[MISFIT])) == 200


def test_last_of_repeated_members_counts() -> None:
    assert fitting(inferred({"a": 1}), '{"a":"x","a":2}') == [{"a": 2}]


def test_body_that_is_no_envelope_is_its_own_payload() -> None:
    table = inferred({"a": 1, "data": {"x": 1}})
    rows, _ = rows_of(
        table,
        b'{"a":1,"data":{"x":2}}',
        b'{"a":"x"}',
        b"[1]",
        b"text",
        b'{"a":1e999}',
        b'{"a":"\\udc00"}',
        urn=None,
    )
    assert [(row["a"], row["data"], row[MISFIT]) for row in rows] == [
        (1, {"x": 2}, None),
        (None, None, ["/a"]),
        *[(None, None, [""])] * 4,
    ]
