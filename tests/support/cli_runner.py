"""Run commands of the command line in this process, on the broker of a test."""

from collections.abc import Callable

from click.testing import CliRunner, Result

from phpmq_lite.cli.main import root_command
from tests.support.fork_server import BrokerProcess

RunCommand = Callable[..., Result]


def cli_runner(broker: BrokerProcess) -> RunCommand:
    """Return a function that runs a command on this broker and asserts its exit code."""

    def call(*arguments: str, code: int = 0, input: str | bytes | None = None) -> Result:
        where = ["--data", str(broker.data)]
        if arguments[0] in ("publish", "consume"):
            where = ["--url", f"phpmq://{broker.phpmq[0]}"]
        at = arguments.index("--") if "--" in arguments else len(arguments)
        given = [*arguments[:at], *where, *arguments[at:]]
        result = CliRunner().invoke(root_command, given, input=input, catch_exceptions=False)
        assert result.exit_code == code, result.output + result.stderr
        return result

    return call


def invoke(*arguments: object, code: int = 0, input: str | bytes | None = None) -> Result:
    """Run a command, check its exit code, and return its result."""
    line = [str(each) for each in arguments]
    result = CliRunner().invoke(root_command, line, input=input, catch_exceptions=False)
    assert result.exit_code == code, result.output + result.stderr
    return result
