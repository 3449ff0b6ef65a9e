"""Hosts, as docs/operate/security.md 5 has them."""

from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from phpmq_lite.admin.auth.request_source import host_name, is_known_host, known_hosts
from phpmq_lite.settings import Settings


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost:9101", "localhost"),
        ("LOCALHOST", "localhost"),
        ("[::1]:9101", "::1"),
        ("127.0.0.1", "127.0.0.1"),
        ("example.com.", "example.com"),
        ("::ffff:10.0.0.5", "10.0.0.5"),
        ("", ""),
    ],
)
def test_host_is_compared_without_its_port(host: str, name: str) -> None:
    assert host_name(host) == name


@pytest.mark.parametrize(
    ("host", "is_known"),
    [
        ("localhost", True),
        ("[::1]:1", True),
        ("mq.example:80", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.nip.io", False),
        ("", False),
    ],
)
def test_host_is_known_by_name(host: str, is_known: bool) -> None:
    request = make_mocked_request("GET", "/", {"Host": host})
    assert is_known_host(request, ("mq.example",)) is is_known


def test_names_of_the_settings_are_known() -> None:
    admin: Any = {"hosts": ["mq.lan"], "public_url": "https://mq.example:8443/broker"}
    assert known_hosts(Settings(admin=admin)) == ["mq.lan", "mq.example"]


def test_request_with_two_hosts_is_unknown() -> None:
    request = make_mocked_request("GET", "/", [("Host", "localhost"), ("Host", "localhost")])
    assert not is_known_host(request, ())
