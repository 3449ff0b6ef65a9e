"""What a reference shows of a call: its curl, and what it takes."""

import shlex
from urllib.parse import parse_qsl, urlsplit

import pytest
from pydantic import BaseModel, TypeAdapter

from phpmq_lite.admin.base.route import Route
from phpmq_lite.admin.resources import api_reference
from phpmq_lite.admin.resources.api_reference import ApiCall
from phpmq_lite.admin.routes import ROUTES

CALLS = [
    call
    for _, some in api_reference.group_calls(
        ROUTES, api_reference.build_document(ROUTES, "", "/api/v1"), "http://here"
    )
    for call in some
]
ROUTE_OF = {(route.method, route.path): route for route in ROUTES}


def route_of(call: ApiCall) -> Route:
    return ROUTE_OF[call.method, call.path]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.anchor)
def test_curl_has_all_that_has_to_be_given(call: ApiCall) -> None:
    words, route = shlex.split(call.curl), route_of(call)
    query = dict(parse_qsl(urlsplit(words[-1]).query))
    assert {member.name for member in call.query if member.is_required} == {*query}
    if isinstance(route.query, type) and issubclass(route.query, BaseModel):
        route.query.model_validate(query)
    if "-d" in words and route.takes is not None:
        TypeAdapter(route.takes).validate_json(words[words.index("-d") + 1])


def test_call_says_what_it_takes() -> None:
    assert [call.anchor for call in CALLS if call.takes and not call.takes_text] == []
    [configure] = [call for call in CALLS if call.anchor == "queue-configure"]
    assert configure.takes_text.startswith(
        "Settings to change; null resets to the broker's default"
    )
