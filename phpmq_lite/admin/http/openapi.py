"""The OpenAPI document and the API reference page."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, Final, get_args, get_origin
from urllib.parse import urlencode

from aiohttp import web
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.http.rendering import render_page
from phpmq_lite.admin.http.responses import json_response
from phpmq_lite.admin.http.route import Role, Route
from phpmq_lite.queue_settings import LONGEST_NAME

PREFIX: Final = "/api/v1"
_REF: Final = "#/components/schemas/{model}"
_PLACE: Final = re.compile(r"\{(\w+)\}")
_PLACES: Final[dict[str, tuple[str, dict[str, Any]]]] = {  # path parameter -> description, schema
    "q": ("Queue name; prefix it with ~ if it starts with ~ or consists only of dots.",
          {"type": "string", "minLength": 1, "maxLength": LONGEST_NAME}),
    "id": ("Message id.", {"type": "string", "pattern": "^[0-9a-f]{32}$"}),
    "client": ("Client number.", {"type": "integer", "minimum": 0}),
    "job": ("Bulk job number.", {"type": "integer", "minimum": 0}),
    "n": ("Session number.", {"type": "integer", "minimum": 0}),
    "name": ("Name of a user or an API token.", {"type": "string", "minLength": 1}),
    "token": ("Undo token returned by an action.", {"type": "string", "minLength": 1}),
    "trace": ("Trace id of an envelope, escaped like a queue name.",
              {"type": "string", "minLength": 1}),
    "urn": ("URN of a schema, escaped like a queue name.",
            {"type": "string", "minLength": 1}),
}  # fmt: skip
_PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "description": "An error (RFC 9457).",
    "properties": {
        "type": {
            "type": "string",
            "description": "URL of the documentation page about this error",
        },
        "title": {"type": "string", "description": "name of the HTTP status, such as Not Found"},
        "status": {"type": "integer", "description": "HTTP status code of the response"},
        "code": {"type": "string", "description": "stable, machine-readable error code"},
        "detail": {"type": "string", "description": "human-readable explanation"},
        "field": {"type": "string", "description": "name of the invalid input, if any"},
        "bound": {"type": "string", "description": "allowed values for the invalid input"},
        "request_id": {"type": "string", "description": "id for finding this request in the log"},
    },
    "required": ["title", "status", "code", "detail", "request_id"],
}
_KEY: Final[dict[str, Any]] = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Publish key. Repeating a request with the same key returns the original ids;"
    " other messages under it are refused (422).",
    "schema": {"type": "string", "minLength": 1, "maxLength": 64},
}


def build_document(routes: Iterable[Route], version: str, server: str) -> dict[str, Any]:
    """Build the OpenAPI document; ``server`` is the URL or path of ``/api/v1``."""
    schemas: dict[str, Any] = {"Problem": _PROBLEM}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if route.path.startswith(PREFIX + "/"):
            path = paths.setdefault(route.path.removeprefix(PREFIX), {})
            path[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "PHPMQ Lite",
            "version": version,
            "description": "All operations of the admin pages. Times are in Unix milliseconds.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": server}],
        "security": [{"token": []}, {"session": []}, {}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer",
                          "description": "An API token, which begins with phpmq_."},
                "session": {"type": "apiKey", "in": "header", "name": "X-CSRF-Token",
                            "description": "The session's CSRF token. Send the cookie as well."},
            },
        },
    }  # fmt: skip


def summary_of(route: Route) -> str:
    """Return the first line of the handler's docstring."""
    return (route.handler.__doc__ or route.name).strip().partition("\n")[0]


def tag_of(route: Route) -> str:
    """Return the first segment of the route's path after the API prefix."""
    return route.path.removeprefix(PREFIX).split("/")[1]


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    pieces = [] if route.role is Role.PUBLIC else [f"Requires the {route.role.value} role."]
    if route.audit:
        pieces.append(f"Recorded in the audit log as {route.audit}.")
    if route.cli:
        pieces.append(f"Command-line equivalent: phpmq-lite {route.cli}.")
    made: dict[str, Any] = {
        "operationId": route.name.removeprefix("api-"),
        "summary": summary_of(route),
        "description": " ".join(pieces),
        "tags": [tag_of(route)],
        "parameters": _parameters(route, schemas),
        "responses": {
            str(route.status): _response(route, schemas),
            "default": {
                "description": "An error.",
                "content": {
                    "application/problem+json": {"schema": {"$ref": _REF.format(model="Problem")}}
                },
            },
        },
    }
    if route.takes is not None:
        made["requestBody"] = {
            "required": True,
            "content": {
                media: {"schema": _schema(route.takes if media == route.media else bytes, schemas)}
                for media in route.all_media
            },
        }
    return {key: value for key, value in made.items() if value not in ([], "")}


def _parameters(route: Route, schemas: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for place in _PLACE.findall(route.path):
        text, schema = _PLACES[place]
        found.append({"name": place, "in": "path", "required": True, "description": text,
                      "schema": schema})  # fmt: skip
    if route.query is not None:
        whole = _whole_schema(route.query, "validation", schemas)
        needed = whole.get("required", [])
        for name, member in whole["properties"].items():
            schema = {key: value for key, value in member.items() if key != "description"}
            found.append({"name": name, "in": "query", "required": name in needed,
                          "description": member.get("description", ""),
                          "schema": schema})  # fmt: skip
    if route.name == "api-publish":
        found.append(_KEY)
    return found


def _response(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    if route.gives is None:
        return {"description": "Done."}
    schema = _schema(route.gives, schemas, "serialization")
    return {"description": "Done.", "content": {route.gives_media: {"schema": schema}}}


def _schema(
    shape: Any, schemas: dict[str, Any], mode: JsonSchemaMode = "validation"
) -> dict[str, Any]:
    """Return a ``$ref`` to a model's schema, or an inline schema for any other type."""
    if isinstance(shape, type) and issubclass(shape, BaseModel):
        schemas[shape.__name__] = _whole_schema(shape, mode, schemas)
        return {"$ref": _REF.format(model=shape.__name__)}
    if get_origin(shape) is list:
        return {"type": "array", "items": _schema(get_args(shape)[0], schemas, mode)}
    return _whole_schema(shape, mode, schemas)


def _whole_schema(shape: Any, mode: JsonSchemaMode, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type, moving its ``$defs`` to ``schemas``."""
    made = dict(_generate_schema(shape, mode))
    schemas.update(made.pop("$defs", {}))
    return made


@cache
def _generate_schema(shape: Any, mode: JsonSchemaMode) -> dict[str, Any]:
    return TypeAdapter(shape).json_schema(ref_template=_REF, mode=mode)


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
    return [(tag, list(some)) for tag, some in groupby(calls, key=lambda call: call.tag)]


def _call(route: Route, document: dict[str, Any], base: str) -> ApiCall:
    path = route.path.removeprefix(PREFIX)
    operation = document["paths"][path][route.method.lower()]
    schemas = document["components"]["schemas"]
    body = operation.get("requestBody", {}).get("content", {}).get(_JSON, {})
    response = operation["responses"][str(route.status)].get("content", {})
    answers = (_type(one["schema"]) if media == _JSON else media for media, one in response.items())
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
        response=" ".join([str(route.status), *answers]),
        curl=_curl(route, base + path + _query(operation, schemas), body.get("schema"), schemas),
    )


def fields_of(schema: dict[str, Any], schemas: dict[str, Any]) -> list[ApiField]:
    """Return the fields of an object schema or, for a list schema, the fields of its items."""
    whole = _resolved(schema, schemas)
    needed = whole.get("required", [])
    return [
        ApiField(name, _type(part), name in needed, part.get("description", ""))
        for name, part in whole.get("properties", {}).items()
    ]


def _resolved(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Resolve a reference, a list's items or a union's first member to an object schema."""
    if "$ref" in schema:
        found: dict[str, Any] = schemas[schema["$ref"].rpartition("/")[2]]
        return found
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
    least, most = schema.get("minimum"), schema.get("maximum")
    if most is not None and most >= _NO_BOUND:
        most = None
    if least is None and most is None:
        return ""
    if most is None:
        return f" from {least}"
    return f" up to {most}" if least is None else f" {least} to {most}"


def _query(operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    """Return a query string that sets the required parameters, with placeholders like ``TOKEN``."""
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


async def get_document(request: web.Request) -> web.StreamResponse:
    """Return the OpenAPI 3.1 document that describes this API."""
    return json_response(_document(request))


async def show_reference(request: web.Request) -> web.StreamResponse:
    """Show the HTTP API reference, with a curl example for each call."""
    context = context_of(request)
    document = _document(request)
    origin = f"{request.scheme}://{request.host}"
    groups = group_calls(context.routes, document, origin + document["servers"][0]["url"])
    return await render_page(request, "reference.html", groups=groups)


def _document(request: web.Request) -> dict[str, Any]:
    context = context_of(request)
    server = context.urls.base_path + PREFIX
    return build_document(context.routes, context.version, server)


ROUTES: Final = (
    Route("GET", "/api", Role.VIEWER, "reference", show_reference),
    Route(
        "GET", "/api/v1/openapi.json", Role.VIEWER, "api-openapi", get_document,
        gives=dict[str, Any],
    ),
)  # fmt: skip
