"""URLs: every queue name survives a round trip, and browsers normalize none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from phpmq_lite.admin.urls import Urls, clean_base_path, decode_name, encode_name
from tests.unit.admin.cases import HOSTILE

PATHS = {"queue": "/queues/{q}", "queues": "/queues"}


@pytest.mark.parametrize(
    ("name", "segment"),
    [
        ("orders.json", "orders.json"),
        ("a/b", "a%2Fb"),
        ("..", "~.."),
        (".", "~."),
        ("~..", "~~.."),
        ("é", "%C3%A9"),
    ],
)
def test_name_becomes_one_segment(name: str, segment: str) -> None:
    assert encode_name(name) == segment


@given(st.text(min_size=1).filter(lambda text: text.isprintable() or text.strip()))
def test_any_name_survives_a_url(name: str) -> None:
    name = name.encode(errors="replace").decode()
    segment = encode_name(name)
    assert "/" not in segment
    assert decode_name(URL(f"http://h/queues/{segment}", encoded=True).raw_parts[-1]) == name


@pytest.mark.parametrize("name", HOSTILE)
def test_browser_does_not_normalize_a_hostile_name(name: str) -> None:
    url = Urls("", PATHS).to("queue", q=name)
    assert URL("http://h").join(URL(url)).raw_path.count("/") == 2


def test_url_has_only_what_differs() -> None:
    urls = Urls("/mq/", PATHS)
    assert urls.to("queues", q="", has=None, sort="-age") == "/mq/queues?sort=-age"
    assert urls.to("queue", q="a b", tab="dead") == "/mq/queues/a%20b?tab=dead"


@pytest.mark.parametrize(("text", "path"), [("", ""), ("/", ""), ("m", "/m"), ("//a//b/", "/a/b")])
def test_base_path_has_one_form(text: str, path: str) -> None:
    assert clean_base_path(text) == path


def test_static_url_names_the_version() -> None:
    assert Urls("/mq", PATHS, "v1").static("app.css") == "/mq/static/v1/app.css"


def test_script_imports_others_of_its_own_version() -> None:
    urls = Urls("/mq", PATHS, "v1")
    assert URL(urls.static("app.js")).join(URL("./dom.js")) == URL(urls.static("dom.js"))
