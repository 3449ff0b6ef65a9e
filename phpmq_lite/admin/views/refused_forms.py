"""Forms that were refused: their page comes back with what was typed and with the reason."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin.auth.browser_security import CSRF_FIELD, check_site
from phpmq_lite.admin.auth.sessions import KeptForm
from phpmq_lite.admin.base.context import context_of
from phpmq_lite.admin.base.http_memory import FREE_BYTES
from phpmq_lite.admin.base.problems import Problem, problem_of
from phpmq_lite.admin.base.request_body import read_form_fields
from phpmq_lite.admin.base.route import ROUTE, Route
from phpmq_lite.admin.views.rendering import HIDDEN_FIELDS, REFUSED

# A page never shows a secret again. The setup token has a page of its own.
_SECRETS: Final = frozenset({CSRF_FIELD, "password", "again", "old", "token"})
_OF_TARGET: Final = frozenset({"unknown_queue", "bad_name"})  # errors that name no field
_OWN_PAGES: Final = frozenset({"log-in", "set-up", "logout"})


async def typed_form(request: web.Request) -> KeptForm | None:
    """Return what was typed into a form of our pages, without secrets and files.

    None if the request is not such a form, has nothing to type, is larger than ``FREE_BYTES``, or
    cannot be read.
    """
    context, route = context_of(request), request.get(ROUTE)
    if route is None or not route.is_writing or route.is_api or route.name in _OWN_PAGES:
        return None
    if (request.content_length or FREE_BYTES + 1) > FREE_BYTES:
        return None
    try:
        check_site(request, needs_origin=True, public_url=context.settings.admin.public_url)
        fields = await read_form_fields(request)
    except Problem:
        return None
    typed = tuple(
        (name, value) for name, value in fields if isinstance(value, str) and name not in _SECRETS
    )
    if not any(name not in HIDDEN_FIELDS for name, _ in typed):
        return None
    path = context.urls.base_path + request.path_qs.removeprefix(context.urls.base_path)
    return KeptForm(path, typed)


def form_route(routes: tuple[Route, ...], route: Route) -> Route | None:
    """Return the route of the page that asked for a confirmation, or None if there is none."""
    path = route.path.removesuffix("/apply") if route.name == "selection-apply" else route.path
    found = (one for one in routes if one.method == "GET" and one.path == path)
    names = (f"{route.name}-form", "selection")
    return next((one for one in found if one.name in names and route.name != "message-edit"), None)


async def ask_again(
    request: web.Request, page: Route, form: KeptForm, problem: Problem
) -> web.StreamResponse | None:
    """Return the page of a confirmation with what was typed, or None if it is gone."""
    typed = dict(form.fields)
    if "target" in typed and (problem.field == "queue" or problem.code in _OF_TARGET):
        problem.field = "target"
    url = request.rel_url.with_query({key: typed.get(key, "") for key in ("next", "action")})
    again = request.clone(method="GET", rel_url=url)
    again[REFUSED] = (typed, problem)
    try:
        response = await page.handler(again)
    except Exception as error:
        if problem_of(error) is None:
            raise
        return None
    response.set_status(problem.status)
    response.headers.update(problem.headers)
    return response
