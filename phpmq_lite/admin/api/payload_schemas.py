"""Schemas of payloads over HTTP: what is registered, and whether a new version is compatible."""

import json
from typing import Any, Final, Self

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin.access.identity import allowed_queues, entry_of, name_in
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_data, as_json
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.requests import json_of, query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import OutputFormat
from phpmq_lite.admin.uploads import parse_large
from phpmq_lite.envelopes.schema import (
    Change,
    Entry,
    Place,
    Schema,
    SchemaError,
    Tally,
    compare,
    places,
    read_json,
    read_schema,
)

DOCUMENT_BYTES: Final = 1 << 20  # of a schema that is compared


class SchemasQuery(BaseModel):
    """As what the list is given."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: OutputFormat = "json"


class PlaceOut(BaseModel):
    """One place of the payload that the schema describes."""

    path: str  # lines[].sku
    types: str  # for people
    required: bool
    limits: str
    sensitive: str | None  # x-gdpr-sensitive: its category, empty for true
    title: str

    @classmethod
    def of(cls, place: Place) -> Self:
        """Take over a place."""
        return cls(
            path=place.path,
            types=place.types,
            required=place.is_required,
            limits=place.limits,
            sensitive=place.mark,
            title=place.title,
        )


class SchemaOut(BaseModel):
    """One registered URN; counts are since the start, null for who sees some queues only."""

    urn: str
    version: int
    file: str
    owner: str
    status: str
    fields: list[PlaceOut]
    unchecked: list[str]  # pointers of words that are not looked at
    passed: int | None
    failed: int | None
    last_failure: str | None

    @classmethod
    def of(cls, entry: Entry, tally: Tally | None) -> Self:
        """Take over an entry of the registry."""
        last = tally.last if tally else None
        return cls(
            urn=entry.urn,
            version=entry.version,
            file=entry.file,
            owner=entry.owner,
            status=entry.status,
            fields=[PlaceOut.of(place) for place in places(entry.schema.rule)],
            unchecked=list(entry.schema.unchecked),
            passed=tally.passed if tally else None,
            failed=tally.failed if tally else None,
            last_failure=last.detail if last else None,
        )


class SchemasOut(BaseModel):
    """All registered URNs by name; ``faults`` is why the files as they are now are not in force."""

    items: list[SchemaOut]
    next: None = None
    faults: list[str]


class SchemaDetailOut(SchemaOut):
    """One URN with its schema as it stands in the file."""

    document: Any


class CheckIn(BaseModel):
    """A new version of a schema."""

    model_config = ConfigDict(extra="forbid")

    document: Any = Field(None, description="the schema: an object, true or false")


class ChangeOut(BaseModel):
    """One difference between what is registered and the new version."""

    level: str  # breaking or note
    pointer: str  # into the envelope: /data/lines/*/sku
    detail: str


class CheckOut(BaseModel):
    """Whether the new version may take the place of the registered one."""

    urn: str
    compatible: bool
    changes: list[ChangeOut]
    unchecked: list[str]


def registered(request: web.Request) -> list[SchemaOut]:
    """Give all registered URNs by name, as the asking person may see them."""
    entries = context_of(request).schemas.registry.entries
    return [SchemaOut.of(entries[urn], _tally(request, urn)) for urn in sorted(entries)]


def _tally(request: web.Request, urn: str) -> Tally | None:
    """Give the counts, which are over all queues, to those who may see all."""
    is_limited = allowed_queues(request) is not None
    return None if is_limited else context_of(request).schemas.tally(urn)


def entry_named(request: web.Request, urn: str) -> Entry:
    """Give what is registered for a URN.

    Raises:
        Problem: 404 where nothing is.
    """
    found = context_of(request).schemas.registry.entries.get(urn)
    if found is None:
        raise Problem(404, "unknown_schema", f"No schema is registered for {urn!r}.", field="urn")
    return found


async def compared(
    request: web.Request, entry: Entry, content: bytes
) -> tuple[Schema, tuple[Change, ...]]:
    """Compare a new version with what is registered, beside the loop.

    Raises:
        Problem: 413 where it is too long, 422 where it is no schema.
    """
    if len(content) > DOCUMENT_BYTES:
        raise Problem(
            413, "too_large", f"The schema is {len(content)} bytes.", field="document",
            bound=f"at most {DOCUMENT_BYTES} bytes",
        )  # fmt: skip

    def work() -> tuple[Schema, tuple[Change, ...]]:
        schema = read_schema(read_json(content))
        return schema, compare(entry.schema, schema)

    try:
        return await parse_large(request, content, work)
    except SchemaError as error:
        where = f" at {error.pointer}" if error.pointer else ""
        raise Problem(
            422, "bad_schema", f"This is no schema{where}: {error.detail}.", field="document"
        ) from None


async def schemas(request: web.Request) -> web.StreamResponse:
    """List the URNs that have a schema, with their fields and what became of their payloads."""
    query = query_of(request, SchemasQuery)
    items = registered(request)
    if query.format in ("jsonl", "csv"):
        return as_data(query.format, SchemaOut, items)
    return as_json(
        SchemasOut(items=items, faults=[str(fault) for fault in context_of(request).schemas.faults])
    )


async def schema(request: web.Request) -> web.StreamResponse:
    """Give the schema of a URN, with the document itself."""
    entry = entry_named(request, name_in(request, "urn"))
    shown = SchemaOut.of(entry, _tally(request, entry.urn))
    return as_json(SchemaDetailOut(**dict(shown), document=entry.schema.document))


async def check(request: web.Request) -> web.StreamResponse:
    """Compare a new version of a schema with the registered one; nothing is stored."""
    entry = entry_named(request, name_in(request, "urn"))
    given = await json_of(request, CheckIn)
    if "document" not in given.model_fields_set:
        raise Problem(422, "invalid", "The new schema is missing.", field="document")
    content = json.dumps(given.document).encode()
    new, changes = await compared(request, entry, content)
    entry_of(request, target=entry.urn).result = "checked"
    return as_json(
        CheckOut(
            urn=entry.urn,
            compatible=not any(change.is_breaking for change in changes),
            changes=[
                ChangeOut(level=one.level, pointer=one.pointer, detail=one.detail)
                for one in changes
            ],
            unchecked=list(new.unchecked),
        )
    )


_PATH: Final = "/api/v1/schemas"
ROUTES: Final = (
    Route("GET", _PATH, Role.VIEWER, "api-schemas", schemas, query=SchemasQuery, gives=SchemasOut),
    Route("GET", f"{_PATH}/{{urn}}", Role.VIEWER, "api-schema", schema, gives=SchemaDetailOut),
    Route(
        "POST", f"{_PATH}/{{urn}}/check", Role.OPERATOR, "api-schema-check", check, "schema.check",
        takes=CheckIn, gives=CheckOut, body=4 * DOCUMENT_BYTES, values=DOCUMENT_BYTES // 2,
    ),
)  # fmt: skip
