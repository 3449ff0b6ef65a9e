"""Who may ask: known hosts, forms of our own pages only, and headers on every response."""

import hmac
from collections import OrderedDict
from collections.abc import Iterable
from secrets import token_bytes, token_hex
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from phpmq_lite.admin.problems import Problem

CONTROL_SOCKET: Final = "control.sock"  # in the data folder, 0600: its peer owns the broker
CSRF_FIELD: Final = "csrf"
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # never no-referrer: forms would send Origin: null
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "",
}
_SANDBOX: Final = "sandbox; " + HEADERS["Content-Security-Policy"]
_SAFE_SITES: Final = frozenset({"same-origin", "none"})
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_SESSION: Final = web.RequestKey("session", str)
_NOTES: Final = 64  # sessions with a note that was not shown yet


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Put the security headers on a response; to be connected to ``on_response_prepare``."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("Cache-Control", "no-store")


def as_download(name: str) -> dict[str, str]:
    """Give the headers of a file that no browser shows or runs; ``name`` is our own text."""
    return {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Content-Security-Policy": _SANDBOX,
    }


def is_control(request: web.BaseRequest) -> bool:
    """Tell whether a request came over the control socket, which needs no more checks."""
    name = _local_name(request)
    return isinstance(name, str) and name.rpartition("/")[2] == CONTROL_SOCKET


def _local_name(request: web.BaseRequest) -> object:
    transport = request.transport
    name = transport.get_extra_info("sockname") if transport is not None else None
    return name.decode(errors="replace") if isinstance(name, bytes) else name


def host_name(host: str) -> str:
    """Give the name in a Host header without its port, in lower case, brackets off."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    if host.count(":") > 1:  # IPv6 as settings and sockets write it
        return host.lower().removeprefix("::ffff:")
    return host.partition(":")[0].lower().removesuffix(".")


def is_known_host(request: web.BaseRequest, hosts: Iterable[str]) -> bool:
    """Tell whether the Host header names this machine (``security.md`` 5).

    That is loopback, the local address of this connection, or one of ``hosts``.
    """
    given = request.headers.getall("Host", [])
    if len(given) != 1:
        return False
    name = host_name(given[0])
    if name in LOOPBACK_NAMES or name in {host_name(host) for host in hosts}:
        return True
    local = _local_name(request)
    return isinstance(local, tuple) and name == host_name(str(local[0]))


def _is_own_origin(origin: str, host: str) -> bool:
    parts = urlsplit(origin)
    if parts.scheme not in _DEFAULT_PORTS:
        return False
    port = _DEFAULT_PORTS[parts.scheme]
    own, other = host.lower(), parts.netloc.lower()
    return own.removesuffix(f":{port}") == other.removesuffix(f":{port}")


def check_site(request: web.Request, *, needs_origin: bool) -> None:
    """Refuse what another site's page sent (``security.md`` 4).

    Raises:
        Problem: 403, naming the origin seen and the setting that would allow it.
    """
    if is_control(request):
        return
    origin = request.headers.get("Origin")
    if origin is None:
        if needs_origin:
            raise Problem(403, "no_origin", "The request names no Origin, so it is refused.")
    elif not _is_own_origin(origin, request.host):
        raise Problem(
            403,
            "foreign_origin",
            f"The request comes from {origin!r}, but this page is at {request.host!r}. "
            "Behind a proxy, pass the Host header on and name the host in admin.hosts.",
            field="Origin",
        )
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None and site not in _SAFE_SITES:
        raise Problem(
            403, "cross_site", f"The request is {site}, so it is refused.", field="Sec-Fetch-Site"
        )


def check_json(request: web.Request) -> None:
    """Let only JSON through: a page of another site cannot send it without being asked first."""
    if request.content_type != "application/json":
        raise Problem(
            415,
            "media_type",
            f"The content type is {request.content_type!r}.",
            field="Content-Type",
            bound="application/json",
        )


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
