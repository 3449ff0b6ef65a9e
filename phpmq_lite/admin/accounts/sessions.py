"""Login, setup, logout, the user's own account, and all sessions."""

import json
from typing import Annotated, Final

from aiohttp import web
from pydantic import Field

from phpmq_lite.admin.accounts.accounts import KEPT_MS, LoginOrigin
from phpmq_lite.admin.accounts.audit import count_refused_login
from phpmq_lite.admin.accounts.services import accounts_of, services_of
from phpmq_lite.admin.accounts.setup_token import SETUP_FILE
from phpmq_lite.admin.accounts.users import add_user
from phpmq_lite.admin.http.browser_sessions import LOGIN, cookie_of
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Done, Endpoints, From
from phpmq_lite.admin.http.input import Form, parse_number
from phpmq_lite.admin.http.output import ListPage, ResponseModel
from phpmq_lite.admin.http.problems import Problem, invalid
from phpmq_lite.admin.http.source import address_of
from phpmq_lite.roles import Role
from phpmq_lite.server.addresses import address_key
from phpmq_lite.settings.loading import SHORTEST_PASSWORD
from phpmq_lite.storage.read.accounts import LoginSession, User

endpoints: Final = Endpoints()


def _check_attempts(call: Call) -> None:
    """Count an attempt to use a password or setup token, or raise a 429 ``Problem``."""
    address = address_of(call.request)
    seconds = services_of(call).throttle.wait_s(address, call.now_ms / 1_000)
    if seconds:
        wait = str(int(seconds) + 1)
        detail = f"Too many attempts from {address_key(address)} or from all addresses together. "
        detail += f"Try again in {wait} seconds. No account is locked."
        raise Problem(429, "too_many_tries", detail, headers={"Retry-After": wait})


def _check_same(form: Form) -> str:
    """Return the form's new password; raise a 422 ``Problem`` if its confirmation differs."""
    if (password := form.raw("password")) != form.raw("again"):
        raise invalid("The two passwords do not match.", "again")
    return password


def _origin_of(request: web.Request) -> LoginOrigin:
    agent = request.headers.get("User-Agent", "")
    return LoginOrigin(address_of(request), agent.encode("utf-8", "backslashreplace").decode())


def _redirect(url: str) -> web.Response:
    """Return a redirect that, unlike an ``HTTPSeeOther`` exception, can set a cookie."""
    return web.Response(status=303, headers={"Location": url})


# -- login


@endpoints.page("/login", "login", Role.PUBLIC)
async def show_login(call: Call) -> web.StreamResponse:
    """Show the login form."""
    if call.identity.kind == "user":
        form = call.context.sessions.forms.get(cookie_of(call.request))
        if form is not None and not call.request.query.get("next"):
            return await call.render("kept.html", kept=form)
        raise web.HTTPSeeOther(call.back(call.url("overview")))
    return await _login_page(call)


async def _login_page(
    call: Call, form: Form | None = None, problem: Problem | None = None
) -> web.Response:
    if problem is not None:
        await count_refused_login(call, problem)
    return await call.render_form(
        "login.html",
        problem,
        is_bare=True,
        goal=call.back(""),
        name="" if form is None else form.raw("name").strip(),
        has_users=bool(accounts_of(call).users),
        is_plain=not call.request.secure,
    )


@endpoints.action("/login", "log-in", Role.PUBLIC, "session.login", show_refused=_login_page)
async def submit_login(call: Call, form: Form) -> web.StreamResponse:
    """Check the name and password, and start a session."""
    name, is_kept = form.raw("name").strip(), form.raw("keep") == "yes"
    cookie = await _log_in(call, name, form.raw("password"), is_kept=is_kept)
    sessions, to = call.context.sessions, call.back(call.url("overview"))
    if sessions.begin_login(call.request, cookie, name):
        to = call.url("login")  # which shows the form
    response = _redirect(to)
    sessions.set_session(call.request, response, cookie, KEPT_MS // 1_000 if is_kept else None)
    return response


async def _log_in(call: Call, name: str, password: str, *, is_kept: bool) -> str:
    """Check a name and password, start a session and return its cookie."""
    services, accounts = services_of(call), accounts_of(call)
    user = accounts.users.get(name)
    # An unknown name is not stored, because people may type their password as the name.
    entry = call.audit(target=user.name if user else "")
    _check_attempts(call)
    stored = user.password if user else None
    is_right = await services.passwords.is_right(stored, password)
    if not is_right or user is None or stored is None or user.password != stored:
        raise Problem(401, "wrong_password", "The name or password is incorrect.", field="password")
    entry.actor, origin = user.name, _origin_of(call.request)
    cookie = await accounts.add_session(
        entry, user, call.now_ms, origin, is_kept=is_kept, password=stored
    )
    services.throttle.add_login(origin.address, call.now_ms / 1_000)
    if services.passwords.is_old(stored):
        await accounts.rehash(user, stored, await services.passwords.hash(password))
    return cookie


@endpoints.action("/logout", "logout", Role.PUBLIC, "session.logout")
async def submit_logout(call: Call) -> web.StreamResponse:
    """End the current session."""
    login = call.request.get(LOGIN)
    if login is not None:
        await _end_session(call, login)
    response = _redirect(call.url("login"))
    call.context.sessions.delete_cookie(call.request, response)
    return response


# -- the first admin


def _check_open(call: Call) -> None:
    if accounts_of(call).users:
        raise Problem(404, "unknown_page", "There is no page at this address.")


Open = Annotated[None, From(_check_open)]


@endpoints.page("/setup", "setup", Role.PUBLIC)
async def show_setup(
    call: Call, _open: Open, form: Form | None = None, problem: Problem | None = None
) -> web.Response:
    """Show the setup form for the first admin; respond with 404 if a user already exists."""
    if problem is not None and problem.code in ("wrong_token", "too_many_tries"):
        await count_refused_login(call, problem)
    return await call.render_form(
        "setup.html",
        problem,
        is_bare=True,
        name="admin" if form is None else form.raw("name").strip(),
        file=SETUP_FILE,
        shortest=SHORTEST_PASSWORD,
        is_plain=not call.request.secure,
    )


@endpoints.action("/setup", "set-up", Role.PUBLIC, "user.setup", show_refused=show_setup)
async def submit_setup(call: Call, _open: Open, form: Form) -> web.StreamResponse:
    """Create the first admin and log them in."""
    password, name = _check_same(form), form.raw("name").strip()
    _check_attempts(call)
    if not services_of(call).setup.is_right(form.raw("token")):
        detail = "Incorrect setup token. Use the token in the file setup-token in the data folder; "
        detail += "a new one is generated at every startup."
        raise Problem(403, "wrong_token", detail, field="token")
    user = await add_user(call, name, password, "admin", (), is_first=True)
    text = f"{user.name} is the first admin. These pages now require a login."
    return await _redirect_in_new_session(call, user, "overview", text)


async def _redirect_in_new_session(call: Call, user: User, page: str, text: str) -> web.Response:
    """Start a session for a user who just set a password; show a message on its first page."""
    origin, sessions = _origin_of(call.request), call.context.sessions
    cookie = await accounts_of(call).add_session(None, user, call.now_ms, origin, is_kept=False)
    response = _redirect(call.url(page))
    sessions.begin_login(call.request, cookie, user.name)
    sessions.set_session(call.request, response, cookie)
    sessions.store_message(cookie, text)
    return response


# -- all sessions


def _find_session(call: Call) -> LoginSession:
    return accounts_of(call).session_numbered(parse_number(call.path("n")) or 0)


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
    return SessionView.of(session, user=accounts_of(call).user_of(session).name, is_own=own)


@endpoints.api("GET /sessions", "api-sessions", Role.ADMIN)
async def list_sessions(call: Call) -> ListPage[SessionView]:
    """List the sessions, most recently used first."""
    sessions = accounts_of(call).open_sessions(call.now_ms)
    return ListPage[SessionView](items=[_view(call, session) for session in sessions])


@endpoints.page("/sessions", "sessions", Role.ADMIN, data=list_sessions)
async def show_sessions(call: Call) -> web.Response:
    """List the sessions, most recently used first."""
    accounts, own = accounts_of(call), call.request.get(LOGIN)
    sessions = accounts.open_sessions(call.now_ms)
    return await call.render("sessions.html", sessions=sessions, user_of=accounts.user_of, own=own)


@endpoints.action(
    "/sessions/{n}/end", "session-end", Role.ADMIN, "session.end", api="DELETE /sessions/{n}"
)
async def end_session(call: Call, session: Session) -> Done[SessionView]:
    """End a session, so that its browser must log in again."""
    view = _view(call, session)
    await _end_session(call, session)
    return Done(view, "The session was ended.", call.back(call.url("sessions")))


async def _end_session(call: Call, session: LoginSession) -> None:
    """End a session; callers limited to some queues can end only their own sessions."""
    own: LoginSession | None = call.request.get(LOGIN)
    if own is None or own.user_id != session.user_id:
        call.check_all_queues("change users, tokens and sessions")
    accounts = accounts_of(call)
    await accounts.remove_session(call.audit(target=accounts.user_of(session).name), session)


# -- one's own account


def _find_own_user(call: Call) -> User:
    if call.identity.kind != "user":
        raise Problem(403, "no_user", "Only logged-in users can do this.")
    return accounts_of(call).user_of(call.request[LOGIN])


OwnUser = Annotated[User, From(_find_own_user)]


@endpoints.page("/account", "account")
async def show_account(
    call: Call, user: OwnUser, _form: Form | None = None, problem: Problem | None = None
) -> web.Response:
    """Show the user's own account: password and sessions."""
    return await call.render_form(
        "account.html",
        problem,
        user=user,
        sessions=accounts_of(call).sessions_of(user, call.now_ms),
        own=call.request.get(LOGIN),
        shortest=SHORTEST_PASSWORD,
    )


@endpoints.action(
    "/account/password", "account-password", Role.VIEWER, "user.password", show_refused=show_account
)
async def submit_own_password(call: Call, user: OwnUser, form: Form) -> web.StreamResponse:
    """Change the user's own password, end their other sessions and renew this session's id."""
    new, passwords = _check_same(form), services_of(call).passwords
    entry = call.audit(target=user.name, detail=json.dumps({"password": "changed"}))
    _check_attempts(call)
    if not await passwords.is_right(user.password, form.raw("old")):
        raise Problem(403, "wrong_password", "The old password is incorrect.", field="old")
    await accounts_of(call).change_user(entry, user, password=await passwords.hash(new))
    text = "Your password was changed. Your other sessions have ended."
    return await _redirect_in_new_session(call, user, "account", text)


@endpoints.action("/account/sessions/{n}/end", "account-end", Role.VIEWER, "session.end")
async def submit_own_session_end(call: Call, user: OwnUser, session: Session) -> Done[None]:
    """End another of the user's own sessions."""
    if session.user_id != user.user_id:
        raise Problem(404, "unknown_session", "You have no session with this number.")
    await _end_session(call, session)
    return Done(None, "The session was ended.", call.url("account"))
