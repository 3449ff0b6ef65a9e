"""The page and the API for managing API tokens."""

from typing import Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel, Field, ValidationError

from phpmq_lite.admin.auth import users
from phpmq_lite.admin.auth.request_audit import mark_refused
from phpmq_lite.admin.base.context import context_of
from phpmq_lite.admin.base.input import (
    FormatQuery,
    StrictInput,
    path_name,
    read_form,
)
from phpmq_lite.admin.base.problems import Problem, problem_of
from phpmq_lite.admin.base.responses import ListPage, ResponseModel
from phpmq_lite.admin.base.route import Role, Route
from phpmq_lite.admin.resource import Api, Page, Resource, api_route, read_form_model, render_form
from phpmq_lite.admin.resources.users import Globs, account_values
from phpmq_lite.storage.read.accounts import ApiToken


class TokenInput(StrictInput):
    """A token to create."""

    name: str = Field(description="1 to 64 characters: letters, digits and . _ @ + -")
    role: Literal["metrics", "viewer", "operator", "admin"] = Field(
        description="metrics, viewer, operator or admin"
    )
    queues: Globs = Field([], description="globs for the visible queues; empty for all")
    expires_at: int | None = Field(
        None, gt=0, le=1 << 52, description="when the token expires, Unix ms; null if never"
    )


class TokenView(ResponseModel):
    """A token without its secret."""

    name: str = Field(description="token name")
    role: str = Field(description="metrics, viewer, operator or admin")
    queues: list[str] = Field(description="globs for the visible queues; empty for all")
    created_at: int = Field(description="when the token was created, Unix ms")
    created_by: str = Field(description="user who created the token")
    expires_at: int | None = Field(description="when the token expires, Unix ms; null if never")
    last_used_at: int | None = Field(description="when last used, Unix ms; null if never")


class NewTokenView(BaseModel):
    """A new token with its secret, which is not stored."""

    name: str = Field(description="token name")
    token: str = Field(description="the secret token (phpmq_…), shown only once")
    expires_at: int | None = Field(description="when the token expires, Unix ms; null if never")


async def find_tokens(request: web.Request, _query: FormatQuery) -> list[ApiToken]:
    """List the tokens, without their secrets."""
    known = context_of(request).auth.accounts.tokens.values()
    return users.visible_accounts(request, known)


async def create_token(request: web.Request, asked: TokenInput) -> NewTokenView:
    """Create a token. The response contains the secret, which is shown only once."""
    token, secret = await users.add_token(
        request, asked.name, asked.role, asked.queues, asked.expires_at
    )
    return NewTokenView(name=token.name, token=secret, expires_at=token.expires_at)


async def revoke_token(request: web.Request, _asked: None) -> TokenView:
    """Revoke a token; any further call that uses the token is rejected."""
    token = context_of(request).auth.accounts.token_named(path_name(request, "name"))
    await users.remove_token(request, token)
    return TokenView.of(token)


async def _values(request: web.Request, _query: object, _found: object) -> dict[str, Any]:
    return account_values(request) | {"roles": users.TOKEN_ROLES, "made": None}


async def submit_token(request: web.Request) -> web.StreamResponse:
    """Create a token, and show the secret once."""
    form, made = await read_form(request), None
    problem: Problem | None = None
    try:
        asked = read_form_model(form, TokenInput)
        days = form.text("days", 10)
        if days not in ("", "30", "90", "365"):
            raise _unknown_days(days)
        if days:
            asked.expires_at = context_of(request).now_ms() + int(days) * 86_400_000
        made = await create_token(request, asked)
    except (Problem, ValidationError) as error:
        problem = problem_of(error)
        if problem is None:
            raise
        mark_refused(request, problem)
    found = await find_tokens(request, FormatQuery())
    values = account_values(request, None if made else form) | {"roles": users.TOKEN_ROLES}
    return await render_form(request, "tokens.html", problem, found=found, made=made, **values)


def _unknown_days(days: str) -> Problem:
    return Problem(422, "invalid", f"days is {days!r}; it must be 30, 90, 365 or empty.",
                   field="days", bound="30, 90 or 365")  # fmt: skip


_PATH: Final = "/api/v1/tokens"
RESOURCES: Final = (
    Resource(
        run=find_tokens, role=Role.ADMIN, view_model=ListPage[TokenView],
        page=Page("/tokens", "tokens", "tokens.html", _values),
        api=Api("GET", _PATH, "api-tokens", cli="token list"),
    ),
    Resource(
        run=revoke_token, role=Role.ADMIN, audit="token.remove",
        page=Page(
            "/tokens/{name}/remove", "token-remove",
            done=lambda request, _asked, token: (
                f"The token {token.name} was revoked.", context_of(request).urls.to("tokens")
            ),
        ),
        api=Api("DELETE", f"{_PATH}/{{name}}", "api-token-remove", cli="token revoke"),
    ),
)  # fmt: skip
ROUTES: Final = (
    *(route for resource in RESOURCES for route in resource.routes()),
    Route("POST", "/tokens", Role.ADMIN, "token-add", submit_token, "token.add"),
    api_route("POST", _PATH, Role.ADMIN, "api-token-add", create_token, "token.add",
              status=201, cli="token create"),
)  # fmt: skip
