"""Elements of every page: navigation, environment and warnings."""

import re
from typing import Any

import pytest

from phpmq_lite.admin.http.page_layout import (
    COLOURS,
    NAVIGATION,
    PARENT_ENTRIES,
    colour_of,
    disk_warning,
    unprotected_listeners,
    url_or_none,
)
from phpmq_lite.admin.routes import ROUTES, route_paths
from phpmq_lite.admin.urls import Urls
from phpmq_lite.installation import templates_folder
from phpmq_lite.settings import Settings


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


def test_unknown_route_has_no_url() -> None:
    urls = Urls("/mq", {"queues": "/queues"})
    assert url_or_none(urls, "queues") == "/mq/queues"
    assert url_or_none(urls, "nope") is None


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, []),
        ({"tcp": {"listen": ["0.0.0.0:9100"], "open": True}}, ["Unprotected TCP"]),
        ({"tcp": {"listen": ["[::]:9100"], "allow": ["10.0.0.0/8"]}}, []),
        ({"tcp": {"listen": ["unix:/run/mq.sock", "127.0.0.2:9100"]}}, []),
        ({"tcp": {"listen": ["none"], "legacy_listen": ["10.0.0.5:9102"]}}, ["Unprotected TCP"]),
        ({"admin": {"listen": ["10.0.0.5:9101"], "plaintext": True}}, ["Unencrypted HTTP"]),
        ({"admin": {"listen": ["10.0.0.5:9101"], "trusted_proxies": ["10.0.0.1/32"]}}, []),
    ],
)
def test_unprotected_listeners_are_shown(sections: dict[str, Any], expected: list[str]) -> None:
    chips = unprotected_listeners(Settings(**sections), Urls("", {"system": "/system"}))
    assert [chip.title for chip in chips] == expected


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (929, []),
        (930, ["The disk is 93% full. Publishing stops when it is full."]),
        (1_000, ["The disk is 100% full. Publishing stops when it is full."]),
    ],
)
def test_nearly_full_disk_is_shown_on_every_page(used: int, expected: list[str]) -> None:
    assert disk_warning(used, 1_000) == expected
