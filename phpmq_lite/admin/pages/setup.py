"""Set-up: the first admin, by the token that only this account of the machine can read."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin.access import people
from phpmq_lite.admin.access.first_user import FILE
from phpmq_lite.admin.access.passwords import SHORTEST
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.pages.login import see_other
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.render import page
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.uploads import field_of


async def show(request: web.Request) -> web.StreamResponse:
    """Ask for the set-up token and the first admin; not there any more once there is a user."""
    _check_open(request)
    return await _page(request, "admin")


def _check_open(request: web.Request) -> None:
    if context_of(request).entrance.accounts.users:
        raise Problem(404, "unknown_page", "There is no page at this address.")


async def _page(request: web.Request, name: str, problem: Problem | None = None) -> web.Response:
    response = await page(
        request,
        "setup.html",
        status=problem.status if problem else 200,
        is_bare=True,
        name=name,
        problem=problem,
        file=FILE,
        shortest=SHORTEST,
        is_plain=not request.secure,
    )
    response.headers.update(problem.headers if problem else {})
    return response


async def set_up(request: web.Request) -> web.StreamResponse:
    """Make the first admin and log them in."""
    _check_open(request)
    context = context_of(request)
    name = (await field_of(request, "name")).strip()
    password = await field_of(request, "password")
    try:
        people.check_same(password, await field_of(request, "again"))
        user = await people.add_first(request, await field_of(request, "token"), name, password)
    except Problem as problem:
        if problem.code in ("wrong_token", "too_many_tries"):
            await people.fold_refusal(request, problem)
        people.refuse(request, problem)
        return await _page(request, name, problem)
    cookie = await people.start_session(request, user)
    response = see_other(context.urls.to("overview"))
    context.sessions.give(request, response, cookie)
    context.sessions.note_for(
        cookie, f"{user.name} is the first admin. From now on a login is needed."
    )
    return response


ROUTES: Final = (
    Route("GET", "/setup", Role.PUBLIC, "setup", show),
    Route("POST", "/setup", Role.PUBLIC, "set-up", set_up, "user.setup"),
)
