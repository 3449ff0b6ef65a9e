"""Sessions over HTTP."""

from typing import Final

from aiohttp import web
from pydantic import BaseModel

from phpmq_lite.admin.access import people
from phpmq_lite.admin.access.sessions import LOGIN
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_data, as_json
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.storage.read.accounts import LoginSession


class SessionOut(BaseModel):
    """One login; times are Unix milliseconds."""

    id: int
    user: str
    created_at: int
    seen_at: int
    expires_at: int
    address: str
    agent: str
    is_own: bool  # of who asks


class SessionsOut(BaseModel):
    """All sessions."""

    items: list[SessionOut]
    next: str | None = None


def _out(request: web.Request, session: LoginSession) -> SessionOut:
    return SessionOut(
        id=session.session_id,
        user=context_of(request).entrance.accounts.user_of(session).name,
        created_at=session.created_at,
        seen_at=session.seen_at,
        expires_at=session.expires_at,
        address=session.address,
        agent=session.agent,
        is_own=session is request.get(LOGIN),
    )


def sessions_out(request: web.Request) -> list[SessionOut]:
    """Give all sessions, those seen last first."""
    context = context_of(request)
    found = context.entrance.accounts.open_sessions(context.now_ms())
    return [_out(request, session) for session in found]


async def sessions(request: web.Request) -> web.StreamResponse:
    """List the sessions, those seen last first."""
    return as_data("json", SessionOut, sessions_out(request))


async def end(request: web.Request) -> web.StreamResponse:
    """End a session; its browser has to log in again."""
    accounts = context_of(request).entrance.accounts
    session = accounts.session_numbered(people.number_of(request))
    out = _out(request, session)
    await people.end_session(request, session)
    return as_json(out)


_PATH: Final = "/api/v1/sessions"
ROUTES: Final = (
    Route("GET", _PATH, Role.ADMIN, "api-sessions", sessions, gives=SessionsOut),
    Route("DELETE", f"{_PATH}/{{n}}", Role.ADMIN, "api-session-end", end, "session.end",
          gives=SessionOut),
)  # fmt: skip
