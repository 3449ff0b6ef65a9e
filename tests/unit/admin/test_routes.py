"""Routes and templates follow the rules of docs/operate/security.md."""

import re
from pathlib import Path

import pytest

from phpmq_lite.admin.http.route import Route
from phpmq_lite.admin.routes import ROUTES
from phpmq_lite.installation import templates_folder
from phpmq_lite.roles import Role

TEMPLATES = sorted(templates_folder().rglob("*.html"))
OWN_ACCOUNT = {"log-in", "logout", "set-up", "account-password", "account-end"}
# A viewer may follow the history, so viewers own readers: the operation refuses those of others.
OWN_READERS = {"api-pipeline-reader", "api-pipeline-reader-remove"}


def test_route_names_are_unique() -> None:
    names = [route.name for route in ROUTES]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_route_that_writes_is_audited_and_not_for_viewers(route: Route) -> None:
    is_noted = route.is_writing or route.name == "backup-download"
    assert is_noted == (route.audit is not None)
    is_low = route.role in (Role.PUBLIC, Role.VIEWER)
    assert not (route.is_writing and is_low and route.name not in OWN_ACCOUNT | OWN_READERS)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_template_has_nothing_inline_and_nothing_unescaped(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = re.findall(r"\|\s*safe\b|Markup|autoescape|\bstyle=|<style|\son\w+=|javascript:", text)
    assert found == []
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text))
