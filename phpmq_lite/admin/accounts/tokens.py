"""API tokens: the page and the API."""

import json
from typing import Annotated, Final

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin.accounts.services import accounts_of
from phpmq_lite.admin.accounts.users import (
    Globs,
    check_globs,
    check_may_manage,
    check_name,
    form_values,
    visible_accounts,
)
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Done, Endpoints, From
from phpmq_lite.admin.http.fields import StrictInput
from phpmq_lite.admin.http.identity import CONTROL, identity_of_token
from phpmq_lite.admin.http.input import Form, Lines, read_form_model
from phpmq_lite.admin.http.output import ListPage, ResponseModel
from phpmq_lite.admin.http.problems import Problem, invalid
from phpmq_lite.roles import TOKEN_ROLES, Role, TokenRoleName
from phpmq_lite.storage.read.accounts import ApiToken

endpoints: Final = Endpoints()
DAYS: Final = ("30", "90", "365")  # lifetimes that the form offers
_ROLES_TEXT: Final = "metrics, viewer, operator or admin"
Token = Annotated[ApiToken, From(lambda call: accounts_of(call).token_named(call.path("name")))]


class TokenInput(StrictInput):
    """A token to create."""

    name: str = Field(description="1 to 64 characters: letters, digits and . _ @ + -")
    role: TokenRoleName = Field(description=_ROLES_TEXT)
    queues: Annotated[Globs, Lines()] = Field(
        [], description="globs for the visible queues; empty for all"
    )
    expires_at: int | None = Field(
        None, gt=0, le=1 << 52, description="when the token expires, Unix ms; null if never"
    )


class TokenView(ResponseModel):
    """A token without its secret."""

    name: str = Field(description="token name")
    role: str = Field(description=_ROLES_TEXT)
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


def find_owner(call: Call, name: str) -> str:
    """Return the app_id owner that a user or ``token NAME`` names, or raise a 404 ``Problem``."""
    if name == CONTROL.name:
        return CONTROL.owner
    kind, _, token_name = name.partition(" ")
    if kind == "token" and token_name:
        return identity_of_token(accounts_of(call).token_named(token_name)).owner
    return accounts_of(call).user_named(name).name


def _visible(call: Call) -> list[ApiToken]:
    return visible_accounts(call, accounts_of(call).tokens.values())


@endpoints.api("GET /tokens", "api-tokens", Role.ADMIN, cli="token list")
async def list_tokens(call: Call) -> ListPage[TokenView]:
    """List the tokens, without their secrets."""
    return ListPage[TokenView](items=[TokenView.of(token) for token in _visible(call)])


@endpoints.page("/tokens", "tokens", Role.ADMIN, data=list_tokens)
async def show_tokens(
    call: Call,
    form: Form | None = None,
    problem: Problem | None = None,
    created: NewTokenView | None = None,
) -> web.Response:
    """List the tokens, without their secrets."""
    values = form_values(call, form) | {"roles": TOKEN_ROLES, "created": created}
    return await call.render_form("tokens.html", problem, tokens=_visible(call), **values)


@endpoints.action("/tokens", "token-add", Role.ADMIN, "token.add", show_refused=show_tokens)
async def submit_token(call: Call, form: Form) -> web.Response:
    """Create a token, and show the secret once."""
    body, days = read_form_model(form, TokenInput), form.text("days", 10)
    if days not in ("", *DAYS):
        detail = f"days is {days!r}; it must be 30, 90, 365 or empty."
        raise invalid(detail, "days", "30, 90 or 365")
    if days:
        body.expires_at = call.now_ms + int(days) * 86_400_000
    return await show_tokens(call, created=await create_token(call, body))


@endpoints.api(
    "POST /tokens", "api-token-add", Role.ADMIN, "token.add", status=201, cli="token create"
)
async def create_token(call: Call, body: TokenInput) -> NewTokenView:
    """Create a token. The response contains the secret, which is shown only once."""
    check_may_manage(call)
    if body.expires_at is not None and body.expires_at <= call.now_ms:
        raise invalid("The expiry time is in the past.", "expires_at", "a time in the future")
    name, queues = check_name(body.name), check_globs(body.queues)
    token = ApiToken(0, name, b"", body.role, queues, call.now_ms, call.actor, body.expires_at)
    detail = json.dumps({"role": body.role, "queues": queues, "expires_at": body.expires_at})
    secret = await accounts_of(call).add_token(call.audit(target=name, detail=detail), token)
    return NewTokenView(name=name, token=secret, expires_at=body.expires_at)


@endpoints.action(
    "/tokens/{name}/remove",
    "token-remove",
    Role.ADMIN,
    "token.remove",
    api="DELETE /tokens/{name}",
    cli="token revoke",
)
async def revoke_token(call: Call, token: Token) -> Done[TokenView]:
    """Revoke a token; any further call that uses the token is rejected."""
    call.check_all_queues("change users, tokens and sessions")
    await accounts_of(call).remove_token(call.audit(target=token.name), token)
    text = f"The token {token.name} was revoked."
    return Done(TokenView.of(token), text, call.back(call.url("tokens")))
