"""Middleware that identifies callers and checks their role, CSRF token and content type."""

from typing import Final
from urllib.parse import urlencode

from aiohttp import web

from phpmq_lite.admin.accounts import csrf
from phpmq_lite.admin.accounts.accounts import TOKEN_PREFIX
from phpmq_lite.admin.accounts.services import HOW
from phpmq_lite.admin.context import Context, context_of
from phpmq_lite.admin.http import identity, source
from phpmq_lite.admin.http.browser_sessions import LOGIN, cookie_of
from phpmq_lite.admin.http.identity import CONTROL, LOCAL, NOBODY, Identity, identity_of
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.route import Role, Route
from phpmq_lite.admin.http.source import is_control, is_from_here

# -- identification


def find_identity(request: web.Request) -> Identity:
    """Return the caller's identity without reading the database.

    A request with an invalid token has an unknown caller, even if its session cookie is valid.
    """
    context = context_of(request)
    if is_control(request):
        return CONTROL
    if not context.auth.accounts.is_loaded:
        return NOBODY
    bearer = bearer_of(request)
    if bearer is not None:
        return _of_token(context, bearer)
    found = _of_session(request, context)
    if found is not None:
        return found
    # A login is always required behind a configured proxy, whose requests all come from loopback.
    return LOCAL if _is_open(context) and is_from_here(request) else NOBODY


def bearer_of(request: web.Request) -> str | None:
    """Return the request's bearer token, or None if the request has none."""
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else None


def _of_token(context: Context, secret: str) -> Identity:
    accounts, now_ms = context.auth.accounts, context.now_ms()
    token = accounts.token_of(secret, now_ms) if secret.startswith(TOKEN_PREFIX) else None
    if token is None:
        return NOBODY
    if context.is_ready():
        accounts.record_token_use(token, now_ms)
    return identity.identity_of_token(token)


def _of_session(request: web.Request, context: Context) -> Identity | None:
    accounts, now_ms, cookie = context.auth.accounts, context.now_ms(), cookie_of(request)
    session = accounts.session_of(cookie, now_ms) if cookie else None
    if session is None:
        return None
    request[LOGIN] = session
    if context.is_ready():
        accounts.record_session_use(session, now_ms)
    user = accounts.user_of(session)
    return Identity(user.name, Role(user.role), "user", user.queues)


def _is_open(context: Context) -> bool:
    admin = context.settings.admin
    is_behind_proxy = bool(admin.public_url or admin.trusted_proxies)
    return admin.login == "auto" and not context.auth.accounts.users and not is_behind_proxy


# -- authorization

_UNDECIDED: Final = (
    "A proxy seems to have forwarded this request: it is HTTP/1.0, has a header of a proxy, or its "
    "Origin or Referer names another host. This broker has no users, so each user of the proxy "
    f"could do everything. Decide who may: create a user. {HOW} Then name the proxy in "
    "admin.trusted_proxies and its address in admin.public_url. Without a proxy, send the request "
    "to the broker itself, as HTTP/1.1."
)


def check_role(request: web.Request, route: Route) -> None:
    """Refuse callers whose role does not permit the route.

    Raises:
        Problem: 401 without a login, 403 if the role is insufficient, 503 if the accounts
            cannot be read.
        HTTPSeeOther: redirects to the login page if a page view requires a login.
    """
    identity = identity_of(request)
    if identity.role.may(route.role):
        return
    context = context_of(request)
    if identity.kind != "nobody":
        raise Problem(
            403, "role", f"This requires the role {route.role}, but {identity.actor!r} has the "
            f"role {identity.role}. Nothing was changed.", bound=str(route.role),
        )  # fmt: skip
    if not context.auth.accounts.is_loaded:
        raise Problem(503, "storage", "The accounts cannot be read.", headers={"Retry-After": "5"})
    if _is_open(context) and is_from_here(request, is_direct=False):
        raise Problem(401, "forwarded", _UNDECIDED)
    is_data = request.query.get("format", "html") != "html"
    is_for_programs = route.is_api or route.role is Role.METRICS or is_data
    if not (is_for_programs or route.is_writing or bearer_of(request) is not None):
        raise web.HTTPSeeOther(login_url(request))
    challenge = {"WWW-Authenticate": 'Bearer realm="phpmq-lite"'}
    if bearer_of(request) is not None:
        text = "The token is unknown, revoked or expired: run `phpmq-lite token create NAME`."
        raise Problem(401, "bad_token", text, headers=challenge)
    raise Problem(
        401, "login",
        "You are not logged in, or your session has ended. Nothing was changed. Please log in.",
        headers=challenge,
    )  # fmt: skip


def login_url(request: web.Request) -> str:
    """Return the URL of the login page, which redirects to the current page after the login."""
    urls = context_of(request).urls
    here = urls.base_path + request.path_qs.removeprefix(urls.base_path)
    query = urlencode({"next": here}) if here not in ("/", f"{urls.base_path}/") else ""
    return f"{urls.base_path}/login" + (f"?{query}" if query else "")


# -- CSRF


async def check_change(request: web.Request, route: Route) -> None:
    """Refuse changes that fail the CSRF checks or have the wrong content type.

    Raises:
        Problem: 403 or 415.
    """
    context, identity = context_of(request), identity_of(request)
    if route.is_api:
        csrf.check_media(request, *route.all_media)
    if identity.kind in ("control", "token"):
        return  # other sites cannot make a browser authenticate in these ways
    public_url = context.settings.admin.public_url
    is_browser = not {"Cookie", "Sec-Fetch-Site", "Sec-Fetch-Mode"}.isdisjoint(request.headers)
    if route.is_api and identity.kind == "local" and not is_browser:
        csrf.check_site(request, needs_origin=False, public_url=public_url)
        return
    csrf.check_site(request, needs_origin=True, public_url=public_url)
    token = context.sessions.token(request)
    if route.is_api:
        csrf.check_header(request, token)
    else:
        await csrf.check_form(request, token)


# -- streams


def session_key_of(request: web.Request) -> str:
    """Return a key for the client: its session or, without one, its identity and address."""
    if request.get(LOGIN) is not None or cookie_of(request):
        return f"session {cookie_of(request)}"
    return f"{identity_of(request).actor} {source.address_of(request)}"


def is_still_logged_in(request: web.Request) -> bool:
    """Return whether the caller's identity is still the same as at the start of the request."""
    return find_identity(request) == identity_of(request)
