"""Host checks and forwarded headers (docs/operate/security.md, section 5)."""

from ipaddress import ip_network
from typing import Any
from unittest.mock import Mock

import pytest
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import Request

from phpmq_lite.admin.http.source import (
    as_browser_sent,
    host_name,
    is_forwarded,
    is_known_host,
    known_hosts,
)
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


TRUSTED = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))


def from_peer(peer: str, **headers: str) -> Request:
    transport = Mock()
    transport.get_extra_info.side_effect = lambda key: {"peername": (peer, 1)}.get(key)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return make_mocked_request("GET", "/", {"Host": "inner:9101"} | named, transport=transport)


def test_untrusted_peer_cannot_forward_headers() -> None:
    sent = from_peer(
        "192.0.2.1", X_Forwarded_For="127.0.0.1", X_Forwarded_Proto="https", X_Forwarded_Host="x"
    )
    seen = as_browser_sent(sent, TRUSTED)
    assert (seen.remote, seen.secure, seen.host) == ("192.0.2.1", False, "inner:9101")
    assert is_forwarded(sent)


def test_trusted_proxy_forwards_address_scheme_and_host() -> None:
    sent = from_peer(
        "10.0.0.2",
        X_Forwarded_For="192.0.2.7",
        X_Forwarded_Proto="https",
        X_Forwarded_Host="mq.example",
    )
    seen = as_browser_sent(sent, TRUSTED)
    assert (seen.remote, seen.secure, seen.host) == ("192.0.2.7", True, "mq.example")


@pytest.mark.parametrize(
    ("forwarded", "remote"),
    [
        ("127.0.0.1, 192.0.2.7", "192.0.2.7"),  # the browser sent the first
        ("192.0.2.7, 10.0.0.9", "192.0.2.7"),  # two trusted proxies
        ("192.0.2.7:5000", "192.0.2.7"),
        ("[2001:db8::1]:5000", "2001:db8::1"),
        ("nonsense, 192.0.2.7", "192.0.2.7"),
        ("192.0.2.7, nonsense", "10.0.0.2"),
        ("192.0.2.7, 10.0.0.9%eth0", "10.0.0.2"),  # IPv4 addresses have no zone
        ("", "10.0.0.2"),
        (", ".join(["192.0.2.1"] + ["10.0.0.9"] * 1_000), "10.0.0.9"),
    ],
)
def test_nearest_untrusted_address_counts(forwarded: str, remote: str) -> None:
    seen = as_browser_sent(from_peer("10.0.0.2", X_Forwarded_For=forwarded), TRUSTED)
    assert seen.remote == remote


@pytest.mark.parametrize("scheme", ["", "ftp", "https, http"])
def test_unknown_scheme_is_not_secure(scheme: str) -> None:
    assert not as_browser_sent(from_peer("10.0.0.2", X_Forwarded_Proto=scheme), TRUSTED).secure


def test_no_proxy_is_trusted_by_default() -> None:
    sent = from_peer("127.0.0.1", X_Forwarded_For="192.0.2.7")
    assert as_browser_sent(sent, ()) is sent
