"""The paths of all GET routes that return a page, on a broker of ``filled``.

They come from the table of routes, so the tour includes new pages; a path parameter without a value
is an error.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import aiohttp

from phpmq_lite.admin.routes import ROUTES
from phpmq_lite.roles import Role
from tests.browser.filled import BODIES, SHOP_TRACE, Site

# Routes that do not return a page.
NO_PAGES: Final = frozenset(
    {"livez", "readyz", "startupz", "metrics", "body", "search", "backup-download"}
)
EMPTY: Final = (  # pages of a broker without queues
    "/", "/queues", "/dead", "/clients", "/history", "/messages", "/publish", "/schemas", "/trash",
    "/insights", "/insights?tab=claims", "/insights?tab=readers", "/system/backups",
)  # fmt: skip
TRACE: Final = "7b3f1c2a-0000-4000-8000-000000000042"
MORE: Final = {
    "queue": ("?tab=dead", "?tab=history", "?tab=scheduled", "?tab=held", "?tab=consumers",
              "?tab=charts", "?tab=settings"),
    "queues": ("?sort=-ready", "?q=zzz&has=dead", "?has=backlog"),
    "history": ("?outcome=dead", "?outcome=expired"),
    "insights": ("?queue=orders", "?tab=queues", "?tab=urns", "?tab=dead", "?tab=expired",
                 "?tab=paths", "?tab=jobs", "?tab=claims", "?tab=readers", "?release=nightly",
                 "?span=30d&queue=orders", "?span=30d&tab=queues", "?span=30d&tab=dead",
                 "?span=30d&tab=expired", "?span=30d&tab=paths"),
    "overview": ("?span=24h",),
    "docs": ("?q=dead+letter", "?q=no-such-word", "images/nothing"),
    "system": ("?tab=starts", "?tab=settings", "?tab=log"),
    "frame": ("?frame=H0100202P0100000000000000000000000000003FooP0300", "?frame=zz&encoding=hex"),
    "messages": ("?q=queue:orders", "?q=nothing-like-this", "?q=deliveries:x"),
    "message": ("?view=raw", "?view=hex"),
}  # fmt: skip
LOST: Final = ("/queues/nope", f"/messages/{1:016x}{1:016x}", "/nowhere", "/queues?sort=nonsense")


async def paths(site: Site) -> dict[str, str]:
    """Return the path of each page by a name for messages of failed tests.

    Deletes ``mail.bounces`` first, for the pages of bulk jobs and of the trash.
    """
    return filled_paths(await _values(site)) | {path: path for path in LOST}


DOCS: Final = {
    "docs.section": ["concepts"],
    "docs.page/": ["dead-letters"],
    "docs.page": ["protocol"],
}


def filled_paths(known: dict[str, list[str]], role: str = "admin") -> dict[str, str]:
    """Return the path of each page that a role may see, by name; ``known``: path parameters."""
    found: dict[str, str] = {}
    for route in ROUTES:
        if route.method != "GET" or route.path.startswith("/api/") or route.name in NO_PAGES:
            continue
        if not Role(role).may(route.role):
            continue
        for path in _filled_in(route.path, known | DOCS):
            found[f"{route.name} {path}"] = path
            if path == next(_filled_in(route.path, known | DOCS)):
                found |= {f"{route.name} {more}": path + more for more in MORE.get(route.name, ())}
    return found


def _filled_in(path: str, known: dict[str, list[str]]) -> Iterator[str]:
    part = re.search(r"{(\w+)}", path)
    if part is None:
        yield path
        return
    whole = path.split("/")[1] + "." + part[1]  # messages.id, clients.id
    more = whole + "/" if path.count("/") > 2 else whole  # of a page below one's page
    values = known.get(more) or known.get(whole) or known.get(part[1])
    if not values:
        raise LookupError(f"tour.py knows no value for {{{part[1]}}} of {path}")
    for value in values:
        yield from _filled_in(path.replace(part[0], value), known)


async def _values(site: Site) -> dict[str, list[str]]:
    jar = aiohttp.CookieJar(unsafe=True)  # accepts cookies of IP addresses
    async with aiohttp.ClientSession(headers={"Origin": site.url("")}, cookie_jar=jar) as http:

        async def items(path: str) -> list[dict[str, Any]]:
            async with http.get(site.url(path)) as answer:
                text: dict[str, Any] = await answer.json()
            return list(text["items"])

        async def ids(path: str) -> list[str]:
            return [str(item["id"]) for item in await items(path)]

        zoo = (await ids("/queues/zoo?format=json"))[: len(BODIES)]
        dead = (await ids("/history?outcome=dead&format=json"))[:1]
        acked = (await ids("/history?outcome=acked&format=json"))[:1]
        orders = (await ids("/queues/orders?format=json"))[:1]
        carts = await ids("/queues/shop.cart?format=json")
        shop = [
            carts[2],
            *await ids("/queues/shop.cart.dlq?format=json"),
        ]  # invalid, a record
        client = [str((await items("/clients?format=json"))[-1]["client"])]
        return {
            "q": ["orders"],
            "messages.id": [*orders, *shop, *zoo, *dead, *acked],
            "messages.id/": [*orders, *dead],
            "clients.id": client,
            "client": client,
            "n": client,
            "name": ["nobody"],
            "trace_id": [TRACE],
            "trace": [TRACE, SHOP_TRACE],
            "token": [await _select(http, site, "queue:invoices")],
            "job": [await _delete(http, site, "mail.bounces")],
        }


async def _post(http: aiohttp.ClientSession, site: Site, path: str, **fields: str) -> str:
    """Submit a form; return the path that it redirects to."""
    async with http.get(site.url("/queues/orders")) as page:
        found = re.search(r'name="csrf" value="([^"]+)"', await page.text())
    form = {"csrf": found[1] if found else ""} | fields
    async with http.post(site.url(path), data=form, allow_redirects=False) as answer:
        if answer.status != 303:
            raise LookupError(f"POST {path}: {answer.status} {(await answer.text())[:2_000]}")
        return answer.headers["Location"]


async def _select(http: aiohttp.ClientSession, site: Site, query: str) -> str:
    to = await _post(http, site, "/selections", q=query)
    return to.partition("?")[0].rpartition("/")[2]


async def _delete(http: aiohttp.ClientSession, site: Site, queue: str) -> str:
    token = await _select(http, site, f"queue:{queue}")
    to = await _post(http, site, f"/selections/{token}/apply", action="delete", confirm=queue)
    return to.partition("?")[0].rpartition("/")[2]
