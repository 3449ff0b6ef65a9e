"""The first steps have the real address, and are what the broker takes."""

import json
import re

from phpmq_lite.admin.views.copy_snippets import (
    CONTENT,
    QUEUE,
    http_address,
    pipeline_snippets,
    publish_snippets,
    tcp_address,
)
from phpmq_lite.server.addresses import PhpmqListener

BASE = "http://127.0.0.1:9101"


def opened(*addresses: str) -> list[PhpmqListener]:
    return [
        PhpmqListener(one, "unix" if one.startswith("unix:") else "tcp", has_ttl=True)
        for one in addresses
    ]


def test_first_tcp_listener_is_chosen() -> None:
    assert tcp_address(opened("unix:/run/x", "10.0.0.5:9100", "10.0.0.5:9102"), "h") == (
        "10.0.0.5",
        9100,
    )


def test_wildcard_becomes_the_name_that_the_browser_used() -> None:
    assert tcp_address(opened("0.0.0.0:9100"), "mq.lan") == ("mq.lan", 9100)
    assert tcp_address(opened("[::]:9100"), "::1") == ("::1", 9100)


def test_without_a_listener_the_default_is_shown() -> None:
    assert tcp_address((), "h") == ("127.0.0.1", 9100)


def test_all_four_name_the_address() -> None:
    made = publish_snippets("::1", 9107, "https://mq.example/mq")
    assert [snippet.key for snippet in made] == ["php", "python", "curl", "cli"]
    assert all("[::1]:9107" in snippet.code for snippet in made if snippet.key != "curl")
    assert "https://mq.example/mq/api/v1/queues/orders/messages" in made[2].code


def test_curl_sends_what_the_api_takes() -> None:
    code = publish_snippets("127.0.0.1", 9100, http_address("http", "127.0.0.1:9101", ""))[2].code
    body = re.search(r"-d '(.*)'", code)
    assert body is not None
    assert json.loads(body[1]) == {"content": CONTENT}
    assert f"{BASE}/api/v1/queues/{QUEUE}/messages" in code


def test_pipeline_commands_name_the_broker_and_a_token_where_one_is_needed() -> None:
    plain = pipeline_snippets("http://mq:9101/mq", needs_token=False)
    assert [one.key for one in plain] == ["install", "doctor", "run"]
    assert plain[-1].code == "phpmq-lite pipeline run --url http://mq:9101/mq"
    guarded = pipeline_snippets("https://mq", needs_token=True)
    assert [one.key for one in guarded] == ["install", "token", "doctor", "run"]
    assert guarded[-1].code.endswith("--url https://mq --token-file token")
