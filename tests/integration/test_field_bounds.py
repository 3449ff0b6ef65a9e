"""Every text field of every API route at its bound, one byte below and one above, on both engines.

The fields come from the OpenAPI document, so those of new routes are included.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
import pytest

from tests.integration.test_text_bounds import LETTERS, random_text
from tests.support.engine_stores import engine_store as engine_store
from tests.support.http_users import BrokerFixture, broker_fixture

UNBOUNDED = 4_000  # a field without a bound of its own is tried with as many bytes
PATH_BYTES = 2_700  # percent-encoded, more do not fit into the first line of a request
SKIPPED = {"/events", "/wait", "/system/drain", "/drain"}  # they wait, or end the broker


class TextField(NamedTuple):
    """A text of a request: where it is, and at which bound."""

    method: str
    path: str
    place: str  # path, query or body
    name: str
    bound: int


def resolved(document: Any, schema: Any) -> Any:
    """Return a schema without references, and without the alternative null."""
    while "$ref" in schema:
        node = document
        for step in schema["$ref"].removeprefix("#/").split("/"):
            node = node[step]
        schema = node
    for choice in schema.get("anyOf", ()):
        if choice.get("type") != "null":
            return resolved(
                document, {**choice, **{k: v for k, v in schema.items() if k != "anyOf"}}
            )
    return schema


def value_of(document: Any, schema: Any) -> Any:
    schema = resolved(document, schema)
    if "enum" in schema:
        return schema["enum"][0]
    kinds = {"integer": schema.get("minimum", 1), "number": 1, "boolean": False, "array": [],
             "object": {}}  # fmt: skip
    return kinds.get(schema.get("type", "string"), "x" * max(1, schema.get("minLength", 1)))


def body_schema(document: Any, operation: Any) -> Any:
    content = operation.get("requestBody", {}).get("content", {})
    return resolved(document, content.get("application/json", {}).get("schema", {}))


def fields_of(document: Any) -> Iterator[TextField]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if path in SKIPPED or method not in ("get", "post", "put", "patch", "delete"):
                continue
            for one in (*item.get("parameters", ()), *operation.get("parameters", ())):
                one = resolved(document, one)
                schema = resolved(document, one.get("schema", {}))
                if schema.get("type") == "string" and one["in"] in ("path", "query"):
                    bound = schema.get("maxLength", UNBOUNDED if one["in"] == "query" else 259)
                    yield TextField(method, path, one["in"], one["name"], bound)
            for name, schema in body_schema(document, operation).get("properties", {}).items():
                schema = resolved(document, schema)
                if schema.get("type") == "string" and "enum" not in schema:
                    bound = schema.get("maxLength", UNBOUNDED)
                    yield TextField(method, path, "body", name, bound)


def texts(bound: int, seed: int) -> Iterator[str]:
    """Yield texts of bound -1, 0 and +1 bytes, and of as many letters, of one, three or four."""
    for size in LETTERS:
        for number in (bound - 1, bound, bound + 1):
            yield random_text(number // size, size, seed) + "a" * (number % size)
            if size > 1:
                yield random_text(number, size, seed)
    yield "a\0b"  # PostgreSQL's texts contain no NUL


@pytest.fixture
async def home(tmp_path: Path, engine_store: dict[str, Any]) -> AsyncIterator[BrokerFixture]:
    limits = {"max_queues": 100}
    async with broker_fixture(tmp_path / "data", store=engine_store, limits=limits) as home:
        yield home


@pytest.mark.timeout(600)
async def test_every_text_field_is_accepted_or_refused_at_its_bound(
    home: BrokerFixture, figure: Callable[[str], None]
) -> None:
    engine = home.broker.service.handle.engine
    assert engine is not None
    core, statuses, wrong = engine.core, dict[int, int](), []
    connector = aiohttp.UnixConnector(str(home.data / "control.sock"))
    async with aiohttp.ClientSession(connector=connector) as session:
        async with session.get("http://broker/api/v1/openapi.json") as response:
            document = await response.json()
        fields = [*fields_of(document)]
        for seed, field in enumerate(fields):
            schema = body_schema(document, document["paths"][field.path][field.method])
            needed = schema.get("required", ())
            needs = {
                one["name"]: value_of(document, one["schema"])
                for one in document["paths"][field.path][field.method].get("parameters", ())
                if one["in"] == "query" and one.get("required")
            }
            body = {
                name: value_of(document, of_name)
                for name, of_name in schema.get("properties", {}).items() if name in needed
            }  # fmt: skip
            for text in texts(field.bound, seed):
                path, query = field.path, dict(needs)
                if field.place == "path":
                    path = path.replace("{" + field.name + "}", quote(text[:PATH_BYTES], safe=""))
                elif field.place == "query":
                    query[field.name] = text
                else:
                    body[field.name] = text
                path = path.replace("{", "").replace("}", "")
                url = f"http://broker/api/v1{path}"
                call = session.request(field.method, url, json=body, params=query)
                async with call as response:
                    status, answer = response.status, await response.read()
                statuses[status] = statuses.get(status, 0) + 1
                if status >= 500:
                    wrong.append((field, len(text), status, answer[:200]))
    assert wrong == []
    assert engine.core is core, "a batch was refused"
    await home.control("POST", "/queues/orders/messages", {"content": "{}"})
    assert len(fields) > 100
    figure(f"{len(fields)} text fields, answers by status: {dict(sorted(statuses.items()))}")
