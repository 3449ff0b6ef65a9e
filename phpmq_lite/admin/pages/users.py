"""Users: the list, one user, and what can be changed."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin.access import people
from phpmq_lite.admin.access.identity import identity_of, name_in
from phpmq_lite.admin.access.passwords import SHORTEST
from phpmq_lite.admin.api.users import UserOut, users_out
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_data
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import FormatQuery
from phpmq_lite.admin.uploads import field_of
from phpmq_lite.storage.read.accounts import User


async def users(request: web.Request) -> web.StreamResponse:
    """All users, and a form for another one."""
    query = query_of(request, FormatQuery)
    if query.format != "html":
        return as_data(query.format, UserOut, users_out(request))
    return await _list(request, {})


async def _list(
    request: web.Request, form: dict[str, str], problem: Problem | None = None
) -> web.Response:
    accounts = context_of(request).entrance.accounts
    return await page(
        request,
        "users.html",
        status=problem.status if problem else 200,
        users=people.visible(request, accounts.users.values()),
        form=form,
        problem=problem,
        roles=people.ROLES,
        shortest=SHORTEST,
        is_local=identity_of(request).kind == "local",
        limits=identity_of(request).queues,
    )


async def add(request: web.Request) -> web.StreamResponse:
    """Make a user."""
    context = context_of(request)
    form = {key: await field_of(request, key) for key in ("name", "role", "queues")}
    try:
        user = await people.add_user(
            request,
            form["name"].strip(),
            await field_of(request, "password"),
            form["role"],
            people.lines(form["queues"]),
        )
    except Problem as problem:
        people.refuse(request, problem)
        return await _list(request, form, problem)
    context.sessions.note(request, f"{user.name} can log in now.")
    raise web.HTTPSeeOther(context.urls.to("users"))


def _named(request: web.Request) -> User:
    name = name_in(request, "name")
    return context_of(request).entrance.accounts.user_named(name)


async def user(request: web.Request) -> web.StreamResponse:
    """One user: rights, password, sessions, removal."""
    name = name_in(request, "name")
    return await _one(request, people.visible_user(request, name))


async def _one(request: web.Request, user: User, problem: Problem | None = None) -> web.Response:
    accounts = context_of(request).entrance.accounts
    sessions = accounts.sessions_of(user, context_of(request).now_ms())
    return await page(
        request,
        "user.html",
        status=problem.status if problem else 200,
        user=user,
        limits=identity_of(request).queues,
        sessions=sessions,
        roles=people.ROLES,
        shortest=SHORTEST,
        problem=problem,
    )


async def change_rights(request: web.Request) -> web.StreamResponse:
    """Give a user another role or other queues; their sessions end."""
    user, globs = _named(request), people.lines(await field_of(request, "queues"))
    if globs == people.lines("\n".join(user.queues)):
        globs = list(user.queues)
    try:
        role = await field_of(request, "role")
        if (role, tuple(globs)) == (user.role, user.queues):
            return _done(request, f"Nothing was changed: {user.name} is {role} already.", user)
        await people.change_user(request, user, role=role, globs=globs)
    except Problem as problem:
        people.refuse(request, problem)
        return await _one(request, user, problem)
    return _done(request, f"{user.name} is {user.role} now, and has to log in again.", user)


async def change_password(request: web.Request) -> web.StreamResponse:
    """Give a user another password; their sessions end."""
    user, password = _named(request), await field_of(request, "password")
    try:
        await people.change_user(request, user, password=password)
    except Problem as problem:
        people.refuse(request, problem)
        return await _one(request, user, problem)
    return _done(
        request, f"The password of {user.name} is changed; they have to log in again.", user
    )


async def remove(request: web.Request) -> web.StreamResponse:
    """Remove a user; the name has to be typed."""
    user = _named(request)
    try:
        people.check_typed(await field_of(request, "typed"), user.name)
        await people.remove_user(request, user, (await field_of(request, "reason"))[:500])
    except Problem as problem:
        people.refuse(request, problem)
        return await _one(request, user, problem)
    return _done(request, f"{user.name} is removed.", None)


def _done(request: web.Request, text: str, user: User | None) -> web.StreamResponse:
    context = context_of(request)
    context.sessions.note(request, text)
    url = context.urls.to("user", name=user.name) if user else context.urls.to("users")
    raise web.HTTPSeeOther(url)


ROUTES: Final = (
    Route("GET", "/users", Role.ADMIN, "users", users),
    Route("POST", "/users", Role.ADMIN, "user-add", add, "user.add"),
    Route("GET", "/users/{name}", Role.ADMIN, "user", user),
    Route("POST", "/users/{name}/rights", Role.ADMIN, "user-rights", change_rights, "user.change"),
    Route(
        "POST", "/users/{name}/password", Role.ADMIN, "user-password", change_password,
        "user.password",
    ),
    Route("POST", "/users/{name}/remove", Role.ADMIN, "user-remove", remove, "user.remove"),
)  # fmt: skip
