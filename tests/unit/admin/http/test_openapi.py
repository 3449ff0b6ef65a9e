"""The API reference: curl commands, parameters and the OpenAPI document."""

import re
import shlex
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from aiohttp import web
from openapi_spec_validator import validate
from pydantic import BaseModel, Field, TypeAdapter

from phpmq_lite.admin.http import openapi
from phpmq_lite.admin.http.endpoint import PREFIX
from phpmq_lite.admin.http.openapi import ApiCall, ApiField
from phpmq_lite.admin.http.route import Route
from phpmq_lite.admin.routes import ROUTES
from phpmq_lite.roles import Role

CALLS = [
    call
    for _, some in openapi.group_calls(
        ROUTES, openapi.build_document(ROUTES, "", "/api/v1"), "http://here"
    )
    for call in some
]
ROUTE_OF = {(route.method, route.path): route for route in ROUTES}


def route_of(call: ApiCall) -> Route:
    return ROUTE_OF[call.method, call.path]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.anchor)
def test_curl_has_every_required_argument(call: ApiCall) -> None:
    words, route = shlex.split(call.curl), route_of(call)
    query = dict(parse_qsl(urlsplit(words[-1]).query))
    assert {member.name for member in call.query if member.is_required} == {*query}
    if isinstance(route.query, type) and issubclass(route.query, BaseModel):
        route.query.model_validate(query)
    if "-d" in words and route.takes is not None:
        TypeAdapter(route.takes).validate_json(words[words.index("-d") + 1])


def test_call_explains_its_body() -> None:
    assert [call.anchor for call in CALLS if call.takes and not call.takes_text] == []
    [configure] = [call for call in CALLS if call.anchor == "queue-configure"]
    words = "Settings to change; null resets to the broker's default"
    assert configure.takes_text.startswith(words)


DOCUMENT = openapi.build_document(ROUTES, "1.2.3", "/api/v1")
API_ROUTES = [route for route in ROUTES if route.path.startswith(f"{PREFIX}/")]


def test_document_is_valid() -> None:
    validate(DOCUMENT)


@pytest.mark.parametrize("route", API_ROUTES, ids=lambda route: route.name)
def test_document_has_each_call_with_its_models(route: Route) -> None:
    calls = DOCUMENT["paths"][route.path.removeprefix(PREFIX)]
    operation = calls[route.method.lower()]
    assert operation["summary"].endswith(".")
    assert ("requestBody" in operation) == (route.takes is not None)
    assert ("content" in operation["responses"][str(route.status)]) == (route.gives is not None)


@pytest.mark.parametrize(
    ("method", "path", "statuses"),
    [
        ("post", "/queues/{q}/messages", {"200": True, "201": True}),
        ("put", "/queues/{q}", {"200": True, "201": True}),
        ("get", "/wait", {"200": True, "204": False}),
    ],
)
def test_call_has_each_status_of_success(method: str, path: str, statuses: dict[str, bool]) -> None:
    """Also those that come only sometimes, with a body or without one."""
    responses = dict(DOCUMENT["paths"][path][method]["responses"])
    del responses["default"]
    assert {status: "content" in found for status, found in responses.items()} == statuses


def test_operation_ids_are_unique() -> None:
    names = [one["operationId"] for path in DOCUMENT["paths"].values() for one in path.values()]
    assert len(set(names)) == len(names) == len(API_ROUTES)


def test_every_reference_resolves() -> None:
    text = str(DOCUMENT)
    for name in DOCUMENT["components"]["schemas"]:
        text = text.replace(f"'#/components/schemas/{name}'", "")
    assert "#/components/schemas/" not in text


def members_of(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield model, name and schema of each member of each model."""
    for model, schema in document["components"]["schemas"].items():
        for name, member in schema.get("properties", {}).items():
            yield model, name, member


def parameters_of(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the operation and schema of each parameter."""
    for path in document["paths"].values():
        for call in path.values():
            yield from ((call["operationId"], one) for one in call.get("parameters", []))


def document_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the document of one call that has ``model`` as its query and response."""
    route = Route(
        "GET", "/api/v1/thing", Role.VIEWER, "api-thing", no_handler, query=model, gives=model
    )
    return openapi.build_document([route], "1.2.3", "/api/v1")


async def no_handler(request: web.Request) -> web.StreamResponse:
    raise NotImplementedError(request)


def test_every_member_and_parameter_has_a_description() -> None:
    members = [(f"{of}.{name}", one) for of, name, one in members_of(DOCUMENT)]
    parameters = [(f"{of}: {one['name']}", one) for of, one in parameters_of(DOCUMENT)]
    assert [key for key, one in members + parameters if not one.get("description")] == []


def test_every_nullable_member_of_a_response_explains_null() -> None:
    undescribed = [
        f"{of}.{name}"
        for of, name, member in members_of(DOCUMENT)
        if of.endswith("View") and {"type": "null"} in member.get("anyOf", ())
        if not re.search("null|omitted", member["description"])
    ]
    assert undescribed == []


def test_descriptions_are_short_and_have_no_period() -> None:
    members = [
        (f"{of}.{name}", one["description"])
        for of, name, one in members_of(DOCUMENT)
        if of not in ("SettingsInput", "SettingsView", "Problem")
    ]
    parameters = [
        (f"{of}: {one['name']}", one["description"])
        for of, one in parameters_of(DOCUMENT)
        if one["in"] == "query"
    ]
    assert [
        key for key, text in members + parameters
        if len(text) > 100 or text.endswith(".")
    ] == []  # fmt: skip


def test_member_that_is_a_model_has_a_description_beside_its_reference() -> None:
    class Lid(BaseModel):
        """A lid."""

    class Pot(BaseModel):
        lid: Lid = Field(description="what closes it")

    document = document_of(Pot)
    schemas = document["components"]["schemas"]
    assert schemas["Pot"]["properties"]["lid"] == {
        "$ref": "#/components/schemas/Lid", "description": "what closes it",
    }  # fmt: skip
    assert openapi.fields_of(schemas["Pot"], schemas) == [
        ApiField("lid", "Lid", is_required=True, text="what closes it")
    ]
    validate(document)


def test_reference_shows_what_parameters_mean() -> None:
    groups = openapi.group_calls(ROUTES, DOCUMENT, "http://here")
    shown = [member for _, some in groups for call in some for member in call.query]
    assert shown
    assert [member.name for member in shown if not member.text] == []
