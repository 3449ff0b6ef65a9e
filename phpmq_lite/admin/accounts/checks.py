"""Identifies callers, and checks their role, CSRF token and content type."""

import hmac
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from phpmq_lite.admin.accounts.accounts import TOKEN_PREFIX
from phpmq_lite.admin.accounts.services import HOW, accounts_of
from phpmq_lite.admin.http.body import FORMS, read_form_fields
from phpmq_lite.admin.http.browser_sessions import LOGIN, cookie_of
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.headers import media_type_of
from phpmq_lite.admin.http.identity import CONTROL, LOCAL, NOBODY, Identity, identity_of_token
from phpmq_lite.admin.http.input import Form
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.route import Route
from phpmq_lite.admin.http.source import address_of, is_control, is_from_here
from phpmq_lite.roles import Role

CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "X-CSRF-Token"
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}


def origin_of(url: str) -> str:
    """Return a URL's origin as browsers write it, for example ``https://mq.example``."""
    parts = urlsplit(url)
    port = _DEFAULT_PORTS.get(parts.scheme, "")
    return f"{parts.scheme}://{parts.netloc.lower().removesuffix(f':{port}')}"


def check_site(request: web.Request, *, needs_origin: bool, public_url: str = "") -> None:
    """Refuse with 403 what pages on other sites send (``docs/operate/security.md``, section 4)."""
    if is_control(request):
        return
    origin = request.headers.get("Origin")
    if origin is None:
        if needs_origin:
            detail = "The request was refused because it has no Origin header."
            raise Problem(403, "no_origin", detail, field="Origin")
    elif not _is_ours(request, origin, public_url):
        detail = f"The request comes from {origin!r}, but this page is at {request.host!r}. Behind "
        detail += "a proxy, set admin.public_url to the address that browsers use, or forward the "
        detail += "Host header and add the host to admin.hosts."
        raise Problem(403, "foreign_origin", detail, field="Origin")
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None and site not in ("same-origin", "none"):
        detail = f"The request was refused because it is {site}."
        raise Problem(403, "cross_site", detail, field="Sec-Fetch-Site")


def _is_ours(request: web.Request, origin: str, public_url: str) -> bool:
    try:
        if public_url and origin_of(origin) == origin_of(public_url):
            return True
        parts = urlsplit(origin)
    except ValueError:  # the origin is malformed, for example with empty brackets
        return False
    if (port := _DEFAULT_PORTS.get(parts.scheme)) is None:
        return False
    if request.secure and parts.scheme != "https":  # otherwise, a proxy may hide the scheme
        return False
    own, other = request.host.lower(), parts.netloc.lower()
    return own.removesuffix(f":{port}") == other.removesuffix(f":{port}")


def check_media(request: web.Request, *media: str) -> None:
    """Raise a 415 ``Problem`` if a request's content type is not one of ``media``.

    A page on another site can send JSON only after a preflight request.  A DELETE without a
    body needs no content type, because DELETE always requires a preflight request.
    """
    if request.method == "DELETE" and not request.can_read_body:
        return
    if (type_ := media_type_of(request)) not in media:
        detail, bound = f"The content type {type_[:50]!r} is not accepted here.", " or ".join(media)
        raise Problem(415, "media_type", detail, field="Content-Type", bound=bound)


def check_header(request: web.Request, token: str) -> None:
    """Refuse with 403 an API call without the session's CSRF token, which our scripts send."""
    if not _is_token(request.headers.get(CSRF_HEADER, ""), token):
        detail = f"A call that uses a session cookie must send the session's token in {CSRF_HEADER}"
        detail += ". Programs should send an API token instead: Authorization: Bearer phpmq_…"
        raise Problem(403, "no_token", detail, field=CSRF_HEADER)


async def check_form(request: web.Request, token: str) -> None:
    """Read a form, and refuse it unless it was sent by one of our pages.

    Raises:
        Problem: 415 for other content types, 403 if the token is missing or belongs to another
            session, or an error from reading the form.
    """
    if media_type_of(request) not in FORMS:
        detail, bound = "This address accepts only form submissions.", " or ".join(sorted(FORMS))
        raise Problem(415, "media_type", detail, field="Content-Type", bound=bound)
    if not _is_token(Form(await read_form_fields(request)).raw(CSRF_FIELD), token):
        detail = "This form does not belong to your session, or the broker has restarted since the "
        detail += "page was loaded. Nothing was changed. Send it again, or reload the page."
        raise Problem(403, "stale_form", detail, field=CSRF_FIELD, says_unchanged=True)


def _is_token(text: str, token: str) -> bool:
    return hmac.compare_digest(text.encode(errors="replace"), token.encode())


# -- identification


def find_identity(call: Call) -> Identity:
    """Return the caller's identity without reading the database.

    A request with an invalid token has an unknown caller, even if its session cookie is valid.
    """
    if is_control(call.request):
        return CONTROL
    if not accounts_of(call).is_loaded:
        return NOBODY
    bearer = bearer_of(call.request)
    if bearer is not None:
        return _of_token(call, bearer)
    identity = _of_session(call)
    if identity is not None:
        return identity
    # A login is always required behind a configured proxy, whose requests all come from loopback.
    return LOCAL if _is_open(call) and is_from_here(call.request) else NOBODY


def bearer_of(request: web.Request) -> str | None:
    """Return the request's bearer token, or None if the request has none."""
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else None


def session_key_of(call: Call) -> str:
    """Return a key for the client: its session or, without one, its identity and address."""
    cookie = cookie_of(call.request)  # which a login has, too
    return f"session {cookie}" if cookie else f"{call.actor} {address_of(call.request)}"


def _of_token(call: Call, secret: str) -> Identity:
    accounts, now_ms = accounts_of(call), call.now_ms
    token = accounts.token_of(secret, now_ms) if secret.startswith(TOKEN_PREFIX) else None
    if token is None:
        return NOBODY
    if call.context.is_ready():
        accounts.record_use(token, now_ms)
    return identity_of_token(token)


def _of_session(call: Call) -> Identity | None:
    accounts, now_ms, cookie = accounts_of(call), call.now_ms, cookie_of(call.request)
    session = accounts.session_of(cookie, now_ms) if cookie else None
    if session is None:
        return None
    call.request[LOGIN] = session
    if call.context.is_ready():
        accounts.record_use(session, now_ms)
    user = accounts.user_of(session)
    return Identity(user.name, Role(user.role), "user", user.queues)


def _is_open(call: Call) -> bool:
    admin = call.context.settings.admin
    is_behind_proxy = bool(admin.public_url or admin.trusted_proxies)
    return admin.login == "auto" and not accounts_of(call).users and not is_behind_proxy


# -- authorization

_UNDECIDED: Final = (
    "A proxy seems to have forwarded this request: it is HTTP/1.0, has a header of a proxy, or its "
    "Origin or Referer names another host. This broker has no users, so each user of the proxy "
    f"could do everything. Decide who may: create a user. {HOW} Then name the proxy in "
    "admin.trusted_proxies and its address in admin.public_url. Without a proxy, send the request "
    "to the broker itself, as HTTP/1.1."
)


def check_role(call: Call, route: Route) -> None:
    """Refuse callers whose role does not permit the route.

    Raises:
        Problem: 401 without a login, 403 if the role is insufficient, 503 if the accounts
            cannot be read.
        HTTPSeeOther: redirects to the login page if a page view requires a login.
    """
    identity, request = call.identity, call.request
    if identity.role.may(route.role):
        return
    if identity.kind != "nobody":
        detail = f"This requires the role {route.role}, but {identity.actor!r} has the role "
        detail += f"{identity.role}. Nothing was changed."
        raise Problem(403, "role", detail, bound=str(route.role), says_unchanged=True)
    if not accounts_of(call).is_loaded:
        raise Problem(503, "storage", "The accounts cannot be read.", headers={"Retry-After": "5"})
    if _is_open(call) and is_from_here(request, is_direct=False):
        raise Problem(401, "forwarded", _UNDECIDED)
    is_data = request.query.get("format", "html") != "html"
    is_for_programs = route.is_api or route.role is Role.METRICS or is_data
    if not (is_for_programs or route.is_writing or bearer_of(request) is not None):
        is_start = call.own_path in ("/", f"{call.context.urls.base_path}/")
        raise call.redirect("login", next="" if is_start else call.own_path)
    challenge = {"WWW-Authenticate": 'Bearer realm="phpmq-lite"'}
    if bearer_of(request) is not None:
        text = "The token is unknown, revoked or expired: run `phpmq-lite token create NAME`."
        raise Problem(401, "bad_token", text, headers=challenge)
    text = "You are not logged in, or your session has ended. Nothing was changed. Please log in."
    raise Problem(401, "login", text, headers=challenge, says_unchanged=True)


async def check_change(call: Call, route: Route) -> None:
    """Refuse with 403 or 415 a change that fails a CSRF check or has another content type."""
    request, identity = call.request, call.identity
    if route.is_api:
        check_media(request, *route.all_media)
    if identity.kind in ("control", "token"):
        return  # other sites cannot make a browser authenticate in these ways
    public_url = call.context.settings.admin.public_url
    is_browser = not {"Cookie", "Sec-Fetch-Site", "Sec-Fetch-Mode"}.isdisjoint(request.headers)
    if route.is_api and identity.kind == "local" and not is_browser:
        check_site(request, needs_origin=False, public_url=public_url)
        return
    check_site(request, needs_origin=True, public_url=public_url)
    token = call.context.sessions.token(request)
    if route.is_api:
        check_header(request, token)
    else:
        await check_form(request, token)
