"""The OpenAPI document: valid, and with every route of the API in it."""

import pytest
from openapi_spec_validator import validate

from phpmq_lite.admin import openapi
from phpmq_lite.admin.route import Route
from phpmq_lite.admin.routes import ROUTES

DOCUMENT = openapi.document(ROUTES, "1.2.3", "/api/v1")
CALLS = [route for route in ROUTES if route.path.startswith(f"{openapi.PREFIX}/")]


def test_document_is_valid() -> None:
    validate(DOCUMENT)


@pytest.mark.parametrize("route", CALLS, ids=lambda route: route.name)
def test_document_has_each_call_with_its_models(route: Route) -> None:
    operation = DOCUMENT["paths"][route.path.removeprefix(openapi.PREFIX)][route.method.lower()]
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
