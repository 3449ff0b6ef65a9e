"""Work on many messages from the command line: what is asked first, and that it is followed."""

import json
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from phpmq_lite.cli.main import commands
from tests.preloaded import BrokerProcess, broker_process

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    flags = ("--admin", "none", "--set", "ui.confirm_count=2")
    with broker_process(tmp_path_factory.mktemp("cli") / "data", *flags) as it:
        yield it


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue of this test alone."""
    return f"b.{request.node.name}"[:200]


@pytest.fixture
def run(broker: BrokerProcess) -> Run:
    """Run a command against the broker; it must end with ``code``."""

    def call(*arguments: str, code: int = 0) -> Result:
        where = ["--data", str(broker.data)]
        if arguments[0] == "publish":
            where = ["--connect", broker.phpmq[0]]
        result = CliRunner().invoke(commands, [*arguments, *where], catch_exceptions=False)
        assert result.exit_code == code, result.output + result.stderr
        return result

    return call


def selected(run: Run, queue: str, count: int) -> str:
    """Publish and select so many; give the token."""
    run("publish", queue, "--data", "x", "--count", str(count))
    return run("msg", "rm", "--query", f"queue:{queue}", "--dry-run").stdout.strip()


def ready(run: Run, queue: str) -> object:
    return json.loads(run("show", queue, "-o", "json").stdout)["ready"]


def test_many_that_were_looked_at_are_acted_on_when_it_is_confirmed(run: Run, queue: str) -> None:
    token = selected(run, queue, 5)
    refused = run("msg", "rm", "--apply", token, code=2)
    assert "without a terminal this needs --yes" in refused.stderr
    assert ready(run, queue) == 5
    job = json.loads(run("msg", "rm", "--apply", token, "--yes").stdout)
    assert (job["state"], job["done"]) == ("done", 5)


def test_few_that_were_looked_at_need_no_more(run: Run, queue: str) -> None:
    job = json.loads(run("msg", "rm", "--apply", selected(run, queue, 2)).stdout)
    assert (job["state"], job["done"]) == ("done", 2)


def test_unknown_token_is_not_found(run: Run) -> None:
    assert "This selection is gone" in run("msg", "rm", "--apply", "a/b", "--yes", code=3).stderr


@pytest.mark.parametrize("flags", [("--rate", "10/s"), ("--rate", "10/s", "--filter", "origin:b*")])
def test_redrive_ends_when_all_are_published_again(
    run: Run, queue: str, flags: tuple[str, ...]
) -> None:
    run("queue", "create", queue)
    run("queue", "set", queue, "on_expire=dead_letter")
    after = run("expect", f"{queue}.dlq", "--cursor").stdout.strip()
    run("publish", queue, "--data", "y", "--ttl", "1s", "--count", "25")
    run("expect", f"{queue}.dlq", "--after", after, "--timeout", "10s")
    assert "25 messages published again" in run("dead", "redrive", queue, *flags).stderr
    assert ready(run, f"{queue}.dlq") == 0
