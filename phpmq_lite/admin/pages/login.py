"""Login and logout; the login leads back to the page that was asked for."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin.access import people
from phpmq_lite.admin.access.identity import identity_of
from phpmq_lite.admin.access.sessions import LOGIN
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import is_own_path, next_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.uploads import field_of


async def show(request: web.Request) -> web.StreamResponse:
    """Ask for name and password."""
    goal = request.query.get("next", "")
    if identity_of(request).kind == "user":
        raise web.HTTPSeeOther(goal if is_own_path(goal) else _home(request))
    return await _page(request, goal)


async def _page(
    request: web.Request,
    goal: str,
    name: str = "",
    problem: Problem | None = None,
) -> web.Response:
    context = context_of(request)
    response = await page(
        request,
        "login.html",
        status=problem.status if problem else 200,
        is_bare=True,
        goal=goal if is_own_path(goal) else "",
        name=name,
        problem=problem,
        has_users=bool(context.entrance.accounts.users),
        is_plain=not request.secure,
    )
    response.headers.update(problem.headers if problem else {})
    return response


async def log_in(request: web.Request) -> web.StreamResponse:
    """Begin a session."""
    name = (await field_of(request, "name")).strip()
    is_kept = await field_of(request, "keep") == "yes"
    try:
        cookie = await people.log_in(
            request, name, await field_of(request, "password"), is_kept=is_kept
        )
    except Problem as problem:
        await people.fold_refusal(request, problem)
        return await _page(request, await field_of(request, "next"), name, problem)
    response = see_other(await next_of(request, _home(request)))
    max_age_s = people.kept_s() if is_kept else None
    context_of(request).sessions.give(request, response, cookie, max_age_s)
    return response


async def log_out(request: web.Request) -> web.StreamResponse:
    """End this session."""
    context = context_of(request)
    login = request.get(LOGIN)
    if login is not None:
        await people.end_session(request, login)
    response = see_other(context.urls.to("login"))
    context.sessions.take_away(request, response)
    return response


def see_other(location: str) -> web.Response:
    """Lead to another page; unlike the exception it can carry a cookie."""
    return web.Response(status=303, headers={"Location": location})


def _home(request: web.Request) -> str:
    return context_of(request).urls.to("overview")


ROUTES: Final = (
    Route("GET", "/login", Role.PUBLIC, "login", show),
    Route("POST", "/login", Role.PUBLIC, "log-in", log_in, "session.login"),
    Route("POST", "/logout", Role.PUBLIC, "logout", log_out, "session.logout"),
)
