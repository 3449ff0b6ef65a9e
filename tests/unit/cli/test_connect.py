"""Where ``publish`` and ``consume`` find the broker."""

import pytest

from phpmq_lite.cli.connect import address_of
from phpmq_lite.cli.main import CommandError
from phpmq_lite.settings import Settings
from phpmq_lite.settings.sections import Tcp


def settings(*listen: str) -> Settings:
    return Settings(tcp=Tcp(listen=list(listen)))


@pytest.mark.parametrize(
    ("listen", "expected"),
    [
        ("127.0.0.1:9100", "127.0.0.1:9100"),
        ("0.0.0.0:9200", "127.0.0.1:9200"),
        ("[::]:9100", "[::1]:9100"),
        ("mq.local:9100", "mq.local:9100"),
        ("unix:/run/mq.sock", "unix:/run/mq.sock"),
    ],
)
def test_address_is_that_of_the_first_listener(listen: str, expected: str) -> None:
    assert address_of(settings("none", listen, "127.0.0.1:1")) == expected


def test_any_port_is_no_address() -> None:
    with pytest.raises(CommandError, match=r"127\.0\.0\.1:0, any free port; say --connect"):
        address_of(settings("127.0.0.1:0"))


def test_no_listener_is_no_address() -> None:
    with pytest.raises(CommandError, match="no listener"):
        address_of(settings("none"))
