"""Names and texts with marks in them, as the command line sends them to a real broker."""

import json
from collections.abc import Iterator

import pytest

from tests.support.cli_runner import RunCommand, cli_runner
from tests.support.fork_server import BrokerProcess, broker_process


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("cli") / "data", "--admin", "none") as it:
        yield it


@pytest.fixture
def run(broker: BrokerProcess) -> RunCommand:
    return cli_runner(broker)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("star*x", "starYx"),
        ("ask?x", "askYx"),
        ("back\\slash", "backslash"),
        ("back\\\\slash", "back\\slash2"),
        ('we"ird', "weird"),
        ('"whole"', "whole"),
        ("with a blank", "with"),
        ("-minus", "minus"),
        ("[ab]c", "ac"),
    ],
)
def test_expect_looks_at_the_queue_of_this_name_alone(
    run: RunCommand, name: str, other: str
) -> None:
    after = run("message", "wait", "--cursor", "--", name).stdout.strip()
    run("publish", "--body", "other", "--", other)
    run("publish", "--body", "mine", "--", name)
    found = json.loads(
        run("message", "wait", "--after", after, "--timeout", "5s", "--", name).stdout
    )
    assert found["preview"] == "mine"


def test_settings_take_texts_that_look_like_numbers(run: RunCommand) -> None:
    run("queue", "create", "looks")
    run("queue", "set", "looks", "note=42", "owner=true", "dead_letter_queue=7", "pinned=true")
    settings = json.loads(run("queue", "show", "looks", "-o", "json").stdout)["settings"]
    shown = [settings[name] for name in ("note", "owner", "dead_letter_queue", "pinned")]
    assert shown == ["42", "true", "7", True]
    refused = run("queue", "set", "looks", "max_messages=many", code=4)
    assert "max_messages must be a whole number" in refused.stderr
