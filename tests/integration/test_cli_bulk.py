"""Bulk jobs from the command line: previews, confirmations and progress."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli_runner import RunCommand
from tests.support.fork_server import BrokerProcess, broker_process


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    flags = ("--admin", "none", "--set", "ui.confirm_count=2")
    with broker_process(tmp_path_factory.mktemp("cli") / "data", *flags) as it:
        yield it


def selected(run: RunCommand, queue: str, count: int) -> str:
    run("publish", queue, "--body", "x", "--count", str(count))
    return run("message", "delete", "--query", f"queue:{queue}", "--dry-run").stdout.strip()


def ready(run: RunCommand, queue: str) -> object:
    return json.loads(run("queue", "show", queue, "-o", "json").stdout)["ready"]


def test_previewed_action_on_many_messages_needs_a_confirmation(
    run: RunCommand, queue: str
) -> None:
    token = selected(run, queue, 5)
    refused = run("message", "delete", "--selection", token, code=2)
    assert "--yes is required when standard input is not a terminal" in refused.stderr
    assert ready(run, queue) == 5
    job = json.loads(run("message", "delete", "--selection", token, "--yes").stdout)
    assert (job["state"], job["done"]) == ("done", 5)


def test_previewed_action_on_few_needs_no_confirmation(run: RunCommand, queue: str) -> None:
    job = json.loads(run("message", "delete", "--selection", selected(run, queue, 2)).stdout)
    assert (job["state"], job["done"]) == ("done", 2)


def test_each_id_is_tried_and_each_error_names_its_id(run: RunCommand, queue: str) -> None:
    run("publish", queue, "--body", "x", "--count", "3")
    first, second, third = (
        json.loads(line)["id"] for line in run("message", "list", queue).stdout.split("\n")[:3]
    )
    run("message", "delete", second)
    result = run("message", "delete", first, second, "a b?#", third, code=3)
    assert len(result.stdout.splitlines()) == 2
    assert f"Error: {second}: " in result.stderr
    assert "Error: a b?#: " in result.stderr
    assert ready(run, queue) == 0


def test_id_is_one_part_of_the_address_whatever_is_in_it(run: RunCommand, queue: str) -> None:
    run("publish", queue, "--body", "x")
    message_id = json.loads(run("message", "list", queue).stdout)["id"]
    for wrong in ("a b", f"{message_id}?", f"{message_id}#x", f"{message_id}/events"):
        run("message", "show", wrong, code=3)
        run("message", "delete", wrong, code=3)


def test_name_that_is_not_utf_8_is_one_line(run: RunCommand) -> None:
    result = run("queue", "show", "bad\udcff", code=1)
    assert result.stderr == "Error: 'bad\\udcff' is not valid UTF-8\n"


def test_password_that_is_not_utf_8_is_one_line(run: RunCommand, tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_bytes("pässwörter von früher".encode("latin-1"))
    result = run("user", "create", "eve", "--password-file", str(path), code=1)
    assert result.stderr.endswith(f"\nError: the password in {path} is not valid UTF-8\n")


def test_list_without_matches_says_so(run: RunCommand, queue: str) -> None:
    run("queue", "create", queue)
    assert run("queue", "list", "zzz", "-o", "table").stderr == "no queue matches 'zzz'\n"


@pytest.mark.parametrize("content", [b"", b"\xff\0" * 1_500_000, "größer".encode()])
def test_body_is_written_whole(run: RunCommand, queue: str, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "body"
    path.write_bytes(content)
    queue = queue.partition("[")[0] + str(len(content))
    run("publish", queue, str(path))
    message_id = json.loads(run("message", "list", queue).stdout)["id"]
    assert run("message", "show", message_id, "--body").stdout_bytes == content
    run("message", "show", message_id[::-1], "--body", code=3)


def test_unknown_token_is_not_found(run: RunCommand) -> None:
    assert (
        "This selection has expired"
        in run("message", "delete", "--selection", "a/b", "--yes", code=3).stderr
    )


@pytest.mark.parametrize(
    "flags", [("--rate", "10/s"), ("--rate", "10/s", "--query", "origin:queue*")]
)
def test_redrive_ends_when_all_are_published_again(
    run: RunCommand, queue: str, flags: tuple[str, ...]
) -> None:
    run("queue", "create", queue)
    run("queue", "set", queue, "on_expire=dead_letter")
    after = run("message", "wait", f"{queue}.dlq", "--cursor").stdout.strip()
    run("publish", queue, "--body", "y", "--ttl", "1s", "--count", "25")
    run("message", "wait", f"{queue}.dlq", "--after", after, "--timeout", "10s")
    assert "25 messages redriven" in run("dead-letter", "redrive", queue, *flags).stderr
    assert ready(run, f"{queue}.dlq") == 0
