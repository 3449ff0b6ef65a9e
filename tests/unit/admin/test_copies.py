"""A message as something to paste: it means the same bytes."""

import base64
import json
import shlex

import pytest

from phpmq_lite.admin.views.copy_snippets import copy_snippets

MESSAGE_ID = f"{5:016x}{6:016x}"


def made(queue: str, content: bytes, ttl_s: int | None = None) -> dict[str, str]:
    found = copy_snippets(queue, content, MESSAGE_ID, ttl_s, "http://h:9101", "127.0.0.1:9100")
    return {snippet.key: snippet.code for snippet in found}


@pytest.mark.parametrize(
    "content", [b'{"a":"it\'s"}', b"\xff\x00", "x\u202ey".encode(), b"$(rm) `x` \\ \n", b""]
)
def test_curl_sends_the_same_bytes(content: bytes) -> None:
    words = shlex.split(made("a b/c", content, 60)["curl"])
    document = json.loads(words[-1])
    sent = document["content"]
    given = base64.b64decode(sent) if document["encoding"] == "base64" else sent.encode()
    assert (words[1], given, document["ttl_s"]) == (
        "http://h:9101/api/v1/queues/a%20b%2Fc/messages", content, 60,
    )  # fmt: skip


def test_command_quotes_what_a_shell_would_take() -> None:
    words = shlex.split(made("it's; rm", b"$(rm)", 60)["cli"])
    assert words == ["phpmq-lite", "publish", "it's; rm", "--ttl", "60s", "--body", "$(rm)"]


@pytest.mark.parametrize("content", [b"\xff\x00", "x\u202ey".encode()])
def test_what_cannot_be_seen_is_copied_as_base64(content: bytes) -> None:
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
