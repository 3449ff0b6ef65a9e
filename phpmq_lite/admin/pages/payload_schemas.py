"""Schemas of payloads: which URNs have one, what fails, and what a new version would break."""

from dataclasses import dataclass
from typing import Final

from aiohttp import web

from phpmq_lite.admin.access.identity import entry_of, identity_of
from phpmq_lite.admin.acting.forms import form_of
from phpmq_lite.admin.api.payload_schemas import (
    DOCUMENT_BYTES,
    SchemaOut,
    compared,
    entry_named,
    registered,
)
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_data
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import FormatQuery
from phpmq_lite.envelopes.index import INDEX_CHARACTERS
from phpmq_lite.envelopes.schema import Change

SHOWN: Final = 500  # URNs on the page; JSON has all
SHOWN_CHANGES: Final = 200


class PageQuery(FormatQuery):
    """As what the list is given, and which URN the form begins with."""

    urn: str = ""


@dataclass(slots=True)
class Check:
    """What stands in the form, and what came of it."""

    urn: str = ""
    document: str = ""
    changes: tuple[Change, ...] | None = None  # None: not asked yet
    unchecked: tuple[str, ...] = ()
    error: str = ""

    @property
    def breaking(self) -> int:
        """How many changes ask for a new URN."""
        return sum(change.is_breaking for change in self.changes or ())


async def schemas(request: web.Request) -> web.StreamResponse:
    """The URNs that have a schema, their fields, and what became of their payloads."""
    query = query_of(request, PageQuery)
    if query.format != "html":
        return as_data(query.format, SchemaOut, registered(request))
    return await _show(request, Check(urn=query.urn))


async def check(request: web.Request) -> web.StreamResponse:
    """Compare a pasted schema with the registered one; nothing is stored."""
    form = await form_of(request)
    asked = Check(form.text("urn", INDEX_CHARACTERS), form.raw("document"))
    entry_of(request, target=asked.urn).result = "checked"
    try:
        entry = entry_named(request, asked.urn)
        new, asked.changes = await compared(
            request, entry, asked.document.encode(errors="surrogatepass")
        )
        asked.unchecked = new.unchecked
    except Problem as problem:
        asked.error = problem.detail
        entry_of(request).result = problem.code
        return await _show(request, asked, problem.status)
    return await _show(request, asked)


async def _show(request: web.Request, asked: Check, status: int = 200) -> web.Response:
    context = context_of(request)
    found = registered(request)
    may_act = identity_of(request).role.may(Role.OPERATOR)
    return await page(
        request,
        "schemas.html",
        status=status,
        check=asked,
        schemas=found[:SHOWN],
        more=max(0, len(found) - SHOWN),
        urns=[one.urn for one in found],
        faults=context.schemas.faults,
        has_folder=context.schemas.folder is not None,
        folder=str(context.schemas.folder or "") if may_act else "",
        max_bytes=DOCUMENT_BYTES,
        max_changes=SHOWN_CHANGES,
    )


ROUTES: Final = (
    Route("GET", "/schemas", Role.VIEWER, "schemas", schemas),
    Route(
        "POST",
        "/schemas/check",
        Role.OPERATOR,
        "schemas-check",
        check,
        "schema.check",
        body=4 * DOCUMENT_BYTES,
        values=DOCUMENT_BYTES // 2,
    ),
)
