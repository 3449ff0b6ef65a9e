"""The OpenAPI 3.1 document of the HTTP API, made from the table of routes."""

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from phpmq_lite.admin.members import MEANS
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.queue_settings import LONGEST_NAME

PREFIX: Final = "/api/v1"
_REF: Final = "#/components/schemas/{model}"
_PLACE: Final = re.compile(r"\{(\w+)\}")
_PLACES: Final[dict[str, tuple[str, dict[str, Any]]]] = {  # path segment -> what it is
    "q": ("Name of a queue; a name of dots alone or with ~ in front gets a ~ more.",
          {"type": "string", "minLength": 1, "maxLength": LONGEST_NAME}),
    "id": ("Message id.", {"type": "string", "pattern": "^[0-9a-f]{32}$"}),
    "client": ("Number of a client.", {"type": "integer", "minimum": 0}),
    "job": ("Number of bulk work.", {"type": "integer", "minimum": 0}),
    "n": ("Number of a session.", {"type": "integer", "minimum": 0}),
    "name": ("Name of a user, or of an API token.", {"type": "string", "minLength": 1}),
    "token": ("What an action gave as undo.", {"type": "string", "minLength": 1}),
    "trace": ("Trace id of envelopes, written as the name of a queue is.",
              {"type": "string", "minLength": 1}),
    "urn": ("URN that has a schema, written as the name of a queue is.",
            {"type": "string", "minLength": 1}),
}  # fmt: skip
_NULL: Final = "; null: "  # in a meaning, ahead of what is left out where null cannot be
_PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "description": "What went wrong, as RFC 9457 has it.",
    "properties": {
        "title": {"type": "string", "description": "the status in words, as Not Found"},
        "status": {"type": "integer", "description": "the HTTP status of the answer"},
        "code": {"type": "string", "description": "stable name of it, for programs"},
        "detail": {"type": "string", "description": "what exactly, for people"},
        "field": {"type": "string", "description": "the input that was wrong, where it was one"},
        "bound": {"type": "string", "description": "what that input may be"},
        "request_id": {"type": "string", "description": "as in the log and in X-Request-Id"},
    },
    "required": ["title", "status", "code", "detail", "request_id"],
}
_KEY: Final[dict[str, Any]] = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The receipt key of the wire: repeated, it answers with the first ids.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 64},
}


def document(routes: Iterable[Route], version: str, server: str) -> dict[str, Any]:
    """Give the whole document; ``server`` is where ``/api/v1`` is found, a URL or a path."""
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
            "description": "All that the pages can do.  Times are Unix milliseconds.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": server}],
        "security": [{"token": []}, {"session": []}, {}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer",
                          "description": "An API token: phpmq_…"},
                "session": {"type": "apiKey", "in": "header", "name": "X-CSRF-Token",
                            "description": "With the cookie of a login: the session's token."},
            },
        },
    }  # fmt: skip


def summary_of(route: Route) -> str:
    """Give the first line of the handler's docstring."""
    return (route.handler.__doc__ or route.name).strip().partition("\n")[0]


def tag_of(route: Route) -> str:
    """Give the part of the API that a route belongs to: the first word of its path there."""
    return route.path.removeprefix(PREFIX).split("/")[1]


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": route.name.removeprefix("api-"),
        "summary": summary_of(route),
        "description": _described(route),
        "tags": [tag_of(route)],
        "parameters": _parameters(route, schemas),
        "responses": {
            str(route.status): _answer(route, schemas),
            "default": {
                "description": "A problem.",
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


def _described(route: Route) -> str:
    pieces = [] if route.role is Role.PUBLIC else [f"Needs the role {route.role.value}."]
    if route.audit:
        pieces.append(f"Audited as {route.audit}.")
    if route.cli:
        pieces.append(f"On the command line: phpmq-lite {route.cli}.")
    return " ".join(pieces)


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


def _answer(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    if route.gives is None:
        return {"description": "Done."}
    schema = _schema(route.gives, schemas, "serialization")
    return {"description": "Done.", "content": {route.gives_media: {"schema": schema}}}


def _schema(
    shape: Any, schemas: dict[str, Any], mode: JsonSchemaMode = "validation"
) -> dict[str, Any]:
    """Give a reference to the schema of a model, or a schema made of such."""
    if isinstance(shape, type) and issubclass(shape, BaseModel):
        schemas[shape.__name__] = _whole_schema(shape, mode, schemas)
        return {"$ref": _REF.format(model=shape.__name__)}
    if get_origin(shape) is list:
        return {"type": "array", "items": _schema(get_args(shape)[0], schemas, mode)}
    return _whole_schema(shape, mode, schemas)


def _whole_schema(shape: Any, mode: JsonSchemaMode, schemas: dict[str, Any]) -> dict[str, Any]:
    """Give the schema itself; what it refers to goes to ``schemas``."""
    made = dict(_made(shape, mode))
    schemas.update(made.pop("$defs", {}))
    return made


@cache
def _made(shape: Any, mode: JsonSchemaMode) -> dict[str, Any]:
    made = TypeAdapter(shape).json_schema(ref_template=_REF, mode=mode)
    for schema in (made, *made.get("$defs", {}).values()):
        _explain(schema)
    return made


def _explain(schema: dict[str, Any]) -> None:
    """Write beside each member what it means, unless its model says so itself."""
    for name, member in schema.get("properties", {}).items():
        means = MEANS.get(f"{schema.get('title')}.{name}", MEANS.get(name))
        if means is not None and "description" not in member:
            types = [one.get("type") for one in (member, *member.get("anyOf", ()))]
            member["description"] = means if "null" in types else means.partition(_NULL)[0]
