"""Exports that are not easily taken back, by a broker with small limits."""

import json
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from phpmq_lite.cli.main import root_command
from tests.support.fork_server import BrokerProcess, broker_process

MAX_CONTENT = 256 << 10

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    flags = ("--admin", "none", "--set", f"limits.max_content={MAX_CONTENT}")
    with broker_process(tmp_path_factory.mktemp("cli") / "data", *flags) as it:
        yield it


@pytest.fixture
def run(broker: BrokerProcess) -> Run:
    """Run a command against the broker; it must end with ``code``."""

    def call(*arguments: str, code: int = 0, input: str | None = None) -> Result:
        result = CliRunner().invoke(
            root_command,
            [*arguments, "--data", str(broker.data)],
            input=input,
            catch_exceptions=False,
        )
        assert result.exit_code == code, (result.output + result.stderr)[-2_000:]
        return result

    return call


@pytest.mark.parametrize("mark", ["\0", '"', "ä", "\\", "x"])
def test_largest_body_comes_back_whatever_is_in_it(run: Run, mark: str) -> None:
    queue = f"large.{ord(mark)}"
    content = mark * (MAX_CONTENT // len(mark.encode()))
    run("message", "import", "-", input=json.dumps({"queue": queue, "content": content}))
    exported = run("message", "export", f"queue:{queue}").stdout
    assert json.loads(exported.splitlines()[0])["content"] == content
    assert (
        "1 message stored"
        in run("message", "import", "-", "--queue", "back", input=exported).stderr
    )


def test_many_bodies_in_other_letters_are_sent_in_small_requests(run: Run) -> None:
    lines = [json.dumps({"queue": "letters", "content": "я" * 2_000})] * 600
    assert "600 messages stored" in run("message", "import", "-", input="\n".join(lines)).stderr


def test_import_that_is_cut_off_says_with_which_line_to_go_on(run: Run) -> None:
    run("queue", "create", "full")
    run("queue", "set", "full", "max_messages=300")
    lines = [
        json.dumps({"queue": ("room", "full")[at % 2], "content": str(at)}) for at in range(1_000)
    ]
    result = run("message", "import", "-", code=4, input="\n\n".join(lines))
    assert "601 messages stored; continue with line 1203" in (result.stderr)
    rows = map(json.loads, run("queue", "list").stdout.splitlines())
    counts = {row["name"]: row["ready"] for row in rows}
    assert (counts["room"], counts["full"]) == (301, 300)
    rest = "\n\n".join(lines).split("\n")[1_202:]
    run("queue", "set", "full", "max_messages=")
    assert "399 messages stored" in run("message", "import", "-", input="\n".join(rest)).stderr


def test_line_whose_content_was_gone_is_left_out(run: Run) -> None:
    lines = [
        json.dumps({"id": "0" * 32, "queue": "gone", "content": content})
        for content in (None, "x", None)
    ]
    result = run(
        "message", "import", "-", input="\n".join([*lines, '{"complete": true, "count": 3}'])
    )
    assert "2 messages skipped" in result.stderr
    assert "1 message stored" in result.stderr


def test_import_without_a_broker_says_what_is_not_known() -> None:
    line = json.dumps({"queue": "a", "content": "x"})
    result = CliRunner().invoke(
        root_command, ["message", "import", "-", "--url", "http://127.0.0.1:9"], input=f"\n{line}"
    )
    assert result.exit_code == 1
    told = "0 messages stored; the next 1, from line 2 on, may or may not be stored"
    assert told in result.stderr
