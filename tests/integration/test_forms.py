"""Forms and links of every page: saving unchanged changes nothing, and none is forbidden."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import pytest

from phpmq_lite.admin.http.route import Route
from phpmq_lite.admin.routes import ROUTES
from phpmq_lite.admin.urls import encode_name
from phpmq_lite.roles import Role
from tests.browser.tour import MORE, NO_PAGES
from tests.integration.test_every_page import OTHER_STATE, UNCOMPARED
from tests.support.full_broker import NAME, PAGES, FullBroker
from tests.support.http_users import HttpUser

TEMPLATES: Final = Path(__file__).parents[2] / "templates"
# Filters that format a value for display; a form would send the formatted value back.
DISPLAY: Final = ("visible", "lines", "number", "size", "duration", "capitalize", "tojson")
VALUE: Final = re.compile(
    r"""(?:<(?:input|option|button)\b[^>]*?\bvalue="([^"]*)"|<textarea\b(?:{.*?}|[^>])*>(.*?)</textarea>)""",
    re.DOTALL,
)
# Forms that save what they show.
SAVES: Final = {"queue-settings", "user-rights", "client-label", "schedule-set"}
# Forms with a prefilled field that do something other than save it.
ACTIONS: Final = {
    name: effect
    for effect, names in {
        "publishes a message": "publish-send message-edit",
        "compares and stores nothing": "schemas-check",
        "creates a view or a schedule": "view-save schedule-create",
        "a search": "users",
        "creates a user or a token, with the least role": "user-add token-add",
        "acts on messages": "selection-apply queue-move queue-redrive",
        "acts on a message": "message-requeue message-move message-redrive message-restore "
        "message-release message-reschedule",
    }.items()
    for name in names.split()
}
# Forms that would end the session or the broker, and with it the test.
ENDING: Final = {"logout", "system-drain", "session-end", "account-end", "account-password"}
ODD_NOTE: Final = "\n  Runbook:\n\tstep 1 \u202e\u200b é \\n\n"


@dataclass
class Form:
    method: str
    action: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)  # names of prefilled fields
    buttons: list[str] = field(default_factory=list)  # actions of buttons that override the form's


class Reader(HTMLParser):
    """Read the forms and links of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.links: list[str] = []
        self._form: Form | None = None
        self._text: tuple[str, list[str]] | None = None
        self._choices: tuple[str, list[tuple[str, bool]]] | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        at = {name: value or "" for name, value in attrs}
        if tag == "a" and "href" in at:
            self.links.append(at["href"])
        if tag == "form":
            self._form = Form(at.get("method", "get").upper(), at.get("action", ""))
            self.forms.append(self._form)
        if self._form is None or "disabled" in at:
            return
        if tag in ("button", "input") and "formaction" in at:
            self._form.buttons.append(at["formaction"])
        if tag == "input" and at.get("name"):
            self._input(self._form, at)
        if tag == "textarea":
            self._text = at["name"], []
        if tag == "select":
            self._choices = at["name"], []
        if tag == "option" and self._choices is not None:
            self._choices[1].append((at["value"], "selected" in at))

    def _input(self, form: Form, at: dict[str, str]) -> None:
        kind, value = at.get("type", "text"), at.get("value", "on")
        if kind in ("checkbox", "radio"):
            if "checked" not in at:
                return
        elif kind != "hidden":
            value = re.sub(r"[\r\n]", "", at.get("value", ""))
        form.fields.append((at["name"], value))
        if kind != "hidden" and value:
            form.shown.append(at["name"])

    def handle_data(self, data: str) -> None:
        if self._text is not None:
            self._text[1].append(data)

    def handle_endtag(self, tag: str) -> None:
        if self._form is None:
            return
        if tag == "textarea" and self._text is not None:
            name, parts = self._text
            text = "".join(parts).removeprefix("\n")
            self._form.fields.append((name, text.replace("\n", "\r\n")))
            self._form.shown += [name] if text else []
            self._text = None
        if tag == "select" and self._choices is not None:
            name, choices = self._choices
            chosen = [value for value, is_chosen in choices if is_chosen]
            self._form.fields += [(name, one) for one in (chosen or [choices[0][0]])[:1]]
            self._form.shown.append(name)
            self._choices = None
        if tag == "form":
            self._form = None


def route_of(method: str, address: str) -> Route | None:
    path = address.partition("?")[0].partition("#")[0]
    for route in ROUTES:
        pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(route.path))
        if route.method == method and re.fullmatch(pattern, path):
            return route
    return None


def addresses(filled: FullBroker) -> Iterator[str]:
    """Yield the addresses of all pages and of their tabs and views."""
    for route in PAGES:
        if route.name in NO_PAGES:
            continue
        for message in filled.message_ids if route.name == "message" else filled.message_ids[:1]:
            path = filled.path(route, id=message)
            yield path
            for more in MORE.get(route.name, ()):
                yield path + more
        if route.name in OTHER_STATE:
            yield filled.path(route, id=filled.message_ids[OTHER_STATE[route.name]])


def test_no_display_filter_reaches_a_form_value() -> None:
    wrong: list[tuple[str, object, str]] = []
    for file in sorted(TEMPLATES.rglob("*.html")):
        for found in VALUE.finditer(file.read_text(encoding="utf-8")):
            value = found[1] or found[2] or ""
            if used := [name for name in DISPLAY if re.search(rf"\|\s*{name}\b", value)]:
                wrong.append((file.name, used, value))
            if found[2] and not found[2].startswith("\n"):
                wrong.append((file.name, "a first line break would be lost", value))
    assert wrong == []


async def test_every_form_saved_unchanged_changes_nothing(filled: FullBroker) -> None:
    globs = ["orders.*", "mail[ab]", "x\u200by?"]
    await filled.home.add_user("bert", "operator", *globs)
    own = {"note": ODD_NOTE, "owner": " shop\nteam ", "on_expire": "forward:odd\nname ",
           "max_messages": 5_000, "alert_age_s": 60, "pinned": True, "schema_mode": "warn",
           "empty_list_data": "always", "dead_letter_queue": "graves"}  # fmt: skip
    odd_name = encode_name("odd\nname ")
    await filled.ok("PUT", f"/queues/{odd_name}")
    await filled.ok("PATCH", "/queues/orders", own)
    filled.places["name"] = "bert"
    labelled = await filled.me.post("/clients/label", name="127.0.0.1", label='mail "1" \u200b')
    assert labelled.status == 303
    saved: set[str] = set()
    more = ("/queues/mail?tab=settings", "/queues/orders.dlq?tab=settings", f"/schedules/{NAME}")
    paths = [*addresses(filled), *more]
    before = filled.home.tables(UNCOMPARED)
    for address in paths:
        page = await filled.me.get(address)
        for form in Reader(page.text).forms if page.status == 200 else ():
            route = route_of(form.method, form.action)
            if form.method != "POST" or route is None:
                continue
            if route.name not in SAVES:
                assert not form.shown or route.name in ACTIONS, (address, route.name, form.shown)
                continue
            saved.add(route.name)
            answer = await filled.me.request(
                "POST", form.action, {"Origin": filled.me.origin}, data=form.fields
            )
            assert answer.status == 303, (address, form.action, answer.text[-2_000:])
            assert filled.home.tables(UNCOMPARED) == before, (address, form.action)
    assert saved == SAVES


@pytest.mark.sample("viewer", "operator of orders")
@pytest.mark.parametrize(
    ("role", "globs"),
    [("viewer", ()), ("operator", ()), ("viewer", ("orders*",)), ("operator", ("orders*",)),
     ("admin", ("orders*",))],
    ids=["viewer", "operator", "viewer of orders", "operator of orders", "admin of orders"],
)  # fmt: skip
async def test_nobody_is_offered_what_they_may_not_do(
    filled: FullBroker, role: str, globs: tuple[str, ...]
) -> None:
    await filled.home.add_user("carl", role, *globs)
    wrong: set[str] = set()
    seen: dict[str, str] = {}  # address -> page that links to it
    forms: dict[str, tuple[str, Form]] = {}
    async with HttpUser(filled.me.base, Origin=filled.me.origin) as carl:
        assert (await carl.log_in("carl")).status == 303
        pending = list(addresses(filled))
        for address in pending:  # grows by the links that are found
            is_offered = address in seen
            page = await carl.get(address)
            if is_offered and page.status == 403:
                wrong.add(f"{seen[address]}: {address}")
            if page.status != 200 or "text/html" not in page.headers["Content-Type"]:
                continue
            read = Reader(page.text)
            for link in {one.partition("#")[0] for one in read.links} - set(seen):
                target = route_of("GET", link)
                if target is not None and not Role(role).may(target.role):
                    wrong.add(f"{address}: {link}")
                elif target is None or is_offered:
                    continue
                # documentation and other formats do not differ by user
                elif target.name != "docs-page" and "format=" not in link:
                    seen[link] = address
                    pending.append(link)
            for form in read.forms:
                for action in [form.action, *form.buttons]:
                    forms.setdefault(f"{form.method} {action}", (address, form))
        for request, (address, form) in forms.items():
            method, _, action = request.partition(" ")
            route = route_of(method, action)
            if route is None or route.name in ENDING:
                continue
            more = {"data" if method == "POST" else "params": form.fields}
            answer = await carl.request(method, action, {"Origin": carl.origin}, **more)
            if answer.status == 403:
                wrong.add(f"{address}: {request}")
    assert sorted(wrong) == []
