"""Shows a refused form again with what was typed into it, except secrets."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin.accounts.middleware import CSRF_FIELD, check_site
from phpmq_lite.admin.http.body import read_form_fields
from phpmq_lite.admin.http.browser_sessions import KeptForm
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.memory import FREE_BYTES
from phpmq_lite.admin.http.page_layout import REFUSED
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.route import ROUTE
from phpmq_lite.roles import Role

_SECRETS: Final = frozenset({CSRF_FIELD, "password", "again", "old"})
_HIDDEN: Final = frozenset({"next", "id", "action", "upto", "q", "side"})  # nobody types them
_TARGET_ERRORS: Final = frozenset({"unknown_queue", "bad_name"})  # errors that name no field


async def typed_form(call: Call) -> KeptForm | None:
    """Return a form of our pages if something can be typed into it and it is at most 64 KiB."""
    request, route = call.request, call.request.get(ROUTE)
    if route is None or route.is_api or not route.is_writing or route.role is Role.PUBLIC:
        return None
    try:
        public_url = call.context.settings.admin.public_url
        check_site(request, needs_origin=True, public_url=public_url)
        is_small = (request.content_length or FREE_BYTES + 1) <= FREE_BYTES
        values = await read_form_fields(request) if is_small else []
    except Problem:
        return None
    fields = [(key, text) for key, text in values if isinstance(text, str) and key not in _SECRETS]
    return (call.own_path, fields) if any(key not in _HIDDEN for key, _ in fields) else None


async def ask_again(call: Call, form: KeptForm, problem: Problem) -> web.StreamResponse | None:
    """Return the form's page with what was typed, or None if it has none or its object is gone."""
    request, name = call.request, call.request[ROUTE].form_page
    page = next((route for route in call.context.routes if route.name == name), None)
    if page is None:
        return None
    typed = dict(form[1])
    if "target" in typed and (problem.field == "queue" or problem.code in _TARGET_ERRORS):
        problem.field = "target"
    url = request.rel_url.with_query({key: typed.get(key, "") for key in ("next", "action")})
    page_request = request.clone(method="GET", rel_url=url)
    page_request[REFUSED] = (typed, problem)
    try:
        response = await page.handler(page_request)
    except Problem:
        return None
    response.set_status(problem.status)
    response.headers.update(problem.headers)
    return response
