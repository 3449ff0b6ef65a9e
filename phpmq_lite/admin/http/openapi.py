"""The OpenAPI document, built from the routes and their models, and its reference page."""

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

from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import PREFIX, Endpoints
from phpmq_lite.admin.http.route import Route
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.roles import Role

_REF: Final = "#/components/schemas/{model}"
_PLACE: Final = re.compile(r"\{(\w+)\}")
_TEXT: Final[dict[str, Any]] = {"type": "string", "minLength": 1}
_NUMBER: Final[dict[str, Any]] = {"type": "integer", "minimum": 0}
_QUEUE_TEXT: Final = "Queue name; prefix it with ~ if it starts with ~ or consists only of dots."
_PLACES: Final[dict[str, tuple[str, dict[str, Any]]]] = {  # path parameter -> description, schema
    "q": (_QUEUE_TEXT, _TEXT | {"maxLength": LONGEST_NAME}),
    "id": ("Message id.", {"type": "string", "pattern": "^[0-9a-f]{32}$"}),
    "client": ("Client number.", _NUMBER),
    "job": ("Bulk job number.", _NUMBER),
    "n": ("Session number.", _NUMBER),
    "name": ("Name of a user or an API token.", _TEXT),
    "token": ("Undo token returned by an action.", _TEXT),
    "trace": ("Trace id of an envelope, escaped like a queue name.", _TEXT),
    "urn": ("URN of a schema, escaped like a queue name.", _TEXT),
}
_PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "description": "An error (RFC 9457).",
    "properties": {
        "type": {"type": "string", "description": "URL of the documentation page about this error"},
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
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API token, which begins with phpmq_.",
                },
                "session": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "X-CSRF-Token",
                    "description": "The session's CSRF token. Send the cookie as well.",
                },
            },
        },
    }


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
    content: dict[str, Any] = {}
    if route.gives is not None:
        schema = _schema(route.gives, schemas, "serialization")
        content = {"content": {route.gives_media: {"schema": schema}}}
    operation: dict[str, Any] = {
        "operationId": route.name.removeprefix("api-"),
        "summary": summary_of(route),
        "description": " ".join(pieces),
        "tags": [tag_of(route)],
        "parameters": _parameters(route, schemas),
        "responses": {
            str(route.status): {"description": "Done.", **content},
            **{
                str(status): {"description": f"If {when}."} | ({} if status == 204 else content)
                for status, when in route.others.items()
            },
            "default": {
                "description": "An error.",
                "content": {
                    "application/problem+json": {"schema": {"$ref": _REF.format(model="Problem")}}
                },
            },
        },
    }
    if route.takes is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {
                media: {"schema": _schema(route.takes if media == route.media else bytes, schemas)}
                for media in route.all_media
            },
        }
    return {key: value for key, value in operation.items() if value not in ([], "")}


def _parameters(route: Route, schemas: dict[str, Any]) -> list[dict[str, Any]]:
    parameters = []
    for place in _PLACE.findall(route.path):
        text, schema = _PLACES[place]
        parameters.append(_parameter(place, "path", text, schema, is_required=True))
    if route.query is not None:
        query = _inline_schema(route.query, "validation", schemas)
        required = query.get("required", [])
        for name, member in query["properties"].items():
            schema = {key: value for key, value in member.items() if key != "description"}
            text = member.get("description", "")
            parameters.append(_parameter(name, "query", text, schema, is_required=name in required))
    if route.takes_key:
        parameters.append(_KEY)
    return parameters


def _parameter(
    name: str, place: str, text: str, schema: dict[str, Any], *, is_required: bool
) -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "required": is_required,
        "description": text,
        "schema": schema,
    }


def _schema(
    shape: Any, schemas: dict[str, Any], mode: JsonSchemaMode = "validation"
) -> dict[str, Any]:
    """Return a ``$ref`` to a model's schema, or an inline schema for any other type."""
    if isinstance(shape, type) and issubclass(shape, BaseModel):
        schemas[shape.__name__] = _inline_schema(shape, mode, schemas)
        return {"$ref": _REF.format(model=shape.__name__)}
    if get_origin(shape) is list:
        return {"type": "array", "items": _schema(get_args(shape)[0], schemas, mode)}
    return _inline_schema(shape, mode, schemas)


def _inline_schema(shape: Any, mode: JsonSchemaMode, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type, moving its ``$defs`` to ``schemas``."""
    schema = dict(_generate_schema(shape, mode))
    schemas.update(schema.pop("$defs", {}))
    return schema


@cache
def _generate_schema(shape: Any, mode: JsonSchemaMode) -> dict[str, Any]:
    return TypeAdapter(shape).json_schema(ref_template=_REF, mode=mode)


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
        response=" ".join([str(route.status), *types])
        + "".join(f" or {status} if {when}" for status, when in route.others.items()),
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
