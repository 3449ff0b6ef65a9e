"""The reference of the HTTP API: each call with its models and its curl, and the document."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from aiohttp import web

from phpmq_lite.admin import openapi
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_json
from phpmq_lite.admin.render import page
from phpmq_lite.admin.route import Role, Route

_JSON: Final = "application/json"
_SAMPLES: Final = {"q": "orders", "id": "0000000000000001" + "7b3f" * 4}


@dataclass(slots=True, frozen=True)
class Member:
    """One value that a call takes or gives."""

    name: str
    type: str
    is_needed: bool
    text: str


@dataclass(slots=True, frozen=True)
class Call:
    """One call as the page shows it."""

    anchor: str
    method: str
    path: str
    summary: str
    role: str
    audit: str | None
    cli: str | None
    query: list[Member]
    takes: list[Member]
    gives: list[Member]
    curl: str


async def document(request: web.Request) -> web.StreamResponse:
    """Give the OpenAPI 3.1 document of this API."""
    return as_json(_document(request))


async def reference(request: web.Request) -> web.StreamResponse:
    """The HTTP API, call by call, with curl."""
    context = context_of(request)
    found = _document(request)
    origin = f"{request.scheme}://{request.host}"
    calls = [
        _call(route, found, origin + found["servers"][0]["url"])
        for route in sorted(_described(context.routes), key=lambda r: _tag(r.path))
    ]
    groups = [(tag, list(some)) for tag, some in groupby(calls, key=lambda c: _tag(c.path))]
    return await page(request, "reference.html", groups=groups)


def _described(routes: Iterable[Route]) -> list[Route]:
    return [route for route in routes if route.path.startswith(openapi.PREFIX + "/")]


def _tag(path: str) -> str:
    return path.removeprefix(openapi.PREFIX).split("/")[1]


def _document(request: web.Request) -> dict[str, Any]:
    context = context_of(request)
    server = context.urls.base_path + openapi.PREFIX
    return openapi.document(context.routes, context.version, server)


def _call(route: Route, found: dict[str, Any], base: str) -> Call:
    path = route.path.removeprefix(openapi.PREFIX)
    operation = found["paths"][path][route.method.lower()]
    schemas = found["components"]["schemas"]
    body = operation.get("requestBody", {}).get("content", {}).get(_JSON, {})
    answer = operation["responses"][str(route.status)].get("content", {})
    return Call(
        anchor=route.name.removeprefix("api-"),
        method=route.method,
        path=route.path,
        summary=operation["summary"],
        role=route.role.value,
        audit=route.audit,
        cli=route.cli,
        query=[
            Member(p["name"], _type(p["schema"]), p["required"], p["schema"].get("description", ""))
            for p in operation.get("parameters", [])
            if p["in"] == "query"
        ],
        takes=_members(body.get("schema", {}), schemas),
        gives=_members(answer.get(_JSON, {}).get("schema", {}), schemas),
        curl=_curl(route, base + path, body.get("schema"), schemas),
    )


def _members(schema: dict[str, Any], schemas: dict[str, Any]) -> list[Member]:
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
    return str(schema.get("type", "any"))


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
        pieces.append(f"-d '{json.dumps(_sample(body or {}, schemas))}'")
    if route.method in ("PUT", "PATCH"):
        pieces[1:2] = [f"-X {route.method}"]
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
            return "…"
    return {}


ROUTES: Final = (
    Route("GET", "/api", Role.VIEWER, "reference", reference),
    Route(
        "GET", "/api/v1/openapi.json", Role.VIEWER, "api-openapi", document, gives=dict[str, Any]
    ),
)
