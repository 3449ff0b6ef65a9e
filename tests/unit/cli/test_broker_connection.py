"""How commands find a broker and read its responses."""

import json
from typing import Any

import pytest

from phpmq_lite.cli.admin_client import admin_url_of, listener_url, read_response
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
        (listener("0.0.0.0:9200", "tls"), "localhost", "phpmqs://localhost:9200"),
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
    with pytest.raises(CommandError, match=r"reachable from this machine.*--url phpmq://HOST:PORT"):
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
def test_url_is_that_of_the_first_admin_listener(admin: dict[str, Any], expected: str) -> None:
    assert admin_url_of(Settings(admin=AdminSettings(**admin))) == expected


@pytest.mark.parametrize("listen", ["none", "unix:/run/a.sock", "127.0.0.1:0"])
def test_admin_without_a_port_is_refused_with_the_option(listen: str) -> None:
    with pytest.raises(CommandError, match="use --url http://HOST:PORT"):
        admin_url_of(Settings(admin=AdminSettings(listen=[listen])))


def test_document_is_given() -> None:
    assert read_response(200, b'{"settled": 3}') == {"settled": 3}


def test_answer_without_content_is_none() -> None:
    assert read_response(204, b"") is None


@pytest.mark.parametrize(
    ("status", "code"), [(404, 3), (410, 3), (409, 4), (413, 4), (507, 4), (504, 5), (500, 1)]
)
def test_problem_becomes_its_exit_code(status: int, code: int) -> None:
    with pytest.raises(CommandError, match=r"^no queue \\x1b$") as caught:
        read_response(status, b'{"title": "Not found", "detail": "no queue \\u001b"}')
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ({"detail": "It has 5.", "field": "password", "bound": "12 to 1024 characters"},
         "It has 5. (password: 12 to 1024 characters)"),
        ({"detail": "'a b' is none.", "bound": "1 to 64 letters"},
         "'a b' is none. (1 to 64 letters)"),
        ({"detail": "It begins with /.", "field": "link"}, "It begins with /. (link)"),
        ({"detail": "n: Must be less than 20.", "field": "n", "bound": "lt 20"},
         "n: Must be less than 20."),
        ({"detail": "at: 'x' is no time.", "field": "at", "bound": "Unix milliseconds"},
         "at: 'x' is no time. (Unix milliseconds)"),
        ({"detail": "No."}, "No."),
    ],
)  # fmt: skip
def test_problem_names_its_field_and_bound(problem: dict[str, str], said: str) -> None:
    with pytest.raises(CommandError) as caught:
        read_response(422, json.dumps(problem).encode())
    assert str(caught.value) == said


@pytest.mark.parametrize("content", [b"", b"<html>", b"[1]", b'{"detail": null}'])
def test_other_error_response_is_reported_by_its_status(content: bytes) -> None:
    with pytest.raises(CommandError, match=r"^HTTP 502 without an explanation; "):
        read_response(502, content)


def test_page_in_place_of_a_document_is_an_error() -> None:
    with pytest.raises(CommandError, match=r"^the broker's HTTP 200 response is not JSON$"):
        read_response(200, b"<html>")
