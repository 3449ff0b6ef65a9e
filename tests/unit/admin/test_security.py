"""Hosts and origins, as security.md 4 and 5 have them."""

import pytest
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import Request

from phpmq_lite.admin.access.hosts import host_name, is_known_host
from phpmq_lite.admin.access.origin import check_json, check_site
from phpmq_lite.admin.problems import Problem


def post(**headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return make_mocked_request("POST", "/", {"Host": "mq.example:9101"} | named)


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


@pytest.mark.parametrize(
    "origin", ["http://mq.example:9101", "https://mq.example:9101", "http://MQ.example:9101"]
)
def test_form_of_this_host_is_taken(origin: str) -> None:
    check_site(post(Origin=origin, Sec_Fetch_Site="same-origin"), needs_origin=True)


def test_default_port_may_be_left_out() -> None:
    request = make_mocked_request(
        "POST", "/", {"Host": "mq.example", "Origin": "https://mq.example:443"}
    )
    check_site(request, needs_origin=True)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "no_origin"),
        ({"Origin": "null"}, "foreign_origin"),
        ({"Origin": "http://evil.example"}, "foreign_origin"),
        ({"Origin": "http://mq.example:3000"}, "foreign_origin"),
        ({"Origin": "http://mq.example:9101", "Sec_Fetch_Site": "cross-site"}, "cross_site"),
        ({"Origin": "http://mq.example:9101", "Sec_Fetch_Site": "same-site"}, "cross_site"),
    ],
)
def test_form_of_another_site_is_refused(headers: dict[str, str], code: str) -> None:
    with pytest.raises(Problem) as caught:
        check_site(post(**headers), needs_origin=True)
    assert (caught.value.status, caught.value.code) == (403, code)


def test_refusal_names_the_origin_and_the_setting() -> None:
    with pytest.raises(Problem, match=r"http://evil.example.*admin\.hosts"):
        check_site(post(Origin="http://evil.example"), needs_origin=True)


def test_program_needs_no_origin() -> None:
    check_site(post(), needs_origin=False)


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_api_takes_json_only(media_type: str) -> None:
    with pytest.raises(Problem) as caught:
        check_json(post(Content_Type=media_type))
    assert caught.value.status == 415
