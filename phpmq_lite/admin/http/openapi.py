"""The OpenAPI document of the API, built from the routes and their models."""

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from phpmq_lite.admin.http.endpoint import PREFIX
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
    operation: dict[str, Any] = {
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
    if route.name == "api-publish":
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
