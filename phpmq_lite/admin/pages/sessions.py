"""Sessions of all users, and the own account of who looks."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin.access import people
from phpmq_lite.admin.access.passwords import SHORTEST
from phpmq_lite.admin.access.sessions import LOGIN
from phpmq_lite.admin.api.sessions import SessionOut, sessions_out
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_data
from phpmq_lite.admin.pages.login import see_other
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import next_of, query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import FormatQuery
from phpmq_lite.admin.uploads import field_of


async def sessions(request: web.Request) -> web.StreamResponse:
    """Who is logged in, from where, since when."""
    context, query = context_of(request), query_of(request, FormatQuery)
    if query.format != "html":
        return as_data(query.format, SessionOut, sessions_out(request))
    accounts = context.entrance.accounts
    return await page(
        request,
        "sessions.html",
        sessions=accounts.open_sessions(context.now_ms()),
        user_of=accounts.user_of,
        own=request.get(LOGIN),
    )


async def end(request: web.Request) -> web.StreamResponse:
    """End a session; its browser has to log in again."""
    context = context_of(request)
    session = context.entrance.accounts.session_numbered(people.number_of(request))
    await people.end_session(request, session)
    context.sessions.note(request, "The session is ended.")
    raise web.HTTPSeeOther(await next_of(request, context.urls.to("sessions")))


async def account(request: web.Request) -> web.StreamResponse:
    """The own account: password and sessions."""
    return await _account(request)


async def _account(request: web.Request, problem: Problem | None = None) -> web.Response:
    context = context_of(request)
    user = people.user_of(request)
    return await page(
        request,
        "account.html",
        status=problem.status if problem else 200,
        user=user,
        sessions=context.entrance.accounts.sessions_of(user, context.now_ms()),
        own=request.get(LOGIN),
        shortest=SHORTEST,
        problem=problem,
    )


async def change_password(request: web.Request) -> web.StreamResponse:
    """Change the own password; other sessions end, this one goes on under a new id."""
    context = context_of(request)
    try:
        new = await field_of(request, "password")
        people.check_same(new, await field_of(request, "again"))
        user = await people.change_own_password(request, await field_of(request, "old"), new)
    except Problem as problem:
        people.refuse(request, problem)
        return await _account(request, problem)
    cookie = await people.start_session(request, user)
    response = see_other(context.urls.to("account"))
    context.sessions.give(request, response, cookie)
    context.sessions.note_for(cookie, "Your password is changed; your other sessions are ended.")
    return response


async def end_own(request: web.Request) -> web.StreamResponse:
    """End another session of one's own."""
    context = context_of(request)
    session = context.entrance.accounts.session_numbered(people.number_of(request))
    if session.user_id != people.user_of(request).user_id:
        raise Problem(404, "unknown_session", "You have no such session.")
    await people.end_session(request, session)
    context.sessions.note(request, "The session is ended.")
    raise web.HTTPSeeOther(context.urls.to("account"))


ROUTES: Final = (
    Route("GET", "/sessions", Role.ADMIN, "sessions", sessions),
    Route("POST", "/sessions/{n}/end", Role.ADMIN, "session-end", end, "session.end"),
    Route("GET", "/account", Role.VIEWER, "account", account),
    Route(
        "POST", "/account/password", Role.VIEWER, "account-password", change_password,
        "user.password",
    ),
    Route("POST", "/account/sessions/{n}/end", Role.VIEWER, "account-end", end_own, "session.end"),
)  # fmt: skip
