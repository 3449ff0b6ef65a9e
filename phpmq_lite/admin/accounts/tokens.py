"""The page and the API for managing API tokens."""

from typing import Annotated, Final

from aiohttp import web
from pydantic import BaseModel, Field, ValidationError

from phpmq_lite.admin.accounts import changes
from phpmq_lite.admin.accounts.users import Globs, form_values
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Done, Endpoints, From
from phpmq_lite.admin.http.fields import Form, FormatQuery, StrictInput
from phpmq_lite.admin.http.forms import Lines, read_form_model
from phpmq_lite.admin.http.problems import Problem, problem_of
from phpmq_lite.admin.http.request_audit import mark_refused
from phpmq_lite.admin.http.responses import ListPage, ResponseModel
from phpmq_lite.admin.http.route import Role
from phpmq_lite.roles import TOKEN_ROLES, TokenRoleName
from phpmq_lite.storage.read.accounts import ApiToken

endpoints: Final = Endpoints()
Token = Annotated[ApiToken, From(lambda call: call.accounts.token_named(call.path("name")))]


class TokenInput(StrictInput):
    """A token to create."""

    name: str = Field(description="1 to 64 characters: letters, digits and . _ @ + -")
    role: TokenRoleName = Field(description="metrics, viewer, operator or admin")
    queues: Annotated[Globs, Lines()] = Field(
        [], description="globs for the visible queues; empty for all"
    )
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


def _visible(call: Call) -> list[ApiToken]:
    return changes.visible_accounts(call.request, call.accounts.tokens.values())


@endpoints.api("GET /tokens", "api-tokens", Role.ADMIN, cli="token list")
async def list_tokens(call: Call) -> ListPage[TokenView]:
    """List the tokens, without their secrets."""
    return ListPage[TokenView](items=[TokenView.of(token) for token in _visible(call)])


@endpoints.page("/tokens", "tokens", Role.ADMIN, data=list_tokens)
async def show_tokens(call: Call, _query: FormatQuery) -> web.Response:
    """List the tokens, without their secrets."""
    return await _show(call)


async def _show(
    call: Call,
    form: Form | None = None,
    problem: Problem | None = None,
    made: NewTokenView | None = None,
) -> web.Response:
    values = form_values(call, form) | {"roles": TOKEN_ROLES, "made": made}
    return await call.render_form("tokens.html", problem, found=_visible(call), **values)


@endpoints.action("/tokens", "token-add", Role.ADMIN, "token.add")
async def submit_token(call: Call, form: Form) -> web.Response:
    """Create a token, and show the secret once."""
    try:
        asked = read_form_model(form, TokenInput)
        days = form.text("days", 10)
        if days not in ("", "30", "90", "365"):
            raise _unknown_days(days)
        if days:
            asked.expires_at = call.now_ms + int(days) * 86_400_000
        made = await create_token(call, asked)
    except (Problem, ValidationError) as error:
        problem = problem_of(error)
        if problem is None:
            raise
        mark_refused(call.request, problem)
        return await _show(call, form, problem)
    return await _show(call, made=made)


def _unknown_days(days: str) -> Problem:
    text = f"days is {days!r}; it must be 30, 90, 365 or empty."
    return Problem(422, "invalid", text, field="days", bound="30, 90 or 365")


@endpoints.api(
    "POST /tokens", "api-token-add", Role.ADMIN, "token.add", status=201, cli="token create"
)
async def create_token(call: Call, asked: TokenInput) -> NewTokenView:
    """Create a token. The response contains the secret, which is shown only once."""
    token, secret = await changes.add_token(
        call.request, asked.name, asked.role, asked.queues, asked.expires_at
    )
    return NewTokenView(name=token.name, token=secret, expires_at=token.expires_at)


@endpoints.action(
    "/tokens/{name}/remove", "token-remove", Role.ADMIN, "token.remove",
    api="DELETE /tokens/{name}", cli="token revoke",
)  # fmt: skip
async def revoke_token(call: Call, token: Token) -> Done[TokenView]:
    """Revoke a token; any further call that uses the token is rejected."""
    await changes.remove_token(call.request, token)
    text = f"The token {token.name} was revoked."
    return Done(TokenView.of(token), text, call.back(call.url("tokens")))
