"""Binding beyond loopback requires explicit opt-in (docs/operate/security.md 1)."""

from typing import Any

import pytest

from phpmq_lite.errors import SettingsError
from phpmq_lite.server.addresses import check_exposed_listeners
from phpmq_lite.settings import Settings

WIDE = ["0.0.0.0:9100", "[::]:9100", "192.168.1.5:0", "broker.example.com:9100"]
NARROW = ["127.0.0.1:9100", "[::1]:0", "localhost:0", "unix:/run/phpmq.sock", "none"]


def settings(**sections: Any) -> Settings:
    return Settings(**sections)


def test_defaults_are_taken() -> None:
    check_exposed_listeners(settings())


@pytest.mark.parametrize("name", ["listen", "legacy_listen"])
@pytest.mark.parametrize("address", NARROW)
def test_listener_on_this_machine_is_taken(name: str, address: str) -> None:
    check_exposed_listeners(settings(tcp={name: [address]}))


@pytest.mark.parametrize("name", ["listen", "legacy_listen"])
@pytest.mark.parametrize("address", WIDE)
def test_wide_listener_is_refused_with_its_setting(name: str, address: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_exposed_listeners(settings(tcp={name: ["127.0.0.1:1", address]}))
    for part in (f"tcp.{name} {address}", "tcp.allow", "tcp.tls_cert", "tcp.open"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "decision",
    [{"allow": ["10.0.0.0/8"]}, {"open": True}, {"tls_cert": "/c.pem", "tls_key": "/k.pem"}],
)
def test_wide_listener_is_taken_when_it_was_decided(decision: dict[str, Any]) -> None:
    check_exposed_listeners(settings(tcp={"listen": WIDE, "legacy_listen": WIDE} | decision))


@pytest.mark.parametrize("address", WIDE)
@pytest.mark.parametrize("admin", [{}, {"plaintext": True}, {"trusted_proxies": ["10.0.0.0/8"]}])
def test_wide_admin_is_refused_without_an_admin_user(address: str, admin: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"admin\.listen .* needs an admin user"):
        check_exposed_listeners(settings(admin={"listen": [address]} | admin))


def test_wide_admin_is_refused_without_a_decision() -> None:
    with pytest.raises(SettingsError, match=r"admin\.trusted_proxies.*admin\.plaintext"):
        check_exposed_listeners(settings(admin={"listen": WIDE}), lambda: True)


@pytest.mark.parametrize(
    "admin",
    [
        {"plaintext": True},
        {"trusted_proxies": ["10.0.0.0/8"]},
        {"tls_cert": "/c.pem", "tls_key": "/k.pem"},
    ],
)
def test_wide_admin_is_taken_when_it_was_decided(admin: dict[str, Any]) -> None:
    check_exposed_listeners(settings(admin={"listen": WIDE} | admin), lambda: True)


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(SettingsError, match=r"tcp\.listen.*; admin\.listen"):
        check_exposed_listeners(settings(tcp={"listen": WIDE[:1]}, admin={"listen": WIDE[:1]}))


@pytest.mark.parametrize(
    ("section", "name"), [("tcp", "listen"), ("tcp", "legacy_listen"), ("admin", "listen")]
)
def test_unreadable_address_is_refused_with_its_setting(section: str, name: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{section}\.{name}: 'nonsense'"):
        check_exposed_listeners(settings(**{section: {name: ["nonsense"]}}))


def test_first_password_stands_for_the_admin_user() -> None:
    admin = {"listen": WIDE, "plaintext": True, "initial_password_file": "/run/secrets/first"}
    check_exposed_listeners(settings(admin=admin))


def test_database_is_not_looked_at_for_loopback() -> None:
    def look() -> bool:
        raise AssertionError

    check_exposed_listeners(settings(admin={"listen": NARROW}), look)


def test_admin_socket_cannot_pass_for_the_control_socket() -> None:
    with pytest.raises(SettingsError, match=r"admin\.listen unix:/run/control\.sock"):
        check_exposed_listeners(settings(admin={"listen": ["unix:/run/control.sock"]}))
