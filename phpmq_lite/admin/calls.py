"""The calls of the HTTP API as a reference shows them: members, roles, a curl for each.

Made from the OpenAPI document; the page ``/api`` and ``docs/api.md`` show the same.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final
from urllib.parse import urlencode

from phpmq_lite.admin import openapi
from phpmq_lite.admin.route import Route

_JSON: Final = "application/json"
_SAMPLES: Final = {"q": "orders", "id": "0000000000000001" + "7b3f" * 4}
_ANY_TEXT: Final = "…"
_NO_BOUND: Final = 1 << 50  # so high that it is there for the arithmetic only


@dataclass(slots=True, frozen=True)
class Member:
    """One value that a call takes or gives."""

    name: str
    type: str
    is_needed: bool
    text: str


@dataclass(slots=True, frozen=True)
class Call:
    """One call as a reference shows it."""

    tag: str
    anchor: str
    method: str
    path: str
    summary: str
    role: str
    audit: str | None
    cli: str | None
    query: list[Member]
    takes: list[Member]
    taken: str  # what that is, in words
    gives: list[Member]
    answer: str  # status, and the model or the content type
    curl: str


def grouped(
    routes: Iterable[Route], found: dict[str, Any], base: str
) -> list[tuple[str, list[Call]]]:
    """Give the calls by their tag; ``found`` is the document, ``base`` the URL of ``/api/v1``."""
    described = [route for route in routes if route.path.startswith(openapi.PREFIX + "/")]
    calls = [
        _call(route, found, base) for route in sorted(described, key=lambda r: openapi.tag_of(r))
    ]
    return [(tag, list(some)) for tag, some in groupby(calls, key=lambda call: call.tag)]


def _call(route: Route, found: dict[str, Any], base: str) -> Call:
    path = route.path.removeprefix(openapi.PREFIX)
    operation = found["paths"][path][route.method.lower()]
    schemas = found["components"]["schemas"]
    body = operation.get("requestBody", {}).get("content", {}).get(_JSON, {})
    answer = operation["responses"][str(route.status)].get("content", {})
    return Call(
        tag=openapi.tag_of(route),
        anchor=route.name.removeprefix("api-"),
        method=route.method,
        path=route.path,
        summary=operation["summary"],
        role=route.role.value,
        audit=route.audit,
        cli=route.cli,
        query=[
            Member(p["name"], _type(p["schema"]), p["required"], p["description"])
            for p in operation.get("parameters", [])
            if p["in"] == "query"
        ],
        takes=members(body.get("schema", {}), schemas),
        taken=_resolved(body.get("schema", {}), schemas).get("description", ""),
        gives=members(answer.get(_JSON, {}).get("schema", {}), schemas),
        answer=" ".join([str(route.status), *map(_answer, answer.items())]),
        curl=_curl(route, base + path + _query(operation, schemas), body.get("schema"), schemas),
    )


def _answer(content: tuple[str, dict[str, Any]]) -> str:
    media, described = content
    return _type(described["schema"]) if media == _JSON else media


def members(schema: dict[str, Any], schemas: dict[str, Any]) -> list[Member]:
    """Give the members of the object that a schema is, or is a list of."""
    whole = _resolved(schema, schemas)
    needed = whole.get("required", [])
    return [
        Member(name, _type(part), name in needed, part.get("description", ""))
        for name, part in whole.get("properties", {}).items()
    ]


def _resolved(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Give the object that a schema is, or is a list of."""
    if "$ref" in schema:
        found: dict[str, Any] = schemas[schema["$ref"].rpartition("/")[2]]
        return found
    if "items" in schema:
        return _resolved(schema["items"], schemas)
    if "anyOf" in schema:
        return _resolved(schema["anyOf"][0], schemas)
    return schema


def _type(schema: dict[str, Any]) -> str:
    """Say in a word or two what a value is."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    if "anyOf" in schema:
        return " | ".join(_type(part) for part in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "any")) + _bounds(schema)


def _bounds(schema: dict[str, Any]) -> str:
    """Say what a number may be."""
    least, most = schema.get("minimum"), schema.get("maximum")
    if most is not None and most >= _NO_BOUND:
        most = None
    if least is None and most is None:
        return ""
    if most is None:
        return f" from {least}"
    return f" up to {most}" if least is None else f" {least} to {most}"


def _query(operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    """Write a query string with what a call cannot do without; ``TOKEN`` is for any text."""
    needed: dict[str, Any] = {}
    for p in operation.get("parameters", []):
        if p["in"] == "query" and p["required"]:
            value = _sample(p["schema"], schemas)
            needed[p["name"]] = p["name"].upper() if value == _ANY_TEXT else value
    return f"?{urlencode(needed)}" if needed else ""


def _curl(route: Route, url: str, body: dict[str, Any] | None, schemas: dict[str, Any]) -> str:
    for place, sample in _SAMPLES.items():
        url = url.replace(f"{{{place}}}", sample)
    pieces = ["curl"]
    has_body = body is not None or route.media != _JSON
    if route.method not in ("GET", "POST") or (route.method == "POST" and not has_body):
        pieces.append(f"-X {route.method}")
    if route.is_writing:
        pieces.append(f"-H 'Content-Type: {route.media}'")
    if route.is_writing and route.media != _JSON:
        pieces.append("--data-binary @FILE")
    elif route.is_writing:
        pieces.append(f"-d '{json.dumps(_sample(body or {}, schemas), ensure_ascii=False)}'")
    return " ".join([*pieces, f"'{url}'"])


def _sample(schema: dict[str, Any], schemas: dict[str, Any], depth: int = 0) -> Any:
    """Make the smallest value that a schema allows."""
    if "anyOf" in schema:
        return _sample(schema["anyOf"][0], schemas, depth)
    if "$ref" in schema:
        return _sample(schemas[schema["$ref"].rpartition("/")[2]], schemas, depth)
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    if "examples" in schema:
        return schema["examples"][0]
    match schema.get("type"):
        case "object":
            needed = schema.get("required", []) if depth < 4 else []
            parts = schema.get("properties", {})
            return {name: _sample(parts[name], schemas, depth + 1) for name in needed}
        case "array":
            return [_sample(schema.get("items", {}), schemas, depth + 1)]
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "boolean":
            return False
        case "string":
            return _ANY_TEXT
    return {}
