"""The decision about a clock that was far ahead at a start, from the system page."""

from typing import Final, cast

from aiohttp import web

from phpmq_lite.admin.api.clock import Decision, decided
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.uploads import field_of

_SAID: Final = {
    "expire": "The clock is right: the time away counts, and what is past its deadline expires.",
    "keep": "The clock was set: the time away does not count.",
}


async def decide(request: web.Request) -> web.StreamResponse:
    """Decide about a clock that was far ahead at a start: let the time count, or not."""
    decision = await field_of(request, "decision")
    if decision not in _SAID:
        raise Problem(422, "invalid", "decision: neither expire nor keep.", field="decision")
    await decided(request, cast(Decision, decision), "")
    context = context_of(request)
    context.sessions.note(request, _SAID[decision])
    raise web.HTTPSeeOther(context.urls.to("system"))


ROUTES: Final = (
    Route("POST", "/system/clock", Role.OPERATOR, "clock-decide", decide, "clock.decide"),
)
