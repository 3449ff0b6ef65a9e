"""Sessions: the cookie, the token that our own forms carry, a sentence for the next page."""

import hmac
from collections import OrderedDict
from secrets import token_bytes, token_hex
from typing import Final

from aiohttp import web

from phpmq_lite.admin.problems import Problem

CSRF_FIELD: Final = "csrf"
_SESSION: Final = web.RequestKey("session", str)
_NOTES: Final = 64  # sessions with a note that was not shown yet


class Sessions:
    """Anonymous sessions: a random cookie, and the token that our own forms carry.

    The token is derived from the cookie, so nothing is kept but a few notes that wait to be
    shown.  A restart makes forms that are still open invalid.
    """

    def __init__(self) -> None:
        self._secret = token_bytes(32)
        self._notes: OrderedDict[str, str] = OrderedDict()  # by session

    def open(self, request: web.Request) -> str:
        """Return the session of a request, a new one where it has none."""
        if _SESSION not in request:
            known = request.cookies.get(_cookie_name(request), "")
            request[_SESSION] = known if _is_session(known) else token_hex(32)
        return request[_SESSION]

    def token(self, request: web.Request) -> str:
        """Return the token that a form of this session carries."""
        session = self.open(request)
        return hmac.new(self._secret, session.encode(), "sha256").hexdigest()

    def keep(self, request: web.Request, response: web.Response) -> None:
        """Set the cookie where a new session was opened for this response."""
        if _SESSION in request and request.cookies.get(_cookie_name(request)) != request[_SESSION]:
            response.set_cookie(
                _cookie_name(request),
                request[_SESSION],
                path="/",
                httponly=True,
                secure=request.secure,
                samesite="Lax",
            )

    async def check_form(self, request: web.Request) -> None:
        """Let only forms of our own pages through.

        Raises:
            Problem: 415 for other content types, 403 for a missing or foreign token.
        """
        if request.content_type != "application/x-www-form-urlencoded":
            raise Problem(415, "media_type", "This address takes forms only.")
        given = (await request.post()).get(CSRF_FIELD, "")
        if not hmac.compare_digest(str(given).encode(), self.token(request).encode()):
            raise Problem(
                403,
                "stale_form",
                "This form does not belong to your session, or is older than the broker's last "
                "start. Load the page again; nothing was changed.",
                field=CSRF_FIELD,
            )

    def note(self, request: web.Request, text: str) -> None:
        """Leave a sentence for the next page of this session."""
        self._notes[self.open(request)] = text
        if len(self._notes) > _NOTES:
            self._notes.popitem(last=False)

    def take_note(self, request: web.Request) -> str | None:
        """Take the sentence that waits for this session, if there is one."""
        known = request.cookies.get(_cookie_name(request), "")
        return self._notes.pop(known, None)


def _cookie_name(request: web.Request) -> str:
    """Cookies know no ports, so the name has it: two brokers on one host stay apart."""
    port = request.host.rpartition(":")[2]
    name = f"phpmq-{port if port.isdecimal() else 'web'}"
    return f"__Host-{name}" if request.secure else name


def _is_session(text: str) -> bool:
    return len(text) == 64 and all(c in "0123456789abcdef" for c in text)
