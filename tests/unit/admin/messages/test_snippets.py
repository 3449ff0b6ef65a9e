"""Snippets that publish a message again with the same bytes."""

import base64
import json
import re
import shlex
from typing import Any

import pytest

from phpmq_lite.admin.messages.snippets import (
    CONTENT,
    QUEUE,
    copy_snippets,
    http_address,
    pipeline_snippets,
    publish_snippets,
    tcp_address,
)
from phpmq_lite.server.addresses import PhpmqListener

MESSAGE_ID = f"{5:016x}{6:016x}"


def made(queue: str, content: bytes, ttl_s: int | None = None, **options: Any) -> dict[str, str]:
    options |= {} if ttl_s is None else {"ttl_s": ttl_s}
    found = copy_snippets(queue, content, MESSAGE_ID, options, "http://h:9101", "127.0.0.1:9100")
    return {snippet.key: snippet.code for snippet in found}


@pytest.mark.parametrize(
    "content", [b'{"a":"it\'s"}', b"\xff\x00", "x\u202ey".encode(), b"$(rm) `x` \\ \n", b""]
)
def test_curl_sends_the_same_bytes(content: bytes) -> None:
    words = shlex.split(made("a b/c", content, 60)["curl"])
    document = json.loads(words[-1])
    sent = document["content"]
    given = base64.b64decode(sent) if document["encoding"] == "base64" else sent.encode()
    assert words[1] == "http://h:9101/api/v1/queues/a%20b%2Fc/messages"
    assert (given, document["ttl_s"]) == (content, 60)


def test_command_is_quoted_for_the_shell() -> None:
    words = shlex.split(made("it's; rm", b"$(rm)", 60)["cli"])
    assert words == ["phpmq-lite", "publish", "it's; rm", "--ttl", "60s", "--body", "$(rm)"]


def test_priority_and_group_are_copied() -> None:
    found = made("orders", b"{}", 60, priority=5, group="it's")
    assert shlex.split(found["cli"])[3:9] == ["--ttl", "60s", "--priority", "5", "--group", "it's"]
    document = json.loads(shlex.split(found["curl"])[-1])
    assert (document["priority"], document["group"], document["ttl_s"]) == (5, "it's", 60)
    assert "'H0101003' . $packet('01', 'orders')" in found["php"]
    assert """$packet('06', '{"priority": 5, "group": "it\\'s"}'));""" in found["php"]


@pytest.mark.parametrize("content", [b"\xff\x00", "x\u202ey".encode()])
def test_hidden_characters_are_copied_as_base64(content: bytes) -> None:
    coded = base64.b64encode(content).decode()
    found = made("orders", content)
    assert found["cli"] == f"echo {coded} | base64 -d | phpmq-lite publish orders -"
    assert f"base64_decode('{coded}')" in found["php"]


def test_php_strings_keep_quotes_and_backslashes() -> None:
    assert r"$packet('02', 'it\'s a \\')" in made("orders", rb"it's a \ ".rstrip())["php"]


def test_raw_frame_is_the_dispatch_on_the_wire() -> None:
    frame = made("orders", b"{}", 60)["frames"]
    assert frame.startswith("H0100304P01" + "0" * 28 + "6orders")
    assert frame.endswith(MESSAGE_ID + "P05" + "0" * 28 + "260")
    assert made("orders", b"\xff")["frames"].startswith("48 30 31 30 30 33")


BASE = "http://127.0.0.1:9101"


@pytest.mark.parametrize(
    ("listeners", "browser_host", "host"),
    [
        (["unix:/run/x", "10.0.0.5:9100", "10.0.0.5:9102"], "h", "10.0.0.5"),
        (["0.0.0.0:9100"], "mq.lan", "mq.lan"),
        (["[::]:9100"], "::1", "::1"),
        ([], "h", "127.0.0.1"),
    ],
)
def test_first_tcp_listener_is_shown(listeners: list[str], browser_host: str, host: str) -> None:
    opened = [
        PhpmqListener(one, "unix" if one.startswith("unix:") else "tcp", has_ttl=True)
        for one in listeners
    ]
    assert tcp_address(opened, browser_host) == (host, 9100)


def test_all_snippets_name_the_address() -> None:
    made = publish_snippets("::1", 9107, "https://mq.example/mq")
    assert [snippet.key for snippet in made] == ["php", "python", "curl", "cli"]
    assert all("[::1]:9107" in snippet.code for snippet in made if snippet.key != "curl")
    assert "https://mq.example/mq/api/v1/queues/orders/messages" in made[2].code


def test_curl_sends_what_the_api_accepts() -> None:
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
