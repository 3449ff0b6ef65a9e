"""The layout that all pages share: the navigation, the viewer and the environment."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from aiohttp import web

from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.headers import read_cookie
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.route import REQUEST_ID, ROUTE_NAME

# What was typed into a form that was refused, and why; its page shows both.
REFUSED: Final = web.RequestKey("refused", tuple[Mapping[str, str], Problem])
THEMES: Final = ("light", "dark")
_THEME_COOKIE: Final = "phpmq-theme"  # set by choices.js; read here to avoid a flash of colour

# Route, title, and the key to press after ``g``.  icons.html must have an icon of the route's name.
NAVIGATION: Final = (
    ("overview", "Overview", "o"),
    ("queues", "Queues", "q"),
    ("messages", "Messages", "m"),
    ("dead", "Dead letters", "d"),
    ("clients", "Clients", "c"),
    ("history", "History", "h"),
    ("insights", "Insights", "i"),
    ("publish", "Publish", "p"),
    ("schedules", "Schedules", "l"),
    ("schemas", "Schemas", "e"),
    ("audit", "Audit", "a"),
    ("system", "System", "s"),
)

# Maps the first path segment of a page without its own navigation entry to its parent entry.
PARENT_ENTRIES: Final = {
    "selections": "messages",
    "bulk": "messages",
    "trace": "messages",
    "trash": "history",
    "users": "system",
    "tokens": "system",
    "sessions": "system",
    "account": "system",
    "backups": "system",
    "definitions": "system",
    "api": "system",
}

# Maps the first path segment of a page to the documentation page that explains it.
HELP: Final = {
    "queues": "guides/admin",
    "messages": "guides/admin#find-a-message",
    "selections": "guides/admin#actions-and-undo",
    "bulk": "guides/admin#actions-and-undo",
    "trash": "guides/admin#actions-and-undo",
    "dead": "concepts/dead-letters",
    "clients": "reference/protocol",
    "history": "concepts/history",
    "insights": "guides/admin#insights",
    "publish": "guides/admin#envelopes",
    "schedules": "concepts/schedules",
    "schemas": "guides/schemas",
    "trace": "guides/admin#envelopes",
    "audit": "operate/security#10-audit-and-secrets",
    "system": "operate/operations",
    "backups": "operate/operations#back-up",
    "users": "guides/admin#users-and-roles",
    "tokens": "guides/admin#users-and-roles",
    "sessions": "guides/admin#users-and-roles",
    "account": "guides/admin#users-and-roles",
    "setup": "guides/admin#users-and-roles",
    "api": "reference/api",
}

_BY_NAME: Final = (
    (("prod", "live"), "red"),
    (("stag", "preprod", "uat"), "amber"),
    (("test", "ci", "qa"), "violet"),
    (("dev", "local"), "green"),
)


@dataclass(slots=True, frozen=True)
class NavigationItem:
    """An entry in the navigation."""

    name: str
    title: str
    key: str
    url: str
    current: str  # aria-current: "page" for this page, "true" for its section, otherwise ""


@dataclass(slots=True, frozen=True)
class Viewer:
    """The user or program that requested the page, as shown in the menu."""

    name: str
    role: str
    text: str = ""
    account_url: str = ""
    logout_url: str = ""


def viewer_of(call: Call) -> Viewer:
    """Return the user or program that requested the page."""
    identity, urls = call.identity, call.context.urls
    name = "This machine" if identity.kind == "local" else identity.name
    is_user = identity.kind == "user"
    texts = {"local": "no login required", "control": "control socket", "token": "token"}
    return Viewer(
        name,
        str(identity.role),
        texts.get(identity.kind, ""),
        account_url=urls.to("account") if is_user else "",
        logout_url=urls.to("logout") if is_user else "",
    )


def colour_of(environment: str, colour: str) -> str:
    """Return the configured colour or one based on the environment's name, or ``""`` if none."""
    if colour or not environment:
        return colour
    name = environment.lower()
    colours = (colour for starts, colour in _BY_NAME if name.startswith(starts))
    return next(colours, "blue")


def navigation(call: Call, current: str) -> list[NavigationItem]:
    """Return the navigation for the page ``current``, without pages that the viewer cannot open."""
    urls, roles = call.context.urls, {route.name: route.role for route in call.context.routes}
    first = _first_part(call, call.request.path)
    section = PARENT_ENTRIES.get(first, first)
    items = []
    for name, title, key in NAVIGATION:
        if not call.identity.role.may(roles[name]):
            continue
        if name == "insights" and name != current and not call.context.broker.has_messages:
            continue
        url = urls.to(name)
        is_part = section and section == _first_part(call, url)
        mark = "page" if name == current else "true" if is_part else ""
        items.append(NavigationItem(name, title, key, url, mark))
    return items


def _first_part(call: Call, path: str) -> str:
    path = path.removeprefix(call.context.urls.base_path)
    return unquote(path).strip("/").partition("/")[0]


def layout_values(call: Call) -> dict[str, Any]:
    """Return the values that the layout requires on every page."""
    context, request, urls = call.context, call.request, call.context.urls
    ui, current = context.settings.ui, request.get(ROUTE_NAME, "")
    roles = {route.name: route.role for route in context.routes}
    theme = read_cookie(request, _THEME_COOKIE)
    entered, refused = request.get(REFUSED, ({}, None))
    return {
        "url": urls.to,
        "static": urls.static,
        "docs_url": urls.docs,
        # the page of the documentation that explains the requested page
        "help_page": HELP.get(_first_part(call, request.path), "guides/admin"),
        "here": current,
        "rail": navigation(call, current),
        # whether the viewer can use a route; pages omit actions that are not permitted
        "may": lambda name: call.identity.role.may(roles[name]),
        "environment": ui.environment,
        "colour": colour_of(ui.environment, ui.colour),
        "theme": theme if theme in THEMES else "auto",
        "now_ms": call.now_ms,
        "version": context.version,
        "broker": call.status,
        "who": viewer_of(call),
        "flash": context.sessions.take_message(request),
        "csrf": lambda: context.sessions.token(request),
        # for the next field of the layout's forms
        "back_to": call.own_path if request.method in ("GET", "HEAD") else "",
        "request_id": request.get(REQUEST_ID, ""),
        "search_text": "",
        "entered": entered,
        "refused": refused,
        "is_bare": call.identity.kind == "nobody",
    }
