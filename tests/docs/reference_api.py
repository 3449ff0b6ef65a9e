"""Writes docs/reference/api.md: each call of the HTTP API, its shapes, and all other addresses."""

from collections.abc import Container, Iterator, Sequence
from typing import Any, Final

from phpmq_lite.admin.base import formats
from phpmq_lite.admin.base.request_body import FORMS
from phpmq_lite.admin.base.route import Role, Route
from phpmq_lite.admin.resources import api_reference
from phpmq_lite.admin.resources.api_reference import ApiCall, ApiField
from phpmq_lite.admin.routes import ROUTES
from phpmq_lite.settings.model import LimitSettings
from tests.docs.reference_cli import cell, plain

_HEAD: Final = """\
# HTTP API

Every call, as the OpenAPI 3.1 document at `/api/v1/openapi.json` has it; `/api` in the browser
shows the same, with the address of your broker. This page is made from the code by
`python -m tests.docs.references`; a test compares.

Times are Unix milliseconds. How calls, keys, errors and lists work, and what Spark's calls do, is
in [the admin guide](../guides/admin.md#http-api). Beyond this machine, and once there is a user,
a call needs a token: `-H 'Authorization: Bearer phpmq_…'`. What goes wrong is answered with a
[Problem](#problem), as `application/problem+json`. A star stands at what has to be given, and at
what is always there.
"""
_BASE: Final = "http://127.0.0.1:9101" + api_reference.PREFIX
_PAGES: Final = """\
## Pages and other addresses

What is no call of the API. Lists answer with JSON, JSON lines or CSV too: add `?format=json`,
`jsonl` or `csv`. The forms of the pages are for browsers: they want the token of the session.
"""
_LIMITS: Final = """\
## Routes and their limits

What an address that changes something takes: who may use it, the bytes of its body at most, and the
JSON values in it. Above a limit the answer is 413. Where messages are sent, the limit is that of
`limits.max_content` as base64 and 1 MiB; the table has it by default. Addresses that are read take
no body; one that comes along may have 1 MiB, or 16 KiB where nobody has to be logged in. No address
takes a `Content-Encoding` but `identity`: the answer to others is 415.
"""


def page() -> str:
    """Write the page."""
    found = api_reference.build_document(ROUTES, "", api_reference.PREFIX)
    groups = api_reference.group_calls(ROUTES, found, _BASE)
    schemas = found["components"]["schemas"]
    taken = {route.takes.__name__ for route in ROUTES if isinstance(route.takes, type)}
    shapes = [name for name in schemas if name not in taken]
    tags = ", ".join(f"[{tag}](#{_anchor(tag)})" for tag, _ in groups)
    parts = [
        _HEAD,
        f"{tags}; [shapes](#shapes), [pages](#pages-and-other-addresses), "
        "[limits](#routes-and-their-limits).\n",
    ]
    for tag, some in groups:
        parts += [f"## {tag}\n", *(_described(call, shapes) for call in some)]
    parts += ["## Shapes\n", "What calls give, and what is in that.\n"]
    parts += [_shape(name, schemas, shapes) for name in shapes]
    others = [route for route in ROUTES if not route.path.startswith(api_reference.PREFIX + "/")]
    parts += [_PAGES, _table(("address", "role", "what"), (_other(route) for route in others))]
    writing = (_limited(route) for route in ROUTES if route.is_writing)
    parts += [_LIMITS, _table(("address", "role", "body", "JSON values", "content type"), writing)]
    return "\n".join(parts)


def _anchor(tag: str) -> str:
    return tag.replace(".", "")


def _described(call: ApiCall, shapes: Container[str]) -> str:
    said = f"{plain(call.summary)} "
    said += "For everybody." if call.role == Role.PUBLIC else f"Needs the role {call.role}."
    if call.audit:
        said += f" Audited as `{call.audit}`."
    if call.cli:
        said += f" On the command line: [`phpmq-lite {call.cli}`](cli.md#{_command(call.cli)})."
    said += f" Answers {_linked(call.answer, shapes)}."
    parts = [f"### {call.method} {call.path}\n", f"{said}\n", f"```text\n{call.curl}\n```\n"]
    if call.query:
        parts.append(_members("query", call.query, shapes))
    if call.takes:
        parts += [f"{plain(call.taken)}\n", _members("takes", call.takes, shapes)]
    return "\n".join(parts)


def _command(words: str) -> str:
    return "-".join(["phpmq-lite", *words.split()])


def _shape(name: str, schemas: dict[str, Any], shapes: Container[str]) -> str:
    parts = [f"### {name}\n"]
    if text := schemas[name].get("description", ""):
        parts.append(f"{plain(text)}\n")
    return "\n".join(
        [*parts, _members("member", api_reference.fields_of(schemas[name], schemas), shapes)]
    )


def _linked(words: str, shapes: Container[str]) -> str:
    """Link each word that is the name of a shape."""
    return " ".join(
        f"[{word}](#{word.lower()})" if word in shapes else word for word in words.split()
    )


def _members(title: str, members: Sequence[ApiField], shapes: Container[str]) -> str:
    rows = (
        (f"`{it.name}`" + (" *" if it.is_needed else ""), _linked(cell(it.type), shapes),
         cell(it.text))
        for it in members
    )  # fmt: skip
    return _table((title, "type", "what"), rows)


def _other(route: Route) -> tuple[str, str, str]:
    return (
        f"`{route.method} {route.path}`",
        route.role.value,
        cell(plain(api_reference.summary_of(route))),
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
