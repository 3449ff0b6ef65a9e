"""Listen addresses: valid and invalid forms, and exposed listeners."""

from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.errors import SettingsError
from phpmq_lite.server.addresses import (
    ListenAddress,
    address_key,
    check_exposed_listeners,
    is_loopback,
    parse_address,
    parse_endpoint,
)
from phpmq_lite.settings import Settings


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("127.0.0.1:9100", ListenAddress("tcp", "127.0.0.1", 9100)),
        ("localhost:0", ListenAddress("tcp", "localhost", 0)),
        ("broker.example.com:65535", ListenAddress("tcp", "broker.example.com", 65_535)),
        (" 0.0.0.0:9100 ", ListenAddress("tcp", "0.0.0.0", 9100)),
        ("[::1]:9100", ListenAddress("tcp", "::1", 9100)),
        ("[::]:9100", ListenAddress("tcp", "::", 9100)),
        ("[fe80::1%eth0]:9100", ListenAddress("tcp", "fe80::1%eth0", 9100)),
        ("unix:/run/phpmq.sock", ListenAddress("unix", path=Path("/run/phpmq.sock"))),
        ("unix:relative/a b:c", ListenAddress("unix", path=Path("relative/a b:c"))),
        ("unix:/" + "a" * 106, ListenAddress("unix", path=Path("/" + "a" * 106))),
        ("none", None),
    ],
)
def test_address_is_parsed(text: str, endpoint: ListenAddress | None) -> None:
    assert parse_endpoint(text) == endpoint


INVALID = """
9100 127.0.0.1 127.0.0.1: :9100 127.0.0.1:65536 127.0.0.1:-1 127.0.0.1:+1 127.0.0.1:١٢
127.0.0.1:9_1 ::1:9100 [::1] [::1:9100 []:9100 [127.0.0.1]:9100 [nonsense]:9100 unix:
"""


@pytest.mark.parametrize(
    "text",
    [
        *INVALID.split(),
        "",
        pytest.param("127.0.0.1:" + "9" * 5_000, id="many digits"),
        "a b:9100",
        "unix:a\0b",
        pytest.param("unix:/" + "a" * 107, id="long path"),
    ],
)
def test_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_endpoint(text)


@pytest.mark.parametrize("text", ["127.0.0.1:9100", "[::1]:0", "unix:/run/a b", "localhost:1"])
def test_endpoint_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_endpoint(text)) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("[::ffff:127.0.0.1]:1", True),
        ("localhost:1", True),
        ("LOCALHOST:1", True),
        ("unix:/run/x", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("192.168.1.5:1", False),
        ("[::ffff:10.0.0.1]:1", False),
        ("localhost.example.com:1", False),  # a resolver decides
        ("0:1", False),
    ],
)
def test_only_this_machine_is_loopback(text: str, expected: bool) -> None:
    endpoint = parse_endpoint(text)
    assert endpoint is not None
    assert is_loopback(endpoint) == expected


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("2001:DB8::0:1", "2001:db8::1"),
    ],
)
def test_address_has_one_name(text: str, name: str) -> None:
    assert str(parse_address(text)) == name


@pytest.mark.parametrize("text", ["localhost", "10.0.0.1%eth0", ""])
def test_anything_else_is_not_an_address(text: str) -> None:
    assert parse_address(text) is None


WIDE = ["0.0.0.0:9100", "[::]:9100", "192.168.1.5:0", "broker.example.com:9100"]
NARROW = ["127.0.0.1:9100", "[::1]:0", "localhost:0", "unix:/run/phpmq.sock", "none"]
TLS = {"tls_cert": "/c.pem", "tls_key": "/k.pem"}


def settings(**sections: Any) -> Settings:
    return Settings(**sections)


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"tcp": {"listen": NARROW, "legacy_listen": NARROW}},
        {"tcp": {"listen": WIDE, "legacy_listen": WIDE, "allow": ["10.0.0.0/8"]}},
        {"tcp": {"listen": WIDE, "legacy_listen": WIDE, "open": True}},
        {"tcp": {"listen": WIDE, "legacy_listen": WIDE} | TLS},
        {"admin": {"listen": WIDE, "plaintext": True, "initial_password_file": "/run/first"}},
    ],
)
def test_loopback_or_explicitly_exposed_listener_is_accepted(sections: dict[str, Any]) -> None:
    check_exposed_listeners(settings(**sections))


@pytest.mark.parametrize("name", ["listen", "legacy_listen"])
@pytest.mark.parametrize("address", WIDE)
def test_exposed_listener_is_refused_with_its_setting(name: str, address: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_exposed_listeners(settings(tcp={name: ["127.0.0.1:1", address]}))
    for part in (f"tcp.{name} {address}", "tcp.allow", "tcp.tls_cert", "tcp.open"):
        assert part in str(caught.value)


@pytest.mark.parametrize("address", WIDE)
@pytest.mark.parametrize("admin", [{}, {"plaintext": True}, {"trusted_proxies": ["10.0.0.0/8"]}])
def test_exposed_admin_is_refused_without_an_admin_user(
    address: str, admin: dict[str, Any]
) -> None:
    with pytest.raises(SettingsError, match=r"admin\.listen .* requires an admin user"):
        check_exposed_listeners(settings(admin={"listen": [address]} | admin))


def test_exposed_admin_is_refused_without_opt_in() -> None:
    with pytest.raises(SettingsError, match=r"admin\.trusted_proxies.*admin\.plaintext"):
        check_exposed_listeners(settings(admin={"listen": WIDE}), lambda: True)


@pytest.mark.parametrize("admin", [{"plaintext": True}, {"trusted_proxies": ["10.0.0.0/8"]}, TLS])
def test_explicitly_exposed_admin_is_accepted(admin: dict[str, Any]) -> None:
    check_exposed_listeners(settings(admin={"listen": WIDE} | admin), lambda: True)


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(SettingsError, match=r"tcp\.listen.*; admin\.listen"):
        check_exposed_listeners(settings(tcp={"listen": WIDE[:1]}, admin={"listen": WIDE[:1]}))


@pytest.mark.parametrize(
    ("section", "name"), [("tcp", "listen"), ("tcp", "legacy_listen"), ("admin", "listen")]
)
def test_unreadable_address_is_refused_with_its_setting(section: str, name: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{section}\.{name}: 'nonsense'"):
        check_exposed_listeners(settings(**{section: {name: ["nonsense"]}}))


def test_database_is_not_read_for_loopback() -> None:
    def look() -> bool:
        raise AssertionError

    check_exposed_listeners(settings(admin={"listen": NARROW}), look)


def test_admin_socket_must_not_be_the_control_socket() -> None:
    with pytest.raises(SettingsError, match=r"admin\.listen unix:/run/control\.sock"):
        check_exposed_listeners(settings(admin={"listen": ["unix:/run/control.sock"]}))


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:0DB8:0001:0002::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.0.0.2", "127.0.0.2"),
        ("::1", "::1"),
        ("local", "local"),
        (None, ""),
    ],
)
def test_limits_count_an_ipv6_address_by_its_network(address: str | None, key: str) -> None:
    assert address_key(address) == key
