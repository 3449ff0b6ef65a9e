"""Login, setup, logout, the user's own account, and all sessions."""

from typing import Any, Final

from aiohttp import web
from pydantic import Field

from phpmq_lite.admin.auth import request_audit, users
from phpmq_lite.admin.auth.accounts import KEPT_MS
from phpmq_lite.admin.auth.passwords import SHORTEST
from phpmq_lite.admin.auth.sessions import LOGIN, cookie_of
from phpmq_lite.admin.auth.setup_token import FILE
from phpmq_lite.admin.base.context import context_of
from phpmq_lite.admin.base.identity import identity_of
from phpmq_lite.admin.base.input import FormatQuery, read_next_path
from phpmq_lite.admin.base.problems import Problem
from phpmq_lite.admin.base.request_body import read_form_field
from phpmq_lite.admin.base.responses import ListPage, ResponseModel, redirect_with_session
from phpmq_lite.admin.base.route import Role, Route
from phpmq_lite.admin.base.urls import own_path_or
from phpmq_lite.admin.resource import Api, Page, Resource, render_form
from phpmq_lite.admin.views.rendering import render_page
from phpmq_lite.storage.read.accounts import LoginSession, User


async def show_login(request: web.Request) -> web.StreamResponse:
    """Show the login form."""
    goal = request.query.get("next", "")
    if identity_of(request).kind == "user":
        kept = context_of(request).sessions.forms.get(cookie_of(request))
        if kept is not None and not goal:
            return await render_page(request, "kept.html", kept=kept)
        raise web.HTTPSeeOther(own_path_or(goal, _home(request)))
    return await _login_page(request, goal)


async def _login_page(
    request: web.Request, goal: str, name: str = "", problem: Problem | None = None
) -> web.Response:
    context = context_of(request)
    return await render_form(
        request,
        "login.html",
        problem,
        is_bare=True,
        goal=own_path_or(goal, ""),
        name=name,
        has_users=bool(context.auth.accounts.users),
        is_plain=not request.secure,
    )


async def submit_login(request: web.Request) -> web.StreamResponse:
    """Check the name and password, and start a session."""
    name = (await read_form_field(request, "name")).strip()
    is_kept = await read_form_field(request, "keep") == "yes"
    try:
        cookie = await users.log_in(
            request, name, await read_form_field(request, "password"), is_kept=is_kept
        )
    except Problem as problem:
        await request_audit.count_refused_login(request, problem)
        return await _login_page(request, await read_form_field(request, "next"), name, problem)
    context = context_of(request)
    to = await read_next_path(request, _home(request))
    if context.sessions.begin_login(request, cookie, name):
        to = context.urls.to("login")  # which shows the form
    response = redirect_with_session(to)
    context.sessions.set_session(request, response, cookie, KEPT_MS // 1_000 if is_kept else None)
    return response


async def submit_logout(request: web.Request) -> web.StreamResponse:
    """End the current session."""
    context = context_of(request)
    login = request.get(LOGIN)
    if login is not None:
        await users.end_session(request, login)
    response = redirect_with_session(context.urls.to("login"))
    context.sessions.delete_cookie(request, response)
    return response


def _home(request: web.Request) -> str:
    return context_of(request).urls.to("overview")


async def show_setup(request: web.Request) -> web.StreamResponse:
    """Show the setup form for the first admin; respond with 404 if a user already exists."""
    _check_open(request)
    return await _setup_page(request, "admin")


def _check_open(request: web.Request) -> None:
    if context_of(request).auth.accounts.users:
        raise Problem(404, "unknown_page", "There is no page at this address.")


async def _setup_page(
    request: web.Request, name: str, problem: Problem | None = None
) -> web.Response:
    return await render_form(
        request,
        "setup.html",
        problem,
        is_bare=True,
        name=name,
        file=FILE,
        shortest=SHORTEST,
        is_plain=not request.secure,
    )


async def submit_setup(request: web.Request) -> web.StreamResponse:
    """Create the first admin and log them in."""
    _check_open(request)
    name = (await read_form_field(request, "name")).strip()
    password = await read_form_field(request, "password")
    try:
        users.check_same(password, await read_form_field(request, "again"))
        user = await users.add_first_user(
            request, await read_form_field(request, "token"), name, password
        )
    except Problem as problem:
        if problem.code in ("wrong_token", "too_many_tries"):
            await request_audit.count_refused_login(request, problem)
        request_audit.mark_refused(request, problem)
        return await _setup_page(request, name, problem)
    text = f"{user.name} is the first admin. These pages now require a login."
    return await _redirect_in_new_session(request, user, "overview", text)


async def _redirect_in_new_session(
    request: web.Request, user: User, page: str, text: str
) -> web.Response:
    """Start a session for a user who just set a password; show a message on its first page."""
    context = context_of(request)
    cookie = await context.auth.accounts.add_session(
        None, user, context.now_ms(), users.login_origin_of(request), is_kept=False
    )
    response = redirect_with_session(context.urls.to(page))
    context.sessions.begin_login(request, cookie, user.name)
    context.sessions.set_session(request, response, cookie)
    context.sessions.store_message_for(cookie, text)
    return response


class SessionView(ResponseModel):
    """A login session."""

    id: int = Field(validation_alias="session_id", description="session number")
    user: str = Field(description="user name")
    created_at: int = Field(description="when the session was created, Unix ms")
    seen_at: int = Field(description="when last used, Unix ms; may lag by five minutes")
    expires_at: int = Field(description="when the session expires at the latest, Unix ms")
    address: str = Field(description="host or host:port; unix or control on the broker's machine")
    agent: str = Field(description="the browser's User-Agent")
    is_own: bool = Field(description="whether this request belongs to the session")


def _view(request: web.Request, session: LoginSession) -> SessionView:
    return SessionView.of(
        session,
        user=context_of(request).auth.accounts.user_of(session).name,
        is_own=session is request.get(LOGIN),
    )


async def find_sessions(request: web.Request, _query: FormatQuery) -> list[LoginSession]:
    """List the sessions, most recently used first."""
    context = context_of(request)
    return context.auth.accounts.open_sessions(context.now_ms())


async def end_session(request: web.Request, _asked: None) -> SessionView:
    """End a session, so that its browser must log in again."""
    session = context_of(request).auth.accounts.session_numbered(users.parse_id(request))
    view = _view(request, session)
    await users.end_session(request, session)
    return view


async def _values(request: web.Request, _query: object, _found: object) -> dict[str, Any]:
    accounts = context_of(request).auth.accounts
    return {"user_of": accounts.user_of, "own": request.get(LOGIN)}


_PATH: Final = "/api/v1/sessions"
RESOURCES: Final = (
    Resource(
        run=find_sessions, role=Role.ADMIN, view_model=ListPage[SessionView],
        view=lambda request, found: ListPage[SessionView](
            items=[_view(request, one) for one in found]
        ),
        page=Page("/sessions", "sessions", "sessions.html", _values),
        api=Api("GET", _PATH, "api-sessions"),
    ),
    Resource(
        run=end_session, role=Role.ADMIN, audit="session.end",
        page=Page(
            "/sessions/{n}/end", "session-end",
            done=lambda request, _asked, _view: (
                "The session was ended.", context_of(request).urls.to("sessions")
            ),
        ),
        api=Api("DELETE", f"{_PATH}/{{n}}", "api-session-end"),
    ),
)  # fmt: skip


async def show_account(request: web.Request, problem: Problem | None = None) -> web.StreamResponse:
    """Show the user's own account: password and sessions."""
    context = context_of(request)
    user = users.user_of(request)
    return await render_form(
        request,
        "account.html",
        problem,
        user=user,
        sessions=context.auth.accounts.sessions_of(user, context.now_ms()),
        own=request.get(LOGIN),
        shortest=SHORTEST,
    )


async def submit_own_password(request: web.Request) -> web.StreamResponse:
    """Change the user's own password, end their other sessions and renew this session's id."""
    try:
        new = await read_form_field(request, "password")
        users.check_same(new, await read_form_field(request, "again"))
        user = await users.change_own_password(request, await read_form_field(request, "old"), new)
    except Problem as problem:
        request_audit.mark_refused(request, problem)
        return await show_account(request, problem)
    text = "Your password was changed. Your other sessions have ended."
    return await _redirect_in_new_session(request, user, "account", text)


async def submit_own_session_end(request: web.Request) -> web.StreamResponse:
    """End another of the user's own sessions."""
    context = context_of(request)
    session = context.auth.accounts.session_numbered(users.parse_id(request))
    if session.user_id != users.user_of(request).user_id:
        raise Problem(404, "unknown_session", "You have no session with this number.")
    await users.end_session(request, session)
    context.sessions.store_message(request, "The session was ended.")
    raise web.HTTPSeeOther(context.urls.to("account"))


ROUTES: Final = (
    Route("GET", "/login", Role.PUBLIC, "login", show_login),
    Route("POST", "/login", Role.PUBLIC, "log-in", submit_login, "session.login"),
    Route("POST", "/logout", Role.PUBLIC, "logout", submit_logout, "session.logout"),
    Route("GET", "/setup", Role.PUBLIC, "setup", show_setup),
    Route("POST", "/setup", Role.PUBLIC, "set-up", submit_setup, "user.setup"),
    *(route for resource in RESOURCES for route in resource.routes()),
    Route("GET", "/account", Role.VIEWER, "account", show_account),
    Route(
        "POST", "/account/password", Role.VIEWER, "account-password", submit_own_password,
        "user.password",
    ),
    Route(
        "POST", "/account/sessions/{n}/end", Role.VIEWER, "account-end", submit_own_session_end,
        "session.end",
    ),
)  # fmt: skip
