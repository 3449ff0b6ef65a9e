"""Registered payload schemas, and compatibility checks for new versions."""

import json
from dataclasses import dataclass
from typing import Any, Final, Self

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.http.body import parse_large
from phpmq_lite.admin.http.fields import (
    FormatQuery,
    JsonFormatQuery,
    StrictInput,
    path_name,
    read_form,
)
from phpmq_lite.admin.http.identity import identity_of
from phpmq_lite.admin.http.permissions import allowed_queues
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.rendering import render_page
from phpmq_lite.admin.http.request_audit import audit_entry
from phpmq_lite.admin.http.responses import ListPage, ResponseModel
from phpmq_lite.admin.http.route import Role, Route
from phpmq_lite.admin.resource import Api, Page, Resource, api_route
from phpmq_lite.envelopes.indexed_fields import INDEX_CHARACTERS
from phpmq_lite.envelopes.payload_schema import (
    PayloadSchema,
    SchemaError,
    read_json,
    read_schema,
    schema_fields,
)
from phpmq_lite.envelopes.schema_compatibility import SchemaChange, schema_changes
from phpmq_lite.envelopes.schema_registry import RegisteredSchema, ValidationCounts

DOCUMENT_BYTES: Final = 1 << 20  # maximum size of a schema to compare, in bytes


class SchemaFieldView(ResponseModel):
    """A payload field in a schema."""

    path: str = Field(description="path in the payload, such as lines[].sku")
    types: str = Field(description="allowed types")
    required: bool = Field(
        validation_alias="is_required", description="whether the parent object requires the field"
    )
    limits: str = Field(description="limits on the field's values; empty if none")
    sensitive: str | None = Field(
        validation_alias="sensitivity",
        description="value of x-gdpr-sensitive; empty if true; null if the field is not marked",
    )
    title: str = Field(description="title in the schema; usually empty")


class SchemaView(ResponseModel):
    """A registered schema; its counts are hidden from callers limited to certain queues."""

    urn: str = Field(description="URN of the schema")
    version: int = Field(description="N if the URN ends in .vN or :vN, otherwise 1")
    file: str = Field(description="file in the schema folder")
    owner: str = Field(description="team or person responsible for the schema")
    status: str = Field(description="status in the registry; usually empty")
    fields: list[SchemaFieldView] = Field(description="payload fields that the schema describes")
    unchecked: list[str] = Field(description="JSON pointers to unchecked schema keywords")
    passed: int | None = Field(description="payloads accepted since startup; null if hidden")
    failed: int | None = Field(description="payloads rejected since startup; null if hidden")
    last_failure: str | None = Field(description="latest rejection's error; null if none or hidden")

    @classmethod
    def of_entry(cls, entry: RegisteredSchema, tally: ValidationCounts | None) -> Self:
        """Return the API view of a registered schema."""
        last = tally.last if tally else None
        return cls.of(
            entry,
            fields=[SchemaFieldView.of(place) for place in schema_fields(entry.schema.rule)],
            unchecked=list(entry.schema.unchecked),
            passed=tally.passed if tally else None,
            failed=tally.failed if tally else None,
            last_failure=last.detail if last else None,
        )


class SchemasView(ListPage[SchemaView]):
    """All registered schemas, ordered by URN."""

    faults: list[str] = Field(description="errors found in the schema folder")


class SchemaDetailView(SchemaView):
    """A registered schema with its document."""

    document: Any = Field(description="the JSON Schema from the file")


class SchemaCheckInput(StrictInput):
    """The new version of a schema, to compare with the registered version."""

    document: Any = Field(None, description="the new schema: an object, true or false")


class SchemaChangeView(ResponseModel):
    """A difference between the registered and the new schema."""

    level: str = Field(description="breaking or note")
    pointer: str = Field(description="JSON pointer into the envelope, such as /data/lines/*/sku")
    detail: str = Field(description="explanation of the difference")


class SchemaCheckView(BaseModel):
    """The result of comparing a new schema version with the registered version."""

    urn: str = Field(description="URN of the schema")
    compatible: bool = Field(description="whether the new schema can replace the registered one")
    changes: list[SchemaChangeView] = Field(description="differences, breaking changes first")
    unchecked: list[str] = Field(description="JSON pointers to unchecked schema keywords")


class SchemasPageQuery(FormatQuery):
    """The output format of the schema list, and the URN selected in the form."""

    urn: str = ""


async def find_schemas(request: web.Request, _query: SchemasPageQuery) -> SchemasView:
    """List the URNs that have a schema, with the schema's fields and the validation results."""
    entries = context_of(request).schemas.registry.entries
    return SchemasView(
        items=[SchemaView.of_entry(entries[urn], _tally(request, urn)) for urn in sorted(entries)],
        faults=[str(fault) for fault in context_of(request).schemas.faults],
    )


def _tally(request: web.Request, urn: str) -> ValidationCounts | None:
    """Return the validation counts, or None if the caller cannot access every queue."""
    is_limited = allowed_queues(request) is not None
    return None if is_limited else context_of(request).schemas.counts(urn)


def find_registered(request: web.Request, urn: str) -> RegisteredSchema:
    """Return the schema registered for a URN.

    Raises:
        Problem: 404 if no schema is registered for the URN.
    """
    found = context_of(request).schemas.registry.entries.get(urn)
    if found is None:
        raise Problem(404, "unknown_schema", f"No schema is registered for {urn!r}.", field="urn")
    return found


async def compare_schemas(
    request: web.Request, entry: RegisteredSchema, content: bytes
) -> tuple[PayloadSchema, tuple[SchemaChange, ...]]:
    """Compare a new schema version with the registered version in a worker thread.

    Raises:
        Problem: 413 if the new schema is too large, 422 if it is not a valid schema.
    """
    if len(content) > DOCUMENT_BYTES:
        raise Problem(
            413, "too_large", f"The schema is {len(content)} bytes; the limit is {DOCUMENT_BYTES}.",
            field="document", bound=f"at most {DOCUMENT_BYTES} bytes",
        )  # fmt: skip

    def compare(content: bytes) -> tuple[PayloadSchema, tuple[SchemaChange, ...]]:
        schema = read_schema(read_json(content))
        return schema, schema_changes(entry.schema, schema)

    try:
        return (await parse_large(request, content, map(compare, [content])))[0]
    except SchemaError as error:
        where = f" at {error.pointer}" if error.pointer else ""
        raise Problem(
            422,
            "bad_schema",
            f"The schema is invalid{where}: {error.detail}.",
            field="document",
        ) from None


async def get_schema(request: web.Request) -> SchemaDetailView:
    """Return the schema registered for a URN, including the JSON Schema document."""
    entry = find_registered(request, path_name(request, "urn"))
    shown = SchemaView.of_entry(entry, _tally(request, entry.urn))
    return SchemaDetailView(**dict(shown), document=entry.schema.document)


async def check_schema(request: web.Request, given: SchemaCheckInput) -> SchemaCheckView:
    """Compare a new schema version with the registered version, without storing anything."""
    entry = find_registered(request, path_name(request, "urn"))
    if "document" not in given.model_fields_set:
        raise Problem(422, "invalid", "The new schema (document) is missing.", field="document")
    content = json.dumps(given.document).encode()
    new, changes = await compare_schemas(request, entry, content)
    audit_entry(request, target=entry.urn).result = "checked"
    return SchemaCheckView(
        urn=entry.urn,
        compatible=not any(change.is_breaking for change in changes),
        changes=[SchemaChangeView.of(change) for change in changes],
        unchecked=list(new.unchecked),
    )


_PATH: Final = "/api/v1/schemas"


SHOWN: Final = 500  # maximum number of URNs on the page; the JSON format contains all URNs
SHOWN_CHANGES: Final = 200


@dataclass(slots=True)
class SchemaCheckForm:
    """The content of the form for checking a schema, and the result of the check."""

    urn: str = ""
    document: str = ""
    changes: tuple[SchemaChange, ...] | None = None  # None until the schemas have been compared
    unchecked: tuple[str, ...] = ()
    error: str = ""

    @property
    def breaking(self) -> int:
        """The number of changes that require a new URN."""
        return sum(change.is_breaking for change in self.changes or ())


async def submit_schema_check(request: web.Request) -> web.StreamResponse:
    """Compare a pasted schema with the registered schema, without storing anything."""
    form = await read_form(request)
    asked = SchemaCheckForm(form.text("urn", INDEX_CHARACTERS), form.raw("document"))
    audit_entry(request, target=asked.urn).result = "checked"
    try:
        entry = find_registered(request, asked.urn)
        new, asked.changes = await compare_schemas(
            request, entry, asked.document.encode(errors="surrogatepass")
        )
        asked.unchecked = new.unchecked
    except Problem as problem:
        asked.error = problem.detail
        audit_entry(request).result = problem.code
        return await _show(request, asked, problem.status)
    return await _show(request, asked)


async def _show(request: web.Request, asked: SchemaCheckForm, status: int = 200) -> web.Response:
    found = await find_schemas(request, SchemasPageQuery())
    values = await _values(request, asked, found)
    return await render_page(request, "schemas.html", status=status, found=found, **values)


async def _values(
    request: web.Request, query: SchemasPageQuery | SchemaCheckForm, found: SchemasView
) -> dict[str, Any]:
    context = context_of(request)
    may_act = identity_of(request).role.may(Role.OPERATOR)
    return {
        "check": query if isinstance(query, SchemaCheckForm) else SchemaCheckForm(urn=query.urn),
        "schemas": found.items[:SHOWN],
        "more": max(0, len(found.items) - SHOWN),
        "urns": [one.urn for one in found.items],
        "faults": context.schemas.faults,
        "has_folder": context.schemas.folder is not None,
        "folder": str(context.schemas.folder or "") if may_act else "",
        "max_bytes": DOCUMENT_BYTES,
        "max_changes": SHOWN_CHANGES,
    }


ROUTES: Final = (
    api_route("GET", f"{_PATH}/{{urn}}", Role.VIEWER, "api-schema", get_schema),
    api_route(
        "POST", f"{_PATH}/{{urn}}/check", Role.OPERATOR, "api-schema-check", check_schema,
        "schema.check", body=4 * DOCUMENT_BYTES, values=DOCUMENT_BYTES // 2,
    ),
    *Resource(
        run=find_schemas,
        role=Role.VIEWER,
        page=Page("/schemas", "schemas", "schemas.html", _values),
        api=Api("GET", _PATH, "api-schemas", query=JsonFormatQuery),
    ).routes(),
    Route(
        "POST", "/schemas/check", Role.OPERATOR, "schemas-check", submit_schema_check,
        "schema.check", body=4 * DOCUMENT_BYTES, values=DOCUMENT_BYTES // 2,
    ),
)  # fmt: skip
