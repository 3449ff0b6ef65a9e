"""Elements of every page: navigation and environment."""

import re

import pytest

from phpmq_lite.admin.http.page_layout import NAVIGATION, PARENT_ENTRIES, colour_of
from phpmq_lite.admin.http.templates import COLOURS
from phpmq_lite.admin.routes import ROUTES, route_paths
from phpmq_lite.installation import templates_folder


@pytest.mark.parametrize(
    ("environment", "colour", "expected"),
    [
        ("", "", ""),
        ("production", "", "red"),
        ("Prod EU", "", "red"),
        ("staging", "", "amber"),
        ("test-7", "", "violet"),
        ("dev", "", "green"),
        ("warehouse", "", "blue"),
        ("production", "grey", "grey"),
        ("", "green", "green"),
    ],
)
def test_colour_follows_the_environment_name(environment: str, colour: str, expected: str) -> None:
    assert colour_of(environment, colour) == expected


def test_style_sheet_has_the_same_colours() -> None:
    style = (templates_folder() / "static" / "app.css").read_text(encoding="utf-8")
    assert dict(re.findall(r"\.env-(\w+) { --env: (#\w+); }", style)) == COLOURS


def test_rail_has_its_routes_and_each_letter_once() -> None:
    letters = [key for _, _, key in NAVIGATION]
    assert {name for name, _, _ in NAVIGATION} <= {route.name for route in ROUTES}
    assert len(set(letters)) == len(letters)
    assert set(PARENT_ENTRIES.values()) <= {name for name, _, _ in NAVIGATION}


def test_rail_entry_of_pages_beside_it_exists() -> None:
    parts = {path.strip("/").partition("/")[0] for path in route_paths().values()}
    assert set(PARENT_ENTRIES) - {"backups", "definitions"} <= parts
