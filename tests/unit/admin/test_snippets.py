"""The first steps have the real address, and are what the broker takes."""

import json
import re

from phpmq_lite.admin.snippets import CONTENT, QUEUE, http_address, snippets, tcp_address

BASE = "http://127.0.0.1:9101"


def test_first_tcp_listener_is_chosen() -> None:
    assert tcp_address(("unix:/run/x", "10.0.0.5:9100", "10.0.0.5:9102"), "h") == ("10.0.0.5", 9100)


def test_wildcard_becomes_the_name_that_the_browser_used() -> None:
    assert tcp_address(("0.0.0.0:9100",), "mq.lan") == ("mq.lan", 9100)
    assert tcp_address(("[::]:9100",), "::1") == ("::1", 9100)


def test_without_a_listener_the_default_is_shown() -> None:
    assert tcp_address((), "h") == ("127.0.0.1", 9100)


def test_all_four_name_the_address() -> None:
    made = snippets("::1", 9107, "https://mq.example/mq")
    assert [snippet.key for snippet in made] == ["php", "python", "curl", "cli"]
    assert all("[::1]:9107" in snippet.code for snippet in made if snippet.key != "curl")
    assert "https://mq.example/mq/api/v1/queues/orders/messages" in made[2].code


def test_curl_sends_what_the_api_takes() -> None:
    code = snippets("127.0.0.1", 9100, http_address("http", "127.0.0.1:9101", ""))[2].code
    body = re.search(r"-d '(.*)'", code)
    assert body is not None
    assert json.loads(body[1]) == {"content": CONTENT}
    assert f"{BASE}/api/v1/queues/{QUEUE}/messages" in code
