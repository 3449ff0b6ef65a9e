"""Addresses of a broker."""

import pytest

from phpmq_lite.client.core import BrokerAddress, parse_address


@pytest.mark.parametrize(
    ("address", "port", "target"),
    [
        ("127.0.0.1", None, BrokerAddress("127.0.0.1", 9100)),
        ("127.0.0.1:9200", None, BrokerAddress("127.0.0.1", 9200)),
        ("broker.local", 9200, BrokerAddress("broker.local", 9200)),
        ("[::1]:9200", None, BrokerAddress("::1", 9200)),
        ("[::1]", 9200, BrokerAddress("::1", 9200)),
        ("::1", None, BrokerAddress("::1", 9100)),
        ("unix:/run/phpmq.sock", None, BrokerAddress(path="/run/phpmq.sock")),
    ],
)
def test_address_is_read(address: str, port: int | None, target: BrokerAddress) -> None:
    assert parse_address(address, port) == target


@pytest.mark.parametrize(
    ("address", "port"),
    [
        ("", None),
        (":9100", None),
        ("host:x", None),
        ("host:٩", None),
        ("host:0", None),
        ("host", 65_536),
        ("host:1", 2),
        ("unix:", None),
        ("unix:/run/x", 9100),
    ],
)
def test_address_is_refused_when_it_is_none(address: str, port: int | None) -> None:
    with pytest.raises(ValueError, match=r"is no|already has a port"):
        parse_address(address, port)


@pytest.mark.parametrize("text", ["127.0.0.1:9100", "[::1]:9100", "unix:/run/x"])
def test_target_prints_as_it_is_written(text: str) -> None:
    assert str(parse_address(text)) == text
