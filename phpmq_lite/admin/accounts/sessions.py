"""Login, setup, logout, the user's own account, and all sessions."""

from typing import Annotated, Final

from aiohttp import web
from pydantic import Field

from phpmq_lite.admin.accounts import changes
from phpmq_lite.admin.accounts.accounts import KEPT_MS
from phpmq_lite.admin.accounts.setup_token import FILE
from phpmq_lite.admin.http import request_audit
from phpmq_lite.admin.http.browser_sessions import LOGIN, cookie_of
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Done, Endpoints, From
from phpmq_lite.admin.http.fields import Form, FormatQuery
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.responses import ListPage, ResponseModel, redirect_with_session
from phpmq_lite.admin.http.route import Role
from phpmq_lite.settings.initial_password import SHORTEST
from phpmq_lite.storage.read.accounts import LoginSession, User

endpoints: Final = Endpoints()


# -- login


@endpoints.page("/login", "login", Role.PUBLIC)
async def show_login(call: Call) -> web.StreamResponse:
    """Show the login form."""
    if call.identity.kind == "user":
        kept = call.context.sessions.forms.get(cookie_of(call.request))
        if kept is not None and not call.request.query.get("next"):
            return await call.render("kept.html", kept=kept)
        raise web.HTTPSeeOther(call.back(call.url("overview")))
    return await _login_page(call)


async def _login_page(
    call: Call, form: Form | None = None, problem: Problem | None = None
) -> web.Response:
    if problem is not None:
        await request_audit.count_refused_login(call.request, problem)
    return await call.render_form(
        "login.html",
        problem,
        is_bare=True,
        goal=call.back(""),
        name="" if form is None else form.raw("name").strip(),
        has_users=bool(call.accounts.users),
        is_plain=not call.request.secure,
    )


@endpoints.action("/login", "log-in", Role.PUBLIC, "session.login", again=_login_page)
async def submit_login(call: Call, form: Form) -> web.StreamResponse:
    """Check the name and password, and start a session."""
    name, is_kept = form.raw("name").strip(), form.raw("keep") == "yes"
    cookie = await changes.log_in(call.request, name, form.raw("password"), is_kept=is_kept)
    sessions, to = call.context.sessions, call.back(call.url("overview"))
    if sessions.begin_login(call.request, cookie, name):
        to = call.url("login")  # which shows the form
    response = redirect_with_session(to)
    sessions.set_session(call.request, response, cookie, KEPT_MS // 1_000 if is_kept else None)
    return response


@endpoints.action("/logout", "logout", Role.PUBLIC, "session.logout")
async def submit_logout(call: Call) -> web.StreamResponse:
    """End the current session."""
    login = call.request.get(LOGIN)
    if login is not None:
        await changes.end_session(call.request, login)
    response = redirect_with_session(call.url("login"))
    call.context.sessions.delete_cookie(call.request, response)
    return response


# -- the first admin


def _check_open(call: Call) -> None:
    if call.accounts.users:
        raise Problem(404, "unknown_page", "There is no page at this address.")


Open = Annotated[None, From(_check_open)]


@endpoints.page("/setup", "setup", Role.PUBLIC)
async def show_setup(call: Call, _open: Open) -> web.StreamResponse:
    """Show the setup form for the first admin; respond with 404 if a user already exists."""
    return await _setup_page(call, None)


async def _setup_page(
    call: Call, _open: None, form: Form | None = None, problem: Problem | None = None
) -> web.Response:
    if problem is not None and problem.code in ("wrong_token", "too_many_tries"):
        await request_audit.count_refused_login(call.request, problem)
    return await call.render_form(
        "setup.html",
        problem,
        is_bare=True,
        name="admin" if form is None else form.raw("name").strip(),
        file=FILE,
        shortest=SHORTEST,
        is_plain=not call.request.secure,
    )


@endpoints.action("/setup", "set-up", Role.PUBLIC, "user.setup", again=_setup_page)
async def submit_setup(call: Call, _open: Open, form: Form) -> web.StreamResponse:
    """Create the first admin and log them in."""
    password, name = form.raw("password"), form.raw("name").strip()
    changes.check_same(password, form.raw("again"))
    user = await changes.add_first_user(call.request, form.raw("token"), name, password)
    text = f"{user.name} is the first admin. These pages now require a login."
    return await _redirect_in_new_session(call, user, "overview", text)


async def _redirect_in_new_session(call: Call, user: User, page: str, text: str) -> web.Response:
    """Start a session for a user who just set a password; show a message on its first page."""
    origin, sessions = changes.login_origin_of(call.request), call.context.sessions
    cookie = await call.accounts.add_session(None, user, call.now_ms, origin, is_kept=False)
    response = redirect_with_session(call.url(page))
    sessions.begin_login(call.request, cookie, user.name)
    sessions.set_session(call.request, response, cookie)
    sessions.store_message_for(cookie, text)
    return response


# -- all sessions


def _find_session(call: Call) -> LoginSession:
    return call.accounts.session_numbered(changes.parse_id(call.request))


Session = Annotated[LoginSession, From(_find_session)]


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


def _view(call: Call, session: LoginSession) -> SessionView:
    own = session is call.request.get(LOGIN)
    return SessionView.of(session, user=call.accounts.user_of(session).name, is_own=own)


@endpoints.api("GET /sessions", "api-sessions", Role.ADMIN)
async def list_sessions(call: Call) -> ListPage[SessionView]:
    """List the sessions, most recently used first."""
    found = call.accounts.open_sessions(call.now_ms)
    return ListPage[SessionView](items=[_view(call, session) for session in found])


@endpoints.page("/sessions", "sessions", Role.ADMIN, data=list_sessions)
async def show_sessions(call: Call, _query: FormatQuery) -> web.Response:
    """List the sessions, most recently used first."""
    accounts, own = call.accounts, call.request.get(LOGIN)
    found = accounts.open_sessions(call.now_ms)
    return await call.render("sessions.html", found=found, user_of=accounts.user_of, own=own)


@endpoints.action(
    "/sessions/{n}/end", "session-end", Role.ADMIN, "session.end", api="DELETE /sessions/{n}"
)
async def end_session(call: Call, session: Session) -> Done[SessionView]:
    """End a session, so that its browser must log in again."""
    view = _view(call, session)
    await changes.end_session(call.request, session)
    return Done(view, "The session was ended.", call.back(call.url("sessions")))


# -- one's own account


@endpoints.page("/account", "account")
async def show_account(call: Call) -> web.StreamResponse:
    """Show the user's own account: password and sessions."""
    return await _account_page(call)


async def _account_page(
    call: Call, _form: Form | None = None, problem: Problem | None = None
) -> web.Response:
    user = changes.user_of(call.request)
    return await call.render_form(
        "account.html",
        problem,
        user=user,
        sessions=call.accounts.sessions_of(user, call.now_ms),
        own=call.request.get(LOGIN),
        shortest=SHORTEST,
    )


@endpoints.action(
    "/account/password", "account-password", Role.VIEWER, "user.password", again=_account_page
)
async def submit_own_password(call: Call, form: Form) -> web.StreamResponse:
    """Change the user's own password, end their other sessions and renew this session's id."""
    new = form.raw("password")
    changes.check_same(new, form.raw("again"))
    user = await changes.change_own_password(call.request, form.raw("old"), new)
    text = "Your password was changed. Your other sessions have ended."
    return await _redirect_in_new_session(call, user, "account", text)


@endpoints.action("/account/sessions/{n}/end", "account-end", Role.VIEWER, "session.end")
async def submit_own_session_end(call: Call, session: Session) -> Done[None]:
    """End another of the user's own sessions."""
    if session.user_id != changes.user_of(call.request).user_id:
        raise Problem(404, "unknown_session", "You have no session with this number.")
    await changes.end_session(call.request, session)
    return Done(None, "The session was ended.", call.url("account"))
