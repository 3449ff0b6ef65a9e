"""The layout that all pages share: the navigation, the environment and warnings."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from aiohttp import web

from phpmq_lite.admin.context import Context, context_of, status_of
from phpmq_lite.admin.http.identity import identity_of
from phpmq_lite.admin.urls import Urls
from phpmq_lite.checks import CHECKS, Check, Level, asynchronous_text
from phpmq_lite.server.addresses import is_loopback, parse_endpoint
from phpmq_lite.settings import Settings

# Route, title, and the key to press after ``g``.  Entries whose route is missing are omitted.
NAVIGATION: Final = (
    ("overview", "Overview", "o"),
    ("queues", "Queues", "q"),
    ("messages", "Messages", "m"),
    ("dead", "Dead letters", "d"),
    ("clients", "Clients", "c"),
    ("history", "History", "h"),
    ("insights", "Insights", "i"),
    ("publish", "Publish", "p"),
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


# All colours have a contrast of at least 4.5:1 with white; app.css contains the same values.
COLOURS: Final = {
    "grey": "#5b6472",
    "blue": "#1f5fc4",
    "green": "#1a7043",
    "amber": "#8a5a00",
    "red": "#b3261e",
    "violet": "#7a3fb8",
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
class HeaderWarning:
    """A warning shown in the page header."""

    title: str
    text: str
    url: str = ""


@dataclass(slots=True, frozen=True)
class Viewer:
    """The user or program that requested the page, as shown in the menu."""

    name: str
    role: str
    text: str = ""
    account_url: str = ""
    logout_url: str = ""


def viewer_of(request: web.Request) -> Viewer:
    """Return the user or program that requested the page."""
    identity, urls = identity_of(request), context_of(request).urls
    name = "This machine" if identity.kind == "local" else identity.name
    is_user = identity.kind == "user"
    texts = {"local": "no login required", "control": "control socket", "token": "token"}
    return Viewer(
        name,
        str(identity.role),
        texts.get(identity.kind, ""),
        account_url=(url_or_none(urls, "account") or "") if is_user else "",
        logout_url=(url_or_none(urls, "logout") or "") if is_user else "",
    )


def colour_of(environment: str, colour: str) -> str:
    """Return the configured colour or one based on the environment's name, or ``""`` if none."""
    if colour or not environment:
        return colour
    name = environment.lower()
    found = (shade for starts, shade in _BY_NAME if name.startswith(starts))
    return next(found, "blue")


def url_or_none(urls: Urls, route: str) -> str | None:
    """Return the URL of a route, or None if the route does not exist."""
    try:
        return urls.to(route)
    except KeyError:
        return None


def may_open(request: web.Request, name: str) -> bool:
    """Return whether the viewer can use a route; pages omit actions that are not permitted."""
    needed = next(route.role for route in context_of(request).routes if route.name == name)
    return identity_of(request).role.may(needed)


def navigation(request: web.Request, here: str) -> list[NavigationItem]:
    """Return the navigation for the page ``here``, without pages that the viewer cannot open."""
    context, mine = context_of(request), identity_of(request).role
    base = context.urls.base_path
    needed = {route.name: route.role for route in context.routes}
    first = _first_part(request.path.removeprefix(base))
    section = PARENT_ENTRIES.get(first, first)
    items = []
    for name, title, key in NAVIGATION:
        if name not in needed or not mine.may(needed[name]):
            continue
        url = context.urls.to(name)
        is_part = section and section == _first_part(url.removeprefix(base))
        current = "page" if name == here else "true" if is_part else ""
        items.append(NavigationItem(name, title, key, url, current))
    return items


def _first_part(path: str) -> str:
    return unquote(path).strip("/").partition("/")[0]


def help_page(request: web.Request) -> str:
    """Return the page of the documentation that explains the requested page."""
    base = context_of(request).urls.base_path
    return HELP.get(_first_part(request.path.removeprefix(base)), "guides/admin")


def list_access_warnings(request: web.Request) -> Iterator[HeaderWarning]:
    """Yield warnings about open access (see section 1 of ``docs/operate/security.md``)."""
    context = context_of(request)
    if identity_of(request).kind == "local":
        yield HeaderWarning(
            "No login",
            "Anyone on this machine can read and change everything here.",
            url_or_none(context.urls, "setup") or "",
        )
    yield from unprotected_listeners(context.settings, context.urls)
    if context.settings.store.url and context.settings.store.allow_asynchronous:
        yield HeaderWarning(
            "No quorum required",
            "Without a quorum, messages are confirmed all the same (store.allow_asynchronous).",
            url_or_none(context.urls, "system") or "",
        )


def unprotected_listeners(settings: Settings, urls: Urls) -> Iterator[HeaderWarning]:
    """Yield warnings about unprotected listeners that other machines can reach."""
    tcp, admin = settings.tcp, settings.admin
    system = url_or_none(urls, "system") or ""
    if not (tcp.allow or tcp.tls_cert) and _is_wide(*tcp.listen, *tcp.legacy_listen):
        yield HeaderWarning(
            "Unprotected TCP",
            "Anyone who can reach the TCP listener can read, publish and acknowledge.",
            system,
        )
    is_encrypted = admin.tls_cert or (admin.trusted_proxies and not admin.plaintext)
    if not is_encrypted and _is_wide(*admin.listen):
        yield HeaderWarning(
            "Unencrypted HTTP", "Passwords and messages are sent in plain text.", system
        )


def _is_wide(*listeners: str) -> bool:
    endpoints = filter(None, map(parse_endpoint, listeners))
    return not all(map(is_loopback, endpoints))


def list_broker_problems(request: web.Request, context: Context) -> list[str]:
    """Return the problems that affect the entire broker; every page shows them in a red bar."""
    status = status_of(request)
    found = [f"Last error: {status.last_error}"] if status.last_error else []
    if status.is_draining and context.is_ready():
        found.append(
            "Draining: new messages are refused, and the broker stops once no messages are held."
        )
    if status.write_problem:
        found.append(f"Nothing can be stored: {status.write_problem}.")
    if status.shortage:
        return [*found, f"Publishing is stopped: {status.shortage.detail}."]
    if (age_s := status.store.replica_age_s) is not None:
        found.append(
            f"No broker is active. These pages show a replica of the database, which was written "
            f"{age_s:.0f} s ago; nothing can be changed."
        )
    if not status.store.has_file:
        if status.store.asynchronous is not None:
            found.append(f"{asynchronous_text(status.store.asynchronous)}.")
        return found
    with suppress(OSError):  # takes only microseconds, because the disk is local
        disk = shutil.disk_usage(context.settings.data)
        found += disk_warning(disk.used, disk.used + disk.free)
    return found


def disk_warning(used: int, usable: int) -> list[str]:
    """Return a warning if the disk is nearly full; space reserved for root is not usable."""
    if CHECKS[Check.DISK].notice.level(used / usable) is not Level.BAD:
        return []
    return [f"The disk is {used / usable:.0%} full. Publishing stops when it is full."]
