"""Registered payload schemas, and compatibility checks for new versions."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin.http.body import parse_large
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Endpoints, From
from phpmq_lite.admin.http.fields import FormatQuery, JsonFormatQuery, StrictInput
from phpmq_lite.admin.http.input import Form, Untrimmed
from phpmq_lite.admin.http.output import ListPage, ResponseModel
from phpmq_lite.admin.http.problems import Problem, invalid
from phpmq_lite.envelopes.indexed_fields import INDEX_CHARACTERS
from phpmq_lite.envelopes.payload_schema import (
    PayloadSchema,
    SchemaError,
    read_json,
    read_schema,
    schema_fields,
)
from phpmq_lite.envelopes.schema_compatibility import SchemaChange, schema_changes
from phpmq_lite.envelopes.schema_registry import ActiveSchemas, RegisteredSchema, ValidationCounts
from phpmq_lite.roles import Role

DOCUMENT_BYTES: Final = 1 << 20  # maximum size of a schema to compare, in bytes
SHOWN: Final = 500  # maximum number of URNs on the page; the JSON format contains all URNs
SHOWN_CHANGES: Final = 200
endpoints: Final = Endpoints()
SCHEMAS: Final = web.AppKey("payload schemas", ActiveSchemas)


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
    def of_entry(cls, entry: RegisteredSchema, counts: ValidationCounts | None) -> Self:
        return cls.of(
            entry,
            fields=[SchemaFieldView.of(field) for field in schema_fields(entry.schema.rule)],
            unchecked=list(entry.schema.unchecked),
            passed=counts.passed if counts else None,
            failed=counts.failed if counts else None,
            last_failure=counts.last.detail if counts and counts.last else None,
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


def find_registered(call: Call, urn: str) -> RegisteredSchema:
    """Return the schema registered for a URN, or raise a 404 ``Problem``."""
    entry = call.context.app[SCHEMAS].registry.entries.get(urn)
    if entry is None:
        raise Problem(404, "unknown_schema", f"No schema is registered for {urn!r}.", field="urn")
    return entry


Registered = Annotated[RegisteredSchema, From(lambda call: find_registered(call, call.path("urn")))]


def _counts(call: Call, urn: str) -> ValidationCounts | None:
    """Return the validation counts, or None if the caller cannot access every queue."""
    return None if call.allowed is not None else call.context.app[SCHEMAS].counts(urn)


@endpoints.api("GET /schemas/{urn}", "api-schema")
async def get_schema(call: Call, entry: Registered) -> SchemaDetailView:
    """Return the schema registered for a URN, including the JSON Schema document."""
    view = SchemaView.of_entry(entry, _counts(call, entry.urn))
    return SchemaDetailView(**dict(view), document=entry.schema.document)


async def compare_schemas(
    call: Call, entry: RegisteredSchema, content: bytes
) -> tuple[PayloadSchema, tuple[SchemaChange, ...]]:
    """Compare a new schema with the registered one; raise a ``Problem``, 413 or 422."""
    if len(content) > DOCUMENT_BYTES:
        detail = f"The schema is {len(content)} bytes; the limit is {DOCUMENT_BYTES}."
        bound = f"at most {DOCUMENT_BYTES} bytes"
        raise Problem(413, "too_large", detail, field="document", bound=bound)

    def compare(content: bytes) -> tuple[PayloadSchema, tuple[SchemaChange, ...]]:
        schema = read_schema(read_json(content))
        return schema, schema_changes(entry.schema, schema)

    try:
        [comparison] = await parse_large(call.request, content, map(compare, [content]))
    except SchemaError as error:
        where = f" at {error.pointer}" if error.pointer else ""
        detail = f"The schema is invalid{where}: {error.detail}."
        raise Problem(422, "bad_schema", detail, field="document") from None
    return comparison


@endpoints.api(
    "POST /schemas/{urn}/check",
    "api-schema-check",
    Role.OPERATOR,
    "schema.check",
    body=4 * DOCUMENT_BYTES,
    values=DOCUMENT_BYTES // 2,
)
async def check_schema(call: Call, entry: Registered, new: SchemaCheckInput) -> SchemaCheckView:
    """Compare a new schema version with the registered version, without storing anything."""
    if "document" not in new.model_fields_set:
        raise invalid("The new schema (document) is missing.", "document")
    schema, changes = await compare_schemas(call, entry, json.dumps(new.document).encode())
    call.audit(entry.urn).result = "checked"
    return SchemaCheckView(
        urn=entry.urn,
        compatible=not any(change.is_breaking for change in changes),
        changes=[SchemaChangeView.of(change) for change in changes],
        unchecked=list(schema.unchecked),
    )


@endpoints.api("GET /schemas", "api-schemas")
async def list_schemas(call: Call, _query: JsonFormatQuery) -> SchemasView:
    """List the URNs that have a schema, with the schema's fields and the validation results."""
    schemas = call.context.app[SCHEMAS]
    entries = schemas.registry.entries
    return SchemasView(
        items=[SchemaView.of_entry(entries[urn], _counts(call, urn)) for urn in sorted(entries)],
        faults=[str(fault) for fault in schemas.faults],
    )


class SchemasPageQuery(FormatQuery):
    """The output format of the schema list, and the URN selected in the form."""

    urn: str = ""


@dataclass(slots=True)
class SchemaCheck:
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


@endpoints.page("/schemas", "schemas", data=list_schemas)
async def show_schemas(call: Call, query: SchemasPageQuery) -> web.Response:
    """List the URNs that have a schema, with the schema's fields and the validation results."""
    return await _show(call, SchemaCheck(query.urn))


async def _show(call: Call, check: SchemaCheck, status: int = 200) -> web.Response:
    schemas, items = call.context.app[SCHEMAS], (await list_schemas(call, JsonFormatQuery())).items
    has_folder_access = call.identity.role.may(Role.OPERATOR)
    return await call.render(
        "schemas.html",
        status=status,
        check=check,
        schemas=items[:SHOWN],
        unlisted=max(0, len(items) - SHOWN),
        urns=[schema.urn for schema in items],
        faults=schemas.faults,
        has_folder=schemas.folder is not None,
        folder=str(schemas.folder or "") if has_folder_access else "",
        max_bytes=DOCUMENT_BYTES,
        max_changes=SHOWN_CHANGES,
    )


class SchemaCheckForm(StrictInput):
    """The new version of a schema, as text, to compare with the registered version."""

    urn: str = Field("", max_length=INDEX_CHARACTERS)
    document: Annotated[str, Untrimmed()] = ""


async def _show_refused(call: Call, form: Form, problem: Problem) -> web.Response:
    check = SchemaCheck(form.raw("urn"), form.raw("document"), error=problem.detail)
    return await _show(call, check, problem.status)


@endpoints.action(
    "/schemas/check",
    "schemas-check",
    Role.OPERATOR,
    "schema.check",
    show_refused=_show_refused,
    body=4 * DOCUMENT_BYTES,
    values=DOCUMENT_BYTES // 2,
)
async def submit_schema_check(call: Call, form: SchemaCheckForm) -> web.Response:
    """Compare a pasted schema with the registered schema, without storing anything."""
    call.audit(form.urn).result = "checked"
    entry = find_registered(call, form.urn)
    content = form.document.encode(errors="surrogatepass")
    schema, changes = await compare_schemas(call, entry, content)
    return await _show(call, SchemaCheck(form.urn, form.document, changes, schema.unchecked))
