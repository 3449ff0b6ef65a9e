"""The reference page of the API, rendered from the OpenAPI document."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final
from urllib.parse import urlencode

from aiohttp import web

from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import PREFIX, Endpoints
from phpmq_lite.admin.http.openapi import build_document, tag_of
from phpmq_lite.admin.http.route import Route

endpoints: Final = Endpoints()
_JSON: Final = "application/json"
_SAMPLES: Final = {"q": "orders", "id": "0000000000000001" + "7b3f" * 4}
_ANY_TEXT: Final = "…"
_NO_BOUND: Final = 1 << 50  # bounds above this only prevent overflows, so they are not shown


@dataclass(slots=True, frozen=True)
class ApiField:
    """A field in a request or response."""

    name: str
    type: str
    is_required: bool
    text: str


@dataclass(slots=True, frozen=True)
class ApiCall:
    """An API call as shown on the reference page."""

    tag: str
    anchor: str
    method: str
    path: str
    summary: str
    role: str
    audit: str | None
    cli: str | None
    query: list[ApiField]
    takes: list[ApiField]
    takes_text: str  # description of the request body
    gives: list[ApiField]
    response: str  # HTTP status, followed by the model's name or the content type
    curl: str


def group_calls(
    routes: Iterable[Route], document: dict[str, Any], base: str
) -> list[tuple[str, list[ApiCall]]]:
    """Group the calls in an OpenAPI document by tag; ``base`` is the URL of ``/api/v1``."""
    described = [route for route in routes if route.path.startswith(PREFIX + "/")]
    calls = [_call(route, document, base) for route in sorted(described, key=lambda r: tag_of(r))]
    return [(tag, list(group)) for tag, group in groupby(calls, key=lambda call: call.tag)]


def _call(route: Route, document: dict[str, Any], base: str) -> ApiCall:
    path = route.path.removeprefix(PREFIX)
    operation = document["paths"][path][route.method.lower()]
    schemas = document["components"]["schemas"]
    body = operation.get("requestBody", {}).get("content", {}).get(_JSON, {})
    response = operation["responses"][str(route.status)].get("content", {})
    types = (
        _type(content["schema"]) if media == _JSON else media for media, content in response.items()
    )
    return ApiCall(
        tag=tag_of(route),
        anchor=route.name.removeprefix("api-"),
        method=route.method,
        path=route.path,
        summary=operation["summary"],
        role=route.role.value,
        audit=route.audit,
        cli=route.cli,
        query=[
            ApiField(p["name"], _type(p["schema"]), p["required"], p["description"])
            for p in operation.get("parameters", [])
            if p["in"] == "query"
        ],
        takes=fields_of(body.get("schema", {}), schemas),
        takes_text=_resolved(body.get("schema", {}), schemas).get("description", ""),
        gives=fields_of(response.get(_JSON, {}).get("schema", {}), schemas),
        response=" ".join([str(route.status), *types]),
        curl=_curl(route, base + path + _query(operation, schemas), body.get("schema"), schemas),
    )


def fields_of(schema: dict[str, Any], schemas: dict[str, Any]) -> list[ApiField]:
    """Return the fields of an object schema or, for a list schema, the fields of its items."""
    resolved = _resolved(schema, schemas)
    required = resolved.get("required", [])
    return [
        ApiField(name, _type(part), name in required, part.get("description", ""))
        for name, part in resolved.get("properties", {}).items()
    ]


def _resolved(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Resolve a reference, a list's items or a union's first member to an object schema."""
    if "$ref" in schema:
        resolved: dict[str, Any] = schemas[schema["$ref"].rpartition("/")[2]]
        return resolved
    if "items" in schema:
        return _resolved(schema["items"], schemas)
    if "anyOf" in schema:
        return _resolved(schema["anyOf"][0], schemas)
    return schema


def _type(schema: dict[str, Any]) -> str:
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
    return str(schema.get("type", "any")) + _number_bounds(schema)


def _number_bounds(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if high is not None and high >= _NO_BOUND:
        high = None
    if low is None and high is None:
        return ""
    if high is None:
        return f" from {low}"
    return f" up to {high}" if low is None else f" {low} to {high}"


def _query(operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    """Return a query string that sets the required parameters, with placeholders like ``TOKEN``."""
    required: dict[str, Any] = {}
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "query" and parameter["required"]:
            name, value = parameter["name"], _sample(parameter["schema"], schemas)
            required[name] = name.upper() if value == _ANY_TEXT else value
    return f"?{urlencode(required)}" if required else ""


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
    """Return a minimal example value for a schema."""
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
            required = schema.get("required", []) if depth < 4 else []
            parts = schema.get("properties", {})
            return {name: _sample(parts[name], schemas, depth + 1) for name in required}
        case "array":
            return [_sample(schema.get("items", {}), schemas, depth + 1)]
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "boolean":
            return False
        case "string":
            return _ANY_TEXT
    return {}


def _document(call: Call) -> dict[str, Any]:
    context = call.context
    return build_document(context.routes, context.version, context.urls.base_path + PREFIX)


@endpoints.page("/api", "reference")
async def show_reference(call: Call) -> web.Response:
    """Show the HTTP API reference, with a curl example for each call."""
    document = _document(call)
    base = f"{call.request.scheme}://{call.request.host}{document['servers'][0]['url']}"
    groups = group_calls(call.context.routes, document, base)
    return await call.render("reference.html", groups=groups)


@endpoints.api("GET /openapi.json", "api-openapi")
async def get_document(call: Call) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document that describes this API."""
    return _document(call)
