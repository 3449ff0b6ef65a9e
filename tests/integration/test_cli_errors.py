"""Error messages name the value and the remedy, without text of libraries."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from phpmq_lite import settings
from phpmq_lite.cli.main import COMMANDS, SECTIONS, root_command
from tests.support.fork_server import BrokerProcess

RAW = re.compile(  # phrases of Python, pydantic, aiohttp and OpenSSL for programmers
    r"\[Errno|Traceback|pydantic|ValidationError|Input should|Extra inputs|String should"
    r"|Value error|byte string|Connect call|_ssl\.c|WRONG_VERSION|object at 0x|\[SSL"
)
WITHOUT_BROKER = """
completion, serve, bench, config, context, doctor, standby, store, database verify,
database migrate, backup restore, backup test, envelope, schema, frame, outbox, pipeline, worker,
import"""
NO_BROKER = set(re.split(r",\s+", WITHOUT_BROKER.strip()))
VALUES = {
    "shell": "bash",
    "name": "x",
    "decision": "keep",
    "settings": "max_deliveries=3",
    "id": "0" * 32,
}
NEEDED: dict[
    tuple[str, ...], tuple[str, ...]
] = {  # options without which a command does not ask the broker
    ("schedule", "create"): ("--queue", "x"),
    ("schedule", "set"): ("--priority", "1"),
}


def leaves(
    command: click.Command, path: tuple[str, ...] = (), parent: click.Context | None = None
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(command, info_name="x", parent=parent)
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from leaves(inner, (*path, name), context)


CONTEXT = click.Context(root_command)
LEAVES = dict(leaves(root_command))
ASKING = [path for path in LEAVES if not {path[0], " ".join(path)} & NO_BROKER]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove everything that names a broker."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(settings.loading, "SYSTEM_FILE", tmp_path / "none.toml")


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
        if isinstance(one, click.Argument)
        if one.required or one.nargs == -1 or one.name == "name"
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
def test_broker_that_is_down_is_named_with_a_remedy(path: tuple[str, ...]) -> None:
    result = ask(*whole(path), *NEEDED.get(path, ()), "--url", "http://127.0.0.1:9")
    if path == ("user", "set-password"):  # a terminal is required otherwise
        assert "--password-file is required" in result.stderr
    elif path == ("message", "import"):  # of no lines
        assert result.exit_code == 0
    else:
        assert "no broker answers on http://127.0.0.1:9: Connection refused" in result.output
        down = {"check": (3, 2)[path[-1] == "ready"]}.get(path[0], 1)
        assert result.exit_code == down


BAD_VALUES = [
    (["backup", "list", "--set", "limits.credit=x"], 78, "limits.credit is 'x': the value must be"),
    (["backup", "list", "--set", "limits.memory=blah"], 78, "must be a size, such as 512 MiB"),
    (["backup", "list", "--set", "tcp.open=perhaps"], 78, "must be true or false"),
    (["backup", "list", "--set", "tcp.allow=x"], 78, "must be a network, such as 10.0.0.0/8"),
    (["queue", "list", "--config", __file__], 78, "is not valid TOML"),
    (["queue", "list", "--url", "https://127.0.0.1:{admin}"], 1, "it does not use TLS; use http://"),
    (["queue", "list", "--url", "http://127.0.0.1:{phpmq}"], 1, "does not appear to be"),
    (["queue", "list", "--url", "http://127.0.0.1:{admin}/no"], 3, "--url may not be"),
    (["queue", "list", "--url", "http://nowhere.invalid"], 1, "no broker answers on http://nowhere"),
    (["queue", "list", "--url", "phpmq://127.0.0.1:{phpmq}"], 1, "this command requires the admin"),
    (["publish", "q", "--body", "x", "--url", "phpmqs://127.0.0.1:{phpmq}"], 1, "not use TLS"),
    (["publish", "q", "--body", "x", "--url", "phpmq://127.0.0.1:9"], 1, "Connection refused"),
    (["publish", "q", "--body", "x", "--url", "unix:/none"], 1, "No such file or directory"),
    (["publish", "q", "/none"], 1, "/none: No such file or directory"),
    (["publish", "q", "--body", "x", "--tls-cert", __file__, "--url", "phpmqs://a"], 1, "PEM"),
    (["import", "beanstalkd", "127.0.0.1:9"], 1, "beanstalkd at 127.0.0.1:9: Connection refused"),
    (["queue", "set", "q", "max_deliveries=x", "{here}"], 4, "max_deliveries must be a whole"),
    (["queue", "set", "q", "max_deliveries=-1", "{here}"], 4, "max_deliveries must be at least 0"),
    (["queue", "set", "q", "no_such=1", "{here}"], 4, "no_such is unknown"),
    (["queue", "set", "q", "on_expire=x", "{here}"], 4, "on_expire must be history, dead_letter"),
    (["message", "search", "x" * 3000, "{here}"], 4, "q must have at most 2000 characters.\n"),
    (["message", "requeue", "{id}", "--ttl", "9999999999", "{here}"], 4, "ttl_s must be at most"),
    (["bench", "--url", "127.0.0.1:1"], 2, "use phpmq://HOST:PORT"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "words"), BAD_VALUES)
def test_bad_value_is_named_in_our_words(
    broker: BrokerProcess, arguments: list[str], code: int, words: str
) -> None:
    admin = broker.admin[0].rstrip("/").rpartition(":")[2]
    values = {"admin": admin, "phpmq": broker.port, "here": "--url", "id": ""}
    place = ("--url", broker.admin[0])
    if "{here}" in arguments:
        ask("queue", "create", "q", *place)
    if "{id}" in arguments:
        ask("publish", "q", "--body", "a", *place)
        values["id"] = json.loads(ask("message", "list", "q", "-o", "json", *place).stdout)[0]["id"]
    result = ask(
        *(text.format(**values) for text in arguments), *place[1:] * ("{here}" in arguments)
    )
    assert words in result.stderr
    assert result.exit_code == code


def test_content_passed_as_data_gets_a_hint_to_body() -> None:
    result = ask("publish", "q", "--data", '{"id": 1}')
    assert 'the folder {"id": 1} does not exist; to pass content, use --body' in result.stderr
    assert result.exit_code == 2


@pytest.mark.parametrize("name", [name for name in COMMANDS if len(name) > 3])
def test_typo_in_a_command_gets_the_command(name: str) -> None:
    result = ask(name[:2] + name[3:])
    assert result.exit_code == 2
    assert name in result.stderr.partition("Did you mean")[2]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("serve", "--port", "9100"), "Use --listen HOST:PORT instead."),
        (("serve", "--log-level", "warn"), "Did you mean 'warning'?"),
        (("serve", "--log-format=jsn"), "Did you mean 'json'?"),
        (("clock", "decide", "expir"), "Did you mean 'expire'?"),
        (("consume", "q", "--limt", "3"), "Did you mean '--limit'?"),
    ],
)
def test_typo_in_an_option_or_its_value_gets_the_right_one(
    arguments: tuple[str, ...], hint: str
) -> None:
    result = ask(*arguments)
    assert result.exit_code == 2
    assert hint in " ".join(result.stderr.split())


def test_option_that_resembles_others_only_by_its_dashes_gets_no_hint() -> None:
    assert "Did you mean" not in ask("serve", "--prt").stderr


def test_typo_in_a_group_gets_its_command() -> None:
    assert "'create'" in ask("queue", "craete").stderr.partition("Did you mean")[2]
    assert "'archive'" in ask("pipeline", "archiv").stderr.partition("Did you mean")[2]
    result = ask("check", "redy")
    assert (result.exit_code, "'ready'" in result.stderr) == (3, True)


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
        envelope = ask("envelope", "create", "urn:babel:a:b", "--trace-id", trace_id).stdout
        url = ["--url", f"phpmq://{broker.phpmq[0]}"]
        ask("queue", "create", queue, *here)
        ask("queue", "set", queue, "payload_policy=observe", *here)
        ask("publish", queue, "--body", envelope, *url)
    rows = [json.loads(line) for line in ask("trace", trace_id, *here).stdout.splitlines()]
    assert [row["queue"] for row in rows] == ["second", "first"]
    missing = ask("trace", "nowhere", *here)
    assert missing.exit_code == 3
    assert missing.stderr == "Error: no message has the trace id 'nowhere'\n"


def test_search_without_hits_says_how_to_search_for_a_queue(broker: BrokerProcess) -> None:
    here = ["--data", str(broker.data)]
    ask("queue", "create", "orders", *here)
    assert "queue:orders" in ask("message", "search", "orders", *here).stderr
    assert "queue:nowhere*" in ask("message", "search", "nowhere", *here).stderr
    assert ask("message", "search", "state:dead", *here).stderr == "nothing matches\n"
