"""API tokens over HTTP; the token itself is in the answer that makes it, and nowhere else."""

from typing import Final, Literal, Self

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin.access import people
from phpmq_lite.admin.access.identity import name_in
from phpmq_lite.admin.api.users import Globs
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_data, as_json
from phpmq_lite.admin.requests import json_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.storage.read.accounts import ApiToken

_LATEST_MS: Final = 1 << 52


class TokenIn(BaseModel):
    """A token to make."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    role: Literal["metrics", "viewer", "operator", "admin"]
    queues: Globs = Field([], description="globs of the queues it may see; empty: all")
    expires_at: int | None = Field(
        None, gt=0, le=_LATEST_MS, description="Unix milliseconds; null: never"
    )


class TokenOut(BaseModel):
    """One token, without its secret; times are Unix milliseconds."""

    name: str
    role: str
    queues: list[str]
    created_at: int
    created_by: str
    expires_at: int | None
    last_used_at: int | None

    @classmethod
    def of(cls, token: ApiToken) -> Self:
        """Show what may be shown of a token."""
        return cls(
            name=token.name,
            role=token.role,
            queues=list(token.queues),
            created_at=token.created_at,
            created_by=token.created_by,
            expires_at=token.expires_at,
            last_used_at=token.last_used_at,
        )


class TokenMade(BaseModel):
    """A token that was just made, with its secret: nobody can ask for it again."""

    name: str
    token: str
    expires_at: int | None


class TokensOut(BaseModel):
    """All tokens."""

    items: list[TokenOut]
    next: str | None = None


def tokens_out(request: web.Request) -> list[TokenOut]:
    """Give all tokens by name, without their secrets."""
    known = context_of(request).entrance.accounts.tokens.values()
    return [TokenOut.of(token) for token in people.visible(request, known)]


async def tokens(request: web.Request) -> web.StreamResponse:
    """List the tokens, without their secrets."""
    return as_data("json", TokenOut, tokens_out(request))


async def add(request: web.Request) -> web.StreamResponse:
    """Make a token; the answer has it, this once."""
    asked = await json_of(request, TokenIn)
    token, secret = await people.add_token(
        request, asked.name, asked.role, asked.queues, asked.expires_at
    )
    made = TokenMade(name=token.name, token=secret, expires_at=token.expires_at)
    return as_json(made, status=201)


async def remove(request: web.Request) -> web.StreamResponse:
    """Revoke a token; the next call with it is refused."""
    name = name_in(request, "name")
    token = context_of(request).entrance.accounts.token_named(name)
    await people.remove_token(request, token)
    return as_json(TokenOut.of(token))


_PATH: Final = "/api/v1/tokens"
ROUTES: Final = (
    Route("GET", _PATH, Role.ADMIN, "api-tokens", tokens, gives=TokensOut, cli="token ls"),
    Route("POST", _PATH, Role.ADMIN, "api-token-add", add, "token.add", takes=TokenIn,
          gives=TokenMade, status=201, cli="token add"),
    Route("DELETE", f"{_PATH}/{{name}}", Role.ADMIN, "api-token-remove", remove, "token.remove",
          gives=TokenOut, cli="token rm"),
)  # fmt: skip
