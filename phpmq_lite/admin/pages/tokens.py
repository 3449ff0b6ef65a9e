"""API tokens: the list, a new one, shown once, and revoking."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin.access import people
from phpmq_lite.admin.access.identity import identity_of, name_in
from phpmq_lite.admin.api.tokens import TokenOut, tokens_out
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_data
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import FormatQuery
from phpmq_lite.admin.uploads import field_of

DAYS: Final = {"": None, "30": 30, "90": 90, "365": 365}
_DAY_MS: Final = 86_400_000


async def tokens(request: web.Request) -> web.StreamResponse:
    """All tokens, and a form for another one."""
    query = query_of(request, FormatQuery)
    if query.format != "html":
        return as_data(query.format, TokenOut, tokens_out(request))
    return await _list(request, {})


async def _list(
    request: web.Request,
    form: dict[str, str],
    problem: Problem | None = None,
    made: tuple[str, str] | None = None,
) -> web.Response:
    accounts = context_of(request).entrance.accounts
    return await page(
        request,
        "tokens.html",
        status=problem.status if problem else 200,
        tokens=people.visible(request, accounts.tokens.values()),
        form=form,
        problem=problem,
        made=made,
        roles=people.TOKEN_ROLES,
        is_local=identity_of(request).kind == "local",
        limits=identity_of(request).queues,
    )


async def add(request: web.Request) -> web.StreamResponse:
    """Make a token, and show it this once."""
    form = {key: await field_of(request, key) for key in ("name", "role", "queues", "days")}
    try:
        expires_at = _expiry(form["days"], context_of(request).now_ms())
        token, secret = await people.add_token(
            request, form["name"].strip(), form["role"], people.lines(form["queues"]), expires_at
        )
    except Problem as problem:
        people.refuse(request, problem)
        return await _list(request, form, problem)
    return await _list(request, {}, made=(token.name, secret))


def _expiry(days: str, now_ms: int) -> int | None:
    if days not in DAYS:
        raise Problem(422, "invalid", "days: unknown.", field="days", bound="30, 90 or 365")
    count = DAYS[days]
    return None if count is None else now_ms + count * _DAY_MS


async def remove(request: web.Request) -> web.StreamResponse:
    """Revoke a token."""
    context = context_of(request)
    token = context.entrance.accounts.token_named(name_in(request, "name"))
    await people.remove_token(request, token)
    context.sessions.note(request, f"The token {token.name} is revoked.")
    raise web.HTTPSeeOther(context.urls.to("tokens"))


ROUTES: Final = (
    Route("GET", "/tokens", Role.ADMIN, "tokens", tokens),
    Route("POST", "/tokens", Role.ADMIN, "token-add", add, "token.add"),
    Route("POST", "/tokens/{name}/remove", Role.ADMIN, "token-remove", remove, "token.remove"),
)
