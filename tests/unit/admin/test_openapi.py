"""The OpenAPI document: valid, with every route of the API in it, and every member explained."""

from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from openapi_spec_validator import validate
from pydantic import BaseModel, Field

from phpmq_lite.admin.base.route import Role, Route
from phpmq_lite.admin.resources import api_reference
from phpmq_lite.admin.resources.api_descriptions import MEANS
from phpmq_lite.admin.resources.api_reference import ApiField
from phpmq_lite.admin.routes import ROUTES

DOCUMENT = api_reference.build_document(ROUTES, "1.2.3", "/api/v1")
CALLS = [route for route in ROUTES if route.path.startswith(f"{api_reference.PREFIX}/")]


def test_document_is_valid() -> None:
    validate(DOCUMENT)


@pytest.mark.parametrize("route", CALLS, ids=lambda route: route.name)
def test_document_has_each_call_with_its_models(route: Route) -> None:
    operation = DOCUMENT["paths"][route.path.removeprefix(api_reference.PREFIX)][
        route.method.lower()
    ]
    assert operation["summary"].endswith(".")
    assert ("requestBody" in operation) == (route.takes is not None)
    assert ("content" in operation["responses"][str(route.status)]) == (route.gives is not None)


def test_every_operation_has_a_name_of_its_own() -> None:
    names = [one["operationId"] for path in DOCUMENT["paths"].values() for one in path.values()]
    assert len(set(names)) == len(names) == len(CALLS)


def test_every_reference_leads_somewhere() -> None:
    text = str(DOCUMENT)
    for name in DOCUMENT["components"]["schemas"]:
        text = text.replace(f"'#/components/schemas/{name}'", "")
    assert "#/components/schemas/" not in text


# -- what members mean


def members_of(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield each member of each shape: its model, its name, its schema."""
    for model, schema in document["components"]["schemas"].items():
        for name, member in schema.get("properties", {}).items():
            yield model, name, member


def parameters_of(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each parameter with the name of its call."""
    for path in document["paths"].values():
        for call in path.values():
            yield from ((call["operationId"], one) for one in call.get("parameters", []))


def document_of(model: type[BaseModel]) -> dict[str, Any]:
    """Give the document of one call that takes a model as its query, and gives it."""
    route = Route(
        "GET", "/api/v1/thing", Role.VIEWER, "api-thing", no_handler, query=model, gives=model
    )
    return api_reference.build_document([route], "1.2.3", "/api/v1")


async def no_handler(request: web.Request) -> web.StreamResponse:
    """Give a thing."""
    raise NotImplementedError(request)


def told(model: type[BaseModel]) -> dict[str, str]:
    """Give what the document tells of each member of a model."""
    found = members_of(document_of(model))
    return {
        name: member.get("description", "") for of, name, member in found if of == model.__name__
    }


def may_be_null(member: dict[str, Any]) -> bool:
    return {"type": "null"} in member.get("anyOf", ())


def test_every_member_has_a_description() -> None:
    untold = [
        f"{of}.{name}" for of, name, one in members_of(DOCUMENT) if not one.get("description")
    ]
    assert untold == []


def test_every_parameter_has_a_description() -> None:
    untold = [f"{of}: {one['name']}" for of, one in parameters_of(DOCUMENT)
              if not one.get("description")]  # fmt: skip
    assert untold == []


def test_every_member_of_an_answer_that_may_be_null_says_what_that_means() -> None:
    untold = [
        f"{of}.{name}"
        for of, name, member in members_of(DOCUMENT)
        if of.endswith("Out") and may_be_null(member)
        if "null: " not in member["description"] and "missing: " not in member["description"]
    ]
    assert untold == []


def test_every_meaning_is_used() -> None:
    shapes = [(of, name, one["description"]) for of, name, one in members_of(DOCUMENT)]
    queries = [
        (route.query.__name__, one["name"], one["description"])
        for route in CALLS
        if route.query is not None
        for of, one in parameters_of(DOCUMENT)
        if of == route.name.removeprefix("api-") and one["in"] == "query"
    ]
    used = {
        key
        for of, name, text in [*shapes, *queries]
        if (key := f"{of}.{name}" if f"{of}.{name}" in MEANS else name) in MEANS
        if MEANS[key].startswith(text)
    }
    assert sorted(MEANS.keys() - used) == []


def test_meanings_are_short_and_in_order() -> None:
    assert list(MEANS) == sorted(MEANS)
    assert [key for key, text in MEANS.items() if len(text) > 90 or text.endswith(".")] == []


def test_a_member_means_the_same_wherever_it_occurs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEANS, "colour", "as the eye sees it")

    class Inner(BaseModel):
        colour: str

    class Outer(BaseModel):
        colour: str
        inner: Inner = Field(description="what is in it")

    document = document_of(Outer)
    assert told(Outer)["colour"] == "as the eye sees it"
    inner = document["components"]["schemas"]["Inner"]["properties"]["colour"]
    assert inner["description"] == "as the eye sees it"
    [colour, _] = [one for _, one in parameters_of(document)]
    assert colour["description"] == "as the eye sees it"


def test_what_a_model_says_itself_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEANS, "Painted.colour", "as the eye sees it")

    class Painted(BaseModel):
        colour: str = Field(description="red, or not at all")

    assert told(Painted) == {"colour": "red, or not at all"}


def test_meaning_of_a_model_wins_over_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEANS, "colour", "as the eye sees it")
    monkeypatch.setitem(MEANS, "Varnished.colour", "as the tin says")

    class Varnished(BaseModel):
        colour: str

    assert told(Varnished) == {"colour": "as the tin says"}


def test_meaning_tells_of_null_only_where_there_can_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEANS, "colour", "as the eye sees it; null: in the dark")
    monkeypatch.setitem(MEANS, "gloss", "how it shines; null: not at all")

    class Lit(BaseModel):
        colour: str
        gloss: int | None

    assert told(Lit) == {
        "colour": "as the eye sees it", "gloss": "how it shines; null: not at all",
    }  # fmt: skip


def test_member_that_is_a_shape_has_a_description_beside_its_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(MEANS, "lid", "what closes it")

    class Lid(BaseModel):
        """A lid."""

    class Pot(BaseModel):
        lid: Lid

    document = document_of(Pot)
    schemas = document["components"]["schemas"]
    assert schemas["Pot"]["properties"]["lid"] == {
        "$ref": "#/components/schemas/Lid", "description": "what closes it",
    }  # fmt: skip
    assert api_reference.fields_of(schemas["Pot"], schemas) == [
        ApiField("lid", "Lid", is_needed=True, text="what closes it")
    ]
    validate(document)


def test_reference_shows_what_parameters_mean() -> None:
    groups = api_reference.group_calls(ROUTES, DOCUMENT, "http://here")
    shown = [member for _, some in groups for call in some for member in call.query]
    assert shown
    assert [member.name for member in shown if not member.text] == []
