"""Where ``publish`` and ``consume`` find the listener of the broker that all commands talk to."""

from typing import Any

import pytest

from phpmq_lite.cli.admin_client import admin_url_of
from phpmq_lite.cli.broker_connection import listener_url
from phpmq_lite.cli.errors import CommandError
from phpmq_lite.settings import Settings
from phpmq_lite.settings.model import AdminSettings

LEGACY = {"address": "127.0.0.1:9102", "transport": "tcp", "has_ttl": False}


def listener(address: str, transport: str = "tcp") -> dict[str, Any]:
    return {"address": address, "transport": transport, "has_ttl": True}


@pytest.mark.parametrize(
    ("first", "host", "expected"),
    [
        (listener("127.0.0.1:9100"), "localhost", "phpmq://127.0.0.1:9100"),
        (listener("127.0.0.1:9100"), "127.0.0.1", "phpmq://127.0.0.1:9100"),
        (listener("0.0.0.0:9200"), "localhost", "phpmq://127.0.0.1:9200"),
        (listener("[::]:9100"), "[::1]", "phpmq://[::1]:9100"),
        (listener("0.0.0.0:9200"), "mq.example", "phpmq://mq.example:9200"),
        (listener("[::]:9200"), "[2001:db8::1]", "phpmq://[2001:db8::1]:9200"),
        (listener("10.0.0.5:9100", "tls"), "mq.example", "phpmqs://10.0.0.5:9100"),
        (listener("unix:/run/mq.sock", "unix"), "localhost", "unix:/run/mq.sock"),
    ],
)
def test_first_listener_with_ttl_is_used(first: dict[str, Any], host: str, expected: str) -> None:
    later = listener("127.0.0.1:1")
    assert listener_url([LEGACY, first, later], host) == expected


def test_listeners_that_only_the_machine_of_the_broker_reaches_are_passed_over() -> None:
    listeners = [listener("unix:/run/mq", "unix"), listener("127.0.0.1:1"), listener("10.0.0.5:2")]
    assert listener_url(listeners, "mq.example") == "phpmq://10.0.0.5:2"


@pytest.mark.parametrize("found", [[], [LEGACY], [listener("127.0.0.1:9100")]])
def test_broker_that_cannot_be_reached_is_refused_with_the_option(found: list[Any]) -> None:
    with pytest.raises(CommandError, match=r"reachable from here.*--url phpmq://HOST:PORT"):
        listener_url(found, "mq.example")


@pytest.mark.parametrize(
    ("admin", "expected"),
    [
        ({"listen": ["127.0.0.1:9101"]}, "http://127.0.0.1:9101"),
        ({"listen": ["none", "0.0.0.0:9101"]}, "http://127.0.0.1:9101"),
        ({"listen": ["[::]:80"], "base_path": "/mq"}, "http://[::1]:80/mq"),
        ({"listen": ["unix:/run/a.sock", "127.0.0.1:9102"]}, "http://127.0.0.1:9102"),
        ({"tls_cert": "/c", "tls_key": "/k"}, "https://127.0.0.1:9101"),
    ],
)
def test_url_is_that_of_the_first_listener_of_the_admin(
    admin: dict[str, Any], expected: str
) -> None:
    assert admin_url_of(Settings(admin=AdminSettings(**admin))) == expected


@pytest.mark.parametrize("listen", ["none", "unix:/run/a.sock", "127.0.0.1:0"])
def test_admin_without_a_port_is_refused_with_the_option(listen: str) -> None:
    with pytest.raises(CommandError, match="give --url http://HOST:PORT"):
        admin_url_of(Settings(admin=AdminSettings(listen=[listen])))
