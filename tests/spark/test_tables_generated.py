"""Typed tables of generated schemas and bodies, judged by ``jsonschema`` and read by DuckDB."""

import random
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest
from jsonschema import Draft202012Validator
from pyspark.sql import SparkSession

from phpmq_lite.spark import SourceConnection
from phpmq_lite.spark.jobs import tables
from phpmq_lite.spark.jobs.options import TablesOptions
from tests.spark.archived_rows import archive_rows, envelope_row
from tests.spark.fake_broker import FakeBroker
from tests.spark.history_rows import Row

BODIES: Final = 1_000  # for each URN
BIG: Final = 1 << 70  # an integer that no column holds
SCALARS: Final = ("integer", "number", "string", "boolean")
ORDER: Final = ("boolean", "integer", "number", "string")


def random_schema(dice: random.Random, depth: int) -> dict[str, Any]:
    """Return a schema in which each location has a type."""
    kind = dice.choice(["scalar", "scalar", "nullable", "enum", "union", "array", "object", "map"])
    if depth == 0 and kind in ("array", "object", "map"):
        kind = "scalar"
    match kind:
        case "nullable":
            return {"type": [dice.choice(SCALARS), "null"]}
        case "enum":
            return {"enum": dice.sample(["red", "green", "blau", "grün"], 3)}
        case "union":
            return {"type": dice.sample(["integer", "string", "boolean"], 2)}
        case "array":
            return {"type": "array", "items": random_schema(dice, depth - 1)}
        case "map":
            return {"type": "object", "additionalProperties": random_schema(dice, depth - 1)}
        case "object":
            return random_object(dice, depth)
    scalar = dice.choice(SCALARS)
    limits = {"integer": {"minimum": -5}, "string": {"minLength": 1}}.get(scalar, {})
    return {"type": scalar, **(limits if dice.random() < 0.3 else {})}


def random_object(dice: random.Random, depth: int) -> dict[str, Any]:
    names = [f"m{number}" for number in range(dice.randint(2, 5))]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: random_schema(dice, depth - 1) for name in names},
        "required": dice.sample(names, 1),
    }
    return schema | ({"additionalProperties": False} if dice.random() < 0.5 else {})


def random_value(dice: random.Random, schema: dict[str, Any]) -> Any:
    """Return a value that is mostly valid."""
    if dice.random() < 0.02:
        return dice.choice([None, "", "x", -9, 2.5, 3.0, True, [], {}, [1], {"m0": 1}, BIG])
    if "enum" in schema:
        return dice.choice(schema["enum"])
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    match dice.choice(types):
        case "null":
            return None
        case "boolean":
            return dice.random() < 0.5
        case "integer":
            return dice.choice([0, 7, -3, 4.0, (1 << 63) - 1, dice.randint(-5, 10**12)])
        case "number":
            return dice.choice([1, -2, 0.1, 1e300, -0.5, dice.random(), (1 << 53) + 1])
        case "string":
            return dice.choice(["a", "ä\u2028\0", "1", "true", "null", "x" * 200, '"\\'])
        case "array":
            return [random_value(dice, schema["items"]) for _ in range(dice.randint(0, 3))]
    if "properties" not in schema:
        rule = schema["additionalProperties"]
        return {f"k {n}": random_value(dice, rule) for n in range(dice.randint(0, 3))}
    value = {
        name: random_value(dice, rule)
        for name, rule in schema["properties"].items()
        if name in schema["required"] or dice.random() < 0.7
    }
    return value | ({"unnamed": 1} if dice.random() < 0.03 else {})


def expected(schema: dict[str, Any], value: Any, pointer: str, misfits: list[str]) -> Any:
    """Return what DuckDB reads for a valid value."""
    types = schema.get("type", "string")
    kinds = [kind for kind in ([types] if isinstance(types, str) else types) if kind != "null"]
    if value is None:
        return None
    if len(kinds) > 1:
        is_of: dict[str, Any] = {"boolean": bool, "string": str, "integer": (int, float)}
        chosen = next(k for k in ORDER if k in kinds and isinstance(value, is_of[k]))
        if chosen == "integer" and isinstance(value, bool):
            raise AssertionError("booleans come first")
        inner = expected({"type": chosen}, value, pointer, misfits)
        return {kind: inner if kind == chosen else None for kind in ORDER if kind in kinds}
    match kinds[0]:
        case "integer" if value == BIG:
            misfits.append(pointer)
            return None
        case "integer":
            return int(value)
        case "number":
            return float(value)
        case "array":
            return [
                expected(schema["items"], v, f"{pointer}/{n}", misfits) for n, v in enumerate(value)
            ]
        case "object" if "properties" in schema:
            return {
                name: expected(rule, value.get(name), f"{pointer}/{name}", misfits)
                for name, rule in schema["properties"].items()
            }
        case "object":
            rule = schema["additionalProperties"]
            return {k: expected(rule, v, f"{pointer}/{k}", misfits) for k, v in value.items()}
    return value


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_tables_have_the_valid_values_and_rejects_the_others(
    spark: SparkSession, broker: FakeBroker, tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    rows: list[Row] = []
    bodies: dict[int, Any] = {}
    for number in range(3):
        urn = f"urn:{number}"
        broker.schemas[urn] = random_object(dice, 3)
        for _ in range(BODIES):
            offset = len(rows) + 1
            bodies[offset] = random_value(dice, broker.schemas[urn])
            rows.append(envelope_row(offset, urn, bodies[offset]))
    archive_rows(tmp_path, rows)
    result = tables.run(
        spark, TablesOptions(connection=SourceConnection(broker.url), out=str(tmp_path))
    )
    rejects = 0
    for number in range(3):
        schema = broker.schemas[f"urn:{number}"]
        validator = Draft202012Validator(schema)
        ours = range(number * BODIES + 1, (number + 1) * BODIES + 1)
        valid = [n for n in ours if validator.is_valid(bodies[n])]
        names = [*schema["properties"]]
        found = duckdb.execute(
            f"SELECT history_offset, _misfit, {', '.join(names)}"
            f" FROM '{tmp_path}/tables/urn%3A{number}/*.parquet' ORDER BY 1"
        ).fetchall()
        assert [row[0] for row in found] == valid
        for offset, misfit, *values in found:
            misfits: list[str] = []
            row = expected(schema, bodies[offset], "/data", misfits)
            assert dict(zip(names, values, strict=True)) == row
            assert (misfit or []) == misfits
        files = f"{tmp_path}/rejects/urn%3A{number}/*.parquet"
        rejected = duckdb.execute(f"SELECT history_offset FROM '{files}' ORDER BY 1").fetchall()
        assert [row[0] for row in rejected] == sorted({*ours} - {*valid})
        assert 20 < len(rejected) < BODIES / 2
        rejects += len(rejected)
    assert (result.rows, result.details["rejects"]) == (3 * BODIES - rejects, rejects)
