"""Write docs/reference/api.md: the HTTP API, its models, and all other routes."""

from collections.abc import Container, Iterator, Sequence
from typing import Any, Final

from phpmq_lite.admin import formats
from phpmq_lite.admin.http import openapi
from phpmq_lite.admin.http.body import FORMS
from phpmq_lite.admin.http.endpoint import PREFIX
from phpmq_lite.admin.http.openapi import ApiCall, ApiField
from phpmq_lite.admin.http.route import Route
from phpmq_lite.admin.routes import ROUTES
from phpmq_lite.roles import Role
from phpmq_lite.settings.model import LimitSettings
from tests.docs.reference_cli import cell, plain

_HEAD: Final = """\
# HTTP API

All calls of the OpenAPI 3.1 document at `/api/v1/openapi.json`. The page `/api` of a broker shows
the same calls with its own address. This page is generated from the code by
`python -m tests.docs.references`; a test compares them.

Times are Unix milliseconds. Calls, keys, errors, lists and the calls for Spark are explained in
[the admin guide](../guides/admin.md#http-api). Beyond this machine, and once a user exists, a call
requires a token: `-H 'Authorization: Bearer phpmq_…'`. Errors are returned as a [Problem](#problem)
(`application/problem+json`). A star marks required parameters and fields that are always present.
"""
_BASE: Final = "http://127.0.0.1:9101" + PREFIX
_PAGES: Final = """\
## Pages and other addresses

Routes outside the API. Lists also return JSON, JSON lines or CSV: add `?format=json`, `jsonl` or
`csv`. Forms are for browsers: they require the session's token.
"""
_LIMITS: Final = """\
## Routes and their limits

For each route that changes something: the required role, the maximum size of the body, the maximum
number of JSON values in it, and the accepted content types. A request above a limit is refused with
413. Routes that receive messages allow `limits.max_content` encoded as base64 plus 1 MiB; the table
shows this for the default. Other bodies may have at most 1 MiB, or 16 KiB if no login
is required. The only accepted `Content-Encoding` is `identity`; others are refused with 415.
"""


def page() -> str:
    document = openapi.build_document(ROUTES, "", PREFIX)
    groups = openapi.group_calls(ROUTES, document, _BASE)
    schemas = document["components"]["schemas"]
    inputs = {route.takes.__name__ for route in ROUTES if isinstance(route.takes, type)}
    models = [name for name in schemas if name not in inputs]
    tags = ", ".join(f"[{tag}](#{tag.replace('.', '')})" for tag, _ in groups)
    parts = [
        _HEAD,
        f"{tags}; [models](#models), [pages](#pages-and-other-addresses), "
        "[limits](#routes-and-their-limits).\n",
    ]
    for tag, some in groups:
        parts += [f"## {tag}\n", *(_described(call, models) for call in some)]
    parts += ["## Models\n", "The objects in responses.\n"]
    parts += [_model(name, schemas, models) for name in models]
    others = [route for route in ROUTES if not route.path.startswith(PREFIX + "/")]
    parts += [_PAGES, _table(("route", "role", "what"), (_other(route) for route in others))]
    writing = (_limited(route) for route in ROUTES if route.is_writing)
    parts += [_LIMITS, _table(("route", "role", "body", "JSON values", "content type"), writing)]
    return "\n".join(parts)


def _described(call: ApiCall, models: Container[str]) -> str:
    text = f"{plain(call.summary)} "
    text += "Public." if call.role == Role.PUBLIC else f"Requires the {call.role} role."
    if call.audit:
        text += f" Recorded in the audit log as `{call.audit}`."
    if call.cli:
        text += f" On the command line: [`phpmq-lite {call.cli}`](cli.md#{_command(call.cli)})."
    text += f" Response: {_linked(call.response, models)}."
    parts = [f"### {call.method} {call.path}\n", f"{text}\n", f"```text\n{call.curl}\n```\n"]
    if call.query:
        parts.append(_members("query", call.query, models))
    if call.takes:
        parts += [f"{plain(call.takes_text)}\n", _members("body", call.takes, models)]
    return "\n".join(parts)


def _command(words: str) -> str:
    return "-".join(["phpmq-lite", *words.partition(" --")[0].split()])


def _model(name: str, schemas: dict[str, Any], models: Container[str]) -> str:
    parts = [f"### {name}\n"]
    if text := schemas[name].get("description", ""):
        parts.append(f"{plain(text)}\n")
    fields = openapi.fields_of(schemas[name], schemas)
    return "\n".join([*parts, _members("field", fields, models) if fields else "Any JSON value.\n"])


def _linked(words: str, models: Container[str]) -> str:
    return " ".join(
        f"[{word}](#{word.lower()})" if word in models else word for word in words.split()
    )


def _members(title: str, members: Sequence[ApiField], models: Container[str]) -> str:
    rows = (
        (f"`{it.name}`" + (" *" if it.is_required else ""), _linked(cell(it.type), models),
         cell(it.text))
        for it in members
    )  # fmt: skip
    return _table((title, "type", "what"), rows)


def _other(route: Route) -> tuple[str, str, str]:
    return (
        f"`{route.method} {route.path}`",
        route.role.value,
        cell(plain(openapi.summary_of(route))),
    )


def _limited(route: Route) -> tuple[str, ...]:
    kinds = route.all_media if route.is_api else sorted(FORMS)
    is_json = "application/json" in kinds
    return (
        f"`{route.method} {route.path}`",
        route.role.value,
        formats.format_size(route.body_limit(int(LimitSettings().max_content))),
        formats.format_number(route.values) if is_json else "",
        ", ".join(f"`{kind}`" for kind in kinds),
    )


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
