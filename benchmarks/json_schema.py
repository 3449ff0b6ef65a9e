"""Compares our check of an envelope's ``data`` with JSON Schema validators.

``python benchmarks/json_schema.py SUITE`` reads ``tests/draft2020-12`` of the validators' common
test suite and prints, for each validator that is installed (``pip install jsonschema
fastjsonschema jsonschema-rs``): passed cases of the keywords that we support, microseconds for a
small valid body, and the time for a stranger's bodies of 1x and 4x the size.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from phpmq_lite.envelopes.payload_schema import SchemaError, read_schema

KEYWORDS: Final = (
    "additionalProperties", "boolean_schema", "const", "enum", "items", "minLength", "minimum",
    "properties", "required", "type",
)  # fmt: skip
Check = Callable[[Any], bool]

SCHEMA: Final = {
    "type": "object",
    "required": ["order_id", "status", "lines"],
    "properties": {
        "order_id": {"type": "integer", "minimum": 1},
        "status": {"enum": ["paid", "sent", "returned"]},
        "email": {"type": "string", "minLength": 3},
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["sku"],
                "properties": {"sku": {"type": "string"}, "count": {"type": "integer"}},
                "additionalProperties": False,
            },
        },
    },
}
BODY: Final = {
    "order_id": 1042,
    "status": "paid",
    "email": "anna@example.org",
    "lines": [{"sku": f"A-{number}", "count": number} for number in range(3)],
}


def make_ours(schema: Any) -> Check:
    """Return our check; raise ``SchemaError`` for a schema with other keywords."""
    parsed = read_schema(schema)
    if parsed.unchecked:
        raise SchemaError(f"not supported: {parsed.unchecked}")
    return lambda body: parsed.check(body) is None


def make_pure(schema: Any) -> Check:
    """Return the check of ``jsonschema``."""
    import jsonschema

    return jsonschema.Draft202012Validator(schema).is_valid


def make_generated(schema: Any) -> Check:
    """Return the check of ``fastjsonschema``."""
    import fastjsonschema

    validate = fastjsonschema.compile(schema)

    def check(body: Any) -> bool:
        try:
            validate(body)
        except fastjsonschema.JsonSchemaValueException:
            return False
        return True

    return check


def make_rust(schema: Any) -> Check:
    """Return the check of ``jsonschema-rs``."""
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator(schema).is_valid


def count_passed(make: Callable[[Any], Check], suite: Path) -> tuple[int, int, list[str]]:
    """Return the passed and tried cases of schemas that ours supports, and names of failed ones."""
    passed, tried, failed = 0, 0, []
    for keyword in KEYWORDS:
        for group in json.loads((suite / f"{keyword}.json").read_text(encoding="utf-8")):
            try:
                make_ours(group["schema"])
            except SchemaError:
                continue
            for case in group["tests"]:
                tried += 1
                try:
                    is_right = make(group["schema"])(case["data"]) == case["valid"]
                except Exception as error:
                    is_right = False
                    case["description"] += f" ({type(error).__name__})"
                passed += is_right
                if not is_right:
                    failed.append(f"{keyword}: {group['description']}: {case['description']}")
    return passed, tried, failed


def seconds(run: Callable[[], object], least_s: float = 0.2) -> float:
    """Return the seconds of one call, the best of five rounds."""
    run()
    rounds = []
    for _ in range(5):
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < least_s / 5:
            run()
            count += 1
        rounds.append((time.perf_counter() - start) / count)
    return min(rounds)


def nested(levels: int) -> Any:
    """Return arrays within arrays."""
    body: Any = "x"
    for _ in range(levels):
        body = [body]
    return body


STRANGERS: Final[dict[str, tuple[Any, Callable[[int], Any]]]] = {
    "enum of 10,000 objects": (
        {"items": {"enum": [{"a": number} for number in range(10_000)]}},
        lambda size: [{"a": 9_999}] * (250 * size),
    ),
    "unknown members": (
        {"properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}},
        lambda size: {f"m{number}": number for number in range(10_000 * size)},
    ),
    "deep arrays below enum": ({"enum": [1]}, lambda size: nested(200 * size)),
}


VALIDATORS: Final[dict[str, Callable[[Any], Check]]] = {
    "ours": make_ours,
    "jsonschema": make_pure,
    "fastjsonschema": make_generated,
    "jsonschema-rs": make_rust,
}


def print_stranger(make: Callable[[Any], Check], title: str) -> None:
    """Print the time for a body that a stranger chose, and how it grows with the body."""
    schema, body_of = STRANGERS[title]
    check, small, large = make(schema), body_of(1), body_of(4)
    try:
        small_s, large_s = seconds(lambda: check(small)), seconds(lambda: check(large))
    except RecursionError as error:
        print(f"    {title}: {type(error).__name__}")
        return
    ratio = large_s / small_s
    print(f"    {title}: {small_s * 1e3:.2f} ms, a body of 4x the size takes {ratio:.1f}x as long")


def print_validator(name: str, suite: Path) -> None:
    """Print what one validator passes and how long it takes."""
    make = VALIDATORS[name]
    try:
        check = make(SCHEMA)
    except ImportError:
        print(f"{name}: not installed")
        return
    passed, tried, failed = count_passed(make, suite)
    print(f"{name}: {passed} of {tried} cases, {seconds(lambda: check(BODY)) * 1e6:.1f} us")
    for text in failed:
        print(f"    failed: {text}")
    for title in STRANGERS:
        print_stranger(make, title)


def main() -> None:
    """Compare all validators with the suite in the folder that the command line names."""
    for name in VALIDATORS:
        print_validator(name, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
