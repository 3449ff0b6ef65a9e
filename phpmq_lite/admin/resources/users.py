"""Users: page and API."""

from typing import Annotated, Final, Literal

from aiohttp import web
from pydantic import Field, SecretStr

from phpmq_lite.admin.auth import request_audit, users
from phpmq_lite.admin.auth.passwords import SHORTEST
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
from phpmq_lite.admin.views.rendering import render_page
from phpmq_lite.storage.read.accounts import User

RoleName = Literal["viewer", "operator", "admin"]
Globs = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=users.GLOB_LENGTH)]],
    Field(max_length=users.GLOBS),
]


class UserInput(StrictInput):
    """A user to make."""

    name: str = Field(description="1 to 64 letters, digits and . _ @ + -")
    password: SecretStr = Field(description="12 to 1024 characters")
    role: RoleName = Field(description="viewer, operator or admin")
    queues: Globs = Field([], description="globs of the queues they may see; empty: all")


class UserChangeInput(StrictInput):
    """What to change; what is left out stays.  All sessions of the user end."""

    password: SecretStr | None = Field(None, description="12 to 1024 characters; null: unchanged")
    role: RoleName | None = Field(None, description="viewer, operator or admin; null: unchanged")
    queues: Globs | None = Field(None, description="visible queues; null: unchanged")


class UserView(View):
    """One user; times are Unix milliseconds."""

    name: str = Field(description="name")
    role: str = Field(description="viewer, operator or admin")
    queues: list[str] = Field(description="globs of the visible queues; empty: all")
    created_at: int = Field(description="when it was created, Unix ms")
    last_login_at: int | None = Field(description="Unix ms; null: never")


def users_view(request: web.Request) -> list[UserView]:
    """Return the users by name, without those of queues that the caller may not use."""
    known = context_of(request).entrance.accounts.users.values()
    return [UserView.of(user) for user in users.visible_accounts(request, known)]


async def list_users(request: web.Request) -> web.StreamResponse:
    """List the users."""
    return list_response("json", UserView, users_view(request))


async def create_user(request: web.Request) -> web.StreamResponse:
    """Make a user."""
    asked = await read_json_model(request, UserInput)
    password = asked.password.get_secret_value()
    user = await users.add_user(request, asked.name, password, asked.role, asked.queues)
    return json_response(UserView.of(user), status=201)


async def get_user(request: web.Request) -> web.StreamResponse:
    """Give one user."""
    name = path_name(request, "name")
    return json_response(UserView.of(users.visible_user(request, name)))


async def change_account(request: web.Request) -> web.StreamResponse:
    """Change password, role or queues of a user; all their sessions end."""
    asked, user = await read_json_model(request, UserChangeInput), _named(request)
    password = None if asked.password is None else asked.password.get_secret_value()
    await users.change_user(request, user, role=asked.role, globs=asked.queues, password=password)
    return json_response(UserView.of(user))


async def delete_user(request: web.Request) -> web.StreamResponse:
    """Remove a user; all their sessions end."""
    user = _named(request)
    await users.remove_user(request, user)
    return json_response(UserView.of(user))


def _named(request: web.Request) -> User:
    name = path_name(request, "name")
    return context_of(request).entrance.accounts.user_named(name)


_PATH: Final = "/api/v1/users"
API_ROUTES: Final = (
    Route(
        "GET", _PATH, Role.ADMIN, "api-users", list_users, gives=ListPage[UserView], cli="user list"
    ),
    Route(
        "POST",
        _PATH,
        Role.ADMIN,
        "api-user-add",
        create_user,
        "user.add",
        takes=UserInput,
        gives=UserView,
        status=201,
        cli="user create",
    ),
    Route("GET", f"{_PATH}/{{name}}", Role.ADMIN, "api-user", get_user, gives=UserView),
    Route(
        "PATCH",
        f"{_PATH}/{{name}}",
        Role.ADMIN,
        "api-user-change",
        change_account,
        "user.change",
        takes=UserChangeInput,
        gives=UserView,
        cli="user set-password",
    ),
    Route(
        "DELETE",
        f"{_PATH}/{{name}}",
        Role.ADMIN,
        "api-user-remove",
        delete_user,
        "user.remove",
        gives=UserView,
        cli="user delete",
    ),
)


async def show_users(request: web.Request) -> web.StreamResponse:
    """All users, and a form for another one."""
    query = read_query(request, FormatQuery)
    if query.format != "html":
        return list_response(query.format, UserView, users_view(request))
    return await _list(request, {})


async def _list(
    request: web.Request, form: dict[str, str], problem: Problem | None = None
) -> web.Response:
    accounts = context_of(request).entrance.accounts
    return await render_page(
        request,
        "users.html",
        status=problem.status if problem else 200,
        users=users.visible_accounts(request, accounts.users.values()),
        form=form,
        problem=problem,
        roles=users.ROLES,
        shortest=SHORTEST,
        is_local=identity_of(request).kind == "local",
        limits=identity_of(request).queues,
    )


async def submit_user(request: web.Request) -> web.StreamResponse:
    """Make a user."""
    context = context_of(request)
    form = {key: await read_form_field(request, key) for key in ("name", "role", "queues")}
    try:
        user = await users.add_user(
            request,
            form["name"].strip(),
            await read_form_field(request, "password"),
            form["role"],
            users.split_lines(form["queues"]),
        )
    except Problem as problem:
        request_audit.mark_refused(request, problem)
        return await _list(request, form, problem)
    context.sessions.note(request, f"{user.name} can log in now.")
    raise web.HTTPSeeOther(context.urls.to("users"))


async def show_user(request: web.Request) -> web.StreamResponse:
    """One user: rights, password, sessions, removal."""
    name = path_name(request, "name")
    return await _one(request, users.visible_user(request, name))


async def _one(request: web.Request, user: User, problem: Problem | None = None) -> web.Response:
    accounts = context_of(request).entrance.accounts
    sessions = accounts.sessions_of(user, context_of(request).now_ms())
    return await render_page(
        request,
        "user.html",
        status=problem.status if problem else 200,
        user=user,
        limits=identity_of(request).queues,
        sessions=sessions,
        roles=users.ROLES,
        shortest=SHORTEST,
        problem=problem,
    )


async def submit_rights(request: web.Request) -> web.StreamResponse:
    """Give a user another role or other queues; their sessions end."""
    user, globs = _named(request), users.split_lines(await read_form_field(request, "queues"))
    if globs == users.split_lines("\n".join(user.queues)):
        globs = list(user.queues)
    try:
        role = await read_form_field(request, "role")
        if (role, tuple(globs)) == (user.role, user.queues):
            return _done(request, f"Nothing was changed: {user.name} is {role} already.", user)
        await users.change_user(request, user, role=role, globs=globs)
    except Problem as problem:
        request_audit.mark_refused(request, problem)
        return await _one(request, user, problem)
    return _done(request, f"{user.name} is {user.role} now, and has to log in again.", user)


async def submit_password(request: web.Request) -> web.StreamResponse:
    """Give a user another password; their sessions end."""
    user, password = _named(request), await read_form_field(request, "password")
    try:
        await users.change_user(request, user, password=password)
    except Problem as problem:
        request_audit.mark_refused(request, problem)
        return await _one(request, user, problem)
    return _done(
        request, f"The password of {user.name} is changed; they have to log in again.", user
    )


async def submit_user_removal(request: web.Request) -> web.StreamResponse:
    """Remove a user; the name has to be typed."""
    user = _named(request)
    try:
        users.check_typed_name(await read_form_field(request, "typed"), user.name)
        await users.remove_user(request, user, (await read_form_field(request, "reason"))[:500])
    except Problem as problem:
        request_audit.mark_refused(request, problem)
        return await _one(request, user, problem)
    return _done(request, f"{user.name} is removed.", None)


def _done(request: web.Request, text: str, user: User | None) -> web.StreamResponse:
    context = context_of(request)
    context.sessions.note(request, text)
    url = context.urls.to("user", name=user.name) if user else context.urls.to("users")
    raise web.HTTPSeeOther(url)


PAGE_ROUTES: Final = (
    Route("GET", "/users", Role.ADMIN, "users", show_users),
    Route("POST", "/users", Role.ADMIN, "user-add", submit_user, "user.add"),
    Route("GET", "/users/{name}", Role.ADMIN, "user", show_user),
    Route("POST", "/users/{name}/rights", Role.ADMIN, "user-rights", submit_rights, "user.change"),
    Route(
        "POST",
        "/users/{name}/password",
        Role.ADMIN,
        "user-password",
        submit_password,
        "user.password",
    ),
    Route(
        "POST",
        "/users/{name}/remove",
        Role.ADMIN,
        "user-remove",
        submit_user_removal,
        "user.remove",
    ),
)
