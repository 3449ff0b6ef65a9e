"""What a user reads when something is wrong: our words, with the value and the remedy."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from phpmq_lite import settings
from phpmq_lite.cli.main import COMMANDS, SECTIONS, root_command
from tests.support.fork_server import BrokerProcess, broker_process

RAW = re.compile(  # what Python, pydantic, aiohttp and OpenSSL say to programmers
    r"\[Errno|Traceback|pydantic|ValidationError|Input should|Extra inputs|String should"
    r"|Value error|byte string|Connect call|_ssl\.c|WRONG_VERSION|object at 0x|\[SSL"
)
NO_BROKER = ("init", "completion", "serve", "bench", "config", "context", "doctor", "verify",
             "migrate", "restore", "envelope", "schema", "frame", "outbox", "pipeline", "worker",
             "import-initphp", "import-beanstalkd")  # fmt: skip
VALUES = {"shell": "bash", "decision": "keep", "settings": "max_deliveries=3", "id": "0" * 32}


def leaves(
    command: click.Command, path: tuple[str, ...] = (), parent: click.Context | None = None
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command that does something, with how it is called."""
    context = click.Context(command, info_name="x", parent=parent)
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from leaves(inner, (*path, name), context)


LEAVES = dict(leaves(root_command))
ASKING = [path for path in LEAVES if path[0] not in NO_BROKER]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove everything that names a broker."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(settings.loading, "SYSTEM_FILE", tmp_path / "none.toml")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("msg") / "data", "--admin", "127.0.0.1:0") as it:
        yield it


def ask(*arguments: str) -> Result:
    result = CliRunner().invoke(root_command, arguments, input="", catch_exceptions=False)
    assert not RAW.search(result.output), result.output
    return result


def whole(path: tuple[str, ...]) -> list[str]:
    """Return a command with all of its required arguments."""
    line = list(path)
    line += [
        VALUES.get(one.name or "", "x")
        for one in LEAVES[path].params
        if isinstance(one, click.Argument) and (one.required or one.nargs == -1)
    ]
    flags = [flag for one in LEAVES[path].params for flag in one.opts]
    return [*line, *(["--yes"] if "--yes" in flags else [])]


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_unknown_option_is_named_by_every_command(path: tuple[str, ...]) -> None:
    result = ask(*whole(path), "--confg")
    assert result.exit_code == (3 if path[0] == "check" else 2)
    assert "No such option '--confg'" in result.stderr
    has_config = any("--config" in one.opts for one in LEAVES[path].params)
    assert ("'--config'" in result.stderr.partition("Did you mean")[2]) == has_config


@pytest.mark.parametrize("path", ASKING, ids=" ".join)
def test_broker_that_is_down_is_named_with_what_to_do(path: tuple[str, ...]) -> None:
    result = ask(*whole(path), "--url", "http://127.0.0.1:9")
    if path == ("user", "passwd"):  # without a terminal it wants more before it asks
        assert "needs --password-file" in result.stderr
    elif path == ("import",):  # of no lines
        assert result.exit_code == 0
    else:
        assert "no broker answers on http://127.0.0.1:9: Connection refused" in result.output
        down = {"check": (3, 2)[path[-1] == "ready"]}.get(path[0], 1)
        assert result.exit_code == down


BAD_VALUES = [
    (["queues", "--set", "limits.credit=x"], 78, "limits.credit is 'x', it must be"),
    (["queues", "--set", "limits.memory=blah"], 78, "it must be a size, such as 512 MiB"),
    (["queues", "--set", "tcp.open=perhaps"], 78, "it must be true or false"),
    (["queues", "--set", "tcp.allow=x"], 78, "it must be a network, such as 10.0.0.0/8"),
    (["queues", "--config", __file__], 78, "is not valid TOML"),
    (["queues", "--url", "https://127.0.0.1:{admin}"], 1, "it does not speak TLS"),
    (["queues", "--url", "http://127.0.0.1:{phpmq}"], 1, "does not answer as an admin does"),
    (["queues", "--url", "http://127.0.0.1:{admin}/no"], 3, "Check --url"),
    (["queues", "--url", "http://nowhere.invalid"], 1, "no broker answers on http://nowhere"),
    (["queues", "--url", "phpmq://127.0.0.1:{phpmq}"], 1, "this asks the admin"),
    (["publish", "q", "--data", "x", "--url", "phpmqs://127.0.0.1:{phpmq}"], 1, "cannot connect"),
    (["publish", "q", "--data", "x", "--url", "phpmq://127.0.0.1:9"], 1, "Connection refused"),
    (["publish", "q", "--data", "x", "--url", "unix:/none"], 1, "No such file or directory"),
    (["publish", "q", "/none"], 1, "/none: No such file or directory"),
    (["publish", "q", "--data", "x", "--tls-cert", __file__, "--url", "phpmqs://a"], 1, "no PEM"),
    (["import-beanstalkd", "127.0.0.1:9"], 1, "beanstalkd at 127.0.0.1:9: Connection refused"),
    (["queue", "set", "q", "max_deliveries=x", "{here}"], 4, "max_deliveries must be a whole"),
    (["queue", "set", "q", "max_deliveries=-1", "{here}"], 4, "max_deliveries must be at least 0"),
    (["queue", "set", "q", "no_such=1", "{here}"], 4, "no_such is unknown"),
    (["queue", "set", "q", "on_expire=x", "{here}"], 4, "on_expire must be history, dead_letter"),
    (["search", "x" * 3000, "{here}"], 4, "Error: q has more than 2000 characters.\n"),
    (["msg", "requeue", "0" * 32, "--ttl", "9999999999", "{here}"], 4, "ttl_s must be at most"),
    (["bench", "--url", "127.0.0.1:1"], 2, "write phpmq://HOST:PORT"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "words"), BAD_VALUES)
def test_bad_value_is_named_in_our_words(
    broker: BrokerProcess, arguments: list[str], code: int, words: str
) -> None:
    admin = broker.admin[0].rstrip("/").rpartition(":")[2]
    given = [one.format(admin=admin, phpmq=broker.port, here="--url") for one in arguments]
    if "{here}" in arguments:
        ask("queue", "create", "q", "--url", broker.admin[0])
        given.append(broker.admin[0])
    result = ask(*given)
    assert words in result.stderr
    assert result.exit_code == code


@pytest.mark.parametrize("name", [name for name in COMMANDS if len(name) > 3])
def test_typo_in_a_command_gets_the_command(name: str) -> None:
    result = ask(name[:2] + name[3:])
    assert result.exit_code == 2
    assert name in result.stderr.partition("Did you mean")[2]


def test_typo_in_a_group_gets_its_command() -> None:
    assert "'create'" in ask("queue", "craete").stderr.partition("Did you mean")[2]
    assert "'archive'" in ask("pipeline", "archiv").stderr.partition("Did you mean")[2]
    result = ask("check", "redy")
    assert (result.exit_code, "'ready'" in result.stderr) == (3, True)


def test_option_of_an_earlier_name_gets_the_new_one() -> None:
    assert "It is --url now" in ask("queues", "--node", "http://127.0.0.1:9").stderr
    assert "It is --url now" in ask("publish", "q", "--connect", "127.0.0.1:9").stderr


def test_help_has_the_commands_in_sections() -> None:
    text = ask("--help").stdout
    assert all(f"\n{section}:\n" in text for section in SECTIONS)
    assert all(f"\n  {name} " in text for name in COMMANDS)
    assert text.index("\nMessages:") < text.index("\n  publish ") < text.index("\nQueues:")


def test_short_flag_shows_the_version() -> None:
    assert ask("-V").stdout == ask("--version").stdout


def test_status_shows_the_broker_at_a_glance(broker: BrokerProcess) -> None:
    shown = ask("status", "--data", str(broker.data), "-o", "table")
    assert shown.exit_code == 0
    assert f"{broker.data}/control.sock" in shown.stdout
    assert re.search(r"state +ready +\n", shown.stdout)
    assert broker.phpmq[0] in shown.stdout
    assert json.loads(ask("status", "--data", str(broker.data)).stdout)["is_ready"] is True


def test_trace_shows_the_messages_of_all_queues(broker: BrokerProcess) -> None:
    trace_id = "51ca578a-7ebc-4976-8a46-4dec711329fd"
    here = ["--data", str(broker.data)]
    for queue in ("first", "second"):
        envelope = ask("envelope", "make", "urn:babel:a:b", "--trace-id", trace_id).stdout
        url = ["--url", f"phpmq://{broker.phpmq[0]}"]
        ask("queue", "create", queue, *here)
        ask("queue", "set", queue, "payload_policy=observe", *here)
        ask("publish", queue, "--data", envelope, *url)
    rows = [json.loads(line) for line in ask("trace", trace_id, *here).stdout.splitlines()]
    assert [row["queue"] for row in rows] == ["second", "first"]
    missing = ask("trace", "nowhere", *here)
    assert missing.exit_code == 3
    assert missing.stderr == "Error: no message has the trace id 'nowhere'\n"


def test_search_without_hits_says_how_to_search_for_a_queue(broker: BrokerProcess) -> None:
    here = ["--data", str(broker.data)]
    ask("queue", "create", "orders", *here)
    assert "queue:orders" in ask("search", "orders", *here).stderr
    assert "queue:nowhere*" in ask("search", "nowhere", *here).stderr
    assert ask("search", "state:dead", *here).stderr == "nothing matches\n"
