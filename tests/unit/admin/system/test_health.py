"""Warnings on every page: unprotected listeners, and a disk that is nearly full."""

from typing import Any

import pytest

from phpmq_lite.admin.system.health import disk_warning, unprotected_listeners
from phpmq_lite.admin.urls import Urls
from phpmq_lite.settings import Settings


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
