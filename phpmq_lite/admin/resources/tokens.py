"""API tokens: page and API."""

from typing import Final, Literal

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin.auth import request_audit, users
from phpmq_lite.admin.base.context import context_of
from phpmq_lite.admin.base.identity import identity_of
from phpmq_lite.admin.base.input import (
    FormatQuery,
    StrictInput,
    path_name,
    read_json_model,
    read_query,
)
from phpmq_lite.admin.base.problems import Problem
from phpmq_lite.admin.base.request_body import read_form_field
from phpmq_lite.admin.base.responses import ListPage, View, json_response, list_response
from phpmq_lite.admin.base.route import Role, Route
from phpmq_lite.admin.resources.users import Globs
from phpmq_lite.admin.views.rendering import render_page

_LATEST_MS: Final = 1 << 52


class TokenInput(StrictInput):
    """A token to make."""

    name: str = Field(description="1 to 64 letters, digits and . _ @ + -")
    role: Literal["metrics", "viewer", "operator", "admin"] = Field(
        description="viewer, operator or admin"
    )
    queues: Globs = Field([], description="globs of the queues it may see; empty: all")
    expires_at: int | None = Field(
        None, gt=0, le=_LATEST_MS, description="Unix milliseconds; null: never"
    )


class TokenView(View):
    """One token, without its secret; times are Unix milliseconds."""

    name: str = Field(description="name")
    role: str = Field(description="viewer, operator or admin")
    queues: list[str] = Field(description="globs of the visible queues; empty: all")
    created_at: int = Field(description="when it was created, Unix ms")
    created_by: str = Field(description="user who created it")
    expires_at: int | None = Field(description="when it expires, Unix ms; null: never")
    last_used_at: int | None = Field(description="Unix ms; null: never")


class NewTokenView(BaseModel):
    """A token that was just made, with its secret: nobody can ask for it again."""

    name: str = Field(description="name")
    token: str = Field(description="the token, phpmq_…; it is shown only once")
    expires_at: int | None = Field(description="when it expires, Unix ms; null: never")


def tokens_view(request: web.Request) -> list[TokenView]:
    """Give all tokens by name, without their secrets."""
    known = context_of(request).entrance.accounts.tokens.values()
    return [TokenView.of(token) for token in users.visible_accounts(request, known)]


async def list_tokens(request: web.Request) -> web.StreamResponse:
    """List the tokens, without their secrets."""
    return list_response("json", TokenView, tokens_view(request))


async def create_token(request: web.Request) -> web.StreamResponse:
    """Make a token; the answer has it, this once."""
    asked = await read_json_model(request, TokenInput)
    token, secret = await users.add_token(
        request, asked.name, asked.role, asked.queues, asked.expires_at
    )
    made = NewTokenView(name=token.name, token=secret, expires_at=token.expires_at)
    return json_response(made, status=201)


async def revoke_token(request: web.Request) -> web.StreamResponse:
    """Revoke a token; the next call with it is refused."""
    name = path_name(request, "name")
    token = context_of(request).entrance.accounts.token_named(name)
    await users.remove_token(request, token)
    return json_response(TokenView.of(token))


_PATH: Final = "/api/v1/tokens"
API_ROUTES: Final = (
    Route(
        "GET",
        _PATH,
        Role.ADMIN,
        "api-tokens",
        list_tokens,
        gives=ListPage[TokenView],
        cli="token list",
    ),
    Route(
        "POST",
        _PATH,
        Role.ADMIN,
        "api-token-add",
        create_token,
        "token.add",
        takes=TokenInput,
        gives=NewTokenView,
        status=201,
        cli="token create",
    ),
    Route(
        "DELETE",
        f"{_PATH}/{{name}}",
        Role.ADMIN,
        "api-token-remove",
        revoke_token,
        "token.remove",
        gives=TokenView,
        cli="token revoke",
    ),
)


DAYS: Final = {"": None, "30": 30, "90": 90, "365": 365}
_DAY_MS: Final = 86_400_000


async def show_tokens(request: web.Request) -> web.StreamResponse:
    """All tokens, and a form for another one."""
    query = read_query(request, FormatQuery)
    if query.format != "html":
        return list_response(query.format, TokenView, tokens_view(request))
    return await _list(request, {})


async def _list(
    request: web.Request,
    form: dict[str, str],
    problem: Problem | None = None,
    made: tuple[str, str] | None = None,
) -> web.Response:
    accounts = context_of(request).entrance.accounts
    return await render_page(
        request,
        "tokens.html",
        status=problem.status if problem else 200,
        tokens=users.visible_accounts(request, accounts.tokens.values()),
        form=form,
        problem=problem,
        made=made,
        roles=users.TOKEN_ROLES,
        is_local=identity_of(request).kind == "local",
        limits=identity_of(request).queues,
    )


async def submit_token(request: web.Request) -> web.StreamResponse:
    """Make a token, and show it this once."""
    form = {key: await read_form_field(request, key) for key in ("name", "role", "queues", "days")}
    try:
        expires_at = _expiry(form["days"], context_of(request).now_ms())
        token, secret = await users.add_token(
            request,
            form["name"].strip(),
            form["role"],
            users.split_lines(form["queues"]),
            expires_at,
        )
    except Problem as problem:
        request_audit.mark_refused(request, problem)
        return await _list(request, form, problem)
    return await _list(request, {}, made=(token.name, secret))


def _expiry(days: str, now_ms: int) -> int | None:
    if days not in DAYS:
        raise Problem(422, "invalid", "days: unknown.", field="days", bound="30, 90 or 365")
    count = DAYS[days]
    return None if count is None else now_ms + count * _DAY_MS


async def submit_token_removal(request: web.Request) -> web.StreamResponse:
    """Revoke a token."""
    context = context_of(request)
    token = context.entrance.accounts.token_named(path_name(request, "name"))
    await users.remove_token(request, token)
    context.sessions.note(request, f"The token {token.name} is revoked.")
    raise web.HTTPSeeOther(context.urls.to("tokens"))


PAGE_ROUTES: Final = (
    Route("GET", "/tokens", Role.ADMIN, "tokens", show_tokens),
    Route("POST", "/tokens", Role.ADMIN, "token-add", submit_token, "token.add"),
    Route(
        "POST",
        "/tokens/{name}/remove",
        Role.ADMIN,
        "token-remove",
        submit_token_removal,
        "token.remove",
    ),
)
