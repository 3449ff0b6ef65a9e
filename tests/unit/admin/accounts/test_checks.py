"""Origins, tokens and content types of writes (docs/operate/security.md, section 4)."""

from contextlib import nullcontext

import pytest
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import Request

from phpmq_lite.admin.accounts.checks import (
    check_form,
    check_header,
    check_media,
    check_site,
    origin_of,
)
from phpmq_lite.admin.http.problems import Problem


def post(**headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return make_mocked_request("POST", "/", {"Host": "mq.example:9101"} | named)


@pytest.mark.parametrize(
    "origin", ["http://mq.example:9101", "https://mq.example:9101", "http://MQ.example:9101"]
)
def test_form_of_this_host_is_accepted(origin: str) -> None:
    check_site(post(Origin=origin, Sec_Fetch_Site="same-origin"), needs_origin=True)


def test_default_port_may_be_left_out() -> None:
    check_site(post(Host="mq.example", Origin="https://mq.example:443"), needs_origin=True)


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
def test_api_accepts_json_only(media_type: str) -> None:
    with pytest.raises(Problem) as caught:
        check_media(post(Content_Type=media_type), "application/json")
    assert caught.value.status == 415


@pytest.mark.parametrize(
    ("origin", "is_ours"),
    [
        ("https://mq.example", True),
        ("https://mq.example:443", True),
        ("http://mq.example", False),
        ("https://mq.example.evil.example", False),
        ("https://mq.example:8443", False),
        ("https://[", False),
        ("", False),
    ],
)
def test_public_url_counts_as_our_origin_behind_a_proxy(origin: str, is_ours: bool) -> None:
    request = post(Host="10.0.0.5:9101", Origin=origin)
    with nullcontext() if is_ours else pytest.raises(Problem, match=r"admin\.public_url"):
        check_site(request, needs_origin=True, public_url="https://MQ.example/broker")


def test_origin_of_a_url_has_no_default_port() -> None:
    assert origin_of("https://MQ.example:443/x") == "https://mq.example"
    assert origin_of("http://mq.example:8080") == "http://mq.example:8080"


def test_https_page_accepts_no_http_origin() -> None:
    request = post(Origin="http://mq.example:9101").clone(scheme="https")
    with pytest.raises(Problem, match=r"http://mq\.example:9101"):
        check_site(request, needs_origin=True)


@pytest.mark.parametrize("given", ["", "0" * 64, "\xe9"])
def test_script_without_the_token_is_refused(given: str) -> None:
    with pytest.raises(Problem) as caught:
        check_header(post(X_CSRF_Token=given), "1" * 64)
    assert (caught.value.status, caught.value.code) == (403, "no_token")
    check_header(post(X_CSRF_Token="1" * 64), "1" * 64)


async def test_form_must_not_be_json() -> None:
    with pytest.raises(Problem) as caught:
        await check_form(post(Content_Type="application/json"), "1" * 64)
    assert caught.value.status == 415


def test_delete_without_a_body_needs_no_type() -> None:
    check_media(make_mocked_request("DELETE", "/", {"Host": "mq.example"}), "application/json")
