"""Session cookies, form tokens, and messages to show on the next page."""

import hmac
import re
from collections import OrderedDict
from dataclasses import dataclass
from secrets import token_bytes, token_hex
from typing import Final
from urllib.parse import quote

from aiohttp import web

from phpmq_lite.admin.http.headers import read_cookie
from phpmq_lite.storage.read.accounts import LoginSession

LOGIN: Final = web.RequestKey("login", LoginSession)  # present if a user is logged in
BASE_PATH: Final = web.AppKey("base_path", str)
_SESSION_ID: Final = re.compile("[0-9a-f]{64}")
_SESSION: Final = web.RequestKey("session", str)
_LOGINS: Final = 1_000  # number of recent logins whose users are known
_PENDING: Final = 64  # maximum number of sessions with a pending message, or with a kept form
KeptForm = tuple[str, list[tuple[str, str]]]  # path, names and values


@dataclass(slots=True, frozen=True)
class FlashMessage:
    """A message for the next page, with an optional undo token and an optional link."""

    text: str
    undo: str | None = None
    link: tuple[str, str] | None = None


class BrowserSessions:
    """Manages session cookies, which contain random ids, and the CSRF tokens in forms.

    Without a login, the token is derived from the cookie, so only pending messages are stored.
    A restart invalidates open forms.
    """

    def __init__(self) -> None:
        self._secret = token_bytes(32)
        self._messages: OrderedDict[str, FlashMessage] = OrderedDict()  # keyed by session id
        self.forms: OrderedDict[str, KeptForm] = OrderedDict()  # likewise; each at most 64 KiB
        self._users: OrderedDict[str, str] = OrderedDict()  # names of users, of recent logins

    def open(self, request: web.Request) -> str:
        """Return the request's session id, or a new one if the request has none."""
        if _SESSION not in request:
            cookie = cookie_of(request)
            request[_SESSION] = cookie if _SESSION_ID.fullmatch(cookie) else token_hex(32)
        session: str = request[_SESSION]
        return session

    def token(self, request: web.Request) -> str:
        """Return the CSRF token for forms in this session."""
        login: LoginSession | None = request.get(LOGIN)
        if login is not None:
            return login.csrf
        session = self.open(request)
        return hmac.new(self._secret, session.encode(), "sha256").hexdigest()

    def set_cookie(self, request: web.Request, response: web.StreamResponse) -> None:
        """Set the session cookie if this request started a new session."""
        if _SESSION in request and cookie_of(request) != request[_SESSION]:
            self.set_session(request, response, request[_SESSION])

    def set_session(
        self,
        request: web.Request,
        response: web.StreamResponse,
        cookie: str,
        max_age_s: int | None = None,
    ) -> None:
        """Set the session cookie; without ``max_age_s``, it lasts until the browser is closed."""
        response.set_cookie(
            cookie_name(request),
            cookie,
            path="/",
            max_age=max_age_s,
            httponly=True,
            secure=request.secure,
            samesite="Lax",
        )

    def delete_cookie(self, request: web.Request, response: web.StreamResponse) -> None:
        response.del_cookie(
            cookie_name(request), path="/", secure=request.secure, httponly=True, samesite="Lax"
        )

    def store_message(self, session: str, message: FlashMessage | str) -> None:
        """Store a message to show on a session's next page."""
        self._messages[session] = FlashMessage(message) if isinstance(message, str) else message
        if len(self._messages) > _PENDING:
            self._messages.popitem(last=False)

    def keep_form(self, session: str, form: KeptForm) -> None:
        """Store a form that was sent after a login had ended, until the same user's next one."""
        self.forms[session] = form
        if len(self.forms) > _PENDING:
            self.forms.popitem(last=False)

    def begin_login(self, request: web.Request, session: str, user: str) -> bool:
        """Note whose session this is; return whether their former one has kept a form for it."""
        form = self.forms.pop(former := cookie_of(request), None)
        if is_own := form is not None and self._users.get(former) == user:
            self.keep_form(session, form)
        self._users[session] = user
        if len(self._users) > _LOGINS:
            self._users.popitem(last=False)
        return is_own

    def take_message(self, request: web.Request) -> FlashMessage | None:
        """Remove and return this session's pending message; return None if there is none."""
        return self._messages.pop(cookie_of(request), None)


def cookie_of(request: web.Request) -> str:
    """Return the session cookie as sent by the browser, or an empty string if there is none."""
    return read_cookie(request, cookie_name(request))


def cookie_name(request: web.Request) -> str:
    """Return the cookie name; it includes port and base path, because brokers may share a host."""
    port, path = request.host.rpartition(":")[2], quote(request.app[BASE_PATH][1:], safe="")
    name = f"phpmq-{port if port.isdecimal() else 'web'}{'-' * bool(path)}{path}"
    return f"__Host-{name}" if request.secure else name
